package route_test

import (
	"testing"
	"time"

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
		x, err := redis.Open(redis.Config{URL: server.URL(), NoSweep: true, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	index, other := open(), open()
	s, err := scorer.New(scorer.Config{Index: index, BlockSize: 16, Budget: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r, err := route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if _, err := other.Register(t.Context(), store.Pod{Name: name, Model: "m"}); err != nil {
			t.Fatal(err)
		}
	}
	q := ask(prompt(1, 100))
	q.Overrides, q.Explain = []byte(`{"policy":"round_robin"}`), true
	candidates := func(want int) {
		t.Helper()
		d, err := r.Route(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Costs) != want {
			t.Errorf("%d pods may take it, expected %d", len(d.Costs), want)
		}
	}
	candidates(2)
	if _, err := other.Retire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	candidates(1)
	if _, err := other.Register(t.Context(), store.Pod{Name: "c", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	candidates(2)
}
