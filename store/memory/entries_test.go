package memory

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/store"
)

// TestEntryMap makes random changes to a map of entries and to a Go map, in phases of growth
// and of shrinking. It compares all of both. Few hashes and a seed that makes them collide
// keep entries in each other's places.
func TestEntryMap(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, want := entryMap{seed: seed}, map[store.MapKey][]byte{}
		hashes := 1 + r.IntN(2000)
		check := func() {
			t.Helper()
			if m.len() != len(want) {
				t.Fatalf("seed %d: %d entries, want %d", seed, m.len(), len(want))
			}
			live := 0
			for class := range m.cells {
				live += int(m.cells[class].used) - len(m.cells[class].free)
			}
			if live != len(want) {
				t.Fatalf("seed %d: %d cells in use for %d entries", seed, live, len(want))
			}
			for k, v := range want {
				if got := m.get(k); !bytes.Equal(got, v) {
					t.Fatalf("seed %d: %v is %x, want %x", seed, k, got, v)
				}
			}
		}
		for phase := range 8 {
			for range 3000 {
				k := store.MapKey{Hash: uint64(r.IntN(hashes)) << (8 * r.IntN(3)), Part: uint16(r.IntN(3))}
				if set := r.IntN(10) < 7; set == (phase%2 == 0) {
					v := make([]byte, 1+r.IntN(store.MaxMapValue))
					for i := range v {
						v[i] = byte(r.Uint32())
					}
					m.set(k, v)
					want[k] = bytes.Clone(v)
					clear(v) // the map has a copy
				} else {
					m.remove(k)
					delete(want, k)
				}
				if _, ok := want[k]; ok != (m.get(k) != nil) {
					t.Fatalf("seed %d: %v is there: %v, want %v", seed, k, !ok, ok)
				}
			}
			check()
		}
		for k := range want {
			m.remove(k)
			delete(want, k)
		}
		if check(); m.slots != nil {
			t.Fatalf("seed %d: an empty map keeps %d slots", seed, len(m.slots))
		}
	}
}

// BenchmarkEntryMap sets and removes entries as a full cache does: each new one for one that
// goes.
func BenchmarkEntryMap(b *testing.B) {
	const kept = 1 << 16
	m := entryMap{seed: rand.Uint64()}
	value := make([]byte, 24)
	key := func(i int) store.MapKey { return store.MapKey{Hash: uint64(i) * 0x9e3779b97f4a7c15} }
	for i := range kept {
		m.set(key(i), value)
	}
	b.ReportAllocs()
	for i := kept; b.Loop(); i++ {
		m.set(key(i), value)
		m.remove(key(i - kept))
	}
}
