// Package loadstest holds every loads.Store to one contract.
package loadstest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// Clock is a time that the test moves; besides it moves by a microsecond whenever it is
// read, as no two calls of a server are at one time.
type Clock struct {
	mu sync.Mutex // protects at
	at time.Time
}

// NewClock returns a clock that stands somewhere.
func NewClock() *Clock { return &Clock{at: time.UnixMicro(1_800_000_000_000_000)} }

// Now is the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(time.Microsecond)
	return c.at
}

// Advance moves it.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// Open returns an empty store whose time is the clock's.
type Open func(t *testing.T, c *Clock) loads.Store

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func equal[T comparable](t tester, want, got T, about ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%v, expected %v %v", got, want, about)
	}
}

func zero[T comparable](t tester, got T, about ...any) {
	t.Helper()
	var none T
	equal(t, none, got, about...)
}

func near(t tester, want, got, within float64, about ...any) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Fatalf("%v, expected %v %v", got, want, about)
	}
}

// blockSize is the index block size of all calls.
const blockSize = 16

// chain returns the keys of the first n blocks of a prompt. Prompts with the same head
// share the blocks before fork.
func chain(head, tail uint64, fork, n int) []blockkey.Key {
	keys := make([]blockkey.Key, n)
	for i := range keys {
		seed := head
		if i >= fork {
			seed = tail
		}
		keys[i] = blockkey.Key(seed<<32 | uint64(i)<<8) // with zero bytes, which a script must not end at
	}
	return keys
}

func pod(name string, rank int) store.RankRef { return store.RankRef{Pod: name, Rank: rank} }

// call is a request of n blocks that may go to the places.
func call(id string, keys []blockkey.Key, places ...store.RankRef) *loads.Call {
	c := &loads.Call{Model: "m", ID: id, Lease: time.Minute, Tokens: len(keys)*blockSize + 3, BlockSize: blockSize, Keys: keys}
	for _, p := range places {
		c.Candidates = append(c.Candidates, loads.Candidate{RankRef: p, Uncached: c.Tokens, Work: int64(c.Tokens) * 2, Factor: 1, Speed: 1})
	}
	return c
}

// Run holds a store to the contract.
func Run(t *testing.T, open Open) {
	t.Run("books and ends", func(t *testing.T) { bookAndEnd(t, open) })
	t.Run("shared blocks count once", func(t *testing.T) { sharedBlocks(t, open) })
	t.Run("a call repeated", func(t *testing.T) { repeated(t, open) })
	t.Run("unknown, late and double reports", func(t *testing.T) { reports(t, open) })
	t.Run("costs", func(t *testing.T) { costs(t, open) })
	t.Run("a request beside its twin", func(t *testing.T) { twins(t, open) })
	t.Run("limits", func(t *testing.T) { limits(t, open) })
	t.Run("a restart voids a load", func(t *testing.T) { restart(t, open) })
	t.Run("leases", func(t *testing.T) { lease(t, open) })
	t.Run("output", func(t *testing.T) { output(t, open) })
	t.Run("speeds are learnt", func(t *testing.T) { learns(t, open) })
	t.Run("caches are filled", func(t *testing.T) { fills(t, open) })
	t.Run("models are apart", func(t *testing.T) { models(t, open) })
	t.Run("settings", func(t *testing.T) { settings(t, open) })
	t.Run("refuses", func(t *testing.T) { refuses(t, open) })
	t.Run("a burst is spread", func(t *testing.T) { burst(t, open) })
	t.Run("softmax", func(t *testing.T) { softmax(t, open) })
	runPairs(t, open)
	t.Run("histories", func(t *testing.T) { histories(t, open) })
	runEngines(t, open)
}

func book(t tester, s loads.Store, c *loads.Call) loads.Booked {
	b, err := s.Book(ctx, c)
	must(t, err)
	return b
}

// load returns the load of a place, without what its cache was filled with.
func load(t tester, s loads.Store, at store.RankRef) loads.Load {
	p, err := s.Loads(ctx, "m")
	must(t, err)
	return unfilled(p.Loads[at])
}

// unfilled returns a load without what its cache was filled with.
func unfilled(l loads.Load) loads.Load {
	l.Filled, l.FilledAt = 0, 0
	return l
}

func bookAndEnd(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a b:1", 3) // a name may have spaces and colons
	b := book(t, s, call("r1", chain(1, 1, 0, 10), a))
	equal(t, a, b.RankRef)
	equal(t, false, b.Again)
	equal(t, 1, len(b.Costs))
	l := load(t, s, a)
	equal(t, loads.Load{Work: 326, Prefill: 163, Blocks: 11, Requests: 1, Since: b.Now}, l)
	r, err := s.Done(ctx, "m", "r1", loads.Done{Cached: -1})
	must(t, err)
	equal(t, loads.Report{Known: true, RankRef: a, Tokens: 163, First: true}, r)
	l = load(t, s, a)
	equal(t, loads.Load{Blocks: 11, Requests: 1, Since: l.Since}, l)
	r, err = s.End(ctx, "m", "r1")
	must(t, err)
	equal(t, true, r.Known)
	zero(t, load(t, s, a))
}

