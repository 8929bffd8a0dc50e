package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Apply implements [store.Index]. A block that would need a set of holders for
// which there is no memory loses credit instead. An add is forgotten, a removal
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
	if !slices.ContainsFunc(batches, func(b store.Batch) bool { return b.Guard != nil }) {
		// Nothing can be refused: no bookkeeping, no allocation.
		for i := range batches {
			if err := x.applyBatch(ctx, &batches[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return store.ApplyRounds(batches, func(round []store.Batch, refused *store.RefusedError) error {
		return x.applyRound(ctx, round, refused)
	})
}

// applyRound applies batches that have guards, or have none. Those whose guards
// refuse go to refused.
func (x *Index) applyRound(ctx context.Context, batches []store.Batch, refused *store.RefusedError) error {
	var held guarded
	if len(batches) > 0 && batches[0].Guard != nil {
		held = x.registry.guard(batches, refused)
		defer held.release()
		if err := held.mapRoom(&x.registry, batches); err != nil {
			return err
		}
	}
	for i := range batches {
		b := &batches[i]
		if b.Guard != nil && held.skips(b) {
			if refused.Generations[b.Guard.Generation] == nil {
				x.duplicates.Add(1)
			}
			continue
		}
		err := x.applyBatch(ctx, b)
		if b.Guard != nil && errors.Is(err, store.ErrEnded) {
			held.end(b, refused)
			continue
		}
		if err != nil {
			return err
		}
		if len(b.Map) > 0 {
			held.change(&x.registry, b)
		}
	}
	held.commit()
	return nil
}

func (x *Index) applyBatch(ctx context.Context, b *store.Batch) error {
	mask := blockkey.ModelOf(b.Model)
	if len(b.Ops) == 0 || b.Told() != (store.Reuse{}) {
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
	return nil
}

func (x *Index) applyOp(b *store.Batch, op *store.Op, mask blockkey.Model) error {
	err := x.applyLocked(b, op, mask)
	if x.sets.crowded.Load() {
		x.reap(reapStep)
	}
	x.janitor.keepUp()
	return err
}

func (x *Index) applyLocked(b *store.Batch, op *store.Op, mask blockkey.Model) error {
	x.gate.RLock()
	defer x.gate.RUnlock()
	if x.closed.Load() {
		return store.ErrClosed
	}
	m, err := x.registry.resolve(b, op)
	if err != nil || m.n == 0 || op.Kind == store.Clear {
		return err
	}
	w := writer{x: x, m: m, add: op.Kind == store.Add, age: x.age.Load() & ageMask}
	w.write(op.Keys, mask)
	return nil
}

// writer makes changes to blocks. It lives while its gate is held, so that set
// ids stay what they are. It counts what it does, and flush enters the counts.
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

	last     place  // of the last block; dead perhaps
	from, to uint32 // moved blocks went from one set to another
	moved    int64
	dead     int32 // slots of chunk deadIn died
	deadIn   place
	blocks   int64 // how many more blocks there are
}

// writeWindow is how many blocks are brought near at once, and added under one
// lock of a lane.
const writeWindow = 64

func (w *writer) write(keys []blockkey.Key, mask blockkey.Model) {
	for len(keys) > 0 {
		n := min(len(keys), writeWindow)
		if w.add {
			w.addBlocks(keys[:n], mask)
			w.makeRoom()
		} else {
			w.removeBlocks(keys[:n], mask)
		}
		keys = keys[n:]
	}
	w.flush()
}

func (w *writer) addBlocks(keys []blockkey.Key, mask blockkey.Model) {
	var (
		hashes [writeWindow]uint64
		x      = w.x
		l      = &x.lanes[w.m.of[0].lane]
		locked bool // l
		near   bool
	)
	for i, k := range keys {
		hashes[i] = x.hash(k.In(mask))
	}
	for i, k := range keys {
		k, p := k.In(mask), place{}
		if w.last.c != nil {
			p = x.follow(w.last, k)
		}
		// A lane is locked before a shard.
		if p.c == nil && !locked {
			l.mu.Lock()
			locked = true
		}
		blocks := w.blocks
		p, ok := w.addBlock(k, hashes[i], p, l, locked)
		if !ok { // it was there a moment ago
			l.mu.Lock()
			locked = true
			p, _ = w.addBlock(k, hashes[i], p, l, locked)
		}
		if w.last = p; w.blocks > blocks && !near {
			// One is new: so will be those behind it.
			near = true
			for _, h := range hashes[i+1 : len(keys)] {
				x.touch(h)
			}
		}
	}
	if locked {
		l.show()
		l.mu.Unlock()
	}
}

// addBlock makes the holder one of a block's, and returns where the block is.
// p is where it was a moment ago, or nowhere. A new block needs the lock of the
// lane; ok is false when that is not held.
func (w *writer) addBlock(k blockkey.StoreKey, hash uint64, p place, l *lane, locked bool) (_ place, ok bool) {
	x, id, tag := w.x, shardOf(hash), tagOf(hash)
	s := &x.shards[id]
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.c == nil || atomic.LoadUint32(p.ref()) == 0 {
		if p = s.find(&x.log, tag, k); p.c == nil {
			if !locked {
				return place{}, false
			}
			if p = l.take(x, k); p.c == nil {
				x.evicted.Add(1) // there is no chunk left: the add is forgotten
				return p, true
			}
			single := w.m.of[0].single
			atomic.StoreUint32(p.ref(), makeRef(single, w.age))
			x.insert(id, s, tag, p.pos)
			w.blocks++
			w.move(0, single)
			return p, true
		}
	}
	ref := atomic.LoadUint32(p.ref())
	to, ok := w.change(ref & setMask)
	if !ok {
		x.evicted.Add(1)
		return p, true
	}
	if next := makeRef(to, w.age); next != ref {
		atomic.StoreUint32(p.ref(), next)
		w.move(ref&setMask, to)
	}
	return p, true
}

func (w *writer) removeBlocks(keys []blockkey.Key, mask blockkey.Model) {
	var hashes [writeWindow]uint64
	x := w.x
	for i, k := range keys {
		hashes[i] = x.hash(k.In(mask))
		x.touch(hashes[i])
	}
	for i, k := range keys {
		k, p := k.In(mask), place{}
		if w.last.c != nil {
			p = x.follow(w.last, k)
		}
		w.last = w.removeBlock(k, hashes[i], p)
	}
}

// removeBlock ends that the holders hold a block, and returns where the block
// is or was. Argument p is where it was a moment ago, or nowhere.
func (w *writer) removeBlock(k blockkey.StoreKey, hash uint64, p place) place {
	x := w.x
	s := &x.shards[shardOf(hash)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.c == nil || atomic.LoadUint32(p.ref()) == 0 {
		if p = s.find(&x.log, tagOf(hash), k); p.c == nil {
			return p
		}
	}
	ref := atomic.LoadUint32(p.ref())
	to, ok := w.change(ref & setMask)
	if !ok {
		x.evicted.Add(1)
		to = 0
	}
	w.set(s, hash, p, ref, to)
	return p
}

// set gives a block another set, or with 0 removes it. The caller holds the
// lock of the block's shard.
func (w *writer) set(s *shard, hash uint64, p place, ref, to uint32) {
	from := ref & setMask
	switch to {
	case from:
		return
	case 0:
		w.x.redirect(shardOf(hash), s, tagOf(hash), p.pos, 0)
		atomic.StoreUint32(p.ref(), 0)
		w.blocks--
		w.die(p)
	default:
		atomic.StoreUint32(p.ref(), ref&^setMask|to)
	}
	w.move(from, to)
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

// move counts a block that went from one set to another.
func (w *writer) move(from, to uint32) {
	if from != w.from || to != w.to {
		w.flushMoves()
		w.from, w.to = from, to
	}
	w.moved++
}

func (w *writer) flushMoves() {
	if w.from != w.to {
		w.x.sets.count(w.to, w.moved)
		w.x.sets.count(w.from, -w.moved)
	}
	w.moved = 0
}

// die counts a slot that is not needed any more.
func (w *writer) die(p place) {
	if p.c != w.deadIn.c {
		w.bury()
		w.deadIn = p
	}
	w.dead++
}

// bury enters the dead of a chunk, and drops it when they are all.
func (w *writer) bury() {
	if w.dead > 0 && w.deadIn.c.live.Add(-w.dead) == 0 {
		w.x.dropChunk(w.deadIn.pos >> offBits)
	}
	w.dead = 0
}

func (w *writer) flush() {
	w.flushMoves()
	w.bury()
	w.x.blocks.Add(w.blocks)
	w.blocks = 0
}
