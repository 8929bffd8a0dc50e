package route_test

import (
	"testing"

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
		first     bool
		cached    int
		delivered uint64
		samples   int64
	}{{false, 600, 600, 0}, {true, 500, 1100, 1}, {true, -1, 1100, 2}, {false, -1, 1100, 2}} {
		q := ask(p)
		q.Reserve = true
		d := w.route(q)
		if d.Lease <= 0 {
			t.Fatalf("a lease of %v", d.Lease)
		}
		var done *loads.Report
		if x.first {
			rep, err := w.Done(t.Context(), "m", d.Reservation, -1)
			if err != nil {
				t.Fatal(err)
			}
			done = &rep
		}
		if r, err := w.Settle(t.Context(), "m", d.Reservation, done, x.cached); err != nil || !r.Known {
			t.Fatalf("%+v, %v", r, err)
		}
		pic, err := w.Loads(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		if l := pic.Loads[d.RankRef]; l.Requests != 0 || x.samples == 0 && l.Samples != 0 {
			t.Errorf("request %d: load %+v", i, l)
		}
		if o := w.Outcomes(); len(o) != 1 || o[0].Delivered != x.delivered {
			t.Errorf("request %d: %+v", i, o)
		}
	}
}
