package redis

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/external"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

const (
	// tripKeys is how many keys one round trip reads at most, whatever the number
	// of queries and their windows.
	tripKeys = 1 << 14
)

// Lookup implements store.Index.
//
// It reads the chains in windows, those of all queries in one round trip. The
// epoch comes with the first of them; on a single server it is read in the same
// command as the blocks. So the registry that Begin gets is never older than
// the blocks, and a pod that was retired before the call is not in it:
//
//	A: reads blocks of holder 17 with epoch 7
//	B: retires the pod of holder 17: epoch 8
//	A: folds with the registry of epoch 7: an answer of before B's call
//	A: the next lookup reads epoch 8, loads the registry, and 17 does not count
func (x *Index) Lookup(ctx context.Context, queries ...*store.Query) error {
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
		if q.Beside == nil {
			continue
		}
		if _, known := q.Beside.(*lmcache.EntryNames); !known {
			return fmt.Errorf("%w: query %d is about a %T, and only entries of LMCache are read", store.ErrInvalid, i, q.Beside)
		}
		if !x.config.Entries {
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
			entries, _ := q.Beside.(*lmcache.EntryNames)
			l.open = append(l.open, chain{q: q, entries: entries})
		}
	}

	l.snap = x.roster.Current()
	err := x.space.Check(ctx, "lookup")
	if err == nil {
		var epoch uint64
		l.plan()
		epoch, err = l.read(ctx, true)
		if err == nil {
			l.snap, err = x.roster.At(ctx, epoch, l.snap)
		}
	}
	var met []string
	if err == nil && l.snap.OpensAny() {
		met = l.meet(queries)
	}
	l.snap = x.roster.WithGuests(l.snap, queries, met)
	for _, q := range queries {
		q.Fold.Begin(l.snap.Registry)
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

// lookup is the working memory of one call of Lookup.
type lookup struct {
	x    *Index
	open []chain // what is not answered yet
	snap *roster.Snapshot

	batch   *blocks.Batch
	entries external.Round // what it reads of others
	reader  keyspace.HolderReader
	ids     []store.HolderID // of a value that the reader does not read
	over    []*store.Query   // leads whose folders have enough, since fold began
}

// chain is the state of one query.
type chain struct {
	q       *store.Query
	entries *lmcache.EntryNames // what it is about; nil for blocks of the index
	// at is the next block to read, n how many of them this round trip reads,
	// window which window that is.
	at, n, window int
	// from is where the values of those begin in vals or, of entries, which of the
	// lookup's they are.
	from int
}

// parts is how many keys make a block.
func (c *chain) parts() int {
	if c.entries != nil {
		return max(1, c.entries.Parts)
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
	l.x, l.open, l.batch = x, l.open[:0], blocks.Get(x.space)
	return l
}

func (l *lookup) free() {
	l.batch.Free()
	clear(l.open[:cap(l.open)])
	l.entries.Reset(nil) // the next may read blocks only
	clear(l.over[:cap(l.over)])
	l.x, l.snap, l.batch = nil, nil, nil
	l.reader.Forget()
	if l.reader.Held() > 1<<18 {
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
	l.batch.Reset()
	l.entries.Reset(l.x.external)
	keys, others := 0, 0
	for i := range l.open {
		c := &l.open[i]
		if c.entries != nil {
			c.from = l.entries.Add(c.entries, c.at, c.n)
			others += c.n * c.parts()
			continue
		}
		c.from = keys
		keys += c.n
		for _, k := range c.q.Keys[c.at : c.at+c.n] {
			l.batch.Add(k.In(c.q.Model))
		}
	}
	l.x.keysRead.Add(uint64(keys + others))
}

// window returns how many blocks of a chain its next window has. One also takes a rest that
// is no longer than itself. So a chain of two windows is one round trip, for at most as many
// keys again where it is not held.
func (l *lookup) window(c *chain) int {
	windows := l.x.config.Windows
	n := windows[min(c.window, len(windows)-1)]
	if c.window >= len(windows) {
		n = max(n, c.at/2)
	}
	if rest := c.q.Len() - c.at; rest <= 2*n {
		return rest
	}
	return n
}

// beside returns how many blocks of a chain have tokens of its lead's present window.
// Leads stand behind the queries that go along with them; one that is not there has been read
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

// fold hands what has been read to the folders, and closes the chains that are
// answered, together with those that go along with them.
func (l *lookup) fold() {
	left := l.open[:0]
	l.over = l.over[:0]
	for _, c := range l.open {
		var more bool
		if c.entries != nil {
			more = l.entries.Fold(c.from, l.snap.Owners(c.q.Model), c.q.Fold)
		} else {
			more = l.runs(&c)
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

// read reads what is planned in one round trip, with the epoch if first.
func (l *lookup) read(ctx context.Context, first bool) (epoch uint64, err error) {
	var rider blocks.Rider
	if l.entries.Len() > 0 {
		rider = &l.entries
	}
	return l.batch.Read(ctx, first, rider)
}

// runs tells a folder of the blocks of one window, equal neighbours at once.
func (l *lookup) runs(c *chain) (more bool) {
	l.reader.Forget() // values of other windows
	for i := 0; i < c.n; {
		v, held := l.batch.Value(c.from + i)
		n := 1
		for i+n < c.n {
			next, ok := l.batch.Value(c.from + i + n)
			if ok != held || !bytes.Equal(next, v) {
				break
			}
			n++
		}
		var ids []store.HolderID
		if held {
			var ok bool
			if ids, ok = l.reader.Read(v); !ok {
				l.ids = l.x.unread(l.ids[:0], v, l.snap, n)
				ids = l.ids
			}
		}
		if !c.q.Fold.Run(n, ids) {
			return false
		}
		i += n
	}
	return true
}

// unread takes in that n blocks of a lookup have a value that is no list of ids.
func (x *Index) unread(ids []store.HolderID, v []byte, s *roster.Snapshot, n int) []store.HolderID {
	if x.config.TextAge < 0 || !keyspace.IsText(v) {
		x.space.Garbled.Add(uint64(n))
		return ids
	}
	x.space.Texts.Add(uint64(n))
	x.textsThere.Store(true)
	before := len(ids)
	ids, _ = s.AppendTexts(ids, v)
	if len(ids) == before {
		x.space.UnknownTexts.Add(uint64(n))
	}
	return ids
}
