package storetest

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// historyEntries are the entries that maps have, two of them in one bucket.
var (
	historyEntries = []store.MapKey{{Hash: 1}, {Hash: 1, Part: 1}, {Hash: 1, Part: 300}, {Hash: 1025}, {Hash: ^uint64(0)}}
	genMapOp       = rapid.Custom(func(t *rapid.T) store.MapOp {
		op := store.MapOp{MapKey: rapid.SampledFrom(historyEntries).Draw(t, "entry")}
		if rapid.IntRange(0, 2).Draw(t, "set") > 0 {
			op.Value = []byte(rapid.SampledFrom([]string{"x", "y", "\x00\r\n"}).Draw(t, "value"))
		}
		return op
	})
)

// compareMaps holds the maps of all generations against the model.
func (h *history) compareMaps(t *rapid.T) {
	for _, g := range h.gens {
		got, err := h.handle(t).ReadMap(h.t.Context(), g.id, historyEntries...)
		want, wantErr := h.m.ReadMap(g.id, historyEntries...)
		if !errors.Is(err, wantErr) || (err != nil && wantErr == nil) || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("the map of generation %d is %q, %v; want %q, %v", g.id, got, err, want, wantErr)
		}
	}
}

// dying runs f, which calls x, and may let x die in the middle of it. An error is
// then one that the test has made.
func (h *history) dying(t *rapid.T, x store.Index, f func() error) error {
	if h.Limit == nil || x != h.Index || !rapid.Bool().Draw(t, "dies") {
		return f()
	}
	h.Limit(rapid.IntRange(0, 12).Draw(t, "commands"))
	err := f()
	h.Limit(-1)
	return err
}

// anyGeneration is one that has been begun, over or not; nil when there is none.
func (h *history) anyGeneration(t *rapid.T) *generation {
	if len(h.gens) == 0 {
		return nil
	}
	return rapid.SampledFrom(h.gens).Draw(t, "generation")
}

