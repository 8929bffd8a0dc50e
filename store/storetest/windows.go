package storetest

import (
	"github.com/kvatlas/kvatlas/store"
)

// Of an engine with window groups the index keeps two kinds of holders, and what the
// engine can reuse.
var windowCases = []testCase{
	{"a window tier is a holder of its own", func(b *bench) {
		k := chain(1, 3)
		window := store.GPU.Window()
		b.add("a", 0, store.GPU, k...)
		b.add("a", 0, window, k[1:]...)
		b.want(b.find(k...), by(on("a", store.GPU)), by(on("a", store.GPU), on("a", window)), by(on("a", store.GPU), on("a", window)))
		b.remove("a", 0, store.GPU, k[1])
		b.remove("a", 0, window, k[2])
		b.want(b.find(k...), by(on("a", store.GPU)), by(on("a", window)), by(on("a", store.GPU)))
		b.remove("a", 0, store.AllTiers, k...)
		b.want(b.find(k...), nil, nil, nil)
	}},
	{"a window holder is not one of a tier of memory", func(b *bench) {
		b.add("a", 0, store.CPU.Window(), chain(1, 1)...)
		r := b.registry()
		h := r.Holders()
		b.failIf(len(h) != 1 || h[0].Tier != store.CPU.Window(), "holders %+v, want a/0/cpu-window", h)
		if _, _, live := r.Holder(h[0].ID); live {
			b.Fatal("Holder knows it")
		}
		if _, tier, live := r.AnyHolder(h[0].ID); !live || tier != store.CPU.Window() {
			b.Fatalf("AnyHolder says %v, %v", tier, live)
		}
	}},
	{"a clear of a tier takes its window tier too", func(b *bench) {
		k := chain(1, 2)
		for _, tier := range []store.Tier{store.GPU, store.CPU} {
			b.add("a", 0, tier, k...)
			b.add("a", 0, tier.Window(), k...)
		}
		b.clear("a", 0, store.GPU)
		b.want(b.find(k...), times(2, on("a", store.CPU), on("a", store.CPU.Window()))...)
		b.clear("a", 0, store.AllTiers)
		b.want(b.find(k...), nil, nil)
	}},
	{"a new generation and the end of a pod take windows too", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k...), adds(store.GPU.Window(), k...))
		gen = b.begin("a", 0, 1)
		b.want(b.find(k...), nil, nil)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k...), adds(store.GPU.Window(), k[1:]...))
		b.want(b.find(k...), by(on("a", store.GPU)), by(on("a", store.GPU), on("a", store.GPU.Window())))
		b.retire("a")
		b.want(b.find(k...), nil, nil)
	}},
	{"what an engine can reuse is known until its generation ends", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a", BlockSize: 32})
		b.add("b", 0, store.GPU, k...)
		b.wantReuse("b", 0, store.Reuse{})
		gen := b.begin("a", 1, 1)
		b.tell(gen, "a", 1, 1, 1, store.Reuse{Block: 16, Window: 128}, adds(store.GPU, k...))
		b.add("a", 0, store.GPU, k...)
		b.wantReuse("a", 1, store.Reuse{Block: 16, Window: 128})
		b.wantReuse("a", 0, store.Reuse{Block: 32}) // as registered
		b.guarded(gen, "a", 1, 1, 2, removes(store.GPU, k[0]), store.Op{Kind: store.Clear, Tier: store.AllTiers}, adds(store.CPU, k...))
		b.wantReuse("a", 1, store.Reuse{Block: 16, Window: 128})
		b.tell(gen, "a", 1, 1, 3, store.Reuse{Block: 16, Window: 256})
		b.wantReuse("a", 1, store.Reuse{Block: 16, Window: 256})
		gen = b.begin("a", 1, 1)
		b.guarded(gen, "a", 1, 1, 1, adds(store.GPU, k...))
		b.wantReuse("a", 1, store.Reuse{Block: 32})
		b.apply(store.Batch{Pod: "b", Model: model, Reuse: store.Reuse{Block: 528, Window: 528}})
		b.wantReuse("b", 0, store.Reuse{Block: 528, Window: 528})
		b.retire("b")
		b.add("b", 0, store.GPU, k...)
		b.wantReuse("b", 0, store.Reuse{})
	}},
	{"nothing is kept of the engine of a rank that the pod does not have", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a", Ranks: 2})
		b.apply(store.Batch{Pod: "a", Rank: 2, Model: model, Reuse: store.Reuse{Block: 16, Window: 128}})
		b.register(store.Pod{Name: "a", Ranks: 3})
		b.add("a", 2, store.GPU, k...)
		b.wantReuse("a", 2, store.Reuse{})
	}},
	{"a refused batch tells nothing of its engine", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 3)
		b.tell(gen, "a", 0, 3, 3, store.Reuse{Block: 16}, adds(store.GPU, k...))
		late := batch("a", 0, adds(store.GPU, k...))
		late.Guard, late.Reuse = &store.Guard{Generation: gen, Fence: 1, Seq: 9}, store.Reuse{Block: 64}
		b.refused(gen, store.ErrFenced, b.Index.Apply(b.ctx, late))
		b.wantReuse("a", 0, store.Reuse{Block: 16})
	}},
	{"what is said without a guard stands until the owner writes again", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		for seq := range uint64(2) {
			b.tell(gen, "a", 0, 1, seq+1, store.Reuse{Block: 16, Window: 128}, adds(store.GPU, k...))
			b.wantReuse("a", 0, store.Reuse{Block: 16, Window: 128})
			open := batch("a", 0, adds(store.GPU, k...))
			open.Reuse = store.Reuse{Block: 16}
			b.apply(open)
			b.wantReuse("a", 0, store.Reuse{Block: 16})
		}
	}},
	{"a batch for a rank that is not there tells nothing of its engine", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a", Ranks: 1})
		absent := batch("a", 1, adds(store.GPU, k...))
		absent.Reuse = store.Reuse{Block: 64}
		b.wantErr(b.Index.Apply(b.ctx, absent), store.ErrNoRank, "Apply for a rank that is not there")
		b.register(store.Pod{Name: "a", Ranks: 2})
		b.add("a", 1, store.GPU, k...)
		b.wantReuse("a", 1, store.Reuse{})
	}},
}

// tell applies a batch that says what the engine can reuse.
func (b *bench) tell(gen store.Generation, pod string, rank int, fence, seq uint64, r store.Reuse, ops ...store.Op) {
	b.Helper()
	told := batch(pod, rank, ops...)
	told.Guard, told.Reuse = &store.Guard{Generation: gen, Fence: fence, Seq: seq}, r
	b.apply(told)
}

// wantReuse fails the test unless that is known of the engine of a rank which holds
// something, through both handles.
func (b *bench) wantReuse(pod string, rank int, want store.Reuse) {
	b.Helper()
	for i, x := range []store.Index{b.Index, b.peer()} {
		r, err := x.Registry(b.ctx)
		if err != nil {
			b.Fatalf("Registry: %v", err)
		}
		p, _ := r.PodIndex(pod)
		found := false
		for slot, s := range r.Slots {
			if s != (store.Slot{Pod: p, Rank: rank}) {
				continue
			}
			found = true
			if got := r.Reuse(slot); got != want {
				b.Fatalf("handle %d knows %v of the engine of %s/%d, want %v", i, got, pod, rank, want)
			}
		}
		b.failIf(!found, "handle %d has no slot of %s/%d", i, pod, rank)
	}
}
