package rechunk

import (
	"math/rand/v2"
	"testing"
)

// TestBlockTable makes random changes to a table and to a Go map, and compares all of both.
func TestBlockTable(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		table, want := blockTable{seed: seed}, map[uint64]*block{}
		hashes := 1 + r.IntN(3000)
		for phase := range 8 {
			for range 3000 {
				h := uint64(r.IntN(hashes)) << (16 * r.IntN(3))
				switch put := r.IntN(10) < 7 == (phase%2 == 0); {
				case put && want[h] == nil:
					want[h] = table.add(h)
				case !put && want[h] != nil:
					table.remove(want[h])
					delete(want, h)
				}
				if table.get(h) != want[h] {
					t.Fatalf("seed %d: hash %x is another block", seed, h)
				}
			}
			if table.n != len(want) || len(table.slots) > max(minTable, 8*len(want)) {
				t.Fatalf("seed %d: %d blocks in %d slots, want %d", seed, table.n, len(table.slots), len(want))
			}
			for h, b := range want {
				if table.get(h) != b {
					t.Fatalf("seed %d: hash %x is another block", seed, h)
				}
			}
		}
	}
}
