package loadstest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

func bookAndEnd(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a b:1", 3) // a name may have spaces and colons
	b := book(t, s, call("r1", chain(1, 1, 0, 10), a))
	equal(t, a, b.RankRef)
	equal(t, false, b.Again)
	equal(t, 1, len(b.Costs))
	l := load(t, s, a)
	equal(t, loads.Load{Work: 326, Prefill: 163, Blocks: 11, Requests: 1, Since: b.Now}, l)
	r := must.Get(s.Done(ctx, "m", "r1", loads.Done{Cached: -1}))(t)
	equal(t, loads.Report{Known: true, RankRef: a, Tokens: 163, First: true}, r)
	l = load(t, s, a)
	equal(t, loads.Load{Blocks: 11, Requests: 1, Since: l.Since}, l)
	r = must.Get(s.End(ctx, "m", "r1"))(t)
	equal(t, loads.Report{Known: true, RankRef: a, Tokens: 163, First: true, Prefill: a}, r)
	zero(t, load(t, s, a))
}

func sharedBlocks(t *testing.T, open Open) {
	s := open(t, NewClock())
	a, b := pod("a", 0), pod("b", 0)
	// 40 blocks in common, of 50. The marks at 4, 8, 12, 16, 20, 25, 31 and 38 are shared; what
	// is between 38 and the end belongs to each.
	book(t, s, call("r1", chain(1, 1, 40, 50), a))
	equal(t, 51, load(t, s, a).Blocks)
	book(t, s, call("r2", chain(1, 2, 40, 50), a))
	equal(t, 51+51-38, load(t, s, a).Blocks)
	book(t, s, call("r3", chain(1, 2, 40, 50), b))
	equal(t, 51, load(t, s, b).Blocks, "another pod shares nothing")
	equal(t, loads.Report{Known: true, RankRef: a, Tokens: 803, First: true, Prefill: a, WithoutDone: true}, end(t, s, "r1"))
	equal(t, 51, load(t, s, a).Blocks)
	end(t, s, "r2")
	zero(t, load(t, s, a))
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
		r := must.Get(report())(t)
		zero(t, r)
	}
	book(t, s, call("r1", nil, a))
	for i := range 3 {
		r := must.Get(s.Done(ctx, "m", "r1", loads.Done{Cached: 1}))(t)
		equal(t, true, r.Known)
		equal(t, i == 0, r.First)
	}
	zero(t, load(t, s, a).Prefill)
	equal(t, true, end(t, s, "r1").Known)
	equal(t, false, end(t, s, "r1").Known)
	r := must.Get(s.Done(ctx, "m", "r1", loads.Done{Cached: 1}))(t)
	equal(t, false, r.Known, "a report behind the end")
	zero(t, load(t, s, a))
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
	r := must.Get(s.Done(ctx, "m", "r2", loads.Done{}))(t)
	equal(t, true, r.Known)
	must.Get(s.Output(ctx, "m", "r3", 1000))(t)
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
	must.Get(s.Done(ctx, "m", "0", loads.Done{Cached: -1}))(t)
	must.Get(s.Output(ctx, "m", "1", 1))(t)
	clock.Advance(10 * time.Second)
	equal(t, 2, load(t, s, a).Requests, "a report has renewed two")
	equal(t, false, end(t, s, "7").Known)
	clock.Advance(time.Minute)
	zero(t, load(t, s, a))

	// A request whose lease is over is no obstacle to one with its id, though no call has looked since.
	for i := range 8 {
		book(t, s, call(fmt.Sprint(i), nil, a))
	}
	clock.Advance(time.Hour)
	for i := range 4 {
		equal(t, false, book(t, s, call(fmt.Sprint(i), nil, a)).Again)
	}
	equal(t, 4, load(t, s, a).Requests)
	b := call("without", nil, a)
	b.WantLoads = false
	equal(t, 0, len(book(t, s, b).Loads))
}

func output(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	c := call("r", nil, a)
	c.Expected = 160
	book(t, s, c)
	before := load(t, s, a).Blocks
	for _, step := range []struct{ tokens, blocks int }{{15, 0}, {80, 2}, {16, 2}, {80, 2}, {144, 0}, {400, 0}} {
		must.Get(s.Output(ctx, "m", "r", step.tokens))(t)
		equal(t, before+int64(step.blocks), load(t, s, a).Blocks, step)
	}
	book(t, s, call("q", nil, a))
	must.Get(s.Output(ctx, "m", "q", 170))(t)
	equal(t, 2*before+10, load(t, s, a).Blocks, "of an output without an expected length all counts")
	end(t, s, "q")
	equal(t, before, load(t, s, a).Blocks)
	end(t, s, "r")
	zero(t, load(t, s, a))
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
	must.OK(t, <-errs)
	p := must.Get(s.Loads(ctx, "m"))(t)
	for _, at := range places {
		equal(t, 50, p.Loads[at].Requests)
	}
	d := must.Get(s.Audit(ctx, "m"))(t)
	equal(t, 0, len(d))
}
