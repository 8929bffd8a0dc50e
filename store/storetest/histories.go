package storetest

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Histories plays random histories of registrations, leases, retirements, adds,
// removes and clears, generations and their takeovers, to an index and to [Model]. Pods, ranks, tiers and
// keys are few, so that they meet often. It compares the two after every step. Writers send batches twice,
// late, and under fences that are over. Where Subject has a Limit they die in the middle of a call, and
// another takes over. Leases take part only where the test moves the clock. rapid's flags say how many
// histories and how long.
func Histories(t *testing.T, open Open) {
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t)
		defer s.close(rt.Errorf)
		h := &history{Subject: s, t: t, owners: map[tenure]store.Index{}, m: NewModel()}
		h.m.began = time.UnixMilli(s.now().UnixMilli())
		actions := map[string]func(*rapid.T){
			"":         h.compare,
			"apply":    h.apply,
			"register": h.register,
			"retire":   h.retire,
			"lookup":   h.lookup,
			"begin":    h.begin,
			"takeover": h.takeOver,
			"write":    h.write,
			"zombie":   h.zombie,
			"maps":     h.compareMaps,
		}
		if s.Advance != nil {
			actions["advance"] = h.advance
		}
		rt.Repeat(actions)
	})
}

type history struct {
	Subject
	t *testing.T
	m *Model
	// gens are the generations that ever were, and what was sent under each.
	gens []*generation
	// owners are the writers under each fence.
	owners map[tenure]store.Index
}

// generation is a life that a history has begun.
type generation struct {
	id   store.Generation
	pod  string
	rank int
	sent []store.Batch // that were applied, ascending
}

// What histories are made of. Keys are few, so that all blocks can be compared
// after every step.
var (
	historyPods   = []string{"a", "b", "c"}
	historyModels = []string{"m1", "m2"}
	historyFences = uint64(6)
	historyKeys   = append(chain(77, 20), 0, ^blockkey.Key(0), blockkey.Key(blockkey.ModelOf("m1")), blockkey.Key(blockkey.ModelOf("m2")))

	genKeys = rapid.SliceOfN(rapid.SampledFrom(historyKeys), 0, 8)
	genTier = rapid.SampledFrom([]store.Tier{store.GPU, store.CPU, store.Shared, store.GPU.Window(), store.CPU.Window(), store.Predicted})
	genOp   = rapid.Custom(func(t *rapid.T) store.Op {
		op := store.Op{
			// Twice as many adds as there are ways to take away.
			Kind: rapid.SampledFrom([]store.OpKind{store.Add, store.Add, store.Add, store.Remove, store.Remove, store.Clear}).Draw(t, "kind"),
			Tier: genTier.Draw(t, "tier"),
		}
		if op.Kind == store.Clear && op.Tier.IsWindow() {
			op.Tier = op.Tier.Memory()
		}
		if op.Kind != store.Add && rapid.Bool().Draw(t, "all tiers") {
			op.Tier = store.AllTiers
		}
		if op.Kind == store.Clear {
			op.AllRanks = rapid.Bool().Draw(t, "all ranks")
		} else {
			op.Keys = genKeys.Draw(t, "keys")
		}
		if op.Tier == store.Predicted && op.Kind == store.Remove {
			op.Tier = store.GPU
		}
		return op
	})
	genBatch = rapid.Custom(func(t *rapid.T) store.Batch {
		return store.Batch{
			Pod:   rapid.SampledFrom(historyPods).Draw(t, "pod"),
			Rank:  rapid.IntRange(0, 2).Draw(t, "rank"),
			Model: rapid.SampledFrom(historyModels).Draw(t, "model"),
			Ops:   rapid.SliceOfN(genOp, 0, 4).Draw(t, "ops"),
			Reuse: rapid.SampledFrom([]store.Reuse{{}, {}, {Block: 16}, {Block: 16, Window: 128}, {Block: 32}}).Draw(t, "reuse"),
		}
	})
)

// handle is either handle of the index.
func (h *history) handle(t *rapid.T) store.Index {
	if h.Peer != nil && rapid.Bool().Draw(t, "by the peer") {
		return h.Peer
	}
	return h.Index
}

func (h *history) apply(t *rapid.T) {
	batches := rapid.SliceOfN(genBatch, 1, 3).Draw(t, "batches")
	x := h.handle(t)
	h.dropEarlyPredictions(batches)
	for i := range batches {
		h.dateEnds(t, &batches[i])
		h.refuseRank(t, x, &batches[i])
		for _, g := range h.gens {
			if g.pod == batches[i].Pod && g.rank == batches[i].Rank && h.m.life(g.id) != nil {
				h.onlyOwnerTells(x, g, &batches[i])
			}
		}
	}
	// A batch that is applied again, as after a lost reply, changes nothing.
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		err := h.dying(t, x, func() error { return x.Apply(h.t.Context(), batches...) })
		if errors.Is(err, store.ErrUnavailable) {
			err = x.Apply(h.t.Context(), batches...)
		}
		if err != nil {
			t.Fatalf("Apply: %v", err)
		}
		_ = h.m.Apply(batches...)
	}
}

// dropEarlyPredictions takes out predictions for a pod that a batch of the same call registers.
// Where that call is made again after it has died, the pod is there, and they count.
func (h *history) dropEarlyPredictions(batches []store.Batch) {
	for i := range batches {
		b := &batches[i]
		enrols := func(other store.Batch) bool { return other.Pod == b.Pod && other.Enrols() }
		if h.m.pods[b.Pod] == nil && !b.Enrols() && slices.ContainsFunc(batches, enrols) {
			b.Ops = slices.DeleteFunc(b.Ops, func(op store.Op) bool { return op.Kind == store.Add })
		}
	}
}

