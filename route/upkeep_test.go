package route_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// liar is a world whose pods a, with events, and b, without, hold a prompt by the index.
func liar(t *testing.T) (w *world, p []uint32) {
	t.Helper()
	w = newWorld(t, nil)
	w.register(store.Pod{Name: "a", Events: "tcp://127.0.0.1:5557"}, store.Pod{Name: "b"}, store.Pod{Name: "c", Events: "tcp://127.0.0.1:5558"})
	for _, pod := range []string{"a", "c"} {
		must.Get(w.index.Begin(t.Context(), pod, 0, 7))(t)
	}
	p = prompt(1, 1000)
	for _, pod := range []string{"a", "b", "c"} {
		w.hold(pod, 0, store.GPU, p, 992)
	}
	return w, p
}

// serve has n requests on a pod, whose engine had so much of them cached.
func (w *world) serve(pod string, p []uint32, n, cached int) {
	w.Helper()
	for range n {
		q := reserving(ask(p))
		q.Pinned = &store.RankRef{Pod: pod}
		d := w.route(q)
		must.Get(w.Done(w.Context(), "m", d.Reservation, cached))(w)
		must.Get(w.End(w.Context(), "m", d.Reservation))(w)
	}
}

// TestLiarsAreMended lets the index hold what engines do not have.
func TestLiarsAreMended(t *testing.T) {
	w, p := liar(t)
	told := map[string]bool{}
	u := &route.Upkeep{Router: w.Router, Index: w.index, Lies: func(_ string, t loads.Truth, mended bool) { told[t.Pod] = mended }}
	held := func(pod string) int {
		q := ask(p)
		q.Pinned = &store.RankRef{Pod: pod}
		return w.route(q).Cached()
	}
	w.serve("a", p, 31, 0)
	w.serve("b", p, 31, 0)
	w.serve("c", p, 31, 500)
	u.Look(t.Context())
	if len(told) != 0 {
		t.Fatalf("%v of 31 requests", told)
	}
	w.serve("a", p, 5, 0)
	w.serve("b", p, 5, 0)
	w.serve("c", p, 500, 500) // half of what was promised: much was evicted on the way
	u.Look(t.Context())
	if len(told) != 2 || !told["a"] || told["b"] {
		t.Errorf("told %v, expected a, which is mended, and b, which nobody reads", told)
	}
	if held("a") != 0 || held("b") == 0 || held("c") == 0 {
		t.Errorf("a holds %d, b %d, c %d tokens", held("a"), held("b"), held("c"))
	}
	truths := must.Get(w.Truths(t.Context(), "m"))(t)
	if b := truths[store.RankRef{Pod: "b"}]; !b.Lies() {
		t.Errorf("b is not flagged: %+v", b)
	}
	// What its engine replays is right, and the rank is not begun anew for ever.
	clear(told)
	w.hold("a", 0, store.GPU, p, 992)
	w.serve("a", p, 100, 990)
	u.Look(t.Context())
	w.serve("a", p, 500, 0) // it goes wrong again at once
	u.Look(t.Context())
	if len(told) != 0 {
		t.Errorf("told %v again within %v", told, route.MendEvery)
	}
	w.clock = w.clock.Add(route.MendEvery)
	w.serve("a", p, 40, 0)
	u.Look(t.Context())
	if !told["a"] {
		t.Errorf("told %v: a lies for long", told)
	}
}

