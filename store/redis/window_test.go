package redis

import (
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// all is a folder that wants to see everything.
type all struct{ blocks int }

func (f *all) Begin(*store.Registry) {}
func (f *all) Run(n int, _ []store.HolderID) bool {
	f.blocks += n
	return true
}

// none is a folder that has seen enough when no pod holds a block.
type none struct{ all }

func (f *none) Run(n int, holders []store.HolderID) bool {
	return f.all.Run(n, holders) && len(holders) > 0
}

// TestWindows holds the round trips and the keys of a lookup against the windows. One
// takes a rest that is no longer than itself, and no more; those behind the last of
// them grow.
func TestWindows(t *testing.T) {
	x := open(t, Config{URL: redistest.Start(t).URL(), NoSweep: true, Windows: []int{4, 16}})
	must.Get(x.Registry(t.Context()))(t)
	for _, c := range []struct {
		blocks      int
		trips, keys uint64 // of a lookup that sees all
		missed      uint64 // keys of one that ends at the first block
	}{
		{1, 1, 1, 1},
		{4, 1, 4, 4},
		{8, 1, 8, 8},
		{9, 2, 9, 4},
		{36, 2, 36, 4},
		{37, 3, 37, 4},
		{4 + 16 + 32, 3, 52, 4},
		{4 + 16 + 33, 4, 53, 4},
		{4 + 16 + 16 + 36, 4, 72, 4}, // the fourth has half of the 36 before it, 18
		{4 + 16 + 16 + 37, 5, 73, 4},
	} {
		keys := make([]blockkey.Key, c.blocks)
		for i := range keys {
			keys[i] = blockkey.Key(i + 1)
		}
		look := func(f store.Folder) (trips, read uint64) {
			before := x.Stats()
			if err := x.Lookup(t.Context(), &store.Query{Keys: keys, Fold: f}); err != nil {
				t.Fatalf("%d blocks: %v", c.blocks, err)
			}
			after := x.Stats()
			return after.RoundTrips - before.RoundTrips, after.KeysRead - before.KeysRead
		}
		f := &all{}
		if trips, read := look(f); trips != c.trips || read != c.keys || f.blocks != c.blocks {
			t.Errorf("%d blocks: %d round trips, %d keys, %d blocks folded; want %d, %d, all", c.blocks, trips, read, f.blocks, c.trips, c.keys)
		}
		if trips, read := look(&none{}); trips != 1 || read != c.missed {
			t.Errorf("%d blocks that nobody holds: %d round trips, %d keys; want 1, %d", c.blocks, trips, read, c.missed)
		}
	}
}
