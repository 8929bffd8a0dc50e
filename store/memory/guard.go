package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/store"
)

// life is a generation. Its lock is held while batches of it are applied, and is
// taken before registry.mu; of several lives, by ascending id.
type life struct {
	id   store.Generation
	pod  string
	rank int

	counted int // of registry.entries; protected by registry.mu

	mu         sync.Mutex // protects all below
	fence, seq uint64
	entries    entryMap
}

// Begin implements [store.Index].
func (x *Index) Begin(ctx context.Context, pod string, rank int, fence uint64) (store.Generation, error) {
	if err := x.enter(ctx); err != nil {
		return 0, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank), store.CheckFence(fence)); err != nil {
		return 0, err
	}
	for {
		gen, again, err := x.registry.beginLife(pod, rank, fence, x.registry.lifeOf(pod, rank))
		if !again {
			x.janitor.wake()
			return gen, err
		}
	}
}

// TakeOver implements [store.Index].
func (x *Index) TakeOver(ctx context.Context, gen store.Generation, fence uint64) (watermark uint64, err error) {
	if err := x.enter(ctx); err != nil {
		return 0, err
	}
	if gen == 0 {
		return 0, fmt.Errorf("%w: no generation", store.ErrInvalid)
	}
	if err := store.CheckFence(fence); err != nil {
		return 0, err
	}
	l := x.registry.lifeBy(gen)
	if l == nil {
		return 0, store.ErrEnded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fence > fence {
		return 0, store.ErrFenced
	}
	l.fence = fence
	return l.seq, nil
}

// Life implements [store.Index].
func (x *Index) Life(ctx context.Context, pod string, rank int) (store.Life, error) {
	if err := x.enter(ctx); err != nil {
		return store.Life{}, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank)); err != nil {
		return store.Life{}, err
	}
	l := x.registry.lifeOf(pod, rank)
	if l == nil {
		return store.Life{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return store.Life{Generation: l.id, Fence: l.fence, Seq: l.seq}, nil
}

// ReadMap implements [store.Index].
func (x *Index) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if err := x.enter(ctx); err != nil {
		return nil, err
	}
	if gen == 0 || len(keys) > store.MaxMapOps {
		return nil, fmt.Errorf("%w: %d keys of generation %d; there can be %d, of a generation", store.ErrInvalid, len(keys), gen, store.MaxMapOps)
	}
	l := x.registry.lifeBy(gen)
	if l == nil {
		return nil, store.ErrEnded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = slices.Clone(l.entries.get(k))
	}
	return out, nil
}

// mapRoom returns store.ErrFull when the map ops of the open batches may make more
// entries than there can be. It counts every set as a new entry.
func (h guarded) mapRoom(g *registry, batches []store.Batch) error {
	sets := 0
	for i := range batches {
		if h.skips(&batches[i]) {
			continue
		}
		for _, op := range batches[i].Map {
			if op.Value != nil {
				sets++
			}
		}
	}
	if n := g.entries.Load(); n+int64(sets) > int64(g.cfg.MaxMapEntries) {
		return fmt.Errorf("%w: the maps of all generations have %d entries, no room for %d", store.ErrFull, n, sets)
	}
	return nil
}

// change makes the map ops of a batch under an open guard.
func (h guarded) change(g *registry, b *store.Batch) {
	l := h.of(b.Guard.Generation).life
	before := l.entries.len()
	for i := range b.Map {
		if op := &b.Map[i]; op.Value == nil {
			l.entries.remove(op.MapKey)
		} else {
			l.entries.set(op.MapKey, op.Value)
		}
	}
	if n := l.entries.len() - before; n != 0 {
		g.countEntries(l, n)
	}
}

// lifeOf returns the present life of a rank, nil for none.
func (g *registry) lifeOf(pod string, rank int) *life {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	if p := g.pods[pod]; p != nil {
		if r := p.rank(rank, false); r != nil {
			return r.life
		}
	}
	return nil
}

func (g *registry) lifeBy(gen store.Generation) *life {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	return g.lives[gen]
}

// beginLife begins a life in place of last, which the rank had a moment ago.
// again is true when it has another by now.
func (g *registry) beginLife(pod string, rank int, fence uint64, last *life) (gen store.Generation, again bool, err error) {
	if last != nil {
		last.mu.Lock()
		defer last.mu.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	p := g.pods[pod]
	if p == nil {
		return 0, false, fmt.Errorf("%w: %s", store.ErrUnknownPod, pod)
	}
	if err := p.reg.CheckRank(rank); err != nil {
		return 0, false, err
	}
	r := p.rank(rank, true)
	switch {
	case r.life != last:
		return 0, true, nil
	case last != nil && last.fence > fence:
		return 0, false, fmt.Errorf("%w: pod %s rank %d", store.ErrFenced, pod, rank)
	case last == nil && len(g.lives) >= g.cfg.MaxHolders, g.lastID == math.MaxUint32:
		return 0, false, fmt.Errorf("%w: %d generations, ids up to %d", store.ErrFull, len(g.lives), g.lastID)
	}
	g.endRank(r)
	g.lastID++
	r.life = &life{id: store.Generation(g.lastID), pod: p.reg.Name, rank: rank, fence: fence, entries: entryMap{seed: g.salt}}
	g.lives[r.life.id] = r.life
	return r.life.id, false, nil
}

// endLife ends the life of a rank. The caller holds mu.
func (g *registry) endLife(r *rank) {
	if r.life != nil {
		g.entries.Add(-int64(r.life.counted))
		r.life.counted = 0
		delete(g.lives, r.life.id)
		r.life = nil
	}
}

// countEntries counts entries of a life, unless it has ended.
func (g *registry) countEntries(l *life, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lives[l.id] == l {
		l.counted += n
		g.entries.Add(int64(n))
	}
}

// guarded are the generations that a round of batches is about, ascending. A generation
// that is not among them is to be skipped.
type guarded []guardedLife

// guardedLife is a life that is locked, and the guard that may write to it.
type guardedLife struct {
	life  *life
	guard store.Guard
	open  bool // the guard may
}

// guard locks the lives of the batches and judges their guards. Batches of one rank have
// the same guard; two ranks' may name one generation, which is of one of them at most.
func (g *registry) guard(batches []store.Batch, refused *store.RefusedError) guarded {
	wanted := make([]*store.Batch, 0, 8)
	for i := range batches {
		b := &batches[i]
		if n := len(wanted); n > 0 && wanted[n-1].Guard.Generation == b.Guard.Generation {
			wanted[n-1] = b
		} else {
			wanted = append(wanted, b)
		}
	}
	// The last batch of a generation speaks for it, so equal ones must stay in order.
	slices.SortStableFunc(wanted, func(a, b *store.Batch) int { return cmp.Compare(a.Guard.Generation, b.Guard.Generation) })
	h := make(guarded, 0, len(wanted))
	for i, b := range wanted {
		gen := b.Guard.Generation
		if i+1 < len(wanted) && wanted[i+1].Guard.Generation == gen {
			continue
		}
		if refused.Generations[gen] != nil {
			continue // an earlier one of this call was
		}
		l := g.lifeBy(gen)
		if l == nil || l.pod != b.Pod || l.rank != b.Rank {
			refuse(refused, gen, store.ErrEnded)
			continue
		}
		l.mu.Lock()
		if b.Guard.Fence < l.fence {
			refuse(refused, gen, store.ErrFenced)
		}
		h = append(h, guardedLife{life: l, guard: *b.Guard, open: b.Guard.Fence >= l.fence && b.Guard.Seq > l.seq})
	}
	return h
}

func refuse(r *store.RefusedError, gen store.Generation, err error) {
	if r.Generations == nil {
		r.Generations = map[store.Generation]error{}
	}
	r.Generations[gen] = err
}

// of returns what is locked of a generation, nil for nothing.
func (h guarded) of(gen store.Generation) *guardedLife {
	i, ok := slices.BinarySearchFunc(h, gen, func(l guardedLife, gen store.Generation) int { return cmp.Compare(l.life.id, gen) })
	if !ok {
		return nil
	}
	return &h[i]
}

// skips reports whether a batch is not to be applied. Two pods' batches may name
// one generation: it is of one of them at most.
func (h guarded) skips(b *store.Batch) bool {
	l := h.of(b.Guard.Generation)
	return l == nil || !l.open || l.guard != *b.Guard
}

// end notes that a life has ended while its batch was applied.
func (h guarded) end(b *store.Batch, refused *store.RefusedError) {
	h.of(b.Guard.Generation).open = false
	refuse(refused, b.Guard.Generation, store.ErrEnded)
}

// commit notes that all open guards have been applied.
func (h guarded) commit() {
	for i := range h {
		if l := &h[i]; l.open {
			l.life.fence, l.life.seq = l.guard.Fence, l.guard.Seq
		}
	}
}

func (h guarded) release() {
	for i := range h {
		h[i].life.mu.Unlock()
	}
}
