package route_test

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// embedded returns an index, its scorer and a router of one process.
func embedded(b *testing.B) (*memory.Index, *scorer.Scorer, *route.Router) {
	b.Helper()
	index, err := memory.New(memory.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = index.Close() })
	s, err := scorer.New(scorer.Config{Index: index, Budget: scorer.Unbounded})
	if err != nil {
		b.Fatal(err)
	}
	r, err := route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil), Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	return index, s, r
}

// BenchmarkRoute routes prompts of which one of ten pods holds half, in process: score is the
// scorer alone, query books nothing, request books, reports its first token and ends.
func BenchmarkRoute(b *testing.B) {
	index, s, r := embedded(b)
	if _, err := index.EnsureModel(b.Context(), store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative}); err != nil {
		b.Fatal(err)
	}
	for i := range 10 {
		if _, err := index.Register(b.Context(), store.Pod{Name: fmt.Sprint("p", i), Model: "m"}); err != nil {
			b.Fatal(err)
		}
	}
	for _, n := range []int{2048, 16384, 131072} {
		p := prompt(uint32(n), n)
		keys := blockkey.AppendNative(nil, p[:n/2], 64, blockkey.NativeSeed("", ""))
		if err := index.Apply(b.Context(), store.Batch{Pod: "p3", Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}); err != nil {
			b.Fatal(err)
		}
		q := ask(p)
		b.Run(fmt.Sprint("score/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Score(b.Context(), q.Score); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("query/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Route(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
		q.Reserve = true
		b.Run(fmt.Sprint("request/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d, err := r.Route(b.Context(), q)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := r.Done(b.Context(), "m", d.Reservation, -1); err != nil {
					b.Fatal(err)
				}
				if _, err := r.End(b.Context(), "m", d.Reservation); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
