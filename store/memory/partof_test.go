package memory

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// A renewal that changes what a cache worker counts for is seen, and what the caller does
// to its own copy later is not.
func TestRenewalChangesPartOf(t *testing.T) {
	x := must.Get(New(Config{}))(t)
	defer x.Close()
	p := store.Pod{Name: "a/lmcache/0", Model: "m", PartOf: &store.PartOf{Pod: "a", Workers: 1}}
	for workers := 1; workers < 4; workers++ {
		p.PartOf.Workers = workers
		must.Get(x.Register(t.Context(), p))(t)
		if got := partOf(t, x).Workers; got != workers {
			t.Errorf("%d workers, want %d", got, workers)
		}
	}
	p.PartOf.Workers = 9
	if got := partOf(t, x).Workers; got != 3 {
		t.Errorf("%d workers, want 3", got)
	}
}

func partOf(t *testing.T, x *Index) store.PartOf {
	t.Helper()
	reg := must.Get(x.Registry(t.Context()))(t)
	return *reg.Pods[0].PartOf
}
