package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	entries    map[store.MapKey]string
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
		if v, ok := l.entries[k]; ok {
			out[i] = []byte(v)
		}
	}
	return out, nil
}

// mapRoom returns store.ErrFull when the map ops of the open batches may make more
// entries than there can be. It counts every set as a new entry.
func (h *guarded) mapRoom(g *registry, batches []store.Batch) error {
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

// change makes the map ops of a batch.
func (h *guarded) change(g *registry, b *store.Batch) {
	i := slices.IndexFunc(h.locked, func(l *life) bool { return l.id == b.Guard.Generation })
	l := h.locked[i]
	before := len(l.entries)
	for _, op := range b.Map {
		switch {
		case op.Value == nil:
			delete(l.entries, op.MapKey)
		case l.entries == nil:
			l.entries = map[store.MapKey]string{op.MapKey: string(op.Value)}
		default:
			l.entries[op.MapKey] = string(op.Value)
		}
	}
	g.countEntries(l, len(l.entries)-before)
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
	r.life = &life{id: store.Generation(g.lastID), pod: p.reg.Name, rank: rank, fence: fence}
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

// guarded are the lives that a round of batches is about, locked, and the guards
// that may write. A life that is not among them is to be skipped.
type guarded struct {
	locked []*life
	open   map[store.Generation]store.Guard
}

// guard locks the lives of the batches and judges their guards.
func (g *registry) guard(batches []store.Batch, refused *store.RefusedError) guarded {
	h := guarded{open: map[store.Generation]store.Guard{}}
	wanted := map[store.Generation]*store.Batch{}
	for i := range batches {
		wanted[batches[i].Guard.Generation] = &batches[i]
	}
	for _, gen := range slices.Sorted(maps.Keys(wanted)) {
		b := wanted[gen]
		if refused.Generations[gen] != nil {
			continue // an earlier one of this call was
		}
		l := g.lifeBy(gen)
		if l == nil || l.pod != b.Pod || l.rank != b.Rank {
			refuse(refused, gen, store.ErrEnded)
			continue
		}
		l.mu.Lock()
		h.locked = append(h.locked, l)
		switch {
		case b.Guard.Fence < l.fence:
			refuse(refused, gen, store.ErrFenced)
		case b.Guard.Seq > l.seq:
			h.open[gen] = *b.Guard
		}
	}
	return h
}

func refuse(r *store.RefusedError, gen store.Generation, err error) {
	if r.Generations == nil {
		r.Generations = map[store.Generation]error{}
	}
	r.Generations[gen] = err
}

// skips reports whether a batch is not to be applied. Two pods' batches may name
// one generation: it is of one of them at most.
func (h *guarded) skips(b *store.Batch) bool {
	g, ok := h.open[b.Guard.Generation]
	return !ok || g != *b.Guard
}

// end notes that a life has ended while its batch was applied.
func (h *guarded) end(b *store.Batch, refused *store.RefusedError) {
	delete(h.open, b.Guard.Generation)
	refuse(refused, b.Guard.Generation, store.ErrEnded)
}

// commit notes that all open guards have been applied.
func (h *guarded) commit() {
	for _, l := range h.locked {
		if g, ok := h.open[l.id]; ok {
			l.fence, l.seq = g.Fence, g.Seq
		}
	}
}

func (h *guarded) release() {
	for _, l := range h.locked {
		l.mu.Unlock()
	}
}
