package redis

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const (
	// mgetKeys is how many keys one MGET has at most: longer ones cost the
	// server more a key, and keep others waiting longer.
	mgetKeys = 512
	// tripKeys is how many keys one round trip reads at most, whatever the number
	// of queries and their windows.
	tripKeys = 1 << 14
)

// Lookup implements store.Index.
//
// It reads the chains in windows, those of all queries in one round trip. The
// epoch comes with the first of them; on a single server it is read in the same
// command as the blocks. So the registry that Begin gets is never older than
// the blocks, and who has been retired before the call is not in it:
//
//	A: reads blocks of holder 17 with epoch 7
//	B: retires the pod of holder 17: epoch 8
//	A: folds with the registry of epoch 7: an answer of before B's call
//	A: the next lookup reads epoch 8, loads the registry, and 17 is nobody
func (x *Index) Lookup(ctx context.Context, queries ...*store.Query) error {
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
		if q.Entries != nil && !x.config.Entries {
			return fmt.Errorf("%w: query %d is about entries of LMCache, which Config.Entries is not set for", store.ErrInvalid, i)
		}
	}
	if len(queries) == 0 {
		return x.space.Check(ctx, "lookup")
	}
	l := newLookup(x)
	defer l.free()
	for _, q := range queries {
		if q.Len() > 0 {
			l.open = append(l.open, chain{q: q})
		}
	}

	l.snap = x.registry.current.Load()
	err := x.space.Check(ctx, "lookup")
	if err == nil {
		var epoch uint64
		l.plan()
		epoch, err = l.read(ctx, true)
		if err == nil {
			l.snap, err = x.snapshotAt(ctx, epoch, l.snap)
		}
	}
	var met []string
	if err == nil && l.snap.open != nil {
		met = l.meet(queries)
	}
	l.snap = x.withGuests(l.snap, queries, met)
	for _, q := range queries {
		q.Fold.Begin(l.snap.registry)
	}
	for err == nil {
		l.fold()
		if len(l.open) == 0 {
			return nil
		}
		l.plan()
		_, err = l.read(ctx, false)
	}
	return keyspace.Failed(ctx, "lookup", err)
}

// registryAt returns the registry for blocks that were read at an epoch. With
// an error it returns the last one known.
func (x *Index) registryAt(ctx context.Context, epoch uint64, known *store.Registry) (*store.Registry, error) {
	s, err := x.snapshotAt(ctx, epoch, nil)
	if err != nil {
		return known, err
	}
	return s.registry, nil
}

// snapshotAt is registryAt with what the registry has been made of.
func (x *Index) snapshotAt(ctx context.Context, epoch uint64, known *snapshot) (*snapshot, error) {
	if s := x.registry.current.Load(); s.fresh(epoch) {
		return s, nil
	}
	s, err := x.load(ctx, func(s *snapshot) bool { return s.fresh(epoch) })
	if err != nil {
		return known, err
	}
	return s, nil
}

// lookup is the working memory of one call of Lookup.
type lookup struct {
	x    *Index
	open []chain // what is not answered yet
	snap *snapshot

	names []byte   // the key names of a round trip
	keys  []string // the same one by one
	args  []any
	// groups are the partitions of a cluster's round trip.
	groups [blockkey.Partitions][]int
	// entries are what it reads of others, see entries.go.
	entries []entryRead
	spans   []span // where the values of the replies lie
	order   []span // those of a cluster's replies, in the order of the keys
	vals    []span // those of the keys: a part of spans, or order
	buf     []byte // what they lie in: the reply itself or, of several, joined
	joined  []byte
	ids     []store.HolderID
	next    []store.HolderID
	over    []*store.Query // leads whose folders have enough, since fold began
}

// chain is the state of one query.
type chain struct {
	q *store.Query
	// at is the next block to read, n how many of them this round trip reads,
	// window which window that is.
	at, n, window int
	// from is where the values of those begin in vals or, of entries, which of the
	// lookup's they are.
	from int
}

// parts is how many keys make a block.
func (c *chain) parts() int {
	if c.q.Entries != nil {
		return max(1, c.q.Entries.Parts)
	}
	return 1
}

// lookups are those that wait for their next use.
var lookups sync.Pool

func newLookup(x *Index) *lookup {
	l, ok := lookups.Get().(*lookup)
	if !ok {
		l = new(lookup)
	}
	l.x, l.open = x, l.open[:0]
	return l
}

