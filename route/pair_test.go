package route_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

func pairOf(p []uint32) route.Request {
	q := ask(p)
	q.Role, q.Explain = route.RolePair, true
	return q
}

// places names the places that prefill and decode, or why that is the same one.
func places(d *route.Decision) string {
	if d.Prefill == nil {
		return d.Pod + " alone: " + string(d.Prefills)
	}
	return d.Prefill.Pod + " for " + d.Pod
}

func pod(name, role string, labels ...string) store.Pod {
	p := store.Pod{Name: name, Role: role, Labels: map[string]string{}}
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		p.Labels[name] = value
	}
	return p
}

func (w *world) settings(object string) {
	w.Helper()
	must.Get(w.PutSettings(w.Context(), "m", []byte(object)))(w)
	w.clock = w.clock.Add(time.Second) // queries see it
}

func (w *world) load(at store.RankRef) loads.Load {
	w.Helper()
	p := must.Get(w.Loads(w.Context(), "m"))(w)
	return p.Loads[at]
}

func TestPair(t *testing.T) {
	w := newWorld(t, nil)
	w.register(pod("d1", "decode"), pod("d2", "decode"), pod("p1", "prefill"), store.Pod{Name: "p2", Role: "prefill", Address: "10.0.0.9:80"})
	p := prompt(1, 2000)
	w.hold("p2", 0, store.GPU, p, 1600)
	q := pairOf(p)
	q.Reserve, q.ID, q.Pinned = true, "r", &store.RankRef{Pod: "d2", Rank: -1}
	d := w.route(q)
	if places(d) != "p2 for d2" || d.Prefill.Address != "10.0.0.9:80" || d.Prefill.Cached() != 1600 || d.Cached() != 0 || d.Best != 1600 || d.Reservation != "r" {
		t.Errorf("%s: %+v", places(d), d)
	}
	if len(d.Prefill.Fallbacks) != 1 || d.Prefill.Fallbacks[0].Pod != "p1" || len(d.Costs) != 1 || len(d.Prefill.Costs) != 3 || len(d.Pairs) != 2 {
		t.Errorf("%+v, %+v", d.Prefill, d.Pairs)
	}
	atP, atD := store.RankRef{Pod: "p2"}, store.RankRef{Pod: "d2"}
	if p, d := w.load(atP), w.load(atD); p.Prefill != 400 || p.Requests != 1 || p.Blocks != 125 || d.Prefill != 0 || d.Work != 0 || d.Requests != 1 || d.Blocks != 125 {
		t.Errorf("%+v, %+v", p, d)
	}
	q.Pinned = nil
	if d := w.route(q); !d.Again || places(d) != "p2 for d2" {
		t.Errorf("%s: %+v", places(d), d)
	}
	r, err := w.Done(t.Context(), "m", "r", 1600)
	if err != nil || r.Pod != "p2" || r.Predicted != 1600 {
		t.Errorf("%+v, %v", r, err)
	}
	if p, d := w.load(atP), w.load(atD); p.Requests != 0 || d.Requests != 1 {
		t.Errorf("%+v, %+v", p, d)
	}
	if _, err := w.End(t.Context(), "m", "r"); err != nil || w.load(atD).Requests != 0 {
		t.Errorf("%v, %+v", err, w.load(atD))
	}

	// The next one is spread: the cheapest prefill pod has work by now.
	q = reserving(pairOf(prompt(7, 2000)))
	first := w.route(q)
	q = reserving(pairOf(prompt(90_000, 2000)))
	second := w.route(q)
	if first.Prefill.Pod == second.Prefill.Pod || first.Pod == second.Pod {
		t.Errorf("%s, then %s", places(first), places(second))
	}
}

