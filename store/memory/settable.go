package memory

// setTable finds sets by a hash of their holders. An entry has the hash in its upper half and the
// set's id in the lower; 0 is empty. So a table that grows need not look at sets. Each lies at its
// home or, where that is taken, at the next place that is free. The zero table is empty.
type setTable struct {
	entries []uint64
	n       int
}

const (
	entryBytes = 8
	minEntries = 64
)

// home is where an entry lies unless others are in the way.
func (t *setTable) home(hash uint32) int { return int(uint64(hash) * uint64(len(t.entries)) >> 32) }

func (t *setTable) after(i int) int {
	if i++; i < len(t.entries) {
		return i
	}
	return 0
}

// find returns the set of this hash that is says is the one; 0 for none.
func (t *setTable) find(hash uint32, is func(id uint32) bool) (id uint32) {
	if t.n == 0 {
		return 0
	}
	for i := t.home(hash); t.entries[i] != 0; i = t.after(i) {
		if e := t.entries[i]; e>>32 == uint64(hash) && is(uint32(e)) {
			return uint32(e)
		}
	}
	return 0
}

// insert adds a set that is not there, and returns by how many bytes the table has grown.
func (t *setTable) insert(hash, id uint32) (grown int64) {
	if (t.n+1)*4 > len(t.entries)*3 {
		grown = t.resize(len(t.entries)*3/2 + minEntries)
	}
	t.put(uint64(hash)<<32 | uint64(id))
	t.n++
	return grown
}

func (t *setTable) put(e uint64) {
	i := t.home(uint32(e >> 32))
	for t.entries[i] != 0 {
		i = t.after(i)
	}
	t.entries[i] = e
}

// remove takes a set out that is there, and moves those up that it was in the way of.
func (t *setTable) remove(hash, id uint32) {
	gap := t.home(hash)
	for t.entries[gap] != uint64(hash)<<32|uint64(id) {
		gap = t.after(gap)
	}
	for i := t.after(gap); t.entries[i] != 0; i = t.after(i) {
		// An entry may move up to its home, but not beyond.
		home := t.home(uint32(t.entries[i] >> 32))
		if stays := gap < home && home <= i || i < gap && (gap < home || home <= i); stays {
			continue
		}
		t.entries[gap], gap = t.entries[i], i
	}
	t.entries[gap] = 0
	t.n--
}

// shrink gives memory back that a table of few sets does not need, and returns by how many bytes it
// has grown: 0, or fewer.
func (t *setTable) shrink() (grown int64) {
	if len(t.entries) <= 1024 || t.n > len(t.entries)/6 {
		return 0
	}
	return t.resize(t.n*2 + minEntries)
}

func (t *setTable) resize(size int) (grown int64) {
	old := t.entries
	t.entries = make([]uint64, size)
	for _, e := range old {
		if e != 0 {
			t.put(e)
		}
	}
	return int64(size-len(old)) * entryBytes
}
