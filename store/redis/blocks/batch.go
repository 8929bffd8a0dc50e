// Package blocks reads the blocks of an index. It reads many in one round trip, with a Rider
// beside the MGETs, and all of them page by page, by SCAN.
package blocks

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// mgetKeys is how many keys one MGET has at most: longer ones cost the
// server more a key, and keep others waiting longer.
const mgetKeys = 512

// Rider is what a read takes along: commands of its own in the round trip of the blocks, and
// what it makes of their replies. An error of a command is the rider's business.
type Rider interface {
	// AskBeside puts the commands into the pipeline, or asks another server meanwhile, for
	// which wait waits. It is called again where the round trip is made again.
	AskBeside(ctx context.Context, pipe redis.Pipeliner) (wait func())
	// TakeReplies is called when the round trip is over, unless the blocks could not be read.
	// Its error ends the read.
	TakeReplies() error
}

// Batch reads the values of many blocks in one round trip. It is the working memory of that,
// for one goroutine; the zero value needs Reset.
type Batch struct {
	space *keyspace.Space

	names []byte   // the key names of a round trip
	keys  []string // the same one by one
	args  []any
	// groups are the partitions of a cluster's round trip.
	groups [blockkey.Partitions][]int
	spans  []span // where the values of the replies lie
	order  []span // those of a cluster's replies, in the order of the keys
	vals   []span // those of the keys: a part of spans, or order
	buf    []byte // what they lie in
	joined []byte // replies, one behind the other
}

// batches are those that wait for their next use.
var batches sync.Pool

// maxIdle is how much memory a batch may hold on to while it is not used.
const maxIdle = 4 << 20

// Get returns a batch without blocks. It is given back with Free.
func Get(space *keyspace.Space) *Batch {
	b, ok := batches.Get().(*Batch)
	if !ok {
		b = new(Batch)
	}
	b.space = space
	b.Reset()
	return b
}

// Free gives the batch back. What Value returned is good no more.
func (b *Batch) Free() {
	b.space, b.buf = nil, nil
	clear(b.keys)
	clear(b.args)
	if cap(b.names) > maxIdle || cap(b.joined) > maxIdle {
		*b = Batch{}
	}
	batches.Put(b)
}

// Reset takes the blocks out.
func (b *Batch) Reset() { b.names = b.names[:0] }

// Add adds blocks.
func (b *Batch) Add(keys ...blockkey.StoreKey) {
	for _, k := range keys {
		b.names = b.space.Names.AppendBlock(b.names, k)
	}
}

// Value returns the value of block i until the next Read; ok is false for none.
func (b *Batch) Value(i int) (v []byte, ok bool) { return b.vals[i].of(b.buf) }

// Fetch reads blocks. The batch must be freed also after an error.
func Fetch(ctx context.Context, space *keyspace.Space, keys []blockkey.StoreKey) (*Batch, error) {
	b := Get(space)
	b.Add(keys...)
	_, err := b.Read(ctx, false, nil)
	return b, err
}

// split makes the single names of all of them.
func (b *Batch) split() {
	clear(b.keys)
	b.keys = b.keys[:0]
	n := b.space.Names.BlockLen()
	for all := string(b.names); len(all) > 0; all = all[n:] {
		b.keys = append(b.keys, all[:n])
	}
}

// Read reads the blocks in one round trip, with the epoch of the registry if epoch is true.
// On a single server the epoch is in the same command as the first of them. A nil rider means
// none.
func (b *Batch) Read(ctx context.Context, epoch bool, rider Rider) (uint64, error) {
	b.split()
	b.spans = b.spans[:0]
	if b.space.Cluster {
		return b.readCluster(ctx, epoch, rider)
	}
	return b.readServer(ctx, epoch, rider)
}

// readServer reads from a single server: MGETs of at most mgetKeys keys, the
// first of which has the epoch in front.
func (b *Batch) readServer(ctx context.Context, first bool, rider Rider) (epoch uint64, err error) {
	clear(b.args)
	b.args = slices.Grow(b.args[:0], len(b.keys)+2+len(b.keys)/mgetKeys)
	var lists [][]any
	for at := 0; at < len(b.keys) || at == 0 && first; at += mgetKeys {
		begin := len(b.args)
		b.args = append(b.args, "mget")
		if first && at == 0 {
			b.args = append(b.args, &b.space.Names.Epoch)
		}
		for i := at; i < min(at+mgetKeys, len(b.keys)); i++ {
			b.args = append(b.args, &b.keys[i])
		}
		lists = append(lists, b.args[begin:len(b.args):len(b.args)])
	}
	b.space.Trips.Add(1)
	begins, err := b.stream(ctx, lists, rider)
	if err != nil {
		return 0, err
	}
	b.buf = b.joined
	for i, list := range lists {
		if b.spans, err = readArray(b.spans, b.buf, begins[i], len(list)-1); err != nil {
			return 0, err
		}
	}
	b.vals = b.spans
	if first {
		v, _ := b.spans[0].of(b.buf)
		b.vals = b.spans[1:]
		return b.space.EpochOf(string(v)), nil
	}
	return 0, nil
}

// tries is how often a read is made where the connection fails, as the client makes other
// commands.
const tries = 2

// stream reads the replies to commands, and those of the rider, one behind the other into the
// batch's memory, and returns where each begins.
//
// The client would read a raw reply into a slice that grows by a quarter each time. Where a
// value has a thousand holders, that is most of the work of a lookup. It does not repeat a
// command that writes its reply elsewhere, so that stream does.
func (b *Batch) stream(ctx context.Context, lists [][]any, rider Rider) (begins []int, err error) {
	cmds := make([]*redisx.RawInto, len(lists))
	for try := 1; ; try++ {
		b.joined = b.joined[:0]
		for i, args := range lists {
			cmds[i] = redisx.NewRawInto(ctx, &b.joined, args...)
		}
		if rider == nil {
			err = process(ctx, b.space.Client, cmds)
		} else {
			err = processBeside(ctx, b.space.Client, cmds, rider)
		}
		if err == nil {
			break
		}
		if try == tries || ctx.Err() != nil {
			return nil, err
		}
	}
	if rider != nil {
		if err := rider.TakeReplies(); err != nil {
			return nil, err
		}
	}
	begins = make([]int, len(cmds))
	for i, c := range cmds {
		begins[i] = c.Begin()
	}
	return begins, nil
}

// process runs commands in one round trip.
func process(ctx context.Context, client redis.UniversalClient, cmds []*redisx.RawInto) error {
	if len(cmds) == 1 {
		return client.Process(ctx, cmds[0])
	}
	pipe := client.Pipeline()
	for _, c := range cmds {
		_ = pipe.Process(ctx, c)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// processBeside runs commands, and those of the rider, in one round trip.
func processBeside(ctx context.Context, client redis.UniversalClient, cmds []*redisx.RawInto, rider Rider) error {
	pipe := client.Pipeline()
	for _, c := range cmds {
		_ = pipe.Process(ctx, c)
	}
	wait := rider.AskBeside(ctx, pipe)
	// The pipeline's error is that of some command, and each is looked at.
	_, _ = pipe.Exec(ctx)
	wait()
	for _, c := range cmds {
		if err := c.Err(); err != nil {
			return err
		}
	}
	return nil
}
