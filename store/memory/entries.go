package memory

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/internal/pages"
	"github.com/kvatlas/kvatlas/store"
)

// entryMap is the map of a generation: from store.MapKey to 1 to store.MaxMapValue bytes.
// It is a table of open addressing over cells of few sizes, neither of which has pointers.
// So the garbage collector looks at no entry, and a change of one allocates nothing. The
// zero value is empty. It is not safe for concurrent use.
type entryMap struct {
	seed  uint64      // keeps engines, which choose hashes, from choosing slots
	slots []entrySlot // a power of two of them; none while there is no entry
	n     int
	cells [entryClasses]cellClass
}

// entrySlot is where an entry is. Its home is the place that its hash chooses; it lies
// there, or behind it with no free slot between.
type entrySlot struct {
	hash uint64
	cell uint32
	part uint16
	size uint8 // of the value; 0 is a free slot
}

const (
	entryClass   = 8 // bytes by which cells of one class are larger than those of the one before
	entryClasses = store.MaxMapValue / entryClass
	cellsPage    = 64 // cells that are allocated together
	leastSlots   = 16 // slots
)

// cellClass has the values of one range of sizes.
type cellClass struct {
	pages [][]byte
	used  uint32   // cells that have been given out at some time
	free  []uint32 // those of them that were given back
}

// len is the number of entries.
func (m *entryMap) len() int { return m.n }

// home is where a key lies if nothing else does. Tables of all sizes have keys in the same
// order, so that a resize reads and writes one page after the other.
func (m *entryMap) home(k store.MapKey) int {
	hi, lo := bits.Mul64(k.Hash^m.seed, 0x9e3779b97f4a7c15^uint64(k.Part)<<17)
	home, _ := bits.Mul64(hi^lo, uint64(len(m.slots)))
	return int(home)
}

// find returns the slot of a key, or the free one where it belongs.
func (m *entryMap) find(k store.MapKey) (i int, ok bool) {
	for i = m.home(k); ; i = (i + 1) & (len(m.slots) - 1) {
		switch s := &m.slots[i]; {
		case s.size == 0:
			return i, false
		case s.hash == k.Hash && s.part == k.Part:
			return i, true
		}
	}
}

// get returns the value of a key, which is valid until the next change, or nil.
func (m *entryMap) get(k store.MapKey) []byte {
	if m.n == 0 {
		return nil
	}
	i, ok := m.find(k)
	if !ok {
		return nil
	}
	return m.value(&m.slots[i])
}

func (m *entryMap) value(s *entrySlot) []byte {
	return m.cells[classOf(int(s.size))].cell(s.cell, int(s.size))
}

// set gives a key a value, which is copied.
func (m *entryMap) set(k store.MapKey, value []byte) {
	if m.n*4 >= len(m.slots)*3 {
		m.resize(max(leastSlots, 2*len(m.slots)))
	}
	i, ok := m.find(k)
	s := &m.slots[i]
	class := classOf(len(value))
	switch {
	case !ok:
		m.n++
		*s = entrySlot{hash: k.Hash, part: k.Part, cell: m.cells[class].take(class)}
	case classOf(int(s.size)) != class:
		m.drop(s)
		s.cell = m.cells[class].take(class)
	}
	s.size = uint8(len(value))
	copy(m.value(s), value)
}

// remove takes a key out.
func (m *entryMap) remove(k store.MapKey) {
	if m.n == 0 {
		return
	}
	i, ok := m.find(k)
	if !ok {
		return
	}
	m.drop(&m.slots[i])
	m.n--
	// What lies behind the hole, and could lie in it, moves there.
	mask := len(m.slots) - 1
	for j := (i + 1) & mask; m.slots[j].size != 0; j = (j + 1) & mask {
		home := m.home(store.MapKey{Hash: m.slots[j].hash, Part: m.slots[j].part})
		if (j-home)&mask >= (j-i)&mask {
			m.slots[i] = m.slots[j]
			i = j
		}
	}
	m.slots[i] = entrySlot{}
	switch { // what was taken for more than there is goes back
	case m.n == 0:
		*m = entryMap{seed: m.seed}
	case m.n*8 < len(m.slots) && len(m.slots) > leastSlots:
		m.resize(len(m.slots) / 4)
	}
}

// drop gives the cell of a slot back.
func (m *entryMap) drop(s *entrySlot) {
	c := &m.cells[classOf(int(s.size))]
	c.free = append(c.free, s.cell)
}

// resize moves the entries into a table of n slots. Where that has less, so have cells.
func (m *entryMap) resize(n int) {
	old, cells := m.slots, m.cells
	m.slots = pages.Make[entrySlot](n)
	if n < len(old) {
		m.cells = [entryClasses]cellClass{}
	}
	for i := range old {
		s := &old[i]
		if s.size == 0 {
			continue
		}
		at, _ := m.find(store.MapKey{Hash: s.hash, Part: s.part})
		m.slots[at] = *s
		if n < len(old) {
			class := classOf(int(s.size))
			m.slots[at].cell = m.cells[class].take(class)
			copy(m.value(&m.slots[at]), cells[class].cell(s.cell, int(s.size)))
		}
	}
}

func classOf(size int) int { return (size - 1) / entryClass }

// take gives a cell out.
func (c *cellClass) take(class int) uint32 {
	if n := len(c.free); n > 0 {
		cell := c.free[n-1]
		c.free = c.free[:n-1]
		return cell
	}
	cell := c.used
	if cell%cellsPage == 0 {
		c.pages = append(c.pages, make([]byte, cellsPage*(class+1)*entryClass))
	}
	c.used++
	return cell
}

// cell returns the first size bytes of a cell.
func (c *cellClass) cell(cell uint32, size int) []byte {
	page := c.pages[cell/cellsPage]
	from := int(cell%cellsPage) * (len(page) / cellsPage)
	return page[from : from+size : from+size]
}