// TestPairRules has a table of fleets and rules: 2,000 tokens, of which d1 holds some.
func TestPairRules(t *testing.T) {
	plain := []store.Pod{pod("d1", "decode"), pod("d2", "decode"), pod("p", "prefill")}
	zones := []store.Pod{pod("d1", "decode", "zone=1", "host=x"), pod("d2", "decode", "zone=2"), pod("p1", "prefill", "zone=2"), pod("p2", "prefill")}
	hosts := []store.Pod{pod("d1", "decode", "host=x"), pod("d2", "decode", "host=y"), pod("p1", "prefill", "host=y"), pod("p2", "prefill", "host=z")}
	for _, c := range []struct {
		name     string
		pods     []store.Pod
		held     int
		settings string
		tune     func(*route.Request)
		want     string // of which there may be several
	}{
		{"no pod holds it", plain, 0, `{}`, nil, "p for d1|p for d2"},
		{"decode holds most of it", plain, 1808, `{}`, nil, "d1 alone: short"},
		{"by share", plain, 1808, `{"pair":{"local_tokens":0}}`, nil, "d1 alone: held"},
		{"neither", plain, 1808, `{"pair":{"local_tokens":0,"local_share":0}}`, nil, "p for d1|p for d2"},
		{"a short prompt", plain, 0, `{"pair":{"local_tokens":2000}}`, nil, "d1 alone: short|d2 alone: short"},
		{"without prefill pods", plain[:2], 0, `{}`, nil, "d1 alone: no_prefill_pod|d2 alone: no_prefill_pod"},
		{"without, and no fallback", plain[:2], 0, `{"pair":{"local_fallback":false}}`, nil, "nobody"},
		{"without decode pods", plain[2:], 0, `{}`, nil, "nobody"},
		{"all busy", plain, 0, `{"busy":{"prefill_tokens":1}}`, func(q *route.Request) { q.Reserve = true }, "p for d1|p for d2"},
		{"whole pods serve alone", append(plain[:0:0], pod("b", "both"), pod("b2", "")), 0, `{}`, nil, "b alone: whole|b2 alone: whole|b for b2|b2 for b"},
		{"a transfer takes time", append(plain[:0:0], pod("b", "both"), pod("b2", "")), 0, `{"pull":{"block_bytes":1000000,"bandwidth":1e10}}`, nil, "b alone: whole|b2 alone: whole"},
		{"the same zone", zones, 0, `{"pair":{"require_same":["zone"]}}`, nil, "p1 for d2"},
		{"labels that nobody has", zones, 0, `{"pair":{"require_same":["rack"]}}`, nil, "d1 alone: no_prefill_pod|d2 alone: no_prefill_pod"},
		{"labels that nobody has, strictly", zones, 0, `{"pair":{"require_same":["rack"],"local_fallback":false}}`, nil, "nobody"},
		{"two labels", zones, 0, `{"pair":{"require_same":["zone","host"]}}`, nil, "d1 alone: no_prefill_pod|d2 alone: no_prefill_pod"},
		{"preferred", hosts, 0, `{"pair":{"prefer_same":{"host":1}}}`, nil, "p1 for d2"},
		{"preferred when all is free", hosts, 0, `{"policy":"least_tokens","pair":{"prefer_same":{"host":1}}}`, nil, "p1 for d2"},
		{"avoided", hosts, 0, `{"pair":{"prefer_same":{"host":-1}}}`, nil, "p1 for d1|p2 for d1|p2 for d2"},
		{"pinned", plain, 0, `{}`, func(q *route.Request) { q.Pinned = &store.RankRef{Pod: "d2", Rank: 0} }, "p for d2"},
		{"pinned prefill", hosts, 1808, `{}`, func(q *route.Request) { q.PinnedPrefill = &store.RankRef{Pod: "p2", Rank: -1} }, "p2 for d1|p2 for d2"},
		{"pinned to who is not there", hosts, 0, `{}`, func(q *route.Request) { q.PinnedPrefill = &store.RankRef{Pod: "x", Rank: -1} }, "nobody"},
		{"required labels are of both", zones, 0, `{}`, func(q *route.Request) { q.Required = map[string]string{"zone": "2"} }, "p1 for d2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.register(c.pods...)
			p := prompt(1, 2000)
			if c.held > 0 {
				w.hold("d1", 0, store.GPU, p, c.held)
			}
			w.settings(c.settings)
			q := pairOf(p)
			if c.tune != nil {
				c.tune(&q)
			}
			got := "nobody"
			d, err := w.Route(t.Context(), q)
			if err == nil {
				got = places(d)
			} else if !errors.Is(err, route.ErrNobody) {
				t.Fatal(err)
			}
			found := false
			for _, want := range strings.Split(c.want, "|") {
				found = found || want == got
			}
			if !found {
				t.Errorf("%s, expected %s: %v", got, c.want, err)
			}
		})
	}
}

