package route_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// tell has the engine of a pod say what runs at its rank 0.
func (w *world) tell(pod string, e loads.Engine) {
	w.Helper()
	must.OK(w, w.PutEngine(w.Context(), "m", pod, []loads.Engine{e}))
	w.clock = w.clock.Add(time.Second) // the picture is older than may be
}

// chosen counts which places take n queries.
func (w *world) chosen(n int) map[string]int {
	w.Helper()
	out := map[string]int{}
	for i := range n {
		out[w.route(ask(prompt(uint32(i)<<16, 500))).Pod]++
	}
	return out
}

// TestOthersRequestsCount lets an engine have requests of another router.
func TestOthersRequestsCount(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	w.tell("a", loads.Engine{Running: 2, Waiting: 6, WaitingTokens: 12_000, KVUsage: -1})
	if got := w.chosen(20); got["a"] != 0 {
		t.Errorf("%v: a is busy with others' requests", got)
	}
	q := reserving(ask(prompt(7, 500)))
	q.Explain = true
	d := w.route(q)
	if d.Pod != "b" {
		t.Errorf("booked at %v", d.RankRef)
	}
	for _, c := range d.Costs {
		want := loads.Extra{}
		if c.Pod == "a" {
			want = loads.Extra{Requests: 8, Prefill: 12_000, Work: c.Extra.Work}
		}
		if c.Extra != want || c.Pod == "a" && c.Extra.Work < 12_000 {
			t.Errorf("%s has %+v besides", c.Pod, c.Extra)
		}
	}
	w.clock = w.clock.Add(loads.EngineStale)
	if got := w.chosen(20); got["a"] == 0 {
		t.Errorf("%v: what was told so long ago counts no more", got)
	}
	// What the engine does not say is a guess, not nothing.
	w.tell("a", loads.Engine{Waiting: 6, WaitingTokens: -1, KVUsage: -1})
	if got := w.chosen(20); got["a"] != 0 {
		t.Errorf("%v: six requests wait at a", got)
	}
}

// TestDeadRequestsCountNoMore books requests whose clients die, which the engine never has.
func TestDeadRequestsCountNoMore(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	for range 6 {
		q := reserving(ask(prompt(1, 4000)))
		q.Pinned = &store.RankRef{Pod: "a"}
		w.route(q)
	}
	w.settings(`{"evict":0}`) // they were to fill its cache
	idle := loads.Engine{KVUsage: -1}
	w.tell("a", idle)
	if got := w.chosen(20); got["a"] != 0 {
		t.Errorf("%v: the six may be on their way to a", got)
	}
	for range 6 {
		w.tell("a", idle)
	}
	if got := w.chosen(40); got["a"] == 0 || got["b"] == 0 {
		t.Errorf("%v: nothing runs at either", got)
	}
	// A new one is on its way, and counts.
	q := reserving(ask(prompt(1, 4000)))
	q.Pinned = &store.RankRef{Pod: "a"}
	w.route(q)
	w.tell("a", idle)
	if got := w.chosen(20); got["a"] != 0 {
		t.Errorf("%v: a has a request again", got)
	}
}

func TestBusyByTheEngine(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b", KVTokens: 1600})
	first := reserving(ask(prompt(1, 500)))
	first.ID = "first"
	at := w.route(first).RankRef
	must.Get(w.PutSettings(t.Context(), "m", []byte(`{"busy":{"engine_waiting":3,"engine_kv_usage":0.9}}`)))(t)
	w.tell("a", loads.Engine{Waiting: 3, KVUsage: -1})
	if got := w.chosen(10); got["a"] != 0 {
		t.Errorf("%v: three wait at a", got)
	}
	w.tell("b", loads.Engine{KVUsage: 0.95})
	q := ask(prompt(1, 500))
	for _, q.Reserve = range []bool{false, true} {
		if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrBusy) {
			t.Errorf("%v: both are busy", err)
		}
	}
	if d := w.route(first); d.RankRef != at || !d.Again {
		t.Errorf("a repeated call got %+v", d)
	}
	w.tell("b", loads.Engine{KVUsage: 0.5})
	if got := w.chosen(10); got["b"] != 10 {
		t.Errorf("%v: b is free again", got)
	}
	// Limits on what is booked count what runs besides.
	must.Get(w.PutSettings(t.Context(), "m", []byte(`{"busy":{"kv_fraction":0.5,"requests":4}}`)))(t)
	w.tell("a", loads.Engine{Running: 4, KVUsage: -1})
	w.tell("b", loads.Engine{KVUsage: 0.51})
	for _, q.Reserve = range []bool{false, true} {
		if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrBusy) {
			t.Errorf("%v: a has four requests, b half of its cache in use", err)
		}
	}
}

// TestEngineOfAnEarlierLife tells late what ran before a restart.
func TestEngineOfAnEarlierLife(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	gen := must.Get(w.index.Begin(t.Context(), "a", 0, 1))(t)
	w.hold("a", 0, store.GPU, prompt(9, 16), 16) // so that the rank has a slot
	told := loads.Engine{Generation: gen, Waiting: 9, WaitingTokens: 90_000, KVUsage: -1}
	w.tell("a", told)
	if got := w.chosen(10); got["a"] != 0 {
		t.Errorf("%v", got)
	}
	must.Get(w.index.Begin(t.Context(), "a", 0, 2))(t)
	w.hold("a", 0, store.GPU, prompt(9, 16), 16)
	if got := w.chosen(20); got["a"] == 0 {
		t.Errorf("%v: the requests of the life before have ended with it", got)
	}
}

// TestBookedAsWeighed compares the costs of queries, which are by the view, with those of
// bookings, which the index works out. With what engines tell, they are the same.
func TestBookedAsWeighed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, nil)
		w.register(store.Pod{Name: "a", KVTokens: 16_000}, store.Pod{Name: "b", KVTokens: 16_000}, store.Pod{Name: "c"})
		for i := range rapid.IntRange(0, 6).Draw(rt, "booked") {
			q := reserving(ask(prompt(uint32(i)<<16, rapid.IntRange(1, 3000).Draw(rt, "tokens"))))
			q.Pinned = &store.RankRef{Pod: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "pod")}
			w.route(q)
		}
		for range rapid.IntRange(0, 8).Draw(rt, "told") {
			w.tell(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "of"), loads.Engine{
				Running: rapid.Int64Range(0, 5).Draw(rt, "running"), Waiting: rapid.Int64Range(0, 3).Draw(rt, "waiting"),
				WaitingTokens: rapid.Int64Range(-1, 9000).Draw(rt, "waits"), KVUsage: rapid.Float64Range(0, 1).Draw(rt, "usage"),
			})
		}
		w.clock = w.clock.Add(time.Second)
		q := ask(prompt(1, 700))
		q.Explain, q.Overrides = true, fmt.Appendf(nil, `{"policy":%q}`, rapid.SampledFrom([]string{"eta", "dynamo", "llm_d", "least_requests", "least_tokens"}).Draw(rt, "policy"))
		costs := map[string]float64{}
		for _, c := range w.route(q).Costs {
			costs[c.Pod] = c.Total
		}
		q.Reserve = true
		for _, c := range w.route(q).Costs {
			// The clock goes on between the two, and prefill with it.
			if math.Abs(c.Total-costs[c.Pod]) > 1e-6*math.Abs(c.Total)+0.1 {
				rt.Errorf("%s costs %v in a query, %v when booked", c.Pod, costs[c.Pod], c.Total)
			}
		}
	})
}
