package blocks

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const (
	// PageScan is the COUNT of a walk's SCAN, which takes the server up to 3 us a key when
	// there are millions.
	PageScan = 256
	// PageSteps is how many of them a page takes at most. A server that is full of others' keys would
	// keep a caller for as long as it takes to find a page of blocks. A caller that has no such time
	// would never get on.
	PageSteps = 256
	// MoveRest is how long to rest when slots are on the move.
	MoveRest = 100 * time.Millisecond
)

// Cursor is where a walk is, which goes through the masters one after the other, by SCAN, and keeps no
// state but its cursor:
//
//	Done  the partitions that are complete
//	Mask  those that the present master owned when its SCAN began
//	run   the run id of that master
//	scan  the cursor of its SCAN
//
// SCAN promises that it gives what is there from its beginning to its end, but
// only if it is one server all along. Another one, after a failover or a
// restart, orders its keys otherwise. So the run id is read along with each
// step, and when it has changed the partitions of Mask begin anew.
//
// What is found of any partition that is not done is given, on whichever master. But
// Mask is done only when the master owns it still at the end, with no slot of it
// on the move, since else
//
//	walk: has scanned master A, is scanning B
//	A takes slot 7 from B, key by key
//
// and the keys that B had not shown yet are where the walk has already been.
type Cursor struct {
	Done, Mask uint64
	run        [20]byte
	scan       uint64
}

const (
	cursorBytes   = 1 + 4 + 8 + 8 + 20 + 8
	cursorVersion = 1
)

// seal is what binds a cursor to an index, and tells when it has been changed.
func seal(prefix string, b []byte) uint32 {
	return uint32(xxh3.HashSeed(append([]byte(prefix), b[5:cursorBytes]...), uint64(b[0])))
}

// Anew is the cursor with which the present master's partitions begin anew.
func (c *Cursor) Anew() Cursor { return Cursor{Done: c.Done} }

// Shown reports whether the present master has shown all, as of the step before.
func (c *Cursor) Shown() bool { return c.Mask != 0 && c.scan == 0 }

// Text is the cursor as callers keep it, for an index with this prefix.
func (c *Cursor) Text(prefix string) string {
	var b [cursorBytes]byte
	b[0] = cursorVersion
	binary.BigEndian.PutUint64(b[5:], c.Done)
	binary.BigEndian.PutUint64(b[13:], c.Mask)
	copy(b[21:], c.run[:])
	binary.BigEndian.PutUint64(b[41:], c.scan)
	binary.BigEndian.PutUint32(b[1:], seal(prefix, b[:]))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ParseCursor reads it back; "" is the beginning. Any other is store.ErrCursor.
func ParseCursor(prefix, s string) (c Cursor, err error) {
	if s == "" {
		return c, nil
	}
	if len(s) != base64.RawURLEncoding.EncodedLen(cursorBytes) {
		return c, store.ErrCursor
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || b[0] != cursorVersion || binary.BigEndian.Uint32(b[1:]) != seal(prefix, b) {
		return c, store.ErrCursor
	}
	c.Done = binary.BigEndian.Uint64(b[5:])
	c.Mask = binary.BigEndian.Uint64(b[13:])
	copy(c.run[:], b[21:])
	c.scan = binary.BigEndian.Uint64(b[41:])
	return c, nil
}

// AllPartitions has a bit for each partition.
const AllPartitions = 1<<blockkey.Partitions - 1

// Pager makes one page of all blocks. It is for one goroutine.
type Pager struct {
	// At is where the walk is, Blocks what it has found since the pager was made.
	At     Cursor
	Blocks []store.Block
	// Sets are the holders by the text of a value; blocks of one text share them.
	Sets map[string][]store.HolderID
	// Epoch is that of the registry as of the last read, Read whether there was one.
	Epoch uint64
	Read  bool
	// Texts is true when some value was texts, which are left out.
	Texts bool

	space *keyspace.Space
	texts bool          // values may be texts
	node  *redis.Client // the present master, when it is known
	steps int
}

// NewPager makes a pager that goes on from a cursor. texts says that values may be texts;
// else they are garbled.
func NewPager(space *keyspace.Space, texts bool, at Cursor) *Pager {
	return &Pager{space: space, texts: texts, At: at, Sets: map[string][]store.HolderID{}}
}

// Room reports whether there may be more in the page.
func (p *Pager) Room(limit int) bool { return len(p.Blocks) < limit && p.steps < PageSteps }

// Walk goes on through one master until that has shown all, or the page is full. Result
// same is false when the server is not the one that the SCAN began on.
func (p *Pager) Walk(ctx context.Context, limit int) (same bool, err error) {
	if p.At.Mask == 0 {
		if err := p.choose(ctx); err != nil {
			return false, err
		}
	}
	if p.node == nil {
		if p.node, err = p.master(ctx, p.At.Mask); err != nil {
			return false, err
		}
	}
	for found := p.scan(ctx, p.At.scan); ; {
		p.steps++
		if found.err != nil || found.run != p.At.run {
			return false, found.err
		}
		keys := p.parse(found.names)
		// The server looks for the next names while this process reads these ones' values.
		var ahead chan scanned
		if found.next != 0 && len(p.Blocks)+len(keys) < limit && p.steps < PageSteps {
			ahead = make(chan scanned, 1)
			go func(at uint64) { ahead <- p.scan(ctx, at) }(found.next)
		}
		for part := range slices.Chunk(keys, PageScan) {
			if err = p.Fetch(ctx, part); err != nil {
				break
			}
		}
		next := found.next
		if ahead != nil {
			found = <-ahead
		}
		if err != nil {
			return false, err
		}
		p.At.scan = next
		if next == 0 || !p.Room(limit) {
			return true, nil
		}
		if ahead == nil { // fewer blocks than names
			found = p.scan(ctx, next)
		}
	}
}

// master returns the client of the master that owns the first partition of a
// mask.
func (p *Pager) master(ctx context.Context, mask uint64) (*redis.Client, error) {
	switch c := p.space.Client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, p.space.Names.High(bits.TrailingZeros64(mask)))
	}
	return nil, fmt.Errorf("redis: a client of type %T cannot be scanned", p.space.Client)
}