// maxIdle is how much memory a lookup may hold on to while it is not used.
const maxIdle = 1 << 20

func (l *lookup) free() {
	l.x, l.snap = nil, nil
	clear(l.open[:cap(l.open)])
	clear(l.entries[:cap(l.entries)])
	l.entries = l.entries[:0] // the next may read blocks only
	clear(l.over[:cap(l.over)])
	clear(l.keys)
	clear(l.args)
	l.buf = nil
	if cap(l.names) > maxIdle || cap(l.joined) > maxIdle || cap(l.ids) > maxIdle/4 {
		*l = lookup{}
	}
	lookups.Put(l)
}

// plan fixes what the next round trip reads, and writes down the names.
func (l *lookup) plan() {
	left := tripKeys
	for i := range l.open {
		if c := &l.open[i]; c.q.Lead == nil {
			c.n = min(l.window(c), left/c.parts())
			left -= c.n * c.parts()
		}
	}
	for i := range l.open {
		if c := &l.open[i]; c.q.Lead != nil {
			c.n = min(l.beside(i), left/c.parts())
			left -= c.n * c.parts()
		}
	}
	l.names, l.entries = l.names[:0], l.entries[:0]
	keys, others := 0, 0
	for i := range l.open {
		c := &l.open[i]
		if e := c.q.Entries; e != nil {
			c.from = len(l.entries)
			p := c.parts()
			l.entries = append(l.entries, entryRead{form: e.Form, parts: p, names: e.Names[c.at*p : (c.at+c.n)*p]})
			others += c.n * p
			continue
		}
		c.from = keys
		keys += c.n
		for _, k := range c.q.Keys[c.at : c.at+c.n] {
			l.names = l.x.space.Names.AppendBlock(l.names, k.In(c.q.Model))
		}
	}
	l.split()
	l.x.keysRead.Add(uint64(keys + others))
}

// window returns how many blocks of a chain its next window has. One also takes a rest
// that is no longer than itself: a chain of two windows is one round trip, for at most
// as many keys again where nobody holds it.
func (l *lookup) window(c *chain) int {
	windows := l.x.config.Windows
	n := windows[min(c.window, len(windows)-1)]
	if rest := c.q.Len() - c.at; rest <= 2*n {
		return rest
	}
	return n
}

// beside returns how many blocks of a chain have tokens of its lead's present window.
// Leads stand behind who goes along with them; one that is not there has been read
// wholly.
func (l *lookup) beside(i int) int {
	c := &l.open[i]
	rest := c.q.Len() - c.at
	for j := i + 1; j < len(l.open) && c.q.Span > 0; j++ {
		if lead := &l.open[j]; lead.q == c.q.Lead {
			tokens := (lead.at + lead.n) * lead.q.Span
			return min(max(0, (tokens+c.q.Span-1)/c.q.Span-c.at), rest)
		}
	}
	return rest
}

// split makes the single names of all of them.
func (l *lookup) split() {
	clear(l.keys)
	l.keys = l.keys[:0]
	n := l.x.space.Names.BlockLen()
	for all := string(l.names); len(all) > 0; all = all[n:] {
		l.keys = append(l.keys, all[:n])
	}
}

// fetch reads blocks without a query. Their values are in the vals of the
// lookup that it returns, which must be freed also after an error.
func (x *Index) fetch(ctx context.Context, keys []blockkey.StoreKey) (*lookup, error) {
	l := newLookup(x)
	l.names = l.names[:0]
	for _, k := range keys {
		l.names = x.space.Names.AppendBlock(l.names, k)
	}
	l.split()
	_, err := l.read(ctx, false)
	return l, err
}

// read reads the keys in one round trip. first reports whether the epoch is to be
// read too.
func (l *lookup) read(ctx context.Context, first bool) (epoch uint64, err error) {
	l.spans = l.spans[:0]
	if l.x.space.Cluster {
		return l.readCluster(ctx, first)
	}
	return l.readServer(ctx, first)
}