func sharedBlocks(t *testing.T, open Open) {
	s := open(t, NewClock())
	a, b := pod("a", 0), pod("b", 0)
	// 40 blocks in common, of 50: the marks at 1 to 8, 10, 12, 15, 18, 22, 27 and 33 are
	// shared; what is between 33 and the end belongs to each.
	book(t, s, call("r1", chain(1, 1, 40, 50), a))
	equal(t, 51, load(t, s, a).Blocks)
	book(t, s, call("r2", chain(1, 2, 40, 50), a))
	equal(t, 51+51-33, load(t, s, a).Blocks)
	book(t, s, call("r3", chain(1, 2, 40, 50), b))
	equal(t, 51, load(t, s, b).Blocks, "another pod shares nothing")
	end(t, s, "r1")
	equal(t, 51, load(t, s, a).Blocks)
	end(t, s, "r2")
	zero(t, load(t, s, a))
}

func end(t tester, s loads.Store, id string) loads.Report {
	r, err := s.End(ctx, "m", id)
	must(t, err)
	return r
}

func repeated(t *testing.T, open Open) {
	s := open(t, NewClock())
	a, b := pod("a", 0), pod("b", 0)
	equal(t, a, book(t, s, call("r1", nil, a, b)).RankRef)
	again := book(t, s, call("r1", nil, b))
	equal(t, a, again.RankRef, "the second call gets what the first one chose")
	equal(t, true, again.Again)
	equal(t, 1, load(t, s, a).Requests)
	zero(t, load(t, s, b))
	end(t, s, "r1")
	equal(t, b, book(t, s, call("r1", nil, b)).RankRef, "after its end the id is free")
}

func reports(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	for _, report := range []func() (loads.Report, error){
		func() (loads.Report, error) { return s.Done(ctx, "m", "never", loads.Done{}) },
		func() (loads.Report, error) { return s.Output(ctx, "m", "never", 3) },
		func() (loads.Report, error) { return s.End(ctx, "m", "never") },
		func() (loads.Report, error) { return s.End(ctx, "another model", "r1") },
	} {
		r, err := report()
		must(t, err)
		zero(t, r)
	}
	book(t, s, call("r1", nil, a))
	for i := range 3 {
		r, err := s.Done(ctx, "m", "r1", loads.Done{Cached: 1})
		must(t, err)
		equal(t, true, r.Known)
		equal(t, i == 0, r.First)
	}
	zero(t, load(t, s, a).Prefill)
	equal(t, true, end(t, s, "r1").Known)
	equal(t, false, end(t, s, "r1").Known)
	r, err := s.Done(ctx, "m", "r1", loads.Done{Cached: 1})
	must(t, err)
	equal(t, false, r.Known, "a report behind the end")
	zero(t, load(t, s, a))
}

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
		got, err := try(fmt.Sprint(i), loads.Limits{Requests: 2})
		must(t, err)
		equal(t, want, got.RankRef)
		equal(t, want == b, math.IsNaN(got.Costs[0]))
	}
	for _, limit := range []loads.Limits{{Requests: 2}, {Prefill: 32}, {Blocks: 2}, {Requests: -1}, {Prefill: -1}, {Blocks: -1}} {
		_, err := try("x", limit)
		equal(t, true, errors.Is(err, loads.ErrBusy))
	}
	for i, limit := range []loads.Limits{{Requests: 3}, {Prefill: 49}, {Blocks: 5}} {
		_, err := try(fmt.Sprint("y", i), limit)
		must(t, err)
	}
}

func restart(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	gen := func(id string, gen store.Generation) *loads.Call {
		c := call(id, chain(1, 1, 0, 4), a)
		c.Candidates[0].Generation = gen
		return c
	}
	book(t, s, gen("r0", 0))
	book(t, s, gen("r1", 7))
	equal(t, 2, load(t, s, a).Requests, "a first generation takes over what was before it")
	book(t, s, gen("r2", 6))
	book(t, s, gen("r3", 0))
	equal(t, 4, load(t, s, a).Requests, "who knows an older generation resets nothing")
	equal(t, 7, load(t, s, a).Generation)
	equal(t, 0, book(t, s, gen("r4", 9)).Loads[0].Requests, "a newer one has no load yet")
	l := load(t, s, a)
	equal(t, 1, l.Requests)
	equal(t, 5, l.Blocks)
	equal(t, true, end(t, s, "r1").Known, "what ran before is known, and ends without effect")
	r, err := s.Done(ctx, "m", "r2", loads.Done{})
	must(t, err)
	equal(t, true, r.Known)
	_, err = s.Output(ctx, "m", "r3", 1000)
	must(t, err)
	equal(t, l, load(t, s, a))
	end(t, s, "r4")
	zero(t, load(t, s, a))
}

