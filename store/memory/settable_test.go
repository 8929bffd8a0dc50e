package memory

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSetTable compares a table with a map over random changes. Few hashes make many entries stand in
// each other's way, also around the end.
func TestSetTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table setTable
		want := map[uint32]uint32{} // hashes by id
		hash := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Range(^uint32(0)-40, ^uint32(0)), rapid.Uint32())
		bytes := int64(0)
		for id := range uint32(rapid.IntRange(1, 300).Draw(t, "steps")) {
			if rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				h := hash.Draw(t, "hash")
				bytes += table.insert(h, id+1)
				want[id+1] = h
			} else {
				gone := rapid.Uint32Range(1, id+1).Draw(t, "gone")
				if h, there := want[gone]; there {
					table.remove(h, gone)
					delete(want, gone)
				}
			}
			bytes += table.shrink()
		}
		if table.n != len(want) || bytes != int64(len(table.entries))*entryBytes {
			t.Fatalf("%d entries and %d bytes, want %d and %d", table.n, bytes, len(want), len(table.entries)*entryBytes)
		}
		for id, h := range want {
			if got := table.find(h, func(got uint32) bool { return got == id }); got != id {
				t.Fatalf("set %d with hash %x is not found", id, h)
			}
		}
		if got := table.find(hash.Draw(t, "other"), func(id uint32) bool { _, there := want[id]; return !there }); got != 0 {
			t.Fatalf("found set %d, which is not there", got)
		}
	})
}