// readServer reads from a single server: MGETs of at most mgetKeys keys, the
// first of which has the epoch in front.
func (l *lookup) readServer(ctx context.Context, first bool) (epoch uint64, err error) {
	x := l.x
	var cmds []*redis.RawCmd
	clear(l.args)
	l.args = slices.Grow(l.args[:0], len(l.keys)+2+len(l.keys)/mgetKeys)
	counts := make([]int, 0, 1+len(l.keys)/mgetKeys)
	for at := 0; at < len(l.keys) || at == 0 && first; at += mgetKeys {
		begin := len(l.args)
		l.args = append(l.args, "mget")
		if first && at == 0 {
			l.args = append(l.args, &x.space.Names.Epoch)
		}
		for i := at; i < min(at+mgetKeys, len(l.keys)); i++ {
			l.args = append(l.args, &l.keys[i])
		}
		args := l.args[begin:len(l.args):len(l.args)]
		cmds = append(cmds, redis.NewRawCmd(ctx, args...))
		counts = append(counts, len(args)-1)
	}
	x.space.Trips.Add(1)
	if err := l.process(ctx, cmds); err != nil {
		return 0, err
	}
	l.buf = nil
	if len(cmds) == 1 {
		l.buf = cmds[0].Val()
	} else {
		l.joined = l.joined[:0]
		for _, c := range cmds {
			l.joined = append(l.joined, c.Val()...)
		}
		l.buf = l.joined
	}
	at := 0
	for i, c := range cmds {
		if l.spans, err = readArray(l.spans, l.buf, at, counts[i]); err != nil {
			return 0, err
		}
		at += len(c.Val())
	}
	l.vals = l.spans
	if first {
		v, _ := l.spans[0].of(l.buf)
		l.vals = l.spans[1:]
		return x.space.EpochOf(string(v)), nil
	}
	return 0, nil
}

// process runs commands, and those of the entries, in one round trip.
func (l *lookup) process(ctx context.Context, cmds []*redis.RawCmd) error {
	x := l.x
	if len(l.entries) == 0 {
		return l.processBlocks(ctx, cmds)
	}
	if x.source != nil {
		wait := x.source.begin(ctx, l)
		err := l.processBlocks(ctx, cmds)
		wait()
		if err != nil {
			return err
		}
		return l.takeEntries()
	}
	pipe := x.space.Client.Pipeline()
	for _, c := range cmds {
		_ = pipe.Process(ctx, c)
	}
	l.askEntries(ctx, pipe)
	// The pipeline's error is that of some command, and each is looked at.
	_, _ = pipe.Exec(ctx)
	for _, c := range cmds {
		if err := c.Err(); err != nil {
			return err
		}
	}
	return l.takeEntries()
}

// processBlocks is process of blocks alone.
func (l *lookup) processBlocks(ctx context.Context, cmds []*redis.RawCmd) error {
	switch len(cmds) {
	case 0:
		return nil
	case 1:
		return l.x.space.Client.Process(ctx, cmds[0])
	}
	pipe := l.x.space.Client.Pipeline()
	for _, c := range cmds {
		_ = pipe.Process(ctx, c)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// fold hands what has been read to the folders, and closes the chains that are
// answered, together with those that go along with them.
func (l *lookup) fold() {
	left := l.open[:0]
	l.over = l.over[:0]
	for _, c := range l.open {
		var more bool
		if c.q.Entries != nil {
			more = l.entryRuns(&c)
		} else {
			more = l.runs(&c, l.vals[c.from:c.from+c.n])
		}
		c.at += c.n
		if c.n > 0 {
			c.window++
		}
		if more && c.at < c.q.Len() {
			left = append(left, c)
		}
		if !more && c.q.Lead == nil {
			l.over = append(l.over, c.q)
		}
	}
	if len(l.over) > 0 && len(left) > 0 {
		left = slices.DeleteFunc(left, func(c chain) bool { return c.q.Lead != nil && slices.Contains(l.over, c.q.Lead) })
	}
	l.open = left
}

// runs tells a folder of the blocks of one window, equal neighbours at once.
func (l *lookup) runs(c *chain, vals []span) (more bool) {
	for i := 0; i < len(vals); {
		v, held := vals[i].of(l.buf)
		n := 1
		for i+n < len(vals) {
			next, ok := vals[i+n].of(l.buf)
			if ok != held || !bytes.Equal(next, v) {
				break
			}
			n++
		}
		l.ids = l.ids[:0]
		if held {
			var ok bool
			if l.ids, ok = keyspace.AppendHolders(l.ids, v); !ok {
				l.ids = l.x.unread(l.ids, v, l.snap, n)
			}
		}
		if !c.q.Fold.Run(n, l.ids) {
			return false
		}
		i += n
	}
	return true
}
