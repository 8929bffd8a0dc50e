package loadstest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// running is a request in the model of histories.
type running struct {
	at        store.RankRef
	life      int
	keys      []blockkey.Key
	tokens    int
	prefill   int64
	work      int64
	prefilled bool
	output    int
	expected  int
	until     time.Time
}

// histories makes random calls, doubled, late and out of order, with restarts and with leases
// that run out. It compares every load with the sum of what runs.
func histories(t *testing.T, open Open) {
	rapid.Check(t, func(r *rapid.T) {
		clock := NewClock()
		s := open(t, clock)
		places := []store.RankRef{pod("a", 0), pod("a", 1), pod("b:1 ", 0)}
		gens, seen, lives := make([]store.Generation, len(places)), make([]store.Generation, len(places)), make([]int, len(places))
		all := map[string]*running{} // a pair's prefill under an id of its own
		// enter tells the model that a request comes to a place.
		enter := func(at int, gen store.Generation) {
			if !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(q *running) bool {
				return q.at == places[at] && q.life == lives[at] && clock.Now().Before(q.until)
			}) {
				seen[at] = 0 // nothing runs there: what was known of it is forgotten
			}
			if seen[at] != 0 && gen > seen[at] {
				lives[at]++
			}
			seen[at] = max(seen[at], gen)
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			id := fmt.Sprint("r", rapid.IntRange(0, 12).Draw(r, "id"))
			if req := all[id]; req != nil && !clock.Now().Before(req.until) {
				delete(all, id)
				delete(all, half(id))
			}
			switch step := rapid.IntRange(0, 9).Draw(r, "what"); step {
			case 0, 1, 2, 3:
				at := rapid.IntRange(0, len(places)-1).Draw(r, "place")
				gen := gens[at]
				if gen > 0 {
					gen -= store.Generation(rapid.IntRange(0, 1).Draw(r, "behind"))
				}
				n := rapid.IntRange(0, 40).Draw(r, "blocks")
				keys := chain(uint64(rapid.IntRange(1, 2).Draw(r, "head")), uint64(rapid.IntRange(3, 4).Draw(r, "tail")), rapid.IntRange(0, 40).Draw(r, "fork"), n)
				c := call(id, keys, places[at])
				c.Candidates[0].Generation, c.Expected = gen, rapid.SampledFrom([]int{0, 64, 500}).Draw(r, "expected")
				looksForTwins(r, c, &c.Candidates[0])
				b := book(r, s, c)
				if old := all[id]; old != nil {
					equal(r, true, b.Again)
					equal(r, old.at, b.RankRef)
					break
				}
				equal(r, false, b.Again)
				enter(at, gen)
				work := workBeside(all, clock, places[at], lives[at], c, &c.Candidates[0])
				near(r, -c.Candidates[0].Twin*float64(c.Candidates[0].Work-work), b.Costs[0], 1e-6)
				all[id] = &running{
					at: places[at], life: lives[at], keys: keys, tokens: c.Tokens, prefill: int64(c.Candidates[0].Uncached),
					work: work, expected: c.Expected, until: clock.Now().Add(c.Lease),
				}
			case 4:
				got := must.Get(s.Done(ctx, "m", id, loads.Done{Cached: -1}))(r)
				equal(r, all[id] != nil, got.Known)
				if q := all[id]; q != nil {
					q.prefilled, q.until = true, clock.Now().Add(time.Minute)
				}
				delete(all, half(id))
			case 5:
				n := rapid.IntRange(0, 600).Draw(r, "output")
				got := must.Get(s.Output(ctx, "m", id, n))(r)
				equal(r, all[id] != nil, got.Known)
				if q := all[id]; q != nil {
					q.output, q.until = max(q.output, n), clock.Now().Add(time.Minute)
				}
				if q := all[half(id)]; q != nil {
					q.until = all[id].until
				}
			case 6:
				equal(r, all[id] != nil, end(r, s, id).Known)
				delete(all, id)
				delete(all, half(id))
			case 7:
				clock.Advance(time.Duration(rapid.IntRange(1, 40).Draw(r, "seconds")) * time.Second)
			case 8:
				gens[rapid.IntRange(0, len(places)-1).Draw(r, "restarts")] += 2
			case 9:
				p, d := rapid.IntRange(0, len(places)-1).Draw(r, "prefills"), rapid.IntRange(0, len(places)-1).Draw(r, "decodes")
				keys := chain(uint64(rapid.IntRange(1, 2).Draw(r, "head")), 3, 10, rapid.IntRange(0, 40).Draw(r, "blocks"))
				c := pair(id, keys, places[p:p+1], places[d:d+1])
				c.Prefill[0].Generation, c.Candidates[0].Generation = gens[p], gens[d]
				looksForTwins(r, &c.Call, &c.Prefill[0])
				b := must.Get(s.BookPair(ctx, c))(r)
				if old := all[id]; old != nil {
					equal(r, true, b.Again)
					equal(r, old.at, b.RankRef)
					break
				}
				enter(d, gens[d])
				if p != d {
					enter(p, gens[p])
				}
				work := workBeside(all, clock, places[p], lives[p], &c.Call, &c.Prefill[0])
				q := running{at: places[d], life: lives[d], keys: keys, tokens: c.Tokens, prefilled: p != d, until: clock.Now().Add(c.Lease)}
				q.prefill, q.work = int64(c.Prefill[0].Uncached), work
				all[id] = &q
				if p != d {
					other := q
					other.at, other.life, other.prefilled = places[p], lives[p], false
					all[half(id)] = &other
				}
			}
			p := must.Get(s.Loads(ctx, "m"))(r)
			for i, at := range places {
				compare(r, p.Loads[at], clock, all, at, lives[i])
			}
		}
		d := must.Get(s.Audit(ctx, "m"))(r)
		for _, x := range d {
			r.Fatalf("%v has %+v, its requests %+v", x.RankRef, x.Load, x.Reserved)
		}
		clock.Advance(2 * time.Minute)
		p := must.Get(s.Loads(ctx, "m"))(r)
		for at, l := range p.Loads {
			zero(r, unfilled(l), "one lease after the last sign", at)
		}
	})
}

