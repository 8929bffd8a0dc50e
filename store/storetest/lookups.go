package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

var lookupCases = []testCase{
	{"no queries are no error", func(b *bench) {
		must.OK(b, b.Index.Lookup(b.ctx))
	}},
	{"a chain of no blocks gets Begin and no Run", func(b *bench) {
		b.add("a", 0, store.GPU, chain(1, 1)...)
		c := &Collector{}
		must.OK(b, b.Index.Lookup(b.ctx, &store.Query{Model: mask, Fold: c}))
		b.checked(c)
		if _, ok := c.Registry.PodIndex("a"); !ok {
			b.Fatal("the registry does not know the pod")
		}
	}},
	{"queries of one lookup are answered apart, with one registry", func(b *bench) {
		k := chain(1, 40)
		b.add("a", 0, store.GPU, k[:20]...)
		b.apply(store.Batch{Pod: "b", Model: "other", Ops: []store.Op{adds(store.CPU, k[10:]...)}})
		a, o, none, part := &Collector{Keys: 40}, &Collector{Keys: 40}, &Collector{Keys: 0}, &Collector{Keys: 5}
		must.OK(b, b.Index.Lookup(b.ctx,
			&store.Query{Model: mask, Keys: k, Fold: a},
			&store.Query{Model: blockkey.ModelOf("other"), Keys: k, Fold: o},
			&store.Query{Model: mask, Fold: none},
			&store.Query{Model: mask, Keys: k[18:23], Fold: part},
		))
		for _, c := range []*Collector{a, o, none, part} {
			b.checked(c)
			b.failIf(c.Registry != a.Registry, "two queries of one lookup got two registries")
		}
		b.want(a.Answer, append(times(20, on("a", store.GPU)), times(20)...)...)
		b.want(o.Answer, append(times(10), times(30, on("b", store.CPU))...)...)
		b.want(part.Answer, append(times(2, on("a", store.GPU)), times(3)...)...)
	}},
	{"a folder that has seen enough gets no further run", func(b *bench) {
		k := chain(1, 3000)
		b.add("a", 0, store.GPU, k...)
		// Neighbours differ, so that no run is long.
		for i := 0; i < len(k); i += 2 {
			b.add("b", 0, store.GPU, k[i])
		}
		for _, stop := range []int{1, 2, 63, 64, 65, 1000, 2999, 3000} {
			c, all := &Collector{Keys: len(k), Stop: stop}, &Collector{Keys: len(k)}
			must.OK(b, b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c}, &store.Query{Model: mask, Keys: k, Fold: all}))
			b.checked(c)
			b.checked(all) // the other query is answered in full
			b.failIf(len(c.Answer) < stop || !all.Answer[:len(c.Answer)].Equal(c.Answer), "stop at %d: told %d blocks:\n%v", stop, len(c.Answer), c.Answer)
		}
	}},
	{"a gap does not end the answer", func(b *bench) {
		k := chain(1, 2000)
		b.add("a", 0, store.GPU, k[0], k[1999])
		got := b.find(k...)
		want := times(2000)
		want[0], want[1999] = by(on("a", store.GPU)), by(on("a", store.GPU))
		b.want(got, want...)
	}},
	{"a chain may name a block twice", func(b *bench) {
		k := chain(1, 2)
		b.add("a", 0, store.GPU, k[0])
		b.want(b.find(k[0], k[1], k[0], k[0]), by(on("a", store.GPU)), nil, by(on("a", store.GPU)), by(on("a", store.GPU)))
	}},
	{"forks end where they end", func(b *bench) {
		k := chain(1, 64)
		want := make([][]At, 64)
		for p := range 8 {
			pod := fmt.Sprint("pod", p)
			b.add(pod, 0, store.GPU, k[:(p+1)*8]...)
			for i := range (p + 1) * 8 {
				want[i] = append(want[i], on(pod, store.GPU))
			}
		}
		b.want(b.find(k...), want...)
	}},
	{"a lookup brings the cached registry up to date", func(b *bench) {
		b.failIf(b.Index.Cached() == nil, "Cached is nil before the first lookup")
		k := chain(1, 1)
		b.add("a", 0, store.GPU, k...)
		for _, x := range []store.Index{b.Index, b.peer()} {
			c := &Collector{Keys: 1}
			must.OK(b, x.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c}))
			b.checked(c)
			if got := x.Cached(); got.Epoch != c.Registry.Epoch {
				b.Fatalf("cached registry of epoch %d after a lookup with %d", got.Epoch, c.Registry.Epoch)
			}
			if _, ok := x.Cached().PodIndex("a"); !ok {
				b.Fatal("the cached registry does not know the pod")
			}
		}
	}},
	{"keys that were looked up are counted", func(b *bench) {
		k := chain(1, 100)
		b.add("a", 0, store.GPU, k...)
		before := b.Index.Stats().KeysRead
		b.findBy(b.Index, mask, k...)
		if n := b.Index.Stats().KeysRead - before; n < 100 {
			b.Fatalf("%d keys read for a chain of 100", n)
		}
	}},
	{"a cancelled context is its error", func(b *bench) {
		k := chain(1, 100)
		b.add("a", 0, store.GPU, k...)
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		c, d := &Collector{Keys: 100}, &Collector{Keys: 100}
		err := b.Index.Lookup(ctx, &store.Query{Model: mask, Keys: k, Fold: c}, &store.Query{Model: mask, Keys: k, Fold: d})
		b.failIf(!errors.Is(err, context.Canceled), "Lookup: got %v, want context.Canceled", err)
		b.failIf(c.Registry == nil || d.Registry == nil || c.Registry != d.Registry, "Begin was not called for all queries with one registry")
		b.wantErr(b.Index.Apply(ctx, batch("a", 0, removes(store.GPU, k...))), context.Canceled, "Apply")
		b.wantErr(errorOf(b.Index.Register(ctx, store.Pod{Name: "b", Model: model})), context.Canceled, "Register")
		b.wantErr(errorOf(b.Index.Retire(ctx, "a")), context.Canceled, "Retire")
		b.want(b.find(k...), times(100, on("a", store.GPU))...) // and the index lives on
	}},
}

