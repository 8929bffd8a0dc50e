package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// BenchmarkRegistry loads the registry of 1,000 pods with 8 ranks each. It loads it
// wholly by a process that has just begun, wholly by one that has loaded it before,
// and after one pod has changed.
func BenchmarkRegistry(b *testing.B) {
	const pods, ranks = 1000, 8
	s := redistest.Start(b)
	ctx := context.Background()
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	name := func(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250) }
	for p := range pods {
		must.Get(x.Register(ctx, store.Pod{Name: name(p), Model: "meta-llama/Llama-3.1-8B", Ranks: ranks, Engine: "vllm", Labels: map[string]string{"zone": "a"}}))(b)
		var batches []store.Batch
		for r := range ranks {
			batches = append(batches, store.Batch{Pod: name(p), Rank: r, Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: []blockkey.Key{1}}}})
		}
		apply(b, x, batches...)
	}
	plain := s.Client()
	check := func(b *testing.B, y *Index) {
		if r := y.Cached(); len(r.Pods) != pods || len(r.Slots) != pods*ranks {
			b.Fatalf("%d pods, %d slots", len(r.Pods), len(r.Slots))
		}
	}
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		report := cpu(b, plain)
		for b.Loop() {
			y := must.Get(Open(Config{URL: s.URL(), NoSweep: true}))(b)
			must.Get(y.Registry(ctx))(b)
			check(b, y)
			_ = y.Close()
		}
		report()
	})
	b.Run("whole", func(b *testing.B) {
		y := open(b, Config{URL: s.URL(), NoSweep: true})
		b.ReportAllocs()
		report := cpu(b, plain)
		for b.Loop() {
			must.Get(y.Registry(ctx))(b)
		}
		report()
		check(b, y)
	})
	b.Run("change", func(b *testing.B) {
		y := open(b, Config{URL: s.URL(), NoSweep: true})
		q := &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: &all{}}
		must.OK(b, y.Lookup(ctx, q))
		b.ReportAllocs()
		loads := y.Stats().RegistryLoads
		n := 0
		for b.Loop() {
			b.StopTimer()
			apply(b, x, batchOf(name(n%pods), store.Clear), batchOf(name(n%pods), store.Add, 1))
			n++
			b.StartTimer()
			must.OK(b, y.Lookup(ctx, q))
		}
		if got := y.Stats().RegistryLoads - loads; got != uint64(n) {
			b.Fatalf("%d loads for %d changes", got, n)
		}
		check(b, y)
	})
}
