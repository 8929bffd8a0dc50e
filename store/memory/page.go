package memory

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

var (
	_ store.Pager     = (*Index)(nil)
	_ store.Forgetter = (*Index)(nil)
)

const (
	// defaultPage is the size of a page that is asked for with 0.
	defaultPage = 4096
	// pageStep is how many buckets are read under the lock of a shard.
	pageStep = 64
)

// pageCursor is where a walk is: all blocks of the shards before shard, and
// those of shard with lower tags than tag, have been given.
//
// A block's shard and tag come from its key alone. They stay the same while the
// index lives, wherever resizes and the janitor move the block.
type pageCursor struct {
	shard uint32
	tag   uint32
}

// text writes the cursor. It holds a mark of the index, since to another one it
// would mean nothing.
func (c pageCursor) text(x *Index) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], x.pageMark())
	binary.BigEndian.PutUint32(b[8:], c.shard)
	binary.BigEndian.PutUint32(b[12:], c.tag)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// pageMark tells this index from others. It is made of two secrets, so that it
// gives away neither.
func (x *Index) pageMark() uint64 {
	h := x.seed
	for _, v := range []uint64{x.factor, 1} {
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>32) + v
	}
	return h ^ h>>31
}

func (x *Index) parseCursor(s string) (c pageCursor, err error) {
	if s == "" {
		return c, nil
	}
	var b [17]byte
	if base64.RawURLEncoding.DecodedLen(len(s)) != 16 {
		return c, store.ErrCursor
	}
	if n, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(s)); err != nil || n != 16 {
		return c, store.ErrCursor
	}
	if binary.BigEndian.Uint64(b[:]) != x.pageMark() {
		return c, fmt.Errorf("%w: the index in memory that it belongs to has ended", store.ErrCursor)
	}
	c = pageCursor{binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	if c.shard >= numShards {
		return c, store.ErrCursor
	}
	return c, nil
}

// Page implements [store.Pager]. It holds the lock of one shard at a time, for
// some hundred blocks, and goes through a shard by ascending tags. It allocates
// the list of blocks only: their holders are the index's own sets.
func (x *Index) Page(ctx context.Context, cursor string, limit int) (store.Page, error) {
	if err := x.enter(ctx); err != nil {
		return store.Page{}, err
	}
	at, err := x.parseCursor(cursor)
	switch {
	case err != nil:
		return store.Page{}, err
	case limit < 0 || limit > store.MaxPage:
		return store.Page{}, fmt.Errorf("%w: a page of %d blocks, it can have 1 to %d", store.ErrInvalid, limit, store.MaxPage)
	case limit == 0:
		limit = defaultPage
	}
	var p store.Page
	p.Blocks = make([]store.Block, 0, min(int64(limit), x.blocks.Load())+pageStep*slots)
	for at.shard < numShards && len(p.Blocks) < limit {
		if err := x.enter(ctx); err != nil {
			return store.Page{}, err
		}
		p.Blocks, at = x.pageStep(p.Blocks, at)
	}
	if at.shard < numShards {
		p.Next = at.text(x)
	}
	// A holder that was found is in a registry that is read afterwards, unless its life has ended since.
	p.Registry = x.registry.current()
	p.Blocks = onlyLive(p.Blocks, p.Registry)
	return p, nil
}

// pageStep appends the blocks of the next buckets of a shard.
//
// The step is an interval of tags: those whose home is one of the next buckets.
// A block lies in its home or, when it did not fit, further on, as far as
// buckets say that something has passed them.
func (x *Index) pageStep(dst []store.Block, at pageCursor) ([]store.Block, pageCursor) {
	x.gate.RLock() // no set is freed while it is held
	defer x.gate.RUnlock()
	s := &x.shards[at.shard]
	s.mu.Lock()
	defer s.mu.Unlock()

	t := s.t
	first := t.home(at.tag)
	end := min(first+pageStep, len(t)) // the bucket after the last home
	next := pageCursor{shard: at.shard + 1}
	last := ^uint32(0)
	if end < len(t) {
		next = pageCursor{at.shard, t.firstTag(end)}
		last = next.tag - 1
	}
	i := first
	for n := range t {
		b := &t[i]
		for slot := range b.entries {
			e := atomic.LoadUint64(&b.entries[slot])
			tag := uint32(e >> 32)
			if e == 0 || tag < at.tag || tag > last {
				continue
			}
			pos := uint32(e)
			p := place{x.log.chunk(pos >> offBits), pos}
			if p.c == nil {
				continue // the index is being closed
			}
			if ids := x.sets.ids(atomic.LoadUint32(p.ref()) & setMask); len(ids) > 0 {
				dst = append(dst, store.Block{Key: p.key(), Holders: ids})
			}
		}
		if first+n+1 >= end && atomic.LoadUint32(&b.passed) == 0 {
			break
		}
		i = t.after(i)
	}
	return dst, next
}

// firstTag returns the lowest tag whose home is bucket i.
func (t table) firstTag(i int) uint32 {
	return uint32((uint64(i)<<32 + uint64(len(t)) - 1) / uint64(len(t)))
}

// onlyLive takes the ended holders and the predictions out of blocks, and the blocks without another holder.
// The sets are shared, so that most are looked at once.
func onlyLive(blocks []store.Block, r *store.Registry) []store.Block {
	known := map[*store.HolderID][]store.HolderID{}
	n := 0
	for _, b := range blocks {
		set := &b.Holders[0]
		live, ok := known[set]
		if !ok {
			live = b.Holders
			untold := func(id store.HolderID) bool { return !r.IsTold(id) }
			if slices.ContainsFunc(live, untold) {
				live = slices.DeleteFunc(slices.Clone(live), untold)
			}
			known[set] = live
		}
		if len(live) > 0 {
			blocks[n] = store.Block{Key: b.Key, Holders: live}
			n++
		}
	}
	clear(blocks[n:])
	return blocks[:n]
}

// Forget implements [store.Forgetter].
func (x *Index) Forget(ctx context.Context, model string) (known bool, err error) {
	if err := x.enter(ctx); err != nil {
		return false, err
	}
	g := &x.registry
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known = g.models[model]; known {
		// The old map belongs to snapshots.
		g.models = maps.Clone(g.models)
		delete(g.models, model)
		g.changed()
	}
	return known, nil
}
