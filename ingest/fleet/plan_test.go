package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/store"
)

// world is what replicas act on: an index with the live replicas and what each reads.
type world struct {
	alive  map[string]int // limits
	ranks  []store.RankRef
	leases map[store.RankRef]store.Lease
	fence  uint64
	moved  int // leases that a living reader gave up
}

func (w *world) view(self string) *view {
	v := &view{self: self, ranks: w.ranks, leases: w.leases, moves: 4}
	for _, name := range slices.Sorted(maps.Keys(w.alive)) {
		v.readers = append(v.readers, store.Reader{Name: name, Ranks: w.alive[name]})
	}
	return v
}

// act lets a replica do what it plans, and reports whether that was anything.
func (w *world) act(self string) bool {
	p := makePlan(w.view(self))
	for _, r := range p.release {
		l, ok := w.leases[r]
		if _, living := w.alive[l.Reader]; ok && (l.Reader == self || !living) {
			delete(w.leases, r)
			w.moved++
		}
	}
	for _, r := range p.acquire {
		l, ok := w.leases[r]
		if _, living := w.alive[l.Reader]; !ok || !living {
			w.fence++
			w.leases[r] = store.Lease{Reader: self, Fence: w.fence}
		}
	}
	return len(p.release)+len(p.acquire) > 0
}

// settle lets all act, in the given order, until none has anything to do.
func (w *world) settle(order func([]string) []string) (rounds int) {
	for quiet := false; !quiet; rounds++ {
		quiet = true
		for _, name := range order(slices.Sorted(maps.Keys(w.alive))) {
			if w.act(name) {
				quiet = false
			}
		}
		if rounds > 2000 {
			return rounds
		}
	}
	return rounds
}

func (w *world) loads() map[string]int {
	out := map[string]int{}
	for name := range w.alive {
		out[name] = 0
	}
	for _, l := range w.leases {
		out[l.Reader]++
	}
	return out
}