// choose begins with the master of the first partition that is not done.
func (p *Pager) choose(ctx context.Context) (err error) {
	left := ^p.At.Done
	for try := 0; ; try++ {
		if p.node, err = p.master(ctx, left); err != nil {
			return err
		}
		owned, _, run, err := p.ask(ctx)
		if err != nil {
			return err
		}
		if owned&(left&-left) != 0 {
			p.At = Cursor{Done: p.At.Done, Mask: owned & left, run: run}
			return nil
		}
		// The client's picture of the cluster is outdated.
		c, ok := p.space.Client.(*redis.ClusterClient)
		if !ok || try == 2 {
			return fmt.Errorf("redis: no master owns slot %d", keyspace.SlotOf(bits.TrailingZeros64(left)))
		}
		c.ReloadState(ctx)
		if err := keyspace.Sleep(ctx, MoveRest); err != nil {
			return err
		}
	}
}

// ask asks the node which partitions it owns as a master, which of them have no
// slot on the move, and for its run id.
func (p *Pager) ask(ctx context.Context) (owned, still uint64, run [20]byte, err error) {
	pipe := p.node.Pipeline()
	info := pipe.Info(ctx, "server")
	var nodes *redis.StringCmd
	if p.space.Cluster {
		nodes = pipe.ClusterNodes(ctx)
	}
	p.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, run, err
	}
	if run, err = parseRun(info.Val()); err != nil || nodes == nil {
		return AllPartitions, AllPartitions, run, err
	}
	owned, still = ownPartitions(nodes.Val())
	return owned, still, run, nil
}

func parseRun(info string) (run [20]byte, err error) {
	_, rest, _ := strings.Cut(info, "run_id:")
	if len(rest) >= 40 {
		if _, err = hex.Decode(run[:], []byte(rest[:40])); err == nil {
			return run, nil
		}
	}
	return run, fmt.Errorf("%w: INFO has no run_id of 40 hex digits", keyspace.ErrProtocol)
}

