package rechunk

import (
	"iter"
	"math/bits"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/pages"
)

// blockTable has the blocks, by their hashes and by small numbers: open addressing over slots
// of a word each. Neither slots nor numbers are pointers, so that the garbage collector meets
// a block only in its slab. The zero value is empty.
type blockTable struct {
	seed  uint64 // keeps engines, which choose hashes, from choosing slots
	n     int
	slots []uint64 // a power of two of them; none before the first add
	slabs []*[slab]block
	spare []uint32 // numbers of blocks that are free
}

const (
	// slab is how many blocks are allocated together: with the header that Go puts before
	// them they fill 8 KiB, of which 16 bytes are left.
	slab = 85
	// minTable is the least number of slots.
	minTable = 64
	// warmSlots is from how many slots on warm is of use, and warmAhead how many hashes it is given
	// at a time.
	warmSlots = 1 << 13
	warmAhead = 128
)

// A slot has the upper half of a mixed hash, which says where it belongs, above the number
// of the block; 0 is a free one. Numbers begin with 1.
func makeSlot(tag, number uint32) uint64 { return uint64(tag)<<32 | uint64(number) }

func slotTag(s uint64) uint32 { return uint32(s >> 32) }

func (t *blockTable) tag(hash uint64) uint32 {
	hi, lo := bits.Mul64(hash^t.seed, 0x9e3779b97f4a7c15)
	return uint32((hi ^ lo) >> 32)
}

// home is the slot of a tag if nothing else lies there. Tables of all sizes have tags in the
// same order, so that a resize reads and writes one page after the other.
func (t *blockTable) home(tag uint32) int {
	return int(uint64(tag) * uint64(len(t.slots)) >> 32)
}

// top is the highest number that any block has had.
func (t *blockTable) top() int { return slab * len(t.slabs) }

// at returns the block of a number from 1 to top, nil for a free one.
func (t *blockTable) at(number int) *block {
	if b := t.block(uint32(number)); b.number != 0 {
		return b
	}
	return nil
}

func (t *blockTable) block(number uint32) *block {
	number--
	return &t.slabs[number/slab][number%slab]
}

// all are the blocks.
func (t *blockTable) all() iter.Seq[*block] {
	return func(yield func(*block) bool) {
		for i := range t.top() {
			if b := t.at(i + 1); b != nil && !yield(b) {
				return
			}
		}
	}
}

// get returns the block of a hash, nil for none.
func (t *blockTable) get(hash uint64) *block {
	if t.n == 0 {
		return nil
	}
	mask, tag := len(t.slots)-1, t.tag(hash)
	for i := t.home(tag); ; i = (i + 1) & mask {
		s := t.slots[i&mask]
		if s == 0 {
			return nil
		}
		if slotTag(s) == tag {
			if b := t.block(uint32(s)); b.hash == hash {
				return b
			}
		}
	}
}

// warm reads the slots from which on the blocks of some hashes are looked for. None of the reads
// waits for another, as those of lookups do, one after the other: in a table that is larger than the
// caches that is most of what they take. What it returns keeps the compiler from leaving it out.
func (t *blockTable) warm(layer uint8, hashes []event.Hash) (sum uint64) {
	if len(t.slots) < warmSlots {
		return 0
	}
	for _, h := range hashes {
		sum += t.slots[t.home(t.tag(inLayer(layer, h)))]
	}
	return sum
}

// add returns an empty block of a hash that the table does not have.
func (t *blockTable) add(hash uint64) *block {
	if t.n*4 >= len(t.slots)*3 {
		t.resize(2 * len(t.slots))
	}
	if len(t.spare) == 0 {
		t.slabs = append(t.slabs, new([slab]block))
		for i := range slab {
			t.spare = append(t.spare, uint32(t.top()-i))
		}
	}
	last := len(t.spare) - 1
	number := t.spare[last]
	t.spare = t.spare[:last]
	b := t.block(number)
	b.hash, b.number = hash, number
	t.place(makeSlot(t.tag(hash), number))
	t.n++
	return b
}

// place puts a slot into the first free one from its home on.
func (t *blockTable) place(s uint64) {
	mask := len(t.slots) - 1
	i := t.home(slotTag(s))
	for t.slots[i&mask] != 0 {
		i++
	}
	t.slots[i&mask] = s
}

// remove takes a block out, and empties it.
func (t *blockTable) remove(b *block) {
	mask, s := len(t.slots)-1, makeSlot(t.tag(b.hash), b.number)
	i := t.home(slotTag(s))
	for t.slots[i] != s {
		i = (i + 1) & mask
	}
	// What lies behind the hole, and could lie in it, moves there.
	for j := (i + 1) & mask; t.slots[j] != 0; j = (j + 1) & mask {
		if (j-t.home(slotTag(t.slots[j])))&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
	t.spare = append(t.spare, b.number)
	*b = block{}
	t.n--
	if t.n*8 < len(t.slots) && len(t.slots) > minTable {
		t.resize(len(t.slots) / 4)
	}
}

func (t *blockTable) resize(n int) {
	old := t.slots
	t.slots = pages.Make[uint64](max(n, minTable))
	for _, s := range old {
		if s != 0 {
			t.place(s)
		}
	}
}