func lease(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a := pod("a", 0)
	for i := range 200 {
		book(t, s, call(fmt.Sprint(i), chain(1, uint64(i), 2, 4), a))
	}
	clock.Advance(50 * time.Second)
	_, err := s.Done(ctx, "m", "0", loads.Done{Cached: -1})
	must(t, err)
	_, err = s.Output(ctx, "m", "1", 1)
	must(t, err)
	clock.Advance(10 * time.Second)
	equal(t, 2, load(t, s, a).Requests, "a report has renewed two")
	equal(t, false, end(t, s, "7").Known)
	clock.Advance(time.Minute)
	zero(t, load(t, s, a))

	// Who books frees as well, without anybody who looks.
	for i := range 8 {
		book(t, s, call(fmt.Sprint(i), nil, a))
	}
	clock.Advance(time.Hour)
	equal(t, 0, book(t, s, call("new", nil, a)).Loads[0].Requests)
}

func output(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	c := call("r", nil, a)
	c.Expected = 160
	book(t, s, c)
	before := load(t, s, a).Blocks
	for _, step := range []struct{ tokens, blocks int }{{15, 0}, {80, 2}, {16, 2}, {80, 2}, {144, 0}, {400, 0}} {
		_, err := s.Output(ctx, "m", "r", step.tokens)
		must(t, err)
		equal(t, before+int64(step.blocks), load(t, s, a).Blocks, step)
	}
	book(t, s, call("q", nil, a))
	_, err := s.Output(ctx, "m", "q", 170)
	must(t, err)
	equal(t, 2*before+10, load(t, s, a).Blocks, "of an output without an expected length all counts")
	end(t, s, "q")
	equal(t, before, load(t, s, a).Blocks)
	end(t, s, "r")
	zero(t, load(t, s, a))
}

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
		_, err := s.Done(ctx, "m", id, loads.Done{Cached: cached, Shape: shape})
		must(t, err)
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
		_, err := s.Done(ctx, "m", id, loads.Done{Cached: 0, Shape: shape})
		must(t, err)
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
		p, err := s.Loads(ctx, "m")
		must(t, err)
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
	_, err := s.Output(ctx, "m", "two", 50)
	must(t, err)
	for _, id := range []string{"one", "two"} {
		_, err := s.Done(ctx, "m", id, loads.Done{Cached: 0})
		must(t, err)
		end(t, s, id)
	}
	_, err = s.Audit(ctx, "m")
	must(t, err)
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
	_, err = s.Loads(ctx, "m") // it forgets
	must(t, err)
	p, err := s.Loads(ctx, "m")
	must(t, err)
	equal(t, 0, len(p.Loads), "and is forgotten")
}

func models(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	book(t, s, call("r", nil, a))
	c := call("r", nil, a)
	c.Model = "n"
	equal(t, false, book(t, s, c).Again)
	p, err := s.Loads(ctx, "n")
	must(t, err)
	equal(t, 1, p.Loads[a].Requests)
	end(t, s, "r")
	p, err = s.Loads(ctx, "n")
	must(t, err)
	equal(t, 1, p.Loads[a].Requests)
	p, err = s.Loads(ctx, "nobody's")
	must(t, err)
	equal(t, 0, len(p.Loads))
	equal(t, true, p.Now != 0)
}

func settings(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	p, err := s.Loads(ctx, "m")
	must(t, err)
	equal(t, "0 ", fmt.Sprintf("%d %s", p.Version, p.Settings))
	book(t, s, call("r", nil, a))
	for i := range 2 {
		must(t, s.PutSettings(ctx, "m", fmt.Appendf(nil, "zero \x00 %d", i)))
		p, err = s.Loads(ctx, "m")
		must(t, err)
		equal(t, fmt.Sprintf("%d zero \x00 %d", i+1, i), fmt.Sprintf("%d %s", p.Version, p.Settings))
	}
	c := call("q", nil, a)
	c.Settings = 1
	_, err = s.Book(ctx, c)
	equal(t, true, errors.Is(err, loads.ErrSettings))
	c.Settings = 2
	book(t, s, c)
	c = call("q", nil, a)
	equal(t, true, book(t, s, c).Again, "what is booked is booked, whatever the settings")
	equal(t, 2, load(t, s, a).Requests)
	equal(t, true, errors.Is(s.PutSettings(ctx, "m", make([]byte, loads.MaxSettings+1)), loads.ErrInvalid))
	p, err = s.Loads(ctx, "n")
	must(t, err)
	equal(t, 0, p.Version)
}

