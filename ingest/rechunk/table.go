package rechunk

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/internal/pages"
)

// blockTable finds blocks by their hashes: open addressing over slots in which the hash
// stands beside the block, so that a block that is not meant is not looked at. The zero
// value is empty.
type blockTable struct {
	seed  uint64      // keeps engines, which choose hashes, from choosing who lies where
	slots []tableSlot // a power of two of them; none before the first put
	n     int
}

// tableSlot is free when it has no block.
type tableSlot struct {
	hash  uint64
	block *block
}

// minTable is the least number of slots.
const minTable = 64

// home is the slot of a hash if nothing else lies there. Tables of all sizes have hashes in
// the same order, so that a resize reads and writes one page after the other.
func (t *blockTable) home(hash uint64) int {
	hi, lo := bits.Mul64(hash^t.seed, 0x9e3779b97f4a7c15)
	home, _ := bits.Mul64(hi^lo, uint64(len(t.slots)))
	return int(home)
}

// get returns the block of a hash, nil for none.
func (t *blockTable) get(hash uint64) *block {
	if t.n == 0 {
		return nil
	}
	mask := len(t.slots) - 1
	for i := t.home(hash); ; i = (i + 1) & mask {
		if s := &t.slots[i]; s.block == nil || s.hash == hash {
			return s.block
		}
	}
}

// put adds a block whose hash the table does not have.
func (t *blockTable) put(b *block) {
	if t.n*4 >= len(t.slots)*3 {
		t.resize(max(minTable, 2*len(t.slots)))
	}
	t.place(tableSlot{b.hash, b})
	t.n++
}

// place puts a slot into the first free one from its home on.
func (t *blockTable) place(s tableSlot) {
	mask := len(t.slots) - 1
	i := t.home(s.hash)
	for t.slots[i].block != nil {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

// remove takes the block of a hash out. It must be there.
func (t *blockTable) remove(hash uint64) {
	mask := len(t.slots) - 1
	i := t.home(hash)
	for t.slots[i].hash != hash || t.slots[i].block == nil {
		i = (i + 1) & mask
	}
	// What lies behind the hole, and could lie in it, moves there.
	for j := (i + 1) & mask; t.slots[j].block != nil; j = (j + 1) & mask {
		if (j-t.home(t.slots[j].hash))&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = tableSlot{}
	t.n--
	if t.n*8 < len(t.slots) && len(t.slots) > minTable {
		t.resize(len(t.slots) / 4)
	}
}

func (t *blockTable) resize(n int) {
	old := t.slots
	t.slots = pages.Make[tableSlot](max(n, minTable))
	for _, s := range old {
		if s.block != nil {
			t.place(s)
		}
	}
}
