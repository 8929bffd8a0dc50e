package storetest

import (
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Predictions are holders in tier Predicted: each ends at a time of its own, and with
// whatever ends what its rank has on the GPU.
var predictionCases = []testCase{
	{"a prediction is a holder of its own for each time that one ends", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, 3)
		soon, later := b.in(time.Hour), b.in(2*time.Hour)
		b.predict("a", 0, soon, k[:2]...)
		b.predict("a", 0, later, k[1:]...)
		b.add("a", 0, store.GPU, k[0])
		first, second := until("a", 0, soon), until("a", 0, later)
		b.want(b.find(k...), by(on("a", store.GPU), first), by(first, second), by(second))
		r := b.registry()
		if got := ends(r.Predicted("a", 0)); len(got) != 2 || !got[0].Equal(soon) || !got[1].Equal(later) {
			b.Fatalf("the rank's predictions end at %v, want %v and %v", got, soon, later)
		}
		if n := len(r.Holders()); n != 3 {
			b.Fatalf("%d holders, want 3", n)
		}
		for _, h := range r.Predicted("a", 0) {
			if _, _, live := r.Holder(h.ID); live || r.IsTold(h.ID) {
				b.Fatalf("holder %d counts as one in a tier of memory, or as told", h.ID)
			}
		}
		b.failIf(r.Predicted("a", 1) != nil || r.Predicted("z", 0) != nil, "a rank without predictions has some")
		b.apply(batch("a", 0, store.Op{Kind: store.Clear, Tier: store.Predicted, Until: soon}))
		b.want(b.find(k...), by(on("a", store.GPU)), by(second), by(second))
	}},
	{"what comes in one call comes in its order", func(b *bench) {
		k := chain(1, 2)
		end := b.in(time.Hour)
		predict := func(keys ...blockkey.Key) store.Batch {
			return batch("a", 0, store.Op{Kind: store.Add, Tier: store.Predicted, Until: end, Keys: keys})
		}
		// The pod is not there yet when it is predicted, and is when it is again.
		b.apply(predict(k[0]), batch("a", 0, adds(store.GPU, k[1])), predict(k[1]))
		b.want(b.find(k...), nil, by(on("a", store.GPU), until("a", 0, end)))
		// What this call has predicted, the call takes away.
		b.apply(predict(k[0]), batch("a", 1, adds(store.GPU, k[1])), batch("a", 0, removes(store.GPU, k[0])))
		b.want(b.find(k[0]), nil)
	}},
	{"what an engine removes from its GPU is not predicted any more", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, 4)
		soon, later := b.in(time.Hour), b.in(2*time.Hour)
		b.predict("a", 0, soon, k...)
		b.predict("a", 0, later, k...)
		b.predict("a", 1, soon, k...)
		p0, q0, p1 := until("a", 0, soon), until("a", 0, later), until("a", 1, soon)
		b.find(k[0])
		b.remove("a", 0, store.GPU, k[0])
		b.remove("a", 0, store.AllTiers, k[1])
		b.remove("a", 0, store.CPU, k[2])
		b.want(b.find(k...), by(p1), by(p1), by(p0, q0, p1), by(p0, q0, p1))
	}},
	{"an engine's own removal takes predictions under its guard", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		end := b.in(time.Hour)
		b.predict("a", 0, end, k...)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k...))
		b.registry()
		b.guarded(gen, "a", 0, 1, 2, removes(store.GPU, k[0]))
		b.want(b.find(k...), nil, by(on("a", store.GPU), until("a", 0, end)))
		b.predict("a", 0, end, k...)
		b.registry()
		b.guarded(gen, "a", 0, 1, 3, removes(store.GPU, k...))
		b.want(b.find(k...), nil, nil)
	}},
	{"a clear of the GPU ends predictions, one of another tier does not", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, 1)
		end := b.in(time.Hour)
		for _, c := range []struct {
			op   store.Op
			left []At
		}{
			{store.Op{Kind: store.Clear, Tier: store.CPU}, by(until("a", 0, end), until("a", 1, end))},
			{store.Op{Kind: store.Clear, Tier: store.GPU}, by(until("a", 1, end))},
			{store.Op{Kind: store.Clear, Tier: store.AllTiers}, by(until("a", 1, end))},
			{store.Op{Kind: store.Clear, Tier: store.GPU, AllRanks: true}, nil},
			{store.Op{Kind: store.Clear, Tier: store.AllTiers, AllRanks: true}, nil},
		} {
			b.predict("a", 0, end, k...)
			b.predict("a", 1, end, k...)
			b.apply(batch("a", 0, c.op))
			b.want(b.find(k...), c.left)
		}
	}},
	{"predictions end with the generation, the pod and the rank", func(b *bench) {
		k := chain(1, 1)
		end := b.in(time.Hour)
		predict := func() {
			b.predict("a", 0, end, k...)
			b.predict("a", 1, end, k...)
		}
		b.register(store.Pod{Name: "a"})
		predict()
		b.begin("a", 0, 1)
		b.want(b.find(k...), by(until("a", 1, end)))
		predict()
		b.register(store.Pod{Name: "a", Ranks: 1})
		b.want(b.find(k...), by(until("a", 0, end)))
		b.retire("a")
		b.register(store.Pod{Name: "a"})
		b.want(b.find(k...), nil)
		predict()
		b.register(store.Pod{Name: "a", Model: "another"})
		b.want(b.find(k...), nil)
	}},
	{"a rank has up to MaxPredicted of them, and those that end first make room", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, store.MaxPredicted+2)
		first := b.in(time.Hour)
		want := make([][]At, len(k))
		for i := range k {
			end := first.Add(time.Duration(i) * time.Minute)
			b.predict("a", 0, end, k[i])
			want[i] = by(until("a", 0, end))
		}
		want[0], want[1] = nil, nil
		b.want(b.find(k...), want...)
		b.predict("a", 0, b.in(time.Minute), k[0]) // the earliest of all goes in place of the first
		if n := len(b.registry().Predicted("a", 0)); n != store.MaxPredicted {
			b.Fatalf("%d predictions, want %d", n, store.MaxPredicted)
		}
	}},
	{"a prediction that ends before it is written counts for nothing", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, 1)
		b.predict("a", 0, b.in(-time.Minute), k...)
		b.want(b.find(k...), nil)
		end := b.in(time.Hour)
		b.predict("a", 0, end, k...)
		b.want(b.find(k...), by(until("a", 0, end)))
	}},
	{"a prediction registers nobody", func(b *bench) {
		k := chain(1, 1)
		b.predict("a", 0, b.in(time.Hour), k...)
		if _, there := b.registry().PodIndex("a"); there {
			b.Fatal("the pod is registered by a prediction")
		}
		b.add("a", 0, store.CPU, k...)
		b.retire("a")
		b.predict("a", 0, b.in(time.Hour), k...)
		b.want(b.find(k...), nil)
	}},
	{"what cannot be a prediction is refused", func(b *bench) {
		k := chain(1, 1)
		end := b.in(time.Hour)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		guarded := batch("a", 0, store.Op{Kind: store.Add, Tier: store.Predicted, Until: end, Keys: k})
		guarded.Guard = &store.Guard{Generation: gen, Fence: 1, Seq: 1}
		for name, wrong := range map[string]store.Batch{
			"no end":          batch("a", 0, adds(store.Predicted, k...)),
			"an end of a GPU": batch("a", 0, store.Op{Kind: store.Add, Tier: store.GPU, Until: end, Keys: k}),
			"a removal":       batch("a", 0, store.Op{Kind: store.Remove, Tier: store.Predicted, Until: end, Keys: k}),
			"a clear of all":  batch("a", 0, store.Op{Kind: store.Clear, Tier: store.Predicted, Until: end, AllRanks: true}),
			"a guard":         guarded,
		} {
			b.wantErr(b.Index.Apply(b.ctx, wrong), store.ErrInvalid, name)
		}
		b.want(b.find(k...), nil)
	}},
}