// TestHonestRanksAreLeftAlone has engines that give what they can, which is never all.
func TestHonestRanksAreLeftAlone(t *testing.T) {
	w, _ := liar(t)
	u := &route.Upkeep{Router: w.Router, Index: w.index, Lies: func(_ string, t loads.Truth, _ bool) { w.Errorf("%+v", t) }}
	for n := 16; n <= 160; n += 16 { // prompts that are held whole, and hardly longer than a block
		p := prompt(uint32(n)<<16, n)
		w.hold("a", 0, store.GPU, p, n)
		w.serve("a", p, 40, n-16) // the engine computes the last block
		w.serve("a", append(p, 1), 40, n-16)
		w.serve("b", p, 40, -1) // it does not say
		u.Look(t.Context())
	}
	p := prompt(5<<16, 640)
	w.serve("c", p, 100, 600) // more than the index knows
	u.Look(t.Context())
	// Of what is predicted an engine may have nothing yet.
	must.Get(w.PutSettings(t.Context(), "m", []byte(`{"predict":{"bridge_s":2}}`)))(t)
	w.clock = w.clock.Add(time.Second)
	w.hold("c", 0, store.GPU, p, 640)
	w.serve("c", p, 100, 0)
	u.Look(t.Context())
}

// TestOutcomes adds up what prompts came to, by cause.
func TestOutcomes(t *testing.T) {
	w, p := liar(t)
	w.register(store.Pod{Name: "d"})
	w.hold("d", 0, store.CPU, p, 160)
	w.serve("d", p, 1, 100)
	w.route(ask(p)) // a query
	var got route.Outcome
	for _, o := range w.Outcomes() {
		if o.Pod == "d" {
			got = o
		}
	}
	// Of the pods that could take the request, only d was pinned.
	want := route.Outcome{RankRef: store.RankRef{Pod: "d"}, Model: "m", Prompt: 1000, Anybody: 160, Chosen: 160, Predicted: 160, Delivered: 100, Missing: 60}
	if got != want {
		t.Errorf("%+v, expected %+v", got, want)
	}
	q := reserving(ask(p))
	q.Overrides = []byte(`{"policy":"least_requests"}`)
	for range 8 {
		w.route(q) // looks nothing up
	}
	if n := len(w.Outcomes()); n != 1 {
		t.Errorf("%d outcomes", n)
	}
	must.Get(w.index.Retire(t.Context(), "d"))(t)
	w.route(ask(p))
	if n := len(w.Outcomes()); n != 0 {
		t.Errorf("%d outcomes of a pod that is gone", n)
	}
}

// TestAudit spoils nothing: it is done by one of two, once in a while.
func TestAudit(t *testing.T) {
	w, p := liar(t)
	w.serve("a", p, 1, 0)
	audits := 0
	u := &route.Upkeep{Router: w.Router, Index: w.index, Audited: func(_ string, found []loads.Difference) {
		audits++
		if len(found) != 0 {
			t.Errorf("%+v", found)
		}
	}}
	other := *u
	for range 5 {
		u.Look(t.Context())
		other.Look(t.Context())
	}
	if audits != 1 {
		t.Errorf("%d audits", audits)
	}
	w.clock = w.clock.Add(route.AuditEvery + time.Second)
	if w.route(ask(p)); audits != 1 {
		t.Errorf("%d audits", audits)
	}
	other.Look(t.Context())
	u.Look(t.Context())
	if audits != 2 {
		t.Errorf("%d audits a minute later", audits)
	}
}

// claims are loads that note of which models something was claimed.
type claims struct {
	loads.Store
	models []string
}

func (c *claims) Claim(ctx context.Context, model, what string, until time.Duration) (bool, error) {
	c.models = append(c.models, model)
	return c.Store.Claim(ctx, model, what, until)
}

// TestUnknownModelsHaveNoUpkeep: models that are only asked for take no memory of the loads.
func TestUnknownModelsHaveNoUpkeep(t *testing.T) {
	c := &claims{}
	w := newWorld(t, func(config *route.Config) { c.Store = config.Loads; config.Loads = c })
	w.register(store.Pod{Name: "a"})
	w.route(ask(prompt(1, 100)))
	q := ask(prompt(1, 100))
	q.Score.Model = "unknown"
	if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrNobody) {
		t.Fatal(err)
	}
	(&route.Upkeep{Router: w.Router, Index: w.index}).Look(t.Context())
	if !slices.Equal(c.models, []string{"m"}) {
		t.Errorf("claims of %q", c.models)
	}
}
