package memory

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Apply implements [store.Index]. A block that would need a set of holders for
// which there is no memory loses credit instead: an add is forgotten, a removal
// takes the block from all its holders, and either counts as an eviction.
func (x *Index) Apply(ctx context.Context, batches ...store.Batch) error {
	if err := x.enter(ctx); err != nil {
		return err
	}
	for i := range batches {
		if err := batches[i].Validate(); err != nil {
			return fmt.Errorf("batch %d: %w", i, err)
		}
	}
	for i := range batches {
		b := &batches[i]
		mask := store.Mask(b.Model)
		if len(b.Ops) == 0 {
			if err := x.registry.enter(b); err != nil {
				return err
			}
		}
		for j := range b.Ops {
			if err := x.enter(ctx); err != nil {
				return err
			}
			if err := x.applyOp(b, &b.Ops[j], mask); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *Index) applyOp(b *store.Batch, op *store.Op, mask blockkey.Model) error {
	x.sweeper.keepUp()
	err := func() error {
		x.gate.RLock()
		defer x.gate.RUnlock()
		if x.closed.Load() {
			return store.ErrClosed
		}
		m, err := x.registry.resolve(b, op)
		if err != nil {
			return err
		}
		switch {
		case op.Kind == store.Clear:
			x.sweeper.wake()
		case m.n > 0:
			w := writer{x: x, m: m, add: op.Kind == store.Add, age: x.age.Load() & ageMask}
			w.write(op.Keys, mask)
		}
		return nil
	}()
	if x.sets.crowded.Load() {
		x.reap(reapStep)
	}
	return err
}

// writer makes one op's changes. It lives while its gate is held, so that set
// ids stay what they are.
type writer struct {
	x   *Index
	m   meant
	add bool
	age uint32

	// The last few changes of sets: most blocks of an op change alike.
	known [8]struct {
		from, to uint32
		ok       bool
	}
	// Slots that went from one set to another and are not yet counted.
	from, to uint32
	moved    int64
}

// writeWindow is how many blocks are touched before the first is changed.
const writeWindow = 64

func (w *writer) write(keys []blockkey.Key, mask blockkey.Model) {
	var hashes [writeWindow]uint64
	for len(keys) > 0 {
		n := min(len(keys), writeWindow)
		v := w.x.view.Load()
		for i, k := range keys[:n] {
			h := w.x.hash(k.In(mask))
			t := v.tables[shardOf(h)]
			atomic.LoadUint32(&t[home(slotKey(h), len(t))].meta)
			hashes[i] = h
		}
		for _, h := range hashes[:n] {
			s := &w.x.shards[shardOf(h)]
			s.mu.Lock()
			if w.add {
				w.addBlock(s, h)
			} else {
				w.removeBlock(s, h)
			}
			s.mu.Unlock()
		}
		keys = keys[n:]
	}
	w.flush()
}

func (w *writer) addBlock(s *shard, h uint64) {
	key := slotKey(h)
	if i, slot, ok := s.t.find(key); ok {
		p := &s.t[i].refs[slot]
		ref := atomic.LoadUint32(p)
		to, ok := w.change(ref & setMask)
		if !ok {
			w.forget(s)
			return
		}
		if next := makeRef(to, w.age); next != ref {
			atomic.StoreUint32(p, next)
			w.move(ref&setMask, to)
		}
		return
	}
	w.makeRoom(s, shardOf(h))
	s.t.insert(key, makeRef(w.m.of[0].single, w.age))
	s.live++
	w.move(0, w.m.of[0].single)
	if s == &w.x.shards[0] {
		w.x.grewOld(s)
	}
}

func (w *writer) removeBlock(s *shard, h uint64) {
	i, slot, ok := s.t.find(slotKey(h))
	if !ok {
		return
	}
	p := &s.t[i].refs[slot]
	ref := atomic.LoadUint32(p)
	from := ref & setMask
	to, ok := w.change(from)
	switch {
	case !ok:
		w.x.evicted.Add(1)
		fallthrough
	case to == 0:
		w.drop(s, i, slot, from)
		if sparse(s.live, len(s.t)) {
			w.x.resize(s, shardOf(h), smaller(s.live))
		}
	case to != from:
		atomic.StoreUint32(p, ref&^setMask|to)
		w.move(from, to)
	}
}

// drop empties a slot.
func (w *writer) drop(s *shard, i, slot int, from uint32) {
	s.t.remove(i, slot)
	s.live--
	w.move(from, 0)
}

// change returns the set that the op makes of a set.
func (w *writer) change(from uint32) (to uint32, ok bool) {
	k := &w.known[from%uint32(len(w.known))]
	if k.from == from && k.ok {
		return k.to, true
	}
	to, ok = from, true
	for _, h := range w.m.of[:w.m.n] {
		switch {
		case w.add:
			to, ok = w.x.sets.with(to, h.id)
		case to == h.single:
			to = 0
		case to != 0:
			to, ok = w.x.sets.without(to, h.id)
		}
		if !ok {
			return 0, false
		}
	}
	k.from, k.to, k.ok = from, to, true
	return to, true
}

// move counts a slot that went from one set to another.
func (w *writer) move(from, to uint32) {
	if from != w.from || to != w.to {
		w.flush()
		w.from, w.to = from, to
	}
	w.moved++
}

func (w *writer) flush() {
	if w.from != w.to {
		w.x.sets.count(w.to, w.moved)
		w.x.sets.count(w.from, -w.moved)
	}
	w.moved = 0
}