// lapseCases are those that let time pass.
var lapseCases = []testCase{
	{"a prediction counts until it ends, and not a lookup longer", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		k := chain(1, 3)
		b.patiently(func() bool {
			b.clear("a", 0, store.AllTiers)
			end := b.in(b.Lease)
			b.predict("a", 0, end, k[:2]...)
			b.add("a", 0, store.CPU, k[0])
			b.predict("a", 0, end.Add(time.Hour), k[2])
			all := b.find(k...)
			if !b.in(0).Before(end) {
				return false
			}
			p, q := until("a", 0, end), until("a", 0, end.Add(time.Hour))
			b.want(all, by(on("a", store.CPU), p), by(p), by(q))
			if valid := b.registry().ValidUntil; valid.IsZero() {
				b.Fatal("the registry does not say when it is over")
			}
			b.pass(b.Lease)
			b.want(b.find(k...), by(on("a", store.CPU)), nil, by(q))
			b.predict("a", 0, end.Add(time.Hour), k[1])
			b.want(b.find(k...), by(on("a", store.CPU)), by(q), by(q))
			if n := len(b.registry().Predicted("a", 0)); n != 1 {
				b.Fatalf("%d predictions, want 1", n)
			}
			return true
		})
	}},
	{"the end of a prediction is no end of a lease", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a", Lease: store.Seconds(time.Hour)})
		b.patiently(func() bool {
			end := b.in(b.Lease)
			b.predict("a", 0, end, k...)
			held := b.find(k...)
			if !b.in(0).Before(end) {
				return false
			}
			b.want(held, by(until("a", 0, end)))
			b.pass(b.Lease)
			b.want(b.find(k...), nil)
			if _, there := b.registry().PodIndex("a"); !there {
				b.Fatal("the pod is gone with its prediction")
			}
			return true
		})
	}},
}

// in is the time in d by the clock of the index, to the millisecond.
func (b *bench) in(d time.Duration) time.Time {
	return time.UnixMilli(b.now().Add(d).UnixMilli())
}

// predict adds blocks in tier Predicted.
func (b *bench) predict(pod string, rank int, end time.Time, keys ...blockkey.Key) {
	b.Helper()
	b.apply(batch(pod, rank, store.Op{Kind: store.Add, Tier: store.Predicted, Until: end, Keys: keys}))
}

// until is a rank's prediction with this end.
func until(pod string, rank int, end time.Time) At {
	return At{pod, rank, store.Predicted, end.UnixMilli()}
}

func ends(holders []store.Holder) (out []time.Time) {
	for _, h := range holders {
		out = append(out, h.Until)
	}
	return out
}
