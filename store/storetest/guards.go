package storetest

import (
	"bytes"
	"errors"
	"sync"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

var guardCases = []testCase{
	{"a generation begins with nothing and ends what was held", func(b *bench) {
		k := chain(1, 2)
		b.add("a", 0, store.GPU, k...)
		b.add("a", 0, store.Disk, k...)
		b.add("a", 1, store.GPU, k...)
		before := b.ids(k...)
		gen := b.begin("a", 0, 1)
		b.want(b.find(k...), times(2, At{"a", 1, store.GPU, 0})...)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k[0]))
		b.want(b.find(k...), by(on("a", store.GPU), At{"a", 1, store.GPU, 0}), by(At{"a", 1, store.GPU, 0}))
		for _, id := range before {
			b.failIf(store.Generation(id) == gen, "the number %d is given twice", gen)
		}
		if next := b.begin("a", 0, 1); next <= gen {
			b.Fatalf("generation %d after %d", next, gen)
		}
		b.want(b.find(k...), times(2, At{"a", 1, store.GPU, 0})...)
	}},
	{"the registry says which generation holds", func(b *bench) {
		k := chain(1, 2)
		generation := func(rank int) store.Generation {
			b.want(b.find(k...), b.find(k...)...) // a lookup brings the registry up to date
			reg := b.registry()
			pod, _ := reg.PodIndex("a")
			slot, ok := reg.Slot(pod, rank)
			b.failIf(!ok, "rank %d has no slot", rank)
			return reg.Generation(slot)
		}
		b.add("a", 0, store.GPU, k...)
		b.add("a", 1, store.GPU, k...)
		other := generation(1)
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k[0]))
		if g := generation(0); g != gen {
			b.Fatalf("generation %d, want %d", g, gen)
		}
		b.guarded(gen, "a", 0, 1, 2, store.Op{Kind: store.Clear, Tier: store.GPU}, adds(store.CPU, k[1]))
		if g := generation(0); g != gen {
			b.Fatalf("generation %d after a clear, want %d", g, gen)
		}
		next := b.begin("a", 0, 1)
		b.guarded(next, "a", 0, 1, 1, adds(store.GPU, k[0]))
		if g, o := generation(0), generation(1); g != next || o != other {
			b.Fatalf("generations %d and %d, want %d and %d", g, o, next, other)
		}
		if reg := b.registry(); reg.Generation(-1) != 0 || reg.Generation(1000) != 0 {
			b.Fatal("a slot that is not there has a generation")
		}
	}},
	{"a generation needs a pod", func(b *bench) {
		b.wantErr(errorOf(b.Index.Begin(b.ctx, "nobody", 0, 1)), store.ErrUnknownPod)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.retire("a")
		b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 0, 1, 1, adds(store.GPU, chain(1, 1)...)))
		b.want(b.find(chain(1, 1)...), nil)
		if _, ok := b.registry().PodIndex("a"); ok {
			b.Fatal("a guarded batch has registered a pod")
		}
	}},
	{"an older sequence is skipped", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 5, adds(store.GPU, k[0]))
		b.guarded(gen, "a", 0, 1, 7, removes(store.GPU, k[0]), adds(store.GPU, k[1]))
		n := b.duplicates()
		b.guarded(gen, "a", 0, 1, 5, adds(store.GPU, k[0]))
		b.guarded(gen, "a", 0, 1, 7, removes(store.GPU, k[0]), adds(store.GPU, k[1]))
		b.guarded(gen, "a", 0, 1, 6, store.Op{Kind: store.Clear, Tier: store.AllTiers})
		b.want(b.find(k...), nil, by(on("a", store.GPU)), nil)
		if n = b.duplicates() - n; n != 3 {
			b.Fatalf("%d duplicates counted, want 3", n)
		}
	}},
	{"an older fence is refused, whatever its sequence", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 3)
		b.guarded(gen, "a", 0, 3, 5, adds(store.GPU, k[0]))
		if w, err := b.peer().TakeOver(b.ctx, gen, 4); err != nil || w != 5 {
			b.Fatalf("TakeOver: got %d, %v; want 5", w, err)
		}
		for _, seq := range []uint64{4, 5, 6, 100} {
			b.refused(gen, store.ErrFenced, b.tryGuarded(gen, "a", 0, 3, seq, adds(store.GPU, k[1])))
			b.refused(gen, store.ErrFenced, b.tryGuarded(gen, "a", 0, 3, seq, store.Op{Kind: store.Clear, Tier: store.GPU}))
			b.refused(gen, store.ErrFenced, b.tryGuarded(gen, "a", 0, 3, seq))
		}
		b.want(b.find(k...), by(on("a", store.GPU)), nil)
		b.guarded(gen, "a", 0, 4, 6, adds(store.GPU, k[1]))
		b.want(b.find(k...), times(2, on("a", store.GPU))...)
		b.wantErr(errorOf(b.Index.TakeOver(b.ctx, gen, 3)), store.ErrFenced, "TakeOver under an older fence")
		b.wantErr(errorOf(b.Index.Begin(b.ctx, "a", 0, 3)), store.ErrFenced, "Begin under an older fence")
		b.want(b.find(k...), times(2, on("a", store.GPU))...)
	}},
	{"an ended generation is refused", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a"})
		b.register(store.Pod{Name: "b"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k...))
		next := b.begin("a", 0, 1)
		b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 0, 1, 2, adds(store.GPU, k...)))
		b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 0, 9, 2, store.Op{Kind: store.Clear, Tier: store.AllTiers}))
		b.refused(next, store.ErrEnded, b.tryGuarded(next, "a", 1, 1, 1, adds(store.GPU, k...)))
		b.refused(next, store.ErrEnded, b.tryGuarded(next, "b", 0, 1, 1, adds(store.GPU, k...)))
		b.refused(next+1000, store.ErrEnded, b.tryGuarded(next+1000, "a", 0, 1, 1, adds(store.GPU, k...)))
		b.want(b.find(k...), nil, nil)
		for _, g := range []store.Generation{gen, next + 1000} {
			b.wantErr(errorOf(b.Index.TakeOver(b.ctx, g, 9)), store.ErrEnded, "TakeOver of generation", g)
		}
	}},
	{"an ended generation does not write for who came after", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k[0]))
		b.retire("a")
		b.add("a", 0, store.GPU, k[1])
		b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 0, 1, 2, adds(store.GPU, k[2]), removes(store.GPU, k[1])))
		b.want(b.find(k...), nil, by(on("a", store.GPU)), nil)
	}},
	{"what is refused keeps nothing else from being applied", func(b *bench) {
		k := chain(1, 4)
		var gens []store.Generation
		for _, pod := range []string{"a", "b", "c"} {
			b.register(store.Pod{Name: pod})
			gens = append(gens, b.begin(pod, 0, 2))
		}
		b.guarded(gens[2], "c", 0, 2, 1, adds(store.GPU, k[3]))
		guard := func(i int, fence, seq uint64) *store.Guard {
			return &store.Guard{Generation: gens[i], Fence: fence, Seq: seq}
		}
		err := b.Index.Apply(b.ctx,
			store.Batch{Pod: "a", Model: model, Guard: guard(0, 1, 1), Ops: []store.Op{adds(store.GPU, k...)}},
			store.Batch{Pod: "b", Model: model, Guard: guard(1, 2, 1), Ops: []store.Op{adds(store.GPU, k...)}},
			store.Batch{Pod: "c", Model: model, Guard: guard(2, 2, 1), Ops: []store.Op{adds(store.GPU, k[3])}},
			store.Batch{Pod: "b", Model: model, Guard: guard(1, 2, 2), Ops: []store.Op{removes(store.AllTiers, k[0])}},
			store.Batch{Pod: "d", Model: model, Ops: []store.Op{adds(store.GPU, k[0])}},
		)
		b.refused(gens[0], store.ErrFenced, err)
		b.want(b.find(k...), by(on("d", store.GPU)), by(on("b", store.GPU)), by(on("b", store.GPU)), by(on("b", store.GPU), on("c", store.GPU)))
	}},
	{"batches of one sequence are one", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a"})
		g := &store.Guard{Generation: b.begin("a", 0, 1), Fence: 1, Seq: 1}
		b.apply(
			store.Batch{Pod: "a", Model: model, Guard: g, Ops: []store.Op{adds(store.GPU, k[0])}},
			store.Batch{Pod: "a", Model: "other", Guard: g, Ops: []store.Op{adds(store.GPU, k[1])}},
		)
		b.want(b.find(k...), by(on("a", store.GPU)), nil)
		b.want(b.findIn(blockkey.ModelOf("other"), k...), nil, by(on("a", store.GPU)))
	}},
	{"a guarded clear is made once and keeps the generation", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k[0]), adds(store.CPU, k[0]))
		b.guarded(gen, "a", 0, 1, 2, adds(store.GPU, k[1]), store.Op{Kind: store.Clear, Tier: store.GPU}, adds(store.GPU, k[2]))
		b.want(b.find(k...), by(on("a", store.CPU)), nil, by(on("a", store.GPU)))
		b.guarded(gen, "a", 0, 1, 2, adds(store.GPU, k[1]), store.Op{Kind: store.Clear, Tier: store.GPU}, adds(store.GPU, k[2]))
		b.want(b.find(k...), by(on("a", store.CPU)), nil, by(on("a", store.GPU)))
		b.wantLife("a", 0, store.Life{Generation: gen, Fence: 1, Seq: 2})
	}},
	{"an unguarded write and a guarded one share their holders", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k[0]))
		b.add("a", 0, store.GPU, k[1])
		if ids := b.ids(k...); len(ids) != 1 {
			b.Fatalf("the holders are %v", ids)
		}
		b.clear("a", 0, store.GPU)
		b.guarded(gen, "a", 0, 1, 2, adds(store.GPU, k[2]))
		b.want(b.find(k...), nil, nil, by(on("a", store.GPU)))
	}},
	{"batches without ops move the sequence", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 3, 1)
		b.guarded(gen, "a", 3, 1, 4)
		b.guarded(gen, "a", 3, 1, 5, adds(store.GPU))
		b.guarded(gen, "a", 3, 1, 9, removes(store.AllTiers, chain(1, 1)...))
		b.wantLife("a", 3, store.Life{Generation: gen, Fence: 1, Seq: 9})
	}},
	{"a life that was not begun is refused", func(b *bench) {
		b.add("a", 0, store.GPU, chain(1, 1)...)
		for _, at := range []At{{Pod: "a"}, {Pod: "a", Rank: 1}, {Pod: "b"}} {
			b.wantLife(at.Pod, at.Rank, store.Life{})
		}
	}},
	{"a batch of thousands of blocks and many models is one sequence", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		k := chain(1, 5000)
		b.guarded(gen, "a", 0, 1, 1, adds(store.GPU, k...))
		b.want(b.find(k...), times(5000, on("a", store.GPU))...)
		b.guarded(gen, "a", 0, 1, 2, removes(store.GPU, k[:4000]...), adds(store.CPU, k[2000:]...))
		want := append(times(2000), times(2000, on("a", store.CPU))...)
		b.want(b.find(k...), append(want, times(1000, on("a", store.GPU), on("a", store.CPU))...)...)
		if l := b.life("a", 0); l.Seq != 2 {
			b.Fatalf("the life is %+v", l)
		}
	}},
	{"a map changes with its batch", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		keys := []store.MapKey{{Hash: 5}, {Hash: 5, Part: 1}, {Hash: 5, Part: 256}, {Hash: 5 + 1<<32}, {Hash: 0}, {Hash: ^uint64(0), Part: ^uint16(0)}}
		var set []store.MapOp
		for i, k := range keys {
			set = append(set, store.MapOp{MapKey: k, Value: []byte{byte(i), 0, '\r', '\n'}})
		}
		want := func(values ...string) {
			b.Helper()
			for _, x := range []store.Index{b.Index, b.peer()} {
				got, err := x.ReadMap(b.ctx, gen, keys...)
				if err != nil || len(got) != len(keys) {
					b.Fatalf("ReadMap: got %d values, %v", len(got), err)
				}
				for i, v := range got {
					b.failIf(string(v) != values[i] || (v == nil) != (values[i] == ""), "entry %v is %q, want %q", keys[i], v, values[i])
				}
			}
		}
		v := func(i int) string { return string([]byte{byte(i), 0, '\r', '\n'}) }
		want("", "", "", "", "", "")
		b.mapped(gen, 1, 1, set...)
		want(v(0), v(1), v(2), v(3), v(4), v(5))
		// Of several changes of one entry the last counts; deleting what is not
		// there is harmless.
		b.mapped(gen, 1, 2, store.MapOp{MapKey: keys[0]}, store.MapOp{MapKey: keys[1]}, store.MapOp{MapKey: keys[1], Value: []byte("new")},
			store.MapOp{MapKey: keys[2], Value: []byte("gone")}, store.MapOp{MapKey: keys[2]}, store.MapOp{MapKey: store.MapKey{Hash: 77}})
		want("", "new", "", v(3), v(4), v(5))
		b.mapped(gen, 1, 1, set...) // a duplicate
		want("", "new", "", v(3), v(4), v(5))
		b.clear("a", 0, store.AllTiers)
		want("", "new", "", v(3), v(4), v(5))
		must.Get(b.Index.TakeOver(b.ctx, gen, 2))(b)
		b.refused(gen, store.ErrFenced, b.tryMapped(gen, 1, 9, set...))
		want("", "new", "", v(3), v(4), v(5))
		b.mapped(gen, 2, 3, set...)
		want(v(0), v(1), v(2), v(3), v(4), v(5))
		next := b.begin("a", 0, 2)
		b.wantErr(errorOf(b.peer().ReadMap(b.ctx, gen, keys...)), store.ErrEnded, "the map of an ended generation")
		gen = next
		want("", "", "", "", "", "")
	}},
	{"a map of thousands of entries", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		hashes := chain(3, 5000)
		keys := make([]store.MapKey, len(hashes))
		ops := make([]store.MapOp, len(hashes))
		for i, h := range hashes {
			keys[i] = store.MapKey{Hash: uint64(h)}
			if i%2 == 0 {
				keys[i] = store.MapKey{Hash: uint64(i) << 32} // all in one place
			}
			ops[i] = store.MapOp{MapKey: keys[i], Value: []byte{byte(i), byte(i >> 8), 1}}
		}
		b.mapped(gen, 1, 1, ops...)
		for i := range ops {
			if i%3 == 0 {
				ops[i].Value = nil
			}
		}
		b.mapped(gen, 1, 2, ops...)
		got := must.Get(b.Index.ReadMap(b.ctx, gen, keys...))(b)
		for i, v := range got {
			b.failIf(!bytes.Equal(v, ops[i].Value), "entry %d is %q, want %q", i, v, ops[i].Value)
		}
		if l := b.life("a", 0); l.Seq != 2 {
			b.Fatalf("the life is %+v", l)
		}
	}},
	{"map ops that cannot be right", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		g := &store.Guard{Generation: gen, Fence: 1, Seq: 1}
		for what, batch := range map[string]store.Batch{
			"no guard":     {Map: []store.MapOp{{Value: []byte("x")}}},
			"empty":        {Guard: g, Map: []store.MapOp{{Value: []byte{}}}},
			"long":         {Guard: g, Map: []store.MapOp{{Value: make([]byte, store.MaxMapValue+1)}}},
			"many entries": {Guard: g, Map: make([]store.MapOp, store.MaxMapOps+1)},
		} {
			batch.Pod, batch.Model = "a", model
			b.wantErr(b.Index.Apply(b.ctx, batch), store.ErrInvalid, what)
		}
		for what, f := range map[string]func() error{
			"no generation": func() error { _, err := b.Index.ReadMap(b.ctx, 0); return err },
			"many keys": func() error {
				_, err := b.Index.ReadMap(b.ctx, gen, make([]store.MapKey, store.MaxMapOps+1)...)
				return err
			},
		} {
			b.wantErr(f(), store.ErrInvalid, what)
		}
	}},
	{"guards that cannot be right", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		gen := b.begin("a", 0, 1)
		for what, batch := range map[string]store.Batch{
			"no generation":  {Guard: &store.Guard{Fence: 1, Seq: 1}},
			"no fence":       {Guard: &store.Guard{Generation: gen, Seq: 1}},
			"no sequence":    {Guard: &store.Guard{Generation: gen, Fence: 1}},
			"a high seq":     {Guard: &store.Guard{Generation: gen, Fence: 1, Seq: store.MaxSequence + 1}},
			"a high fence":   {Guard: &store.Guard{Generation: gen, Fence: store.MaxSequence + 1, Seq: 1}},
			"of other ranks": {Guard: &store.Guard{Generation: gen, Fence: 1, Seq: 1}, Ops: []store.Op{{Kind: store.Clear, Tier: store.GPU, AllRanks: true}}},
		} {
			batch.Pod, batch.Model = "a", model
			b.wantErr(b.Index.Apply(b.ctx, batch), store.ErrInvalid, what)
		}
		for what, f := range map[string]func() error{
			"begin without a fence":   func() error { _, err := b.Index.Begin(b.ctx, "a", 0, 0); return err },
			"begin without a name":    func() error { _, err := b.Index.Begin(b.ctx, "", 0, 1); return err },
			"begin of no rank":        func() error { _, err := b.Index.Begin(b.ctx, "a", -1, 1); return err },
			"take over without one":   func() error { _, err := b.Index.TakeOver(b.ctx, 0, 1); return err },
			"take over with no one":   func() error { _, err := b.Index.TakeOver(b.ctx, gen, 0); return err },
			"the life of no rank":     func() error { _, err := b.Index.Life(b.ctx, "a", store.MaxRanks); return err },
			"the life of nobody":      func() error { _, err := b.Index.Life(b.ctx, "", 0); return err },
			"take over by a huge one": func() error { _, err := b.Index.TakeOver(b.ctx, gen, 1<<63); return err },
		} {
			b.wantErr(f(), store.ErrInvalid, what)
		}
		// The largest there are.
		b.guarded(gen, "a", 0, store.MaxSequence, store.MaxSequence-1, adds(store.GPU, chain(1, 1)...))
		b.guarded(gen, "a", 0, store.MaxSequence, store.MaxSequence, adds(store.GPU, chain(2, 1)...))
		b.guarded(gen, "a", 0, store.MaxSequence, store.MaxSequence-1, removes(store.GPU, chain(2, 1)...))
		b.want(b.find(append(chain(1, 1), chain(2, 1)...)...), times(2, on("a", store.GPU))...)
	}},
	{"a writer that is taken over at any moment writes nothing afterwards", func(b *bench) {
		// The old writer adds a new block with each batch. What it wrote after
		// the takeover would be seen beyond what was there when it returned.
		b.register(store.Pod{Name: "a"})
		k := chain(1, 400)
		for round := range uint64(4) {
			gen := b.begin("a", 0, round+1)
			var writer sync.WaitGroup
			started := make(chan struct{})
			writer.Go(func() {
				for i := range uint64(len(k)) {
					g := &store.Guard{Generation: gen, Fence: round + 1, Seq: i + 1}
					err := b.Index.Apply(b.ctx, store.Batch{Pod: "a", Model: model, Guard: g, Ops: []store.Op{adds(store.GPU, k[i])}})
					if errors.Is(err, store.ErrFenced) {
						return
					}
					if err != nil {
						b.Errorf("Apply: %v", err)
						return
					}
					if i == 3 {
						close(started)
					}
				}
			})
			<-started
			w := must.Get(b.peer().TakeOver(b.ctx, gen, round+2))(b)
			then := b.find(k...)
			for i := range w {
				b.failIf(len(then[i]) != 1, "round %d: block %d is missing, the watermark is %d", round, i, w)
			}
			writer.Wait()
			if later := b.find(k...); !later.Equal(then) {
				b.Fatalf("round %d: the old writer has written after the takeover:\n%v then\n%v", round, then, later)
			}
		}
	}},
}