func refuses(t *testing.T, open Open) {
	s := open(t, NewClock())
	for name, spoil := range map[string]func(*loads.Call){
		"no id":         func(c *loads.Call) { c.ID = "" },
		"a long id":     func(c *loads.Call) { c.ID = string(make([]byte, 200)) },
		"a control":     func(c *loads.Call) { c.ID = "a\nb" },
		"no candidate":  func(c *loads.Call) { c.Candidates = nil },
		"many":          func(c *loads.Call) { c.Candidates = make([]loads.Candidate, 65) },
		"no lease":      func(c *loads.Call) { c.Lease = 0 },
		"a long lease":  func(c *loads.Call) { c.Lease = 25 * time.Hour },
		"tokens":        func(c *loads.Call) { c.Tokens = -1 },
		"blocks":        func(c *loads.Call) { c.Keys = chain(1, 1, 0, 100) },
		"no block size": func(c *loads.Call) { c.BlockSize = 0 },
		"NaN":           func(c *loads.Call) { c.Candidates[0].Base = math.NaN() },
		"infinite":      func(c *loads.Call) { c.Weights.Wait = math.Inf(1) },
		"draw":          func(c *loads.Call) { c.Draw = 1 },
		"temperature":   func(c *loads.Call) { c.Temperature = math.NaN() },
		"no pod":        func(c *loads.Call) { c.Candidates[0].Pod = "" },
		"a rank":        func(c *loads.Call) { c.Candidates[0].Rank = -1 },
		"work":          func(c *loads.Call) { c.Candidates[0].Work = -1 },
		"uncached":      func(c *loads.Call) { c.Candidates[0].Uncached = -1 },
		"expected":      func(c *loads.Call) { c.Expected = -1 },
	} {
		c := call("r", nil, pod("a", 0))
		spoil(c)
		_, err := s.Book(ctx, c)
		equal(t, true, errors.Is(err, loads.ErrInvalid), name)
	}
	_, err := s.Output(ctx, "m", "r", -1)
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	_, err = s.End(ctx, "m", "")
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	p, err := s.Loads(ctx, "m")
	must(t, err)
	equal(t, 0, len(p.Loads))
}

// burst books from many goroutines at once: as each choice sees all before it, the pods
// end with the same number.
func burst(t *testing.T, open Open) {
	s := open(t, NewClock())
	var places []store.RankRef
	for i := range 16 {
		places = append(places, pod(fmt.Sprint("p", i), i%2))
	}
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				c := call(fmt.Sprint(g, "-", i), chain(uint64(i%5), uint64(g), 3, 6), places...)
				c.Weights = loads.Weights{Requests: 1}
				if _, err := s.Book(ctx, c); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	must(t, <-errs)
	p, err := s.Loads(ctx, "m")
	must(t, err)
	for _, at := range places {
		equal(t, 50, p.Loads[at].Requests)
	}
	d, err := s.Audit(ctx, "m")
	must(t, err)
	equal(t, 0, len(d))
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
	// It waits for the first one's work, and does no more than the 19 tokens behind the last mark.
	second := book(t, s, ask("r2", one))
	equal(t, a, second.RankRef, "the twin waits")
	left := loads.Shape{Quadratic: 0.01}.Units(1027-63*blockSize, 63*blockSize)
	near(t, float64(whole)+3*float64(left), second.Costs[0], 1)
	equal(t, whole+left, load(t, s, a).Work)
	// A third of it is shared: it waits for as much as it would do elsewhere, and does the rest.
	third := ask("r3", chain(1, 3, 32, 64))
	third.Weights.Wait = 0.1
	got := book(t, s, third)
	equal(t, a, got.RankRef)
	rest := loads.Shape{Quadratic: 0.01}.Units(1027-27*blockSize, 27*blockSize)
	equal(t, whole+left+rest, load(t, s, a).Work)
	equal(t, b, book(t, s, ask("r4", chain(9, 9, 0, 64))).RankRef, "nothing is shared")
	equal(t, 0, book(t, s, func() *loads.Call { c := ask("r5", chain(1, 2, 32, 4)); c.Candidates = c.Candidates[1:]; return c }()).Rank, "too short to look")
	// What was put into the cache is what is computed.
	p, err := s.Loads(ctx, "m")
	must(t, err)
	l := p.Loads[a]
	near(t, 1027+(1027-63*blockSize)+(1027-27*blockSize), l.Filled, 1)
	equal(t, int64(3*1027), l.Prefill, "what is not cached there is not cached there")
	// Reports take off what was booked, and learn from it where the engine does not tell.
	clock.Advance(time.Second)
	for _, id := range []string{"r1", "r2", "r3"} {
		rep, err := s.Done(ctx, "m", id, loads.Done{Cached: -1, Shape: loads.Shape{Quadratic: 0.01}})
		must(t, err)
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

var ctx = context.Background()