// dateEnds gives a batch's predictions their ends: of a few, so that they meet. Where time
// passes, some come up.
func (h *history) dateEnds(t *rapid.T, b *store.Batch) {
	in := []time.Duration{time.Hour, 2 * time.Hour}
	if h.Advance != nil {
		in = append(in, 2*time.Second, 20*time.Second)
	}
	for i := range b.Ops {
		if op := &b.Ops[i]; op.Tier == store.Predicted {
			op.Until, op.AllRanks = h.m.began.Add(rapid.SampledFrom(in).Draw(t, "end")), false
		}
	}
}

// refuseRank takes the adds out of a batch for a rank that its pod does not have, once the
// index has refused them.
func (h *history) refuseRank(t *rapid.T, x store.Index, b *store.Batch) {
	if h.m.HasRank(b.Pod, b.Rank) {
		return
	}
	adds := *b
	isAdd := func(op store.Op) bool { return op.Kind == store.Add }
	adds.Ops = slices.DeleteFunc(slices.Clone(b.Ops), func(op store.Op) bool { return !isAdd(op) || len(op.Keys) == 0 })
	b.Ops = slices.DeleteFunc(slices.Clone(b.Ops), isAdd)
	if len(adds.Ops) == 0 {
		return
	}
	if err := x.Apply(h.t.Context(), adds); !errors.Is(err, store.ErrNoRank) {
		t.Fatalf("Apply for a rank that is not there: got %v, want ErrNoRank", err)
	}
}

func (h *history) register(t *rapid.T) {
	p := store.Pod{
		Name:  rapid.SampledFrom(historyPods).Draw(t, "pod"),
		Model: rapid.SampledFrom(historyModels).Draw(t, "model"),
		Ranks: rapid.IntRange(0, 3).Draw(t, "ranks"),
	}
	if h.Advance != nil {
		p.Lease = store.Seconds(rapid.SampledFrom([]time.Duration{0, time.Second, 10 * time.Second}).Draw(t, "lease"))
	}
	created, err := h.handle(t).Register(h.t.Context(), p)
	if want := h.m.Register(p); err != nil || created != want {
		t.Fatalf("Register: got created %v, %v; want %v", created, err, want)
	}
}

func (h *history) retire(t *rapid.T) {
	pod := rapid.SampledFrom(historyPods).Draw(t, "pod")
	known, err := h.handle(t).Retire(h.t.Context(), pod)
	if want := h.m.Retire(pod); err != nil || known != want {
		t.Fatalf("Retire: got known %v, %v; want %v", known, err, want)
	}
}

func (h *history) advance(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{300 * time.Millisecond, time.Second, 10 * time.Second}).Draw(t, "time")
	h.Advance(d)
	h.m.Advance(d)
}

// lookup asks for several random chains at once, some of them cut short.
func (h *history) lookup(t *rapid.T) {
	var queries []*store.Query
	var folds []*Collector
	for range rapid.IntRange(1, 4).Draw(t, "queries") {
		keys := rapid.SliceOfN(rapid.SampledFrom(historyKeys), 0, 40).Draw(t, "chain")
		c := &Collector{Keys: len(keys), Stop: rapid.IntRange(0, 10).Draw(t, "stop")}
		folds = append(folds, c)
		queries = append(queries, &store.Query{
			Model: blockkey.ModelOf(rapid.SampledFrom(historyModels).Draw(t, "model")), Keys: keys, Fold: c,
		})
	}
	if err := h.handle(t).Lookup(h.t.Context(), queries...); err != nil {
		t.Fatalf("Lookup: %v", err)
	}
	for i, c := range folds {
		if err := c.Err(); err != nil {
			t.Fatalf("query %d: %v", i, err)
		}
		want := h.m.Lookup(queries[i].Model, queries[i].Keys[:len(c.Answer)])
		if !c.Answer.Equal(want) {
			t.Fatalf("query %d found\n%v, want\n%v", i, c.Answer, want)
		}
	}
}

// compare holds all blocks and pods of the index against the model, through
// every handle.
func (h *history) compare(t *rapid.T) {
	for i, x := range []store.Index{h.Index, h.Peer} {
		if x == nil {
			continue
		}
		var queries []*store.Query
		for _, m := range historyModels {
			queries = append(queries, &store.Query{Model: blockkey.ModelOf(m), Keys: historyKeys, Fold: &Collector{Keys: len(historyKeys)}})
		}
		if err := x.Lookup(h.t.Context(), queries...); err != nil {
			t.Fatalf("handle %d: Lookup: %v", i, err)
		}
		for _, q := range queries {
			c := q.Fold.(*Collector)
			if err := c.Err(); err != nil {
				t.Fatalf("handle %d: %v", i, err)
			}
			if want := h.m.Lookup(q.Model, q.Keys); !c.Answer.Equal(want) {
				t.Fatalf("handle %d found\n%v, want\n%v", i, c.Answer, want)
			}
			if got, want := c.Registry.Pods, h.m.Pods(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("handle %d has the pods\n%+v, want\n%+v", i, got, want)
			}
			for _, holder := range c.Registry.Holders() {
				if want := h.m.Reuse(holder.Pod, holder.Rank); holder.Reuse != want {
					t.Fatalf("handle %d knows %v of the engine of %s/%d, want %v", i, holder.Reuse, holder.Pod, holder.Rank, want)
				}
			}
		}
	}
}