func (b *bench) begin(pod string, rank int, fence uint64) store.Generation {
	b.Helper()
	gen, err := b.Index.Begin(b.ctx, pod, rank, fence)
	if err != nil || gen == 0 {
		b.Fatalf("Begin(%s, %d, %d): got %d, %v", pod, rank, fence, gen, err)
	}
	return gen
}

func (b *bench) tryGuarded(gen store.Generation, pod string, rank int, fence, seq uint64, ops ...store.Op) error {
	return b.Index.Apply(b.ctx, store.Batch{Pod: pod, Rank: rank, Model: model, Ops: ops, Guard: &store.Guard{Generation: gen, Fence: fence, Seq: seq}})
}

func (b *bench) guarded(gen store.Generation, pod string, rank int, fence, seq uint64, ops ...store.Op) {
	b.Helper()
	must.OK(b, b.tryGuarded(gen, pod, rank, fence, seq, ops...))
}

// tryMapped changes the map of a generation of a/0.
func (b *bench) tryMapped(gen store.Generation, fence, seq uint64, ops ...store.MapOp) error {
	return b.Index.Apply(b.ctx, store.Batch{Pod: "a", Model: model, Map: ops, Guard: &store.Guard{Generation: gen, Fence: fence, Seq: seq}})
}

func (b *bench) mapped(gen store.Generation, fence, seq uint64, ops ...store.MapOp) {
	b.Helper()
	must.OK(b, b.tryMapped(gen, fence, seq, ops...))
}

// refused fails the test when err is not the refusal of just this generation.
func (b *bench) refused(gen store.Generation, want, err error) {
	b.Helper()
	var r *store.RefusedError
	b.failIf(!errors.As(err, &r) || len(r.Generations) != 1 || !errors.Is(r.Generations[gen], want) || !errors.Is(err, want), "got %v, want %v of generation %d", err, want, gen)
}

func (b *bench) life(pod string, rank int) store.Life {
	b.Helper()
	return must.Get(b.peer().Life(b.ctx, pod, rank))(b)
}

func (b *bench) wantLife(pod string, rank int, want store.Life) {
	b.Helper()
	l := b.life(pod, rank)
	b.failIf(l != want, "the life of %s/%d is %+v, want %+v", pod, rank, l, want)
}

func (b *bench) duplicates() uint64 { return b.Index.Stats().Duplicates }
