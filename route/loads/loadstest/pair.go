package loadstest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// half is the name of a pair's prefill in the model of histories.
func half(id string) string { return id + "/prefill" }

// pair is a request of which each of prefill may do the prefill for each of decode.
func pair(id string, keys []blockkey.Key, prefill, decode []store.RankRef) *loads.PairCall {
	c := &loads.PairCall{Call: *call(id, keys, decode...), Prefill: call(id, keys, prefill...).Candidates}
	for i := range c.Candidates {
		c.Candidates[i].Uncached, c.Candidates[i].Work = 0, 0
	}
	for p := range prefill {
		for d := range decode {
			c.Options = append(c.Options, loads.Option{Prefill: p, Decode: d, Factor: 1})
		}
	}
	return c
}

func runPairs(t *testing.T, open Open) {
	t.Run("a pair is booked and ends", func(t *testing.T) { pairs(t, open) })
	t.Run("a pair of one", func(t *testing.T) { pairOfOne(t, open) })
	t.Run("the cheapest pair", func(t *testing.T) { cheapestPair(t, open) })
	t.Run("pairs and limits", func(t *testing.T) { pairLimits(t, open) })
	t.Run("a pair repeated", func(t *testing.T) { pairRepeated(t, open) })
	t.Run("the leases of pairs", func(t *testing.T) { pairLeases(t, open) })
	t.Run("half of a pair restarts", func(t *testing.T) { pairRestart(t, open) })
	t.Run("pairs refused", func(t *testing.T) { pairRefuses(t, open) })
}

func bookPair(t tester, s loads.Store, c *loads.PairCall) loads.BookedPair {
	b := must.Get(s.BookPair(ctx, c))(t)
	return b
}

func one(at store.RankRef) []store.RankRef { return []store.RankRef{at} }

func pairs(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	p, d := pod("3 p:1 ", 2), pod("d:", 1) // names that could be taken for what stands beside them
	keys := chain(1, 1, 0, 20)
	b := bookPair(t, s, pair("r", keys, one(p), one(d)))
	equal(t, p, b.Prefill)
	equal(t, d, b.RankRef)
	equal(t, false, b.Again || b.Resorted)
	equal(t, "1 1 1", fmt.Sprint(len(b.Costs), len(b.PrefillCosts), len(b.Totals)))
	equal(t, loads.Load{Work: 646, Prefill: 323, Blocks: 21, Requests: 1, Since: b.Now}, load(t, s, p))
	equal(t, loads.Load{Blocks: 21, Requests: 1, Since: b.Now}, load(t, s, d))

	book(t, s, call("q", keys, p))
	clock.Advance(time.Second)
	r := must.Get(s.Done(ctx, "m", "r", loads.Done{Cached: 3, Shape: loads.Shape{Quadratic: 0.001}}))(t)
	equal(t, loads.Report{Known: true, RankRef: p, Tokens: 323, First: true}, r)
	l := load(t, s, p)
	equal(t, "646 323 21 1 1", fmt.Sprint(l.Work, l.Prefill, l.Blocks, l.Requests, l.Samples), "the other request goes on, and the speed is the prefill pod's")
	equal(t, "0 21 1 0", fmt.Sprint(load(t, s, d).Work, load(t, s, d).Blocks, load(t, s, d).Requests, load(t, s, d).Samples))
	r = must.Get(s.Done(ctx, "m", "r", loads.Done{Cached: -1}))(t)
	equal(t, "true false", fmt.Sprint(r.Known, r.First))
	equal(t, 646, load(t, s, p).Work, "a second report takes nothing off")

	r = must.Get(s.Output(ctx, "m", "r", 40))(t)
	equal(t, d, r.RankRef)
	equal(t, "23 21", fmt.Sprint(load(t, s, d).Blocks, load(t, s, p).Blocks))
	equal(t, loads.Report{Known: true, RankRef: d, Tokens: 323, First: true, Prefill: p}, end(t, s, "r"))
	zero(t, load(t, s, d))
	equal(t, 1, load(t, s, p).Requests)

	// An end before the prefill has ended takes all off.
	bookPair(t, s, pair("r", keys, one(p), one(d)))
	equal(t, 2, load(t, s, p).Requests)
	equal(t, loads.Report{Known: true, RankRef: d, Tokens: 323, First: true, Prefill: p, WithoutDone: true}, end(t, s, "r"))
	zero(t, load(t, s, d))
	equal(t, l, load(t, s, p))
	audited(t, s)
}