// TestPairBusy has the decode pod prefill when no prefill pod has room, and then no pod.
func TestPairBusy(t *testing.T) {
	w := newWorld(t, nil)
	w.register(pod("d", "decode"), pod("p", "prefill"))
	w.settings(`{"busy":{"requests":2}}`)
	q := reserving(pairOf(prompt(1, 2000)))
	held := &store.RankRef{Pod: "p", Rank: -1}
	for i := range 2 { // two that do the prefill alone
		only := ask(prompt(uint32(i)*9000, 2000))
		only.Role, only.Pinned, only.Reserve = "prefill", held, true
		w.route(only)
	}
	for range 2 {
		if d := w.route(q); places(d) != "d alone: no_prefill_pod" {
			t.Error(places(d))
		}
	}
	if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrBusy) {
		t.Error(err)
	}
	w.settings(`{"busy":{"requests":2},"pair":{"local_fallback":false}}`)
	if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrBusy) {
		t.Error(err)
	}
}

// TestPairAway chooses by the last picture and its own decisions when loads are away.
func TestPairAway(t *testing.T) {
	away := &awayLoads{Store: loads.NewMemory(nil)}
	var told []error
	w := newWorld(t, func(c *route.Config) {
		c.Loads, c.Away = away, func(_ string, err error) { told = append(told, err) }
	})
	w.register(pod("d1", "decode"), pod("d2", "decode"), pod("p1", "prefill"), pod("p2", "prefill"))
	away.err = loads.ErrUnavailable
	q := reserving(pairOf(prompt(1, 2000)))
	seen := map[string]int{}
	for range 4 {
		d := w.route(q)
		if !d.Local || d.Reservation != "" {
			t.Errorf("%+v", d)
		}
		seen[d.Pod]++
		seen[d.Prefill.Pod]++
	}
	if fmt.Sprint(seen) != "map[d1:2 d2:2 p1:2 p2:2]" {
		t.Error(seen)
	}
	if len(told) < 4 || !errors.Is(told[0], loads.ErrUnavailable) {
		t.Errorf("told of %v", told)
	}
}

// awayLoads are loads of which each call fails when err is set.
type awayLoads struct {
	loads.Store
	err error
}

func (a *awayLoads) Loads(ctx context.Context, model string) (loads.Picture, error) {
	if a.err != nil {
		return loads.Picture{}, a.err
	}
	return a.Store.Loads(ctx, model)
}

func (a *awayLoads) BookPair(ctx context.Context, c *loads.PairCall) (loads.BookedPair, error) {
	if a.err != nil {
		return loads.BookedPair{}, a.err
	}
	return a.Store.BookPair(ctx, c)
}