// looksForTwins has a call take notice of what runs, or not.
func looksForTwins(r *rapid.T, c *loads.Call, of *loads.Candidate) {
	of.Twin, c.Quadratic = rapid.SampledFrom([]float64{0, 0.25}).Draw(r, "twin"), rapid.SampledFrom([]float64{0, 0.001}).Draw(r, "quadratic")
}

// workBeside is the work of a request at a place where others run, counted by hand. Up to a
// mark, nothing is left of what one of them has.
func workBeside(all map[string]*running, clock *Clock, at store.RankRef, life int, c *loads.Call, of *loads.Candidate) int64 {
	if of.Twin == 0 || of.Uncached < 256 {
		return of.Work
	}
	marks, _ := loads.Marks(c.Keys)
	had := map[blockkey.Key]bool{}
	for _, q := range all {
		if q.at != at || q.life != life || !clock.Now().Before(q.until) {
			continue
		}
		others, _ := loads.Marks(q.keys)
		for _, k := range others {
			had[k] = true
		}
	}
	shared := 0
	for _, k := range marks {
		if !had[k] {
			break
		}
		shared = (slices.Index(c.Keys, k) + 1) * blockSize
	}
	if shared <= c.Tokens-of.Uncached {
		return of.Work
	}
	return min(of.Work, loads.Shape{Quadratic: c.Quadratic}.Units(c.Tokens-shared, shared))
}

// compare adds up what runs at a place and compares it with its load.
func compare(r *rapid.T, got loads.Load, clock *Clock, all map[string]*running, at store.RankRef, life int) {
	var want loads.Load
	marked := map[blockkey.Key]int64{}
	for _, q := range all {
		if q.at != at || q.life != life || !clock.Now().Before(q.until) {
			continue
		}
		want.Requests++
		if !q.prefilled {
			want.Work, want.Prefill = want.Work+q.work, want.Prefill+q.prefill
		}
		marks, covered := loads.Marks(q.keys)
		before := 0
		for _, k := range marks {
			i := slices.Index(q.keys, k) + 1
			marked[k] = int64(i - before)
			before = i
		}
		want.Blocks += int64((q.tokens+blockSize-1)/blockSize-covered) + loads.OutputBlocks(q.output, q.expected, blockSize)
	}
	for _, n := range marked {
		want.Blocks += n
	}
	got = unfilled(got)
	got.Since, got.Generation = 0, 0
	if want.Requests == 0 && got.Requests == 0 {
		want = loads.Load{}
	}
	equal(r, want, got, at)
}