// ownPartitions reads the line "myself" of CLUSTER NODES:
//
//	id address flags master ping pong epoch link slot slot-slot [slot->-id] [slot-<-id]
//
// The last two are a slot that goes and one that comes; still leaves them out.
func ownPartitions(nodes string) (owned, still uint64) {
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.Contains(f[2], "myself") || !strings.Contains(f[2], "master") {
			continue
		}
		var own, moving [1 << 14]bool
		for _, s := range f[8:] {
			if move, ok := strings.CutPrefix(s, "["); ok {
				slot, _, _ := strings.Cut(move, "-")
				if n, err := strconv.ParseUint(slot, 10, 14); err == nil {
					moving[n] = true
				}
				continue
			}
			first, last, ok := strings.Cut(s, "-")
			if !ok {
				last = first
			}
			from, err1 := strconv.ParseUint(first, 10, 14)
			to, err2 := strconv.ParseUint(last, 10, 14)
			if err1 != nil || err2 != nil {
				continue
			}
			for n := from; n <= to; n++ {
				own[n] = true
			}
		}
		for part := range blockkey.Partitions {
			n := keyspace.SlotOf(part)
			if own[n] {
				owned |= 1 << part
			}
			if own[n] && !moving[n] {
				still |= 1 << part
			}
		}
	}
	return owned, still
}

// scanned is what one SCAN has found, on which run of which server.
type scanned struct {
	names []string
	next  uint64
	run   [20]byte
	err   error
}

// scan makes one SCAN. It only reads p.
func (p *Pager) scan(ctx context.Context, at uint64) (s scanned) {
	pipe := p.node.Pipeline()
	info := pipe.Info(ctx, "server")
	scan := pipe.Scan(ctx, at, p.space.Names.Prefix+"{*", PageScan)
	p.space.Trips.Add(1)
	if _, s.err = pipe.Exec(ctx); s.err != nil {
		return s
	}
	s.names, s.next = scan.Val()
	s.run, s.err = parseRun(info.Val())
	return s
}

// parse returns the blocks that names of keys are, in the order of their partitions, without
// those of partitions that are done. A SCAN may find a name twice.
func (p *Pager) parse(names []string) (keys []blockkey.StoreKey) {
	for _, name := range names {
		if k, ok := p.space.Names.ParseBlock(name); ok && p.At.Done>>k.Partition()&1 == 0 {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, ByPartition)
	return slices.Compact(keys)
}

// Fetch reads the holders of blocks, and the epoch along with it.
func (p *Pager) Fetch(ctx context.Context, keys []blockkey.StoreKey) (err error) {
	b := Get(p.space)
	defer b.Free()
	b.Add(keys...)
	if p.Epoch, err = b.Read(ctx, true, nil); err != nil {
		return err
	}
	p.Read = true
	for i, k := range keys {
		v, held := b.Value(i)
		if !held {
			continue
		}
		ids, known := p.Sets[string(v)]
		if !known {
			var ok bool
			// Texts age and are written again: they are not in pages.
			if ids, ok = keyspace.AppendHolders(nil, v); !ok {
				if p.texts && keyspace.IsText(v) {
					p.Texts = true
				} else {
					p.space.Garbled.Add(1)
				}
			}
			p.Sets[string(v)] = ids
		}
		if len(ids) > 0 {
			p.Blocks = append(p.Blocks, store.Block{Key: k, Holders: ids})
		}
	}
	return nil
}

// Same reports whether the master is still the server that the SCAN began on.
func (p *Pager) Same(ctx context.Context) (bool, error) {
	_, _, run, err := p.ask(ctx)
	return run == p.At.run, err
}

// Finish ends the SCAN of a master. more is false when nothing is done with it,
// since slots are on the move.
func (p *Pager) Finish(ctx context.Context) (more bool, err error) {
	_, still, run, err := p.ask(ctx)
	if err != nil {
		return false, err
	}
	if run != p.At.run {
		still = 0
	}
	more = p.At.Mask&still != 0
	p.At = Cursor{Done: p.At.Done | p.At.Mask&still}
	p.node = nil
	if !more {
		err = keyspace.Sleep(ctx, MoveRest)
	}
	return more, err
}

// ByPartition compares keys by partition and then by themselves: the partition is in
// their lowest bits.
func ByPartition(a, b blockkey.StoreKey) int {
	const width = 6 // of blockkey.Partitions
	return cmp.Compare(bits.RotateLeft64(uint64(a), -width), bits.RotateLeft64(uint64(b), -width))
}

var _ = [1]int{blockkey.Partitions - 1<<6: 0} // or width is another