// TestPairIsCheapest compares what is chosen with all pairs that are allowed, in random
// fleets, some larger than what is nominated.
func TestPairIsCheapest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, nil)
		p := prompt(1, 1600)
		n := rapid.IntRange(1, 30).Draw(rt, "pods")
		roles := map[string]string{}
		zones := map[string]string{}
		w.register(pod("d0", "decode", "zone=1"))
		roles["d0"], zones["d0"] = "decode", "1"
		for i := range n {
			role := rapid.SampledFrom([]string{"prefill", "decode", "both"}).Draw(rt, "role")
			zone := rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "zone")
			name := fmt.Sprint(role[:1], i+1)
			w.register(pod(name, role, "zone="+zone))
			roles[name], zones[name] = role, zone
			if held := rapid.IntRange(0, 100).Draw(rt, "held"); held > 0 {
				w.hold(name, 0, store.GPU, p, held*16)
			}
			for range rapid.IntRange(0, 2).Draw(rt, "busy") {
				b := ask(prompt(uint32(i+2)*100_000, rapid.IntRange(1, 3000).Draw(rt, "tokens")))
				b.Role, b.Pinned, b.Reserve = rapid.SampledFrom([]string{"prefill", "decode"}).Draw(rt, "what"), &store.RankRef{Pod: name, Rank: -1}, true
				_, _ = w.Route(t.Context(), b)
			}
		}
		required, fallback := rapid.Bool().Draw(rt, "required"), rapid.Bool().Draw(rt, "fallback")
		rule, labels := "[]", `{"zone":0.5}`
		if required {
			rule, labels = `["zone"]`, `{}`
		}
		w.settings(fmt.Sprintf(`{"pair":{"require_same":%s,"prefer_same":%s,"local_fallback":%v}}`, rule, labels, fallback))
		q := pairOf(p)
		q.Reserve = rapid.Bool().Draw(rt, "reserve")
		d, err := w.Route(t.Context(), q)
		if err != nil {
			if !errors.Is(err, route.ErrNobody) || fallback {
				rt.Fatal(err)
			}
			return
		}
		prefill, decode := map[string]float64{}, map[string]float64{}
		held := map[string]int{}
		var other *route.Half
		if other = d.Prefill; other == nil { // costs of a prefill are told with the other pod alone
			for _, c := range d.Pairs {
				if c.Decode == d.RankRef && c.Prefill == d.RankRef {
					return
				}
			}
			rt.Fatalf("%s is not one of %+v", places(d), d.Pairs)
		}
		for _, c := range other.Costs {
			prefill[c.Pod] = c.Total
		}
		for _, c := range d.Costs {
			decode[c.Pod] = c.Total
			for _, n := range c.Held {
				held[c.Pod] += n
			}
		}
		best := math.Inf(1)
		for k, cost := range decode {
			short := 1600-held[k] <= 256
			if short || roles[k] == "both" {
				best = min(best, prefill[k]+cost)
			}
			for i, more := range prefill {
				if i == k || roles[i] == "decode" || short || required && zones[i] != zones[k] {
					continue
				}
				total := cost + more
				if !required && zones[i] == zones[k] {
					total *= math.Exp(-math.Tanh(0.5))
				}
				best = min(best, total)
			}
		}
		if got := d.Pairs[0].Total; math.Abs(got-best) > 1e-6*best {
			rt.Fatalf("%s costs %v, another pair %v: %+v %v %v", places(d), got, best, d.Pairs, prefill, decode)
		}
		if d.Pairs[0].Prefill != other.RankRef || d.Pairs[0].Decode != d.RankRef {
			rt.Fatalf("%s is not %+v", places(d), d.Pairs[0])
		}
	})
}

// BenchmarkPair chooses pairs in fleets of so many pods of each kind, in four zones.
func BenchmarkPair(b *testing.B) {
	for _, n := range []int{4, 50, 500, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			index, _, r := embedded(b)
			for i := range n {
				for _, role := range []string{"prefill", "decode"} {
					p := pod(fmt.Sprint(role, i), role, fmt.Sprint("zone=", i%4))
					p.Model = "m"
					must.Get(index.Register(b.Context(), p))(b)
				}
			}
			must.Get(r.PutSettings(b.Context(), "m", []byte(`{"pair":{"prefer_same":{"zone":1}}}`)))(b)
			q := ask(prompt(1, 2048))
			q.Role, q.Reserve = route.RolePair, true
			b.ReportAllocs()
			for b.Loop() {
				d := must.Get(r.Route(b.Context(), q))(b)
				must.Get(r.End(b.Context(), "m", d.Reservation))(b)
			}
		})
	}
}