func (h *history) begin(t *rapid.T) {
	pod := rapid.SampledFrom(historyPods).Draw(t, "pod")
	rank := rapid.IntRange(0, 2).Draw(t, "rank")
	fence := rapid.Uint64Range(1, historyFences).Draw(t, "fence")
	want := h.m.mayBegin(pod, rank, fence)
	x := h.handle(t)
	var gen store.Generation
	call := func() (err error) {
		gen, err = x.Begin(h.t.Context(), pod, rank, fence)
		return err
	}
	err := h.dying(t, x, call)
	if errors.Is(err, store.ErrUnavailable) {
		err = call()
	}
	if !errors.Is(err, want) || (want == nil && err != nil) {
		t.Fatalf("Begin: got %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	for _, g := range h.gens {
		if g.id >= gen {
			t.Fatalf("generation %d after %d", gen, g.id)
		}
	}
	_ = h.m.Begin(pod, rank, fence, gen)
	h.gens = append(h.gens, &generation{id: gen, pod: pod, rank: rank})
}

func (h *history) takeOver(t *rapid.T) {
	g := h.anyGeneration(t)
	if g == nil {
		return
	}
	h.takeOverBy(t, h.handle(t), g, rapid.Uint64Range(1, historyFences).Draw(t, "fence"))
}

func (h *history) takeOverBy(t *rapid.T, x store.Index, g *generation, fence uint64) {
	var got uint64
	call := func() (err error) {
		got, err = x.TakeOver(h.t.Context(), g.id, fence)
		return err
	}
	err := h.dying(t, x, call)
	if errors.Is(err, store.ErrUnavailable) {
		err = call()
	}
	want, wantErr := h.m.TakeOver(g.id, fence)
	if !errors.Is(err, wantErr) || (err != nil && wantErr == nil) || got != want {
		t.Fatalf("TakeOver: got %d, %v; want %d, %v", got, err, want, wantErr)
	}
}

// write sends the next batches of one or several generations under their fences.
// A writer that dies is followed by one under a higher fence, which begins behind the watermark.
func (h *history) write(t *rapid.T) {
	var gens []*generation
	var batches []store.Batch
	for range rapid.IntRange(1, 3).Draw(t, "ranks") {
		g := h.anyGeneration(t)
		if g == nil || h.m.life(g.id) == nil || slices.Contains(gens, g) {
			continue
		}
		l := h.m.life(g.id)
		gens = append(gens, g)
		batches = append(batches, h.draw(t, g, l.Fence, l.Seq+rapid.Uint64Range(1, 3).Draw(t, "step")))
	}
	x := h.handle(t)
	for i, g := range gens {
		h.onlyOwnerTells(x, g, &batches[i])
	}
	err := h.dying(t, x, func() error { return x.Apply(h.t.Context(), batches...) })
	switch {
	case err == nil:
		_ = h.m.Apply(batches...)
		for i, g := range gens {
			g.sent = append(g.sent, batches[i])
		}
	case errors.Is(err, store.ErrUnavailable):
		h.followUp(t, gens, batches)
	default:
		t.Fatalf("Apply: %v", err)
	}
}

// tenure is a generation and a fence, which one writer owns.
type tenure struct {
	gen   store.Generation
	fence uint64
}

// onlyOwnerTells lets a batch of a generation say what an engine can reuse in one case
// only. The handle that has first written under the fence must send it.
func (h *history) onlyOwnerTells(x store.Index, g *generation, b *store.Batch) {
	l := h.m.life(g.id)
	at := tenure{g.id, l.Fence}
	if b.Guard != nil {
		at.fence = b.Guard.Fence
		if h.owners[at] == nil {
			h.owners[at] = x
		}
	}
	if o := h.owners[at]; o != nil && o != x {
		b.Reuse = store.Reuse{}
	}
}

// draw makes a batch of a generation.
func (h *history) draw(t *rapid.T, g *generation, fence, seq uint64) store.Batch {
	b := genBatch.Draw(t, "batch")
	b.Pod, b.Rank = g.pod, g.rank
	b.Guard = &store.Guard{Generation: g.id, Fence: fence, Seq: seq}
	for i := range b.Ops {
		b.Ops[i].AllRanks = false
		if b.Ops[i].Tier == store.Predicted {
			b.Ops[i].Tier = store.Shared
		}
	}
	b.Map = rapid.SliceOfN(genMapOp, 0, 4).Draw(t, "map")
	return b
}

// followUp takes over from a writer that died while it sent the batches. It holds
// what the dead one has left to what was before and what was to be. It brings the
// index to where the dead one wanted it, or elsewhere: what lies behind the
// watermark is free to be cut anew.
func (h *history) followUp(t *rapid.T, gens []*generation, batches []store.Batch) {
	after := h.m.clone()
	_ = after.Apply(batches...)
	for _, name := range historyModels {
		q := &store.Query{Model: blockkey.ModelOf(name), Keys: historyKeys, Fold: &Collector{Keys: len(historyKeys)}}
		if err := h.Index.Lookup(h.t.Context(), q); err != nil {
			t.Fatalf("Lookup: %v", err)
		}
		was, will := h.m.Lookup(q.Model, q.Keys), after.Lookup(q.Model, q.Keys)
		for i, at := range q.Fold.(*Collector).Answer {
			for _, a := range at {
				if !slices.Contains(was[i], a) && !slices.Contains(will[i], a) {
					t.Fatalf("block %d is credited to %v, which held it neither before nor after what was under way", i, a)
				}
			}
		}
	}
	x := h.handle(t)
	for i, g := range gens {
		l := h.m.life(g.id)
		lowest := uint64(0)
		if o := h.owners[tenure{g.id, l.Fence}]; o != nil && o != x {
			lowest = 1 // another process has another fence
		}
		fence := l.Fence + rapid.Uint64Range(lowest, 2).Draw(t, "higher")
		w, err := x.TakeOver(h.t.Context(), g.id, fence)
		if err != nil || (w != l.Seq && w != batches[i].Guard.Seq) {
			t.Fatalf("TakeOver: got %d, %v; the last sequence was %d, under way was %d", w, err, l.Seq, batches[i].Guard.Seq)
		}
		if w == batches[i].Guard.Seq {
			_ = h.m.Apply(batches[i])
			g.sent = append(g.sent, batches[i])
		}
		_, _ = h.m.TakeOver(g.id, fence)
		if w == batches[i].Guard.Seq {
			continue
		}
		// The engine's events are what they are, but what follows may come along.
		b := batches[i]
		b.Ops = slices.Clone(b.Ops)
		seq := b.Guard.Seq
		if rapid.Bool().Draw(t, "more") {
			next := h.draw(t, g, fence, seq+1)
			b.Ops = append(b.Ops, next.Ops...)
			b.Map = append(slices.Clone(b.Map), next.Map...)
			seq++
		}
		b.Guard = &store.Guard{Generation: g.id, Fence: fence, Seq: seq}
		h.onlyOwnerTells(x, g, &b)
		if err := x.Apply(h.t.Context(), b); err != nil {
			t.Fatalf("Apply by the next writer: %v", err)
		}
		_ = h.m.Apply(b)
		g.sent = append(g.sent, b)
	}
}

// zombie sends what is over: an old batch once more, or a new one under an old
// fence or of an ended generation.
func (h *history) zombie(t *rapid.T) {
	g := h.anyGeneration(t)
	if g == nil {
		return
	}
	var b store.Batch
	l := h.m.life(g.id)
	switch {
	case len(g.sent) > 0 && rapid.Bool().Draw(t, "old batch"):
		b = rapid.SampledFrom(g.sent).Draw(t, "sent")
		if l != nil && rapid.Bool().Draw(t, "by the owner") {
			b.Guard = &store.Guard{Generation: g.id, Fence: l.Fence, Seq: b.Guard.Seq}
		}
	case l == nil:
		b = h.draw(t, g, rapid.Uint64Range(1, historyFences).Draw(t, "fence"), rapid.Uint64Range(1, 50).Draw(t, "seq"))
	case l.Fence > 1:
		b = h.draw(t, g, rapid.Uint64Range(1, l.Fence-1).Draw(t, "old fence"), rapid.Uint64Range(1, 50).Draw(t, "seq"))
	default:
		return
	}
	x := h.handle(t)
	before, modelBefore := x.Stats().Duplicates, h.m.Duplicates
	err := x.Apply(h.t.Context(), b)
	want := h.m.Apply(b)
	if !sameRefusals(err, want) {
		t.Fatalf("Apply: got %v, want %v", err, want)
	}
	if got, want := x.Stats().Duplicates-before, h.m.Duplicates-modelBefore; got != want {
		t.Fatalf("%d duplicates counted, want %d", got, want)
	}
}

// sameRefusals reports whether two errors refuse the same generations for the same
// reasons. An old fence of a generation that has ended may be either.
func sameRefusals(a, b error) bool {
	var x, y *store.RefusedError
	if !errors.As(a, &x) || !errors.As(b, &y) {
		return a == nil && b == nil
	}
	return maps.EqualFunc(x.Generations, y.Generations, func(got, want error) bool {
		return errors.Is(got, want) || (errors.Is(got, store.ErrFenced) && errors.Is(want, store.ErrEnded))
	})
}

// clone returns a model of its own.
func (m *Model) clone() *Model {
	c := &Model{now: m.now, began: m.began, pods: map[string]*modelPod{}}
	for name, p := range m.pods {
		q := &modelPod{reg: p.reg, until: p.until, lives: map[int]*store.Life{}, reuse: maps.Clone(p.reuse), ends: maps.Clone(p.ends), maps: map[store.Generation]map[store.MapKey]string{}}
		q.blocks = maps.Clone(p.blocks)
		for k, at := range q.blocks {
			q.blocks[k] = maps.Clone(at)
		}
		for rank, l := range p.lives {
			life := *l
			q.lives[rank] = &life
		}
		for gen, entries := range p.maps {
			q.maps[gen] = maps.Clone(entries)
		}
		c.pods[name] = q
	}
	return c
}
