package rechunk

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk/groups"
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

// TestWarm reads slots of tables of all sizes for any hashes, and changes nothing.
func TestWarm(t *testing.T) {
	table := blockTable{seed: 7}
	hashes := []event.Hash{0, 1, math.MaxUint64}
	for n := range uint64(2 * warmSlots) {
		if n&(n-1) == 0 {
			if sum := table.warm(uint8(n%groups.MaxLayers), hashes); sum != 0 && len(table.slots) < warmSlots {
				t.Fatalf("%d slots were read, which a cache has", len(table.slots))
			}
		}
		h := n * 0x9E3779B97F4A7C15
		table.add(h)
		hashes = append(hashes, event.Hash(h))
	}
	if table.warm(0, hashes) == 0 {
		t.Fatal("a full table was not read")
	}
	for _, h := range hashes[3:] {
		if b := table.get(uint64(h)); b == nil || b.hash != uint64(h) {
			t.Fatalf("hash %x is another block", h)
		}
	}
}