func audited(t tester, s loads.Store) {
	differ := must.Get(s.Audit(ctx, "m"))(t)
	equal(t, 0, len(differ), differ)
}

func pairOfOne(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	b := bookPair(t, s, pair("r", chain(1, 1, 0, 4), one(a), one(a)))
	equal(t, "a/0 a/0", fmt.Sprint(b.Prefill, b.RankRef))
	equal(t, loads.Load{Work: 134, Prefill: 67, Blocks: 5, Requests: 1, Since: b.Now}, load(t, s, a))
	must.Get(s.Done(ctx, "m", "r", loads.Done{Cached: -1}))(t)
	equal(t, "0 5 1", fmt.Sprint(load(t, s, a).Work, load(t, s, a).Blocks, load(t, s, a).Requests))
	end(t, s, "r")
	zero(t, load(t, s, a))
}

func cheapestPair(t *testing.T, open Open) {
	s := open(t, NewClock())
	p, d := []store.RankRef{pod("p", 0), pod("p", 1)}, []store.RankRef{pod("d", 0), pod("d", 1), pod("d", 2)}
	book(t, s, call("q", nil, p[0])) // 6 units of work
	book(t, s, call("o", nil, d[1]))
	ask := func(id string) *loads.PairCall {
		c := pair(id, nil, p, d)
		c.PrefillWeights, c.Weights = loads.Weights{Wait: 1}, loads.Weights{Requests: 10}
		for i := range c.Candidates {
			c.Candidates[i].Base = float64(i) * 4
		}
		c.Prefill[1].Base = 3
		return c
	}
	c := ask("1")
	b := bookPair(t, s, c)
	for i, want := range []float64{6, 20, 14, 3, 17, 11} {
		near(t, want, b.Totals[i], 0.01, i)
	}
	equal(t, "p/1 d/0", fmt.Sprint(b.Prefill, b.RankRef))
	equal(t, 1, b.PrefillLoads[0].Requests)
	equal(t, 1, b.Loads[1].Requests)
	end(t, s, "1")

	c = ask("2")
	c.Options = []loads.Option{{Prefill: 0, Decode: 1, Factor: 0.5}, {Prefill: 1, Decode: 2, Extra: 1, Factor: 1}}
	b = bookPair(t, s, c)
	near(t, 10, b.Totals[0], 0.01)
	near(t, 12, b.Totals[1], 0.01)
	equal(t, "p/0 d/1", fmt.Sprint(b.Prefill, b.RankRef))
	end(t, s, "2")

	c = ask("3") // drawn as Pick does
	c.Temperature, c.Draw = 1, 0.999999
	b = bookPair(t, s, c)
	equal(t, "p/1 d/2", fmt.Sprint(b.Prefill, b.RankRef))
}

func pairLimits(t *testing.T, open Open) {
	s := open(t, NewClock())
	p, d := pod("p", 0), pod("d", 0)
	ask := func(id string) *loads.PairCall {
		c := pair(id, nil, []store.RankRef{p, d}, one(d))
		c.Options, c.Resorts = c.Options[:1], c.Options[1:]
		c.Prefill[0].Limits = loads.Limits{Requests: 2}
		c.Candidates[0].Limits = loads.Limits{Requests: 4}
		return c
	}
	for i, want := range []store.RankRef{p, p, d, d} {
		b := bookPair(t, s, ask(fmt.Sprint(i)))
		equal(t, want, b.Prefill)
		equal(t, want == d, b.Resorted)
		equal(t, want == d, math.IsNaN(b.PrefillCosts[0]))
	}
	b, err := s.BookPair(ctx, ask("4"))
	equal(t, true, errors.Is(err, loads.ErrBusy))
	equal(t, true, math.IsNaN(b.Costs[0]) && len(b.Totals) == 1 && math.IsNaN(b.Totals[0]))
	c := ask("4")
	c.Options, c.Resorts = nil, nil
	_, err = s.BookPair(ctx, c)
	equal(t, true, errors.Is(err, loads.ErrBusy), "no pair may work together")
	equal(t, "2 4", fmt.Sprint(load(t, s, p).Requests, load(t, s, d).Requests))
	must.Get(s.Done(ctx, "m", "0", loads.Done{Cached: -1}))(t)
	end(t, s, "0")
	equal(t, p, bookPair(t, s, ask("4")).Prefill, "a prefill that has ended leaves room")
	audited(t, s)
}