var refusalCases = []testCase{
	{"a query without folder", func(b *bench) {
		for _, q := range []*store.Query{nil, {Model: mask, Keys: chain(1, 1)}} {
			b.wantErr(b.Index.Lookup(b.ctx, q), store.ErrInvalid)
		}
	}},
	{"a batch that cannot be right leaves all as it was", func(b *bench) {
		k := chain(1, 3)
		b.add("a", 0, store.GPU, k...)
		good := batch("a", 0, removes(store.GPU, k...))
		long := string(make([]byte, store.MaxPodName+1))
		for name, bad := range map[string]store.Batch{
			"empty pod":       batch("", 0, adds(store.GPU, k...)),
			"long pod":        batch(long, 0, adds(store.GPU, k...)),
			"control in pod":  batch("a\nb", 0, adds(store.GPU, k...)),
			"empty model":     {Pod: "a", Ops: []store.Op{adds(store.GPU, k...)}},
			"negative rank":   batch("a", -1, adds(store.GPU, k...)),
			"rank too high":   batch("a", store.MaxRanks, adds(store.GPU, k...)),
			"no kind":         batch("a", 0, store.Op{Tier: store.GPU, Keys: k}),
			"unknown kind":    batch("a", 0, store.Op{Kind: 9, Tier: store.GPU, Keys: k}),
			"unknown tier":    batch("a", 0, adds(store.NumHolderTiers, k...)),
			"clear a window":  batch("a", 0, store.Op{Kind: store.Clear, Tier: store.GPU.Window()}),
			"window alone":    {Pod: "a", Model: model, Reuse: store.Reuse{Window: 128}},
			"add to all":      batch("a", 0, adds(store.AllTiers, k...)),
			"add to ranks":    batch("a", 0, store.Op{Kind: store.Add, AllRanks: true, Keys: k}),
			"clear with keys": batch("a", 0, store.Op{Kind: store.Clear, Keys: k}),
			"too many keys":   batch("a", 0, removes(store.GPU, make([]blockkey.Key, store.MaxOpKeys+1)...)),
		} {
			b.wantErr(b.Index.Apply(b.ctx, good, bad), store.ErrInvalid, name)
			b.want(b.find(k...), times(3, on("a", store.GPU))...)
		}
		if n := len(b.registry().Pods); n != 1 {
			b.Fatalf("%d pods, want 1", n)
		}
	}},
	{"a pod that cannot be right", func(b *bench) {
		for name, p := range map[string]store.Pod{
			"empty name":     {Model: model},
			"empty model":    {Name: "a"},
			"control":        {Name: "a\x00", Model: model},
			"negative lease": {Name: "a", Model: model, Lease: -1},
			"ranks":          {Name: "a", Model: model, Ranks: store.MaxRanks + 1},
			"role":           {Name: "a", Model: model, Role: "boss"},
		} {
			b.wantErr(errorOf(b.Index.Register(b.ctx, p)), store.ErrInvalid, name)
		}
		b.wantErr(errorOf(b.Index.Retire(b.ctx, "")), store.ErrInvalid, "Retire")
		if n := len(b.registry().Pods); n != 0 {
			b.Fatalf("%d pods, want none", n)
		}
	}},
	{"all calls after Close are ErrClosed", func(b *bench) {
		k := chain(1, 1)
		b.add("a", 0, store.GPU, k...)
		must.OK(b, b.Index.Close())
		if err := b.Index.Close(); err != nil {
			b.Errorf("second Close: got %v, want nil", err)
		}
		c := &Collector{Keys: 1}
		lookup := b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c})
		_, register := b.Index.Register(b.ctx, store.Pod{Name: "a", Model: model})
		_, retire := b.Index.Retire(b.ctx, "a")
		_, ensure := b.Index.EnsureModel(b.ctx, store.ModelInfo{Name: model, BlockSize: 64, Scheme: store.SchemeNative})
		_, registry := b.Index.Registry(b.ctx)
		for name, err := range map[string]error{
			"Lookup": lookup, "Register": register, "Retire": retire, "EnsureModel": ensure, "Registry": registry,
			"Apply": b.Index.Apply(b.ctx, batch("a", 0, adds(store.GPU, k...))),
		} {
			if !errors.Is(err, store.ErrClosed) {
				b.Errorf("%s: got %v, want ErrClosed", name, err)
			}
		}
		if c.Registry == nil || b.Index.Cached() == nil {
			b.Error("Begin was not called, or Cached is nil")
		}
		b.Index.Stats()
	}},
}
