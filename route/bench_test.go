package route_test

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// embedded returns an index, its scorer and a router of one process.
func embedded(b *testing.B) (*memory.Index, *scorer.Scorer, *route.Router) {
	b.Helper()
	index := must.Get(memory.New(memory.Config{}))(b)
	b.Cleanup(func() { _ = index.Close() })
	s := must.Get(scorer.New(scorer.Config{Index: index, Budget: scorer.Unbounded}))(b)
	r := must.Get(route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil), Seed: 1}))(b)
	return index, s, r
}

// BenchmarkRoute routes prompts of which one of ten pods holds half, in process. Case score is the
// scorer alone, query books nothing, and request books, reports its first token and ends.
func BenchmarkRoute(b *testing.B) {
	index, s, r := embedded(b)
	must.Get(index.EnsureModel(b.Context(), store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative}))(b)
	for i := range 10 {
		must.Get(index.Register(b.Context(), store.Pod{Name: fmt.Sprint("p", i), Model: "m"}))(b)
	}
	for _, n := range []int{2048, 16384, 131072} {
		p := prompt(uint32(n), n)
		keys := blockkey.AppendNative(nil, p[:n/2], 64, blockkey.NativeSeed("", ""))
		must.OK(b, index.Apply(b.Context(), store.Batch{Pod: "p3", Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}))
		q := ask(p)
		b.Run(fmt.Sprint("score/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must.Get(s.Score(b.Context(), q.Score))(b)
			}
		})
		b.Run(fmt.Sprint("query/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must.Get(r.Route(b.Context(), q))(b)
			}
		})
		q.Reserve = true
		b.Run(fmt.Sprint("request/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d := must.Get(r.Route(b.Context(), q))(b)
				must.Get(r.Done(b.Context(), "m", d.Reservation, -1))(b)
				must.Get(r.End(b.Context(), "m", d.Reservation))(b)
			}
		})
	}
}
