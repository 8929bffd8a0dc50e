package route_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// A request that is settled is over, and what its engine had is counted once: whether its first
// token was reported or not. Of one that was not, no speed is learnt.
func TestSettle(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"})
	p := prompt(1, 1000)
	w.hold("a", 0, store.GPU, p, 800)
	for i, x := range []struct {
		first, alone bool // alone is a Done whose report Settle does not get
		cached       int
		delivered    uint64
		samples      int64
	}{{cached: 600, delivered: 600}, {first: true, cached: 500, delivered: 1100, samples: 1}, {first: true, cached: -1, delivered: 1100, samples: 2}, {cached: -1, delivered: 1100, samples: 2}, {alone: true, cached: 300, delivered: 1400, samples: 3}} {
		q := reserving(ask(p))
		d := w.route(q)
		if d.Lease <= 0 {
			t.Fatalf("a lease of %v", d.Lease)
		}
		var done *loads.Report
		if x.first {
			rep := must.Get(w.Done(t.Context(), "m", d.Reservation, -1))(t)
			done = &rep
		}
		if x.alone {
			must.Get(w.Done(t.Context(), "m", d.Reservation, x.cached))(t)
		}
		if r, err := w.Settle(t.Context(), "m", d.Reservation, done, x.cached); err != nil || !r.Known {
			t.Fatalf("%+v, %v", r, err)
		}
		pic := must.Get(w.Loads(t.Context(), "m"))(t)
		if l := pic.Loads[d.RankRef]; l.Requests != 0 || x.samples == 0 && l.Samples != 0 {
			t.Errorf("request %d: load %+v", i, l)
		}
		if o := w.Outcomes(); len(o) != 1 || o[0].Delivered != x.delivered {
			t.Errorf("request %d: %+v", i, o)
		}
	}
}
