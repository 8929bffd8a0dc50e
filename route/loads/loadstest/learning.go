package loadstest

import (
	"math"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

func learns(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a := pod("a", 0)
	shape := loads.Shape{Quadratic: 0.001, Overhead: 5}
	run := func(id string, tokens, cached int, took time.Duration) {
		c := call(id, nil, a)
		c.Tokens, c.Candidates[0].Uncached = tokens, tokens
		book(t, s, c)
		clock.Advance(took)
		must.Get(s.Done(ctx, "m", id, loads.Done{Cached: cached, Shape: shape}))(t)
	}
	run("short", 255, 0, time.Second)
	zero(t, load(t, s, a).Samples, "a short prefill says nothing")
	run("one", 1000, 0, 205*time.Millisecond)
	near(t, 10, load(t, s, a).Speed, 1e-2, "2,000 units in 200 ms")
	run("two", 2000, 1000, 55*time.Millisecond) // 4,000 units in 50 ms: 80, clipped to twice 10
	near(t, 10*math.Sqrt2, load(t, s, a).Speed, 1e-2)
	equal(t, 2, load(t, s, a).Samples)

	// Of two that wait for each other each gets its own time.
	c, d := call("three", nil, a), call("four", nil, a)
	c.Tokens, d.Tokens = 1000, 1000
	c.Candidates[0].Uncached, d.Candidates[0].Uncached = 1000, 1000
	book(t, s, c)
	book(t, s, d)
	speed := load(t, s, a).Speed
	for _, id := range []string{"three", "four"} {
		clock.Advance(time.Duration((5 + 2000/speed) * float64(time.Millisecond)))
		must.Get(s.Done(ctx, "m", id, loads.Done{Cached: 0, Shape: shape}))(t)
	}
	near(t, speed, load(t, s, a).Speed, speed*1e-3)
	for _, id := range []string{"short", "one", "two", "three", "four"} {
		end(t, s, id)
	}
	l := load(t, s, a)
	zero(t, l.Requests)
	near(t, speed, l.Speed, speed*1e-3, "a speed outlives its requests")
	clock.Advance(25 * time.Hour)
	zero(t, load(t, s, a), "and is forgotten when nobody tells of it")
}

// fills counts what is put into a cache. It fades, outlives requests, and is forgotten.
func fills(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a, b := pod("a", 0), pod("b", 0)
	filled := func(at store.RankRef) float64 {
		p := must.Get(s.Loads(ctx, "m"))(t)
		l := p.Loads[at]
		return l.FilledBy(p.Now)
	}
	run := func(id string, uncached int) {
		c := call(id, nil, a)
		c.Tokens, c.Candidates[0].Uncached = 1000, uncached
		book(t, s, c)
		book(t, s, c) // the same once more
	}
	run("one", 1000)
	near(t, 1000, filled(a), 0.1)
	clock.Advance(loads.FillHalf)
	near(t, 500, filled(a), 0.1, "half of it has faded")
	run("two", 300)
	near(t, 800, filled(a), 0.1)
	must.Get(s.Output(ctx, "m", "two", 50))(t)
	for _, id := range []string{"one", "two"} {
		must.Get(s.Done(ctx, "m", id, loads.Done{Cached: 0}))(t)
		end(t, s, id)
	}
	must.Get(s.Audit(ctx, "m"))(t)
	near(t, 800, filled(a), 0.1, "they are over")
	zero(t, load(t, s, a))
	run("three", 200)
	near(t, 1000, filled(a), 0.1)
	restarted := call("four", nil, a)
	restarted.Tokens, restarted.Candidates[0].Uncached, restarted.Candidates[0].Generation = 1000, 0, 9
	book(t, s, restarted)
	near(t, 1000, filled(a), 0.1, "what it was filled with fades, whatever becomes of it")
	zero(t, filled(b))
	end(t, s, "four")
	clock.Advance(25 * time.Hour)
	must.Get(s.Loads(ctx, "m"))(t) // it forgets
	p := must.Get(s.Loads(ctx, "m"))(t)
	equal(t, 0, len(p.Loads), "and is forgotten")
}
