package route_test

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// TestBlindSeesWhoGoes registers and retires pods by another process. A policy that looks
// nothing up sees them come and go even so.
func TestBlindSeesWhoGoes(t *testing.T) {
	server := redistest.Start(t)
	open := func() *redis.Index {
		x := must.Get(redis.Open(redis.Config{URL: server.URL(), NoSweep: true, Timeout: 10 * time.Second}))(t)
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	index, other := open(), open()
	s := must.Get(scorer.New(scorer.Config{Index: index, BlockSize: 16, Budget: 10 * time.Second}))(t)
	r := must.Get(route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil), Seed: 1}))(t)
	for _, name := range []string{"a", "b"} {
		must.Get(other.Register(t.Context(), store.Pod{Name: name, Model: "m"}))(t)
	}
	q := ask(prompt(1, 100))
	q.Overrides, q.Explain = []byte(`{"policy":"round_robin"}`), true
	candidates := func(want int) {
		t.Helper()
		d := must.Get(r.Route(t.Context(), q))(t)
		if len(d.Costs) != want {
			t.Errorf("%d pods may take it, expected %d", len(d.Costs), want)
		}
	}
	candidates(2)
	must.Get(other.Retire(t.Context(), "a"))(t)
	candidates(1)
	must.Get(other.Register(t.Context(), store.Pod{Name: "c", Model: "m"}))(t)
	candidates(2)
}
