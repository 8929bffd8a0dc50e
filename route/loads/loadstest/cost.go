package loadstest

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

func costs(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a, b := pod("a", 0), pod("b", 0)
	keys := chain(1, 1, 0, 4)
	book(t, s, call("r1", keys, a))
	clock.Advance(10 * time.Millisecond)
	c := call("r2", keys, a, b)
	c.Weights = loads.Weights{Wait: 1, Prefill: 0.5, Decode: 2, Blocks: 3, Requests: 7}
	c.Candidates[0].Base, c.Candidates[0].Floor, c.Candidates[0].Factor = 0.125, -20, 1.5
	c.Candidates[1].Base, c.Candidates[1].Floor = 1000, -20
	got := book(t, s, c)
	// 67 tokens, 134 units at a speed of 1: 10 of 134 ms are over.
	near(t, 1.5*(0.125+124+max(0, -20+0.5*67+2*(5+1))+3*(5+1)+7), got.Costs[0], 0.01)
	near(t, 1000+3*5.0, got.Costs[1], 0.01, "nothing runs there: five blocks are new")
	equal(t, a, got.RankRef)
	equal(t, 67, got.Loads[0].Prefill)
	zero(t, got.Loads[1].Requests)

	c = call("r3", nil, b, a)
	equal(t, b, book(t, s, c).RankRef, "of equal costs the first")
}

func limits(t *testing.T, open Open) {
	s := open(t, NewClock())
	a, b := pod("a", 0), pod("b", 0)
	try := func(id string, limit loads.Limits) (loads.Booked, error) {
		c := call(id, nil, a, b)
		c.Tokens, c.Candidates[0].Limits, c.Candidates[1].Limits = 16, limit, limit
		c.Candidates[0].Uncached, c.Candidates[1].Uncached = 16, 16
		c.Candidates[1].Base = 1
		return s.Book(ctx, c)
	}
	for i, want := range []store.RankRef{a, a, b, b} {
		got := must.Get(try(fmt.Sprint(i), loads.Limits{Requests: 2}))(t)
		equal(t, want, got.RankRef)
		equal(t, want == b, math.IsNaN(got.Costs[0]))
	}
	for _, limit := range []loads.Limits{{Requests: 2}, {Prefill: 32}, {Blocks: 2}, {Requests: -1}, {Prefill: -1}, {Blocks: -1}} {
		_, err := try("x", limit)
		equal(t, true, errors.Is(err, loads.ErrBusy))
	}
	for i, limit := range []loads.Limits{{Requests: 3}, {Prefill: 49}, {Blocks: 5}} {
		must.Get(try(fmt.Sprint("y", i), limit))(t)
	}
}

// twins books equal prompts, one with the same beginning, and another one.
func twins(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a, b := pod("a", 0), pod("b", 0)
	ask := func(id string, keys []blockkey.Key) *loads.Call {
		c := call(id, keys, a, b)
		c.Weights, c.Quadratic = loads.Weights{Wait: 1}, 0.01
		for i := range c.Candidates {
			k := &c.Candidates[i]
			k.Work = loads.Shape{Quadratic: c.Quadratic}.Units(k.Uncached, 0)
			k.Twin, k.Base = 3, 3*float64(k.Work)
		}
		c.Candidates[1].Base++
		return c
	}
	one := chain(1, 2, 32, 64) // 1,027 tokens
	first := book(t, s, ask("r1", one))
	equal(t, a, first.RankRef)
	whole := load(t, s, a).Work
	equal(t, 11574, whole)
	// It waits for the first one's work, and does no more than the 99 tokens behind the last mark.
	second := book(t, s, ask("r2", one))
	equal(t, a, second.RankRef, "the twin waits")
	left := loads.Shape{Quadratic: 0.01}.Units(1027-58*blockSize, 58*blockSize)
	near(t, float64(whole)+3*float64(left), second.Costs[0], 1)
	equal(t, whole+left, load(t, s, a).Work)
	// Half of it is shared: it waits for as much as it would do elsewhere, and does the rest.
	third := ask("r3", chain(1, 3, 32, 64))
	third.Weights.Wait = 0.1
	got := book(t, s, third)
	equal(t, a, got.RankRef)
	rest := loads.Shape{Quadratic: 0.01}.Units(1027-31*blockSize, 31*blockSize)
	equal(t, whole+left+rest, load(t, s, a).Work)
	equal(t, b, book(t, s, ask("r4", chain(9, 9, 0, 64))).RankRef, "nothing is shared")
	equal(t, 0, book(t, s, func() *loads.Call { c := ask("r5", chain(1, 2, 32, 4)); c.Candidates = c.Candidates[1:]; return c }()).Rank, "too short to look")
	// What was put into the cache is what is computed.
	p := must.Get(s.Loads(ctx, "m"))(t)
	l := p.Loads[a]
	near(t, 1027+(1027-58*blockSize)+(1027-31*blockSize), l.Filled, 1)
	equal(t, int64(3*1027), l.Prefill, "what is not cached there is not cached there")
	// Reports take off what was booked, and learn from it where the engine does not tell.
	clock.Advance(time.Second)
	for _, id := range []string{"r1", "r2", "r3"} {
		rep := must.Get(s.Done(ctx, "m", id, loads.Done{Cached: -1, Shape: loads.Shape{Quadratic: 0.01}}))(t)
		equal(t, 0, rep.Predicted)
	}
	zero(t, load(t, s, a).Work)
	for _, id := range []string{"r1", "r2", "r3", "r4", "r5"} {
		end(t, s, id)
	}
	// With nothing that runs there is no twin.
	again := book(t, s, ask("r6", one))
	near(t, 3*float64(whole), again.Costs[0], 1e-6)
}

// softmax draws many times and compares with the distribution, by chi-square.
func softmax(t *testing.T, open Open) {
	s := open(t, NewClock())
	base := []float64{3, 1, 2, 11}
	const temperature, n = 0.5, 2000
	var sum float64
	want := make([]float64, len(base))
	for i, b := range base {
		want[i] = math.Exp(-(b - 1) / 10 / temperature)
		sum += want[i]
	}
	var got [4]float64
	for i := range n {
		c := call(fmt.Sprint(i), nil, pod("p", 0), pod("p", 1), pod("p", 2), pod("p", 3))
		for k := range base {
			c.Candidates[k].Base = base[k]
		}
		c.Temperature, c.Draw = temperature, (float64(i)+0.5)/n // evenly, so that the outcome is exact
		got[book(t, s, c).Rank]++
		end(t, s, c.ID)
	}
	chi := 0.0
	for i := range want {
		want[i] *= n / sum
		chi += (got[i] - want[i]) * (got[i] - want[i]) / want[i]
	}
	if chi >= 0.1 {
		t.Fatalf("drew %v, expected %v", got, want)
	}
}