func pairRepeated(t *testing.T, open Open) {
	s := open(t, NewClock())
	p, d, x := pod("p", 0), pod("d", 0), pod("x", 0)
	bookPair(t, s, pair("r", nil, one(p), one(d)))
	for range 2 {
		b := bookPair(t, s, pair("r", nil, one(x), one(x)))
		equal(t, "true p/0 d/0", fmt.Sprint(b.Again, b.Prefill, b.RankRef))
		equal(t, d, book(t, s, call("r", nil, x)).RankRef, "of a call for one pod it is the one that decodes")
		must.Get(s.Done(ctx, "m", "r", loads.Done{Cached: -1}))(t)
	}
	end(t, s, "r")
	book(t, s, call("r", nil, x))
	b := bookPair(t, s, pair("r", nil, one(p), one(d)))
	equal(t, "true x/0 x/0", fmt.Sprint(b.Again, b.Prefill, b.RankRef))
	must.OK(t, s.PutSettings(ctx, "m", []byte("{}")))
	_, err := s.BookPair(ctx, pair("q", nil, one(p), one(d)))
	equal(t, true, errors.Is(err, loads.ErrSettings))
	zero(t, load(t, s, p))
}

func pairLeases(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	p, d := pod("p", 0), pod("d", 0)
	for i := range 100 {
		bookPair(t, s, pair(fmt.Sprint(i), chain(1, uint64(i), 2, 4), one(p), one(d)))
	}
	clock.Advance(40 * time.Second)
	must.Get(s.Output(ctx, "m", "3", 1))(t)
	clock.Advance(40 * time.Second)
	equal(t, "1 1", fmt.Sprint(load(t, s, p).Requests, load(t, s, d).Requests), "one lease has both")
	clock.Advance(40 * time.Second)
	zero(t, load(t, s, p))
	zero(t, load(t, s, d))
}

func pairRestart(t *testing.T, open Open) {
	s := open(t, NewClock())
	p, d := pod("p", 0), pod("d", 0)
	at := func(id string, gp, gd store.Generation) {
		c := pair(id, chain(1, 1, 0, 4), one(p), one(d))
		c.Prefill[0].Generation, c.Candidates[0].Generation = gp, gd
		bookPair(t, s, c)
	}
	at("1", 1, 1)
	at("2", 2, 1)
	equal(t, "1 2", fmt.Sprint(load(t, s, p).Requests, load(t, s, d).Requests), "the prefill pod has restarted")
	must.Get(s.Done(ctx, "m", "1", loads.Done{Cached: -1}))(t)
	end(t, s, "1")
	equal(t, "1 1", fmt.Sprint(load(t, s, p).Requests, load(t, s, d).Requests))
	at("3", 2, 2)
	equal(t, "2 1", fmt.Sprint(load(t, s, p).Requests, load(t, s, d).Requests), "the other one has")
	for _, id := range []string{"2", "3"} {
		end(t, s, id)
	}
	zero(t, load(t, s, p))
	zero(t, load(t, s, d))
}

func pairRefuses(t *testing.T, open Open) {
	s := open(t, NewClock())
	for name, spoil := range map[string]func(*loads.PairCall){
		"no id":            func(c *loads.PairCall) { c.ID = "" },
		"nobody prefills":  func(c *loads.PairCall) { c.Prefill, c.Options = nil, nil },
		"nobody decodes":   func(c *loads.PairCall) { c.Candidates, c.Options = nil, nil },
		"a place":          func(c *loads.PairCall) { c.Options[0].Prefill = 1 },
		"another":          func(c *loads.PairCall) { c.Resorts = []loads.Option{{Decode: -1}} },
		"NaN":              func(c *loads.PairCall) { c.Options[0].Extra = math.NaN() },
		"infinite":         func(c *loads.PairCall) { c.Options[0].Factor = math.Inf(1) },
		"weights":          func(c *loads.PairCall) { c.PrefillWeights.Wait = math.NaN() },
		"a prefill's base": func(c *loads.PairCall) { c.Prefill[0].Base = math.NaN() },
		"options":          func(c *loads.PairCall) { c.Options = slices.Repeat(c.Options, loads.MaxOptions+1) },
	} {
		c := pair("r", nil, one(pod("p", 0)), one(pod("d", 0)))
		spoil(c)
		_, err := s.BookPair(ctx, c)
		equal(t, true, errors.Is(err, loads.ErrInvalid), name)
	}
	p := must.Get(s.Loads(ctx, "m"))(t)
	equal(t, 0, len(p.Loads))
}
