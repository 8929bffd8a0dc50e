package route_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// pulls are settings with blocks of a megabyte. A token takes 6.25 us to fetch at 10 GB/s, and at
// the default speed 61 us to prefill.
const pulls = `"pull":{"block_bytes":1000000,"bandwidth":1e10}`

// pulled says which rank takes a request and what it fetches.
func pulled(d *route.Decision) string {
	if d.Pull == nil {
		return d.Pod
	}
	return fmt.Sprintf("%s pulls %d from %s/%d", d.Pod, d.Pull.Tokens, d.Pull.Pod, d.Pull.Rank)
}

// TestPull has a table: 2,000 tokens, of which rank 1 of pod o holds 1,600 and c 160.
func TestPull(t *testing.T) {
	for _, c := range []struct {
		name, settings string
		tier           store.Tier
		waits          int // tokens of prefill that the owner has before it
		pinned         string
		want           string
	}{
		{"off", `{}`, store.GPU, 0, "", "o"},
		{"an owner that is free", `{` + pulls + `}`, store.GPU, 0, "", "o"},
		{"an owner that is busy", `{` + pulls + `}`, store.GPU, 20000, "", "c pulls 1440 from o/1"},
		{"off, and busy", `{}`, store.GPU, 20000, "", "c"},
		{"a fetch that takes longer than the prefill", `{"pull":{"block_bytes":1000000,"bandwidth":9e8}}`, store.GPU, 20000, "", "c"},
		{"as long besides", `{"pull":{"block_bytes":1000000,"bandwidth":1e10,"overhead_ms":100}}`, store.GPU, 20000, "", "c"},
		{"without a size", `{"pull":{"bandwidth":1e10}}`, store.GPU, 20000, "", "c"},
		{"in host memory", `{` + pulls + `}`, store.CPU, 20000, "", "c pulls 1440 from o/1"},
		{"on a disk", `{` + pulls + `}`, store.Disk, 20000, "", "c"},
		{"on a disk that may be fetched from", `{"pull":{"block_bytes":1000000,"bandwidth":1e10,"tiers":["disk"]}}`, store.Disk, 20000, "", "c pulls 1440 from o/1"},
		{"from host memory alone", `{"pull":{"block_bytes":1000000,"bandwidth":1e10,"tiers":["cpu"]}}`, store.GPU, 20000, "", "c"},
		{"from nowhere", `{"pull":{"block_bytes":1000000,"bandwidth":1e10,"tiers":[]}}`, store.GPU, 20000, "", "c"},
		{"a policy that asks for no fetch", `{"policy":"least_tokens",` + pulls + `}`, store.GPU, 20000, "c", "c"},
		{"one that asks who holds it", `{"policy":"llm_d",` + pulls + `}`, store.GPU, 0, "c", "c pulls 1440 from o/1"},
		{"pinned elsewhere", `{` + pulls + `}`, store.GPU, 0, "c", "c pulls 1440 from o/1"},
		{"pinned to the owner", `{` + pulls + `}`, store.GPU, 20000, "o", "o"},
		{"pinned to another engine", `{` + pulls + `}`, store.GPU, 20000, "s", "s"},
		{"pinned to one with blocks of another size", `{` + pulls + `}`, store.GPU, 20000, "b", "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.register(store.Pod{Name: "o", Ranks: 2, Engine: "vllm", BlockSize: 16, Address: "10.0.0.1:8000"}, store.Pod{Name: "c", Engine: "vllm", BlockSize: 16},
				store.Pod{Name: "s", Engine: "sglang", BlockSize: 16, Role: "prefill"}, store.Pod{Name: "b", Engine: "vllm", BlockSize: 32, Role: "prefill"})
			p := prompt(1, 2000)
			w.hold("o", 1, c.tier, p, 1600)
			w.hold("c", 0, store.GPU, p, 160)
			w.settings(c.settings)
			if c.waits > 0 {
				for rank := range 2 {
					q := reserving(ask(prompt(500_000, c.waits)))
					q.Pinned = &store.RankRef{Pod: "o", Rank: rank}
					w.route(q)
				}
			}
			q := ask(p)
			if c.pinned != "" {
				q.Pinned = &store.RankRef{Pod: c.pinned, Rank: -1}
			}
			if c.pinned == "s" || c.pinned == "b" {
				q.Role = "prefill"
			}
			if c.pinned == "o" {
				q.Pinned.Rank = 1
			}
			q.Reserve, q.ID, q.Explain = true, "r", true
			d := w.route(q)
			if got := pulled(d); got != c.want {
				t.Errorf("%s, expected %s: %+v", got, c.want, d.Ways)
			}
			if d.Pull == nil {
				return
			}
			if d.Pull.Address != "10.0.0.1:8000" || d.Pull.Port != 5711 || math.Abs(d.Pull.MS-9) > 1e-9 {
				t.Errorf("%+v", d.Pull)
			}
			if l := w.load(d.RankRef); l.Prefill != 400 {
				t.Errorf("%+v: what is fetched was booked as prefill", l)
			}
			if r, err := w.Done(t.Context(), "m", "r", 1600); err != nil || r.Predicted != 1600 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestPullOfPair lets the pod that prefills fetch what one that decodes holds.
func TestPullOfPair(t *testing.T) {
	w := newWorld(t, nil)
	w.register(pod("d1", "decode"), pod("d2", "decode"), pod("p", "prefill"))
	p := prompt(1, 2000)
	w.hold("d1", 0, store.CPU, p, 1600)
	w.settings(`{` + pulls + `}`)
	q := pairOf(p)
	q.Pinned = &store.RankRef{Pod: "d2", Rank: -1}
	d := w.route(q)
	if places(d) != "p for d2" || d.Pull == nil || d.Pull.Pod != "d1" || d.Pull.Tokens != 1600 || len(d.Pairs) == 0 || d.Pairs[0].Terms[2].Name != "transfer_ms" || math.Abs(d.Pairs[0].Terms[2].Value-12.5) > 1e-9 {
		t.Errorf("%s, %+v, %+v", places(d), d.Pull, d.Pairs)
	}
	w.settings(`{"pair":{"local_tokens":2000},` + pulls + `}`)
	if d := w.route(q); places(d) != "d2 alone: short" || d.Pull == nil || d.Pull.Pod != "d1" {
		t.Errorf("%s, %+v", places(d), d.Pull)
	}
}

// TestPullSpreads fetches from those with the fewest requests among equal holders.
func TestPullSpreads(t *testing.T) {
	w := newWorld(t, nil)
	p := prompt(1, 2000)
	for i := range 4 {
		w.register(pod(fmt.Sprint("h", i), ""))
		w.hold(fmt.Sprint("h", i), 0, store.GPU, p, 1600)
	}
	w.register(pod("c", ""))
	w.settings(`{` + pulls + `}`)
	busy := reserving(ask(prompt(700_000, 100)))
	busy.Pinned = &store.RankRef{Pod: "h2", Rank: -1}
	w.route(busy)
	w.clock = w.clock.Add(time.Second) // queries see it
	q := ask(p)
	q.Pinned = &store.RankRef{Pod: "c", Rank: -1}
	from := map[string]int{}
	for range 300 {
		from[w.route(q).Pull.Pod]++
	}
	if len(from) != 3 || from["h2"] != 0 || from["h0"] < 50 || from["h1"] < 50 || from["h3"] < 50 {
		t.Error(from)
	}
}

// TestPullIsNeverDearer has the plan's own figures anew in random fleets. What is chosen costs no
// more than to wait at the owner, to recompute elsewhere, or to fetch elsewhere.
func TestPullIsNeverDearer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, nil)
		p := prompt(1, 1600)
		for i := range rapid.IntRange(1, 8).Draw(rt, "pods") {
			name := fmt.Sprint("p", i)
			w.register(store.Pod{Name: name})
			if held := rapid.IntRange(0, 100).Draw(rt, "held"); held > 0 {
				w.hold(name, 0, rapid.SampledFrom([]store.Tier{store.GPU, store.CPU, store.Disk}).Draw(rt, "tier"), p, held*16)
			}
			for range rapid.IntRange(0, 2).Draw(rt, "busy") {
				b := ask(prompt(uint32(i+2)*100_000, rapid.IntRange(1, 9000).Draw(rt, "tokens")))
				b.Pinned, b.Reserve = &store.RankRef{Pod: name, Rank: -1}, true
				w.route(b)
			}
		}
		mb, overhead := rapid.IntRange(0, 40).Draw(rt, "block size"), float64(rapid.IntRange(0, 30).Draw(rt, "overhead"))
		w.settings(fmt.Sprintf(`{"beta":3,"pull":{"block_bytes":%d,"bandwidth":1e10,"overhead_ms":%v}}`, mb*1_000_000, overhead))
		q := ask(p)
		q.Explain, q.Reserve = true, rapid.Bool().Draw(rt, "reserve")
		d := w.route(q)

		s := route.DefaultSettings()
		shape := loads.Shape{Quadratic: s.Quadratic, Overhead: s.OverheadMS}
		held := func(c *route.PlaceCost) (n int, fetchable bool) {
			for _, h := range c.Held {
				n += h
			}
			return n, c.Held[store.Disk] == 0
		}
		most := 0
		for i := range d.Costs {
			if n, ok := held(&d.Costs[i]); ok {
				most = max(most, n)
			}
		}
		fetches := map[string]bool{}
		cheapest := math.Inf(1)
		for i := range d.Costs {
			c := &d.Costs[i]
			n, _ := held(c)
			weigh := 0.0
			for tier, h := range c.Held {
				weigh += float64(h) * (1 - s.TierWeights[tier])
			}
			prefill := func(cached int) float64 {
				return s.OverheadMS + (float64(shape.Units(1600-cached, cached))+weigh)/s.Speed
			}
			wait := 0.0
			for _, t := range c.Terms {
				if slices.Contains([]string{"wait_ms", "requests_load", "evict_ms", "room_ms"}, t.Name) {
					wait += t.Value
				}
			}
			cost := wait + 4*prefill(n)
			if fetch := overhead + float64(most-n)/16*float64(mb)*1e6/1e10*1000; mb > 0 && most > n && fetch < prefill(n)-prefill(most) {
				fetches[c.Pod] = true
				if pull := wait + fetch + 4*prefill(most); pull > cost {
					rt.Fatalf("%s fetches for %v, and would recompute for %v", c.Pod, pull, cost)
				} else {
					cost = pull
				}
			}
			if math.Abs(cost-c.Total) > 1e-6*cost {
				rt.Fatalf("%s costs %v by the formula, %v by the router", c.Pod, cost, c.Total)
			}
			cheapest = min(cheapest, cost)
		}
		chosen := d.Costs[slices.IndexFunc(d.Costs, func(c route.PlaceCost) bool { return c.RankRef == d.RankRef })]
		if chosen.Total > cheapest*(1+1e-9) {
			rt.Fatalf("%v was chosen for %v, the cheapest is %v", d.RankRef, chosen.Total, cheapest)
		}
		if fetches[d.Pod] != (d.Pull != nil) || d.Pull != nil && (d.Pull.Pod == d.Pod || d.Pull.Tokens+d.Cached() != most) {
			rt.Fatalf("%s fetches %+v of %d", d.Pod, d.Pull, most)
		}
		if (len(fetches) > 0) != (d.Ways != nil) {
			rt.Fatalf("%v fetch, ways are %+v", fetches, d.Ways)
		}
		if d.Ways != nil {
			best := math.Inf(1)
			for _, way := range []*route.Way{d.Ways.Wait, d.Ways.Recompute, d.Ways.Pull} {
				if way != nil {
					best = min(best, way.Total)
				}
			}
			if math.Abs(chosen.Total-best) > 1e-9*best {
				rt.Fatalf("chosen for %v, the cheapest of the ways is %v: %+v", chosen.Total, best, d.Ways)
			}
		}
	})
}
