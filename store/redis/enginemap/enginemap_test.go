package enginemap

import (
	"bytes"
	"cmp"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/store"
)

// A page that changes are put into is what a plain map says, whatever the order and the
// number of changes of an entry. Cut into twice as many pages it is the same.
func TestPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.Custom(func(t *rapid.T) Entry {
			e := Entry{MapKey: store.MapKey{Hash: rapid.Uint64Range(0, 9).Draw(t, "hash") << 60, Part: rapid.SampledFrom([]uint16{0, 1, 127, 128, 1 << 14, 1<<16 - 1}).Draw(t, "part")}}
			if n := rapid.IntRange(0, store.MaxMapValue).Draw(t, "length"); n > 0 {
				e.Value = bytes.Repeat([]byte{byte(n)}, n)
			}
			return e
		})
		want := map[store.MapKey]string{}
		var page []byte
		for range rapid.IntRange(1, 5).Draw(t, "compactions") {
			var changes Changes
			for _, e := range rapid.SliceOfN(entries, 0, 100).Draw(t, "changes") {
				changes.Add(e)
				want[e.MapKey] = string(e.Value)
				if e.Value == nil {
					delete(want, e.MapKey)
				}
			}
			last := changes.Last()
			was := 0
			Each(page, func(Entry) { was++ })
			next, n, had, ok := last.Merge(page, PageChanges{list: last.list})
			if !ok || n != len(want) || had != was {
				t.Fatalf("a page of %d entries, %d before, %v; want %d, %d", n, had, ok, len(want), was)
			}
			if page, err := OpenPage(string(next)); err != nil || len(page) != len(next)-1 {
				t.Fatalf("the page cannot be opened: %v", err)
			}
			page = next[1:]
			got := map[store.MapKey]string{}
			before := store.MapKey{}
			Each(page, func(e Entry) {
				if len(got) > 0 && cmpMapKey(before, e.MapKey) >= 0 {
					t.Fatalf("%v comes after %v", e.MapKey, before)
				}
				got[e.MapKey], before = string(e.Value), e.MapKey
				for pages := 1; pages < 1<<20; pages *= 2 {
					if PageOf(e.Hash, 2*pages)/2 != PageOf(e.Hash, pages) || PageOf(e.Hash, pages) >= pages {
						t.Fatalf("hash %d is in page %d of %d, and in %d of twice as many", e.Hash, PageOf(e.Hash, pages), pages, PageOf(e.Hash, 2*pages))
					}
				}
			})
			if !maps.Equal(got, want) {
				t.Fatalf("the page has %v, want %v", got, want)
			}
		}
	})
}

// cmpMapKey is the order of entries in a page.
func cmpMapKey(a, b store.MapKey) int {
	return cmp.Or(cmp.Compare(placeOf(a.Hash), placeOf(b.Hash)), cmp.Compare(a.Part, b.Part))
}

// TestMapViews: what is kept of maps is bounded, and the last used one stays.
func TestMapViews(t *testing.T) {
	var s Views
	const limit = 5000
	for gen := range store.Generation(100) {
		v := s.Take(gen + 1)
		for i := range uint64(10) {
			e := Entry{store.MapKey{Hash: i}, []byte("value")}
			if !v.Add(string(e.AppendTo(nil))) {
				t.Fatal("an entry cannot be read")
			}
		}
		s.Put(gen+1, v, limit)
		if first := s.Take(1); gen < 5 && len(first.rows) == 0 {
			t.Fatal("what is used all the time is gone")
		} else if len(first.rows) > 0 {
			s.Put(1, first, limit)
		}
		sum := 0
		for _, v := range s.views {
			sum += v.bytes()
		}
		if sum != s.bytes || sum > limit {
			t.Fatalf("%d bytes are kept, counted as %d", sum, s.bytes)
		}
	}
	if v := s.Take(1); len(v.rows) == 0 {
		t.Error("what is used all the time is gone")
	}
}
