package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/store"
)

func TestReapTellsReadersFirst(t *testing.T) {
	var s sets
	s.init(1 << 20)
	one, _ := s.single(1)
	two, ok := s.with(one, 2)
	if !ok || !slices.Equal(s.ids(two), []store.HolderID{1, 2}) {
		t.Fatalf("got %v, %v", s.ids(two), ok)
	}
	s.count(two, 3)
	s.count(two, -2)
	before := s.freed.Load()
	if s.reap(100) || s.freed.Load() != before || s.ids(two) == nil {
		t.Fatal("a set that a block refers to was freed, or readers were told so")
	}
	s.count(two, -1)
	s.reap(100)
	if s.freed.Load() == before {
		t.Fatal("a set was freed and readers were not told")
	}
	if s.ids(two) != nil || s.ids(one) == nil {
		t.Fatalf("after reap: %v and %v", s.ids(one), s.ids(two))
	}
	if again, _ := s.with(one, 3); again != two {
		t.Fatalf("the freed id is %d, the next set got %d", two, again)
	}
}

// TestSetsAreSets compares sets with slices over random changes, with frees in
// between.
func TestSetsAreSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sets
		s.init(1 << 20)
		held := map[uint32]int64{}
		want := map[uint32][]store.HolderID{0: nil}
		from := uint32(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := store.HolderID(rapid.IntRange(1, 12).Draw(t, "id"))
			ids := slices.Clone(want[from])
			i, has := slices.BinarySearch(ids, id)
			var to uint32
			var ok bool
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				to, ok = s.with(from, id)
				if !has {
					ids = slices.Insert(ids, i, id)
				}
			case 2:
				to, ok = s.without(from, id)
				if has {
					ids = slices.Delete(ids, i, i+1)
				}
			case 3:
				even := func(id store.HolderID) bool { return id%2 == 0 }
				to, ok = s.only(from, even)
				ids = slices.DeleteFunc(ids, func(id store.HolderID) bool { return !even(id) })
			}
			if !ok || !slices.Equal(s.ids(to), ids) {
				t.Fatalf("from %v with %d: got %v, %v; want %v", want[from], id, s.ids(to), ok, ids)
			}
			for other, have := range want {
				if other != to && slices.Equal(have, ids) {
					t.Fatalf("%v is both %d and %d", ids, other, to)
				}
			}
			want[to] = ids
			s.count(to, 1)
			held[to]++
			if rapid.IntRange(0, 4).Draw(t, "free") == 0 { // all but the present one
				for set, n := range held {
					if set != to {
						s.count(set, -n)
						delete(held, set)
						delete(want, set)
					}
				}
				want[0] = nil
				for s.reap(2) {
				}
				if s.live > 1 {
					t.Fatalf("%d sets are left, one is in use", s.live)
				}
			}
			from = to
		}
	})
}