// TestPlanConverges plays random comings and goings. After each, replicas that act in any order come to rest.
// Each rank is read that there is room for, and the spread is even. No replica reads more than it may or what
// is not there.
func TestPlanConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{alive: map[string]int{}, leases: map[store.RankRef]store.Lease{}}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}`), 6, 6, rapid.ID).Draw(t, "names")
		pods := 0
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1: // a replica comes or dies
				i := rapid.IntRange(0, len(names)-1).Draw(t, "replica")
				if name := names[i]; w.alive[name] == 0 {
					w.alive[name] = rapid.SampledFrom([]int{3, 20, 1000}).Draw(t, "limit")
				} else if len(w.alive) > 1 {
					delete(w.alive, name)
					names[i] += "'" // the next one is another
				}
			case 2: // pods come
				for range rapid.IntRange(1, 40).Draw(t, "pods") {
					for r := range rapid.IntRange(1, 3).Draw(t, "ranks") {
						w.ranks = append(w.ranks, store.RankRef{Pod: fmt.Sprint("p", pods), Rank: r})
					}
					pods++
				}
				slices.SortFunc(w.ranks, compareRanks)
			case 3: // pods go
				keep := rapid.IntRange(0, 3).Draw(t, "keep")
				w.ranks = slices.DeleteFunc(slices.Clone(w.ranks), func(r store.RankRef) bool { return len(r.Pod)%4 == keep })
			}
			if len(w.alive) == 0 {
				continue
			}
			if rounds := w.settle(func(s []string) []string { return rapid.Permutation(s).Draw(t, "order") }); rounds > 200 {
				t.Fatalf("%d rounds and no rest", rounds)
			}
			room, loads := 0, w.loads()
			for name, limit := range w.alive {
				room += limit
				if loads[name] > limit {
					t.Fatalf("%s reads %d ranks, its limit is %d", name, loads[name], limit)
				}
			}
			read := 0
			for r, l := range w.leases {
				if _, ok := w.alive[l.Reader]; ok {
					read++
				}
				if !slices.Contains(w.ranks, r) {
					t.Fatalf("%v is read by %s", r, l.Reader)
				}
			}
			if want := min(room, len(w.ranks)); read != want {
				t.Fatalf("%d ranks are read, want %d of %d", read, want, len(w.ranks))
			}
			// Two that are not full differ by less than the slack.
			least := math.MaxInt
			for name, n := range loads {
				if n < w.alive[name] {
					least = min(least, n)
				}
			}
			for name, n := range loads {
				if least != math.MaxInt && n-least >= slack(len(w.ranks), len(w.alive)) {
					t.Fatalf("%s reads %d, another %d, of %d", name, n, least, len(w.ranks))
				}
			}
		}
	})
}

// TestPlanMovesLittle: a replica that comes takes its share and nothing else moves;
// one that dies leaves the others what they have.
func TestPlanMovesLittle(t *testing.T) {
	w := &world{alive: map[string]int{"a": 1000, "b": 1000, "c": 1000}, leases: map[store.RankRef]store.Lease{}}
	for i := range 300 {
		w.ranks = append(w.ranks, store.RankRef{Pod: fmt.Sprintf("p%03d", i)})
	}
	same := func(s []string) []string { return s }
	w.settle(same)
	for name, n := range w.loads() {
		if n != 100 {
			t.Errorf("%s has %d of 300", name, n)
		}
	}
	w.moved = 0
	w.alive["d"] = 1000
	w.settle(same)
	if n := w.loads()["d"]; w.moved != n || n < 70 || n > 75 {
		t.Errorf("%d moved, of which d has %d", w.moved, n)
	}
	w.moved = 0
	before := maps.Clone(w.leases)
	delete(w.alive, "b")
	w.settle(same)
	for r, l := range before {
		if l.Reader != "b" && w.leases[r] != l {
			t.Errorf("%v was %s's and is %s's", r, l.Reader, w.leases[r].Reader)
		}
	}
	if w.moved != 0 {
		t.Errorf("%d were given up", w.moved)
	}
}

// TestRendezvous: a rank goes to the seat that likes it best of those that may have it,
// in whatever order they come. A seat that is to get a rank gets the one it likes best.
func TestRendezvous(t *testing.T) {
	// Replicas of several versions must agree.
	if got, want := liking("a", store.RankRef{Pod: "p", Rank: 258}), uint64(0xacd5ed09e0bbdd2a); got != want {
		t.Errorf("a likes it by %#x, want %#x", got, want)
	}
	seats := []seat{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}}
	chosen := map[string]int{}
	var ranks []store.RankRef
	for i := range 100 {
		r := store.RankRef{Pod: fmt.Sprint("p", i/2), Rank: i % 2}
		ranks = append(ranks, r)
		for _, barred := range []string{"", "a", "b", "c", "d"} {
			want, most := "", uint64(0)
			for _, s := range seats {
				if l := liking(s.name, r); s.name != barred && l > most {
					want, most = s.name, l
				}
			}
			if got := pick(seats, r, func(s *seat) bool { return s.name != barred }); got == nil || got.name != want {
				t.Errorf("%v: without %q it goes to %+v, want %s", r, barred, got, want)
			}
			if barred == "" {
				chosen[want]++
			}
		}
		slices.Reverse(seats)
	}
	for _, s := range seats {
		if n := chosen[s.name]; n < 10 || n > 40 {
			t.Errorf("%s is chosen for %d of 100", s.name, n)
		}
	}
	if got := pick(seats, ranks[0], func(*seat) bool { return false }); got != nil {
		t.Errorf("%s is chosen, which may not have it", got.name)
	}

	slices.SortFunc(ranks, func(a, b store.RankRef) int { return cmp.Compare(liking("b", b), liking("b", a)) })
	want := slices.Clone(ranks[:3])
	slices.SortFunc(ranks, compareRanks)
	got := movesOf([]seat{{name: "a", limit: 100, load: 100, has: ranks}, {name: "b", limit: 100}}, 3, 2)
	if len(got) != 3 || got[0] != (move{want[0], "a"}) || got[1] != (move{want[1], "a"}) || got[2] != (move{want[2], "a"}) {
		t.Errorf("%v move, want %v", got, want)
	}
}

// TestPlanIsPatient: after an outage no replica takes what the others had.
func TestPlanIsPatient(t *testing.T) {
	ranks := []store.RankRef{{Pod: "p", Rank: 0}, {Pod: "p", Rank: 1}, {Pod: "p", Rank: 2}}
	v := &view{
		self: "a", readers: []store.Reader{{Name: "a", Ranks: 10}}, ranks: ranks, moves: 1, patient: true,
		leases: map[store.RankRef]store.Lease{ranks[0]: {Reader: "dead", Fence: 1}, ranks[1]: {Reader: "a", Fence: 2}},
	}
	if p := makePlan(v); len(p.acquire) != 1 || p.acquire[0] != ranks[2] || p.unread != 1 || len(p.release) != 0 {
		t.Errorf("got %+v", p)
	}
	v.patient = false
	if p := makePlan(v); len(p.acquire) != 2 || p.unread != 0 {
		t.Errorf("got %+v", p)
	}
}

func TestLevel(t *testing.T) {
	for _, c := range []struct {
		limits  []int
		n, want int
	}{
		{nil, 5, 0}, {[]int{10}, 5, 5}, {[]int{10}, 50, 10}, {[]int{10, 10, 10}, 10, 4}, {[]int{1, 10, 10}, 10, 5},
		{[]int{1, 2, 100}, 10, 7}, {[]int{0, 0, 3}, 3, 3}, {[]int{5, 5}, 0, 0},
	} {
		var seats []seat
		for _, l := range c.limits {
			seats = append(seats, seat{limit: l})
		}
		if got := levelOf(seats, c.n); got != c.want {
			t.Errorf("%d ranks, limits %v: level %d, want %d", c.n, c.limits, got, c.want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	w := &world{alive: map[string]int{"a": 1e6, "b": 1e6, "c": 1e6}, leases: map[store.RankRef]store.Lease{}}
	for i := range 10000 {
		w.ranks = append(w.ranks, store.RankRef{Pod: fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256)})
	}
	for _, name := range []string{"free", "settled"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			v := w.view("a")
			for b.Loop() {
				makePlan(v)
			}
		})
		w.settle(func(s []string) []string { return s })
	}
}
