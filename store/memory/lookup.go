package memory

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// maxAhead is how many blocks are looked for at once when they do not lie
	// beside each other. More would overlap no more cache misses.
	maxAhead = 32
	// checkEvery is after how many blocks a lookup looks at its context.
	checkEvery = 1024
)

// Lookup implements [store.Index]. It allocates nothing. A deadline does not end it,
// since nothing in it waits. One that has passed says that this process was not
// running, and the answer is there at once. A context that is canceled does.
func (x *Index) Lookup(ctx context.Context, queries ...*store.Query) error {
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
		if q.Beside != nil {
			return fmt.Errorf("%w: query %d is about entries of another program, and this index is in memory", store.ErrInvalid, i)
		}
	}
	// The registry comes first: each holder of a block that was added before is in it.
	r := x.registry.current()
	for _, q := range queries {
		q.Fold.Begin(r)
	}
	var read int
	err := x.going(ctx)
	for _, q := range queries {
		if err != nil {
			break
		}
		var n int
		n, err = x.walk(ctx, q)
		read += n
	}
	x.read.add(uint64(read))
	return err
}

// going is why a lookup must not go on, or nil.
func (x *Index) going(ctx context.Context) error {
	if err := x.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// walk answers one query and returns how many blocks were read.
//
// It goes along the log for as long as the chain does, and otherwise seeks the
// next block. Each stretch of blocks with one set is a run. Between reading the
// refs of a run and telling the folder, walk looks whether sets have been freed
// (see sets.reap). If so, the set's id may have another meaning by now, and the
// run is read again.
func (x *Index) walk(ctx context.Context, q *store.Query) (read int, err error) {
	var (
		keys     = q.Keys
		mask     = q.Model
		touching = x.touching.Load()
		check    = checkEvery
		at       place // of keys[i]; nowhere when it must be sought
		ahead    seeker
	)
	for i := 0; i < len(keys); {
		if i >= check {
			if err := x.going(ctx); err != nil {
				return i, err
			}
			check = i + checkEvery
		}
		freed := x.sets.freed.Load()
		if at.c == nil {
			at = ahead.seek(x, keys, i, mask)
		}
		// The run is keys[i:end].
		end := i + 1
		if at.c == nil {
			for end < len(keys) {
				if at = ahead.seek(x, keys, end, mask); at.c != nil {
					break
				}
				if end++; end-i == maxAhead {
					break
				}
			}
			if !q.Fold.Run(end-i, nil) {
				return end, nil
			}
			i = end
			continue
		}
		ref := atomic.LoadUint32(at.ref())
		set := ref & setMask
		if set == 0 { // removed or moved since
			at = place{}
			continue
		}
		n, last := x.run(at, keys[i:], mask, set)
		if touching {
			x.renew(at, n, set)
		}
		ids := x.sets.ids(set)
		if x.sets.freed.Load() != freed {
			continue
		}
		i += n
		if !q.Fold.Run(n, ids) {
			return i, nil
		}
		if i < len(keys) {
			at = x.follow(last, keys[i].In(mask))
		}
	}
	return len(keys), nil
}

// run returns how many of the keys lie one after the other and have the set.
// The first is at p and has it; last is where the last one is.
func (x *Index) run(p place, keys []blockkey.Key, mask blockkey.Model, set uint32) (n int, last place) {
	for {
		c, off := p.c, int(p.pos&offMask)
		m := max(1, min(int(c.n.Load())-off, len(keys)-n))
		ahead, ks, refs := keys[n:][:m], c.keys[off:][:m], c.refs[off:][:m]
		j := 1 + alike(ks[1:], ahead[1:], refs[1:], mask, set)
		n += j
		last = place{c, p.pos + uint32(j-1)}
		if off+j < chunkSlots || n == len(keys) || n >= checkEvery {
			return n, last
		}
		p = x.follow(last, keys[n].In(mask))
		if p.c == nil || atomic.LoadUint32(p.ref())&setMask != set {
			return n, last
		}
	}
}

// alike returns how many of the blocks at the beginning are those that the keys
// are of, and have the set. The slices have the same length.
//
// It compares eight blocks at a time with one branch. Most chains go on for as long
// as a chunk does, so a branch a block would be most of what a block costs.
func alike(ks []blockkey.StoreKey, ahead []blockkey.Key, refs []uint32, mask blockkey.Model, set uint32) (n int) {
	for len(ks) >= 8 && len(ahead) >= 8 && len(refs) >= 8 {
		k, a, r := (*[8]blockkey.StoreKey)(ks), (*[8]blockkey.Key)(ahead), (*[8]uint32)(refs)
		d := (k[0] ^ a[0].In(mask)) | (k[1] ^ a[1].In(mask)) | (k[2] ^ a[2].In(mask)) | (k[3] ^ a[3].In(mask)) |
			(k[4] ^ a[4].In(mask)) | (k[5] ^ a[5].In(mask)) | (k[6] ^ a[6].In(mask)) | (k[7] ^ a[7].In(mask))
		s := (atomic.LoadUint32(&r[0]) ^ set) | (atomic.LoadUint32(&r[1]) ^ set) | (atomic.LoadUint32(&r[2]) ^ set) |
			(atomic.LoadUint32(&r[3]) ^ set) | (atomic.LoadUint32(&r[4]) ^ set) | (atomic.LoadUint32(&r[5]) ^ set) |
			(atomic.LoadUint32(&r[6]) ^ set) | (atomic.LoadUint32(&r[7]) ^ set)
		if uint64(d)|uint64(s&setMask) != 0 {
			break
		}
		ks, ahead, refs = ks[8:], ahead[8:], refs[8:]
		n += 8
	}
	for i, k := range ks {
		if k != ahead[i].In(mask) || atomic.LoadUint32(&refs[i])&setMask != set {
			return n + i
		}
	}
	return n + len(ks)
}

// seeker seeks blocks one after the other. When they turn out not to lie beside
// each other, it looks for the next few at once, so that their cache misses
// overlap.
type seeker struct {
	from, to int // keys that have been looked for
	hashes   [maxAhead]uint64
	hints    [maxAhead]uint32 // positions where they may be; 0 means none, absent is nowhere
}

// absent is no position, since its offset is beyond a chunk's end.
const absent = ^uint32(0)

func (s *seeker) seek(x *Index, keys []blockkey.Key, i int, mask blockkey.Model) place {
	k := keys[i].In(mask)
	if i >= s.to {
		width := 1
		if i == s.to { // all of the last lot were sought one by one: twice as many
			width = min(2*(s.to-s.from)+1, maxAhead)
		}
		s.from, s.to = i, min(i+width, len(keys))
		s.lookAhead(x, keys[s.from:s.to], mask)
	}
	j := i - s.from
	switch pos := s.hints[j]; pos {
	case 0:
	case absent:
		return place{}
	default:
		if p, ok := x.log.at(pos, k); ok && atomic.LoadUint32(p.ref()) != 0 {
			return p
		}
	}
	return x.seek(k, s.hashes[j])
}

// lookAhead loads what seek will read of these blocks: first all buckets, then
// all slots. No load waits for another block's.
func (s *seeker) lookAhead(x *Index, keys []blockkey.Key, mask blockkey.Model) {
	for i, k := range keys {
		s.hashes[i], s.hints[i] = x.hash(k.In(mask)), 0
	}
	if len(keys) == 1 {
		return
	}
	for _, h := range s.hashes[:len(keys)] {
		x.touch(h)
	}
	for i, h := range s.hashes[:len(keys)] {
		t := *x.tables[shardOf(h)].Load()
		b := &t[t.home(tagOf(h))]
		m := b.match(tagOf(h))
		if m == 0 {
			if atomic.LoadUint32(&b.passed) == 0 {
				s.hints[i] = absent
			}
			continue
		}
		pos := uint32(atomic.LoadUint64(&b.entries[bits.TrailingZeros(m)]))
		s.hints[i] = pos
		if c := x.log.chunk(pos >> offBits); c != nil {
			off := pos & offMask % chunkSlots
			atomic.LoadUint32(&c.refs[off])
			atomic.LoadUint64((*uint64)(&c.keys[off]))
		}
	}
}

// renew makes the n blocks of a run from p on as young as the index, each once
// an age. When a slot has changed in the meantime nothing happens, or at worst
// another block of the same set looks younger.
func (x *Index) renew(p place, n int, set uint32) {
	age := x.age.Load() & ageMask
	for range n {
		if p.pos&offMask == chunkSlots {
			id := p.c.next.Load()
			if p = (place{x.log.chunk(id), makePos(id, 0)}); p.c == nil {
				return
			}
		}
		if ref := atomic.LoadUint32(p.ref()); ref&setMask == set && ref>>setBits != age {
			atomic.CompareAndSwapUint32(p.ref(), ref, makeRef(set, age))
		}
		p.pos++
	}
}
