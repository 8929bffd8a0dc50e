package memory

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvatlas/kvatlas/store"
)

// sets interns sets of holders: the same holders are the same set, with one
// small id. Id 0 is the empty set and has no entry.
//
// A set is counted by the slots that refer to it. While writers work, counts
// lag behind the slots and may even be negative; they are exact under the gate.
// Unused sets are freed only there, see reap.
type sets struct {
	root [1 << rootBits]atomic.Pointer[setDir] // readers go through it

	crowded atomic.Bool   // many of zeros wait for reap
	freed   atomic.Uint64 // how often sets have been freed

	mu     sync.Mutex // protects all below, and writing to what root leads to
	found  setTable   // finds a set by its holders
	live   int
	lowest int      // no page below this one has a free entry
	zeros  []uint32 // may have become unused
	steps  [numSteps]step
	merged []store.HolderID // scratch

	size  atomic.Int64 // bytes of all sets
	limit int64
}

const (
	// An id is an entry of a page of a directory of the root.
	rootBits = 9
	dirBits  = 9
	pageBits = setBits - rootBits - dirBits
	pageSize = 1 << pageBits
	maxPages = 1 << (rootBits + dirBits)
	numSteps = 4096
	// pageBytes is what a page takes, without the sets.
	pageBytes = pageSize*(8+4+1) + 8
	// minZeros is how many sets must have become unused before they are freed;
	// each time costs readers a second look at a few blocks.
	minZeros = 256
)

// setDir is 512 pages. It stays once it is there.
type setDir [1 << dirBits]atomic.Pointer[setPage]

// setPage is a page of sets. A page without sets is given back.
type setPage struct {
	sets [pageSize]atomic.Pointer[set]
	// refs are the counts. They are not beside what readers read. They wrap, and are 0 only
	// where no slot refers to the set: there are fewer than 2^32 slots.
	refs [pageSize]atomic.Int32

	// Protected by sets.mu.
	queued [pageSize]bool // is in zeros
	used   int
}

// set is immutable. It is the first of the numbers that it is made of: how many holders it
// has, and behind that those, ascending. A slice would take another 24 bytes.
type set store.HolderID

func newSet(ids []store.HolderID) *set {
	all := make([]set, 1, 1+len(ids))
	all[0] = set(len(ids))
	for _, id := range ids {
		all = append(all, set(id))
	}
	return &all[0]
}

// ids returns the holders.
func (s *set) ids() []store.HolderID {
	return unsafe.Slice((*store.HolderID)(s), 1+int(*s))[1:]
}

// setSize is what a set of so many holders takes.
func setSize(holders int) int64 {
	const class = 16 // sizes that the allocator has ascend by that
	return (4*(1+int64(holders)) + class - 1) / class * class
}

// step is a remembered change of a set by one holder.
type step struct {
	from, to uint32
	id       store.HolderID
	add      bool
}

func (s *sets) init(limit int64) {
	s.limit = limit
}

// ids returns the holders of a set. A reader may ask for a set that has been
// freed since, and must then find out by freed. What it gets is then nil or of
// another set.
func (s *sets) ids(id uint32) []store.HolderID {
	if p := s.get(id); p != nil {
		return p.ids()
	}
	return nil
}

func (s *sets) get(id uint32) *set {
	if page := s.page(id >> pageBits); page != nil {
		return page.sets[id%pageSize].Load()
	}
	return nil
}

// page returns the page with this number, nil when there is none.
func (s *sets) page(n uint32) *setPage {
	if dir := s.root[n>>dirBits%(1<<rootBits)].Load(); dir != nil {
		return dir[n%(1<<dirBits)].Load()
	}
	return nil
}

// entry returns the page that a set is in, and where in it.
func (s *sets) entry(id uint32) (*setPage, uint32) { return s.page(id >> pageBits), id % pageSize }

// count changes the number of slots that refer to a set.
func (s *sets) count(id uint32, n int64) {
	if id == 0 || n == 0 {
		return
	}
	page, i := s.entry(id)
	if page.refs[i].Add(int32(n)) != 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The end of a holder is counted without the gate: its set may have been
	// freed since.
	if s.get(id) != nil {
		s.queue(id, s.page(id>>pageBits))
	}
}

// queue notes that a set may have become unused. The caller holds mu.
func (s *sets) queue(id uint32, page *setPage) {
	if page.queued[id%pageSize] {
		return
	}
	page.queued[id%pageSize] = true
	s.zeros = append(s.zeros, id)
	if len(s.zeros) >= max(minZeros, s.live/8) && !s.crowded.Load() {
		s.crowded.Store(true)
	}
}

// with returns the set that has the holder besides; ok is false when there is
// no room for one more set.
func (s *sets) with(from uint32, id store.HolderID) (to uint32, ok bool) {
	return s.change(step{from: from, id: id, add: true})
}

// without returns the set that has not the holder.
func (s *sets) without(from uint32, id store.HolderID) (to uint32, ok bool) {
	return s.change(step{from: from, id: id})
}

func (s *sets) change(c step) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := &s.steps[(c.from*31+uint32(c.id)*2+uint32(b2i(c.add)))%numSteps]
	if known.from == c.from && known.id == c.id && known.add == c.add && known.id != 0 {
		return known.to, true
	}
	ids := s.ids(c.from)
	i, has := slices.BinarySearch(ids, c.id)
	if has == c.add {
		c.to = c.from
	} else {
		s.merged = append(s.merged[:0], ids[:i]...)
		if c.add {
			s.merged = append(s.merged, c.id)
			s.merged = append(s.merged, ids[i:]...)
		} else {
			s.merged = append(s.merged, ids[i+1:]...)
		}
		to, ok := s.intern(s.merged)
		if !ok {
			return 0, false
		}
		c.to = to
	}
	*known = c
	return c.to, true
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// only returns the set without the holders that alive denies.
func (s *sets) only(from uint32, alive func(store.HolderID) bool) (to uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids(from)
	if !slices.ContainsFunc(ids, func(id store.HolderID) bool { return !alive(id) }) {
		return from, true
	}
	s.merged = s.merged[:0]
	for _, id := range ids {
		if alive(id) {
			s.merged = append(s.merged, id)
		}
	}
	return s.intern(s.merged)
}

// single returns the set of one holder, counted once for the holder itself.
func (s *sets) single(id store.HolderID) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to, ok := s.intern([]store.HolderID{id})
	if ok {
		page, i := s.entry(to)
		page.refs[i].Add(1)
	}
	return to, ok
}

// intern returns the set with these holders, a new one if need be. It copies
// them. The caller holds mu.
func (s *sets) intern(ids []store.HolderID) (uint32, bool) {
	if len(ids) == 0 {
		return 0, true
	}
	hash := hashIDs(ids)
	if id := s.found.find(hash, func(id uint32) bool { return slices.Equal(s.ids(id), ids) }); id != 0 {
		return id, true
	}
	size := setSize(len(ids))
	if s.size.Load()+size > s.limit {
		return 0, false
	}
	id, ok := s.allot()
	if !ok {
		return 0, false
	}
	page, i := s.entry(id)
	page.sets[i].Store(newSet(ids))
	s.size.Add(size + s.found.insert(hash, id))
	// It is unused so far, and may stay so.
	s.queue(id, page)
	return id, true
}

// allot returns a free id, the lowest page first, so that the upper ones empty.
func (s *sets) allot() (uint32, bool) {
	for n := s.lowest; n < maxPages; n++ {
		page := s.page(uint32(n))
		if page == nil {
			if s.size.Load()+pageBytes > s.limit {
				return 0, false
			}
			page = s.addPage(n)
		}
		if page.used == pageSize {
			continue
		}
		s.lowest = n
		for i := range uint32(pageSize) {
			if id := uint32(n)<<pageBits | i; id != 0 && page.sets[i].Load() == nil {
				page.used++
				s.live++
				return id, true
			}
		}
	}
	return 0, false
}

func (s *sets) addPage(n int) *setPage {
	dir := s.root[n>>dirBits].Load()
	if dir == nil {
		dir = new(setDir)
		s.root[n>>dirBits].Store(dir)
	}
	page := new(setPage)
	if n == 0 {
		page.used = 1 // id 0 is the empty set
	}
	dir[n%(1<<dirBits)].Store(page)
	s.size.Add(pageBytes)
	return page
}

// reap looks at up to limit sets that may be unused and frees those that are.
// It returns whether there are others to look at. The caller holds the gate.
//
// It moves freed before it frees the first set. By then no slot refers to any of them, so a reader that
// reads refs after it meets none. A reader may have read refs before it, and find freed as it was after
// fetching the sets. Then it has fetched them before they went.
func (s *sets) reap(limit int) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := max(0, len(s.zeros)-limit)
	var unused []uint32
	for _, id := range s.zeros[rest:] {
		page, i := s.entry(id)
		page.queued[i] = false
		if page.refs[i].Load() == 0 {
			unused = append(unused, id)
		}
	}
	s.zeros = s.zeros[:rest]
	if len(unused) > 0 {
		s.freed.Add(1)
		for _, id := range unused {
			s.free(id)
		}
		clear(s.steps[:])
	}
	s.size.Add(s.found.shrink())
	if rest > 0 {
		return true
	}
	s.zeros = nil
	s.crowded.Store(false)
	return false
}

func (s *sets) free(id uint32) {
	page, i := s.entry(id)
	ids := s.ids(id)
	s.found.remove(hashIDs(ids), id)
	page.sets[i].Store(nil)
	page.used--
	s.live--
	s.size.Add(-setSize(len(ids)))
	n := int(id >> pageBits)
	s.lowest = min(s.lowest, n)
	if page.used == 0 {
		s.root[n>>dirBits].Load()[n%(1<<dirBits)].Store(nil)
		s.size.Add(-pageBytes)
	}
}

// hashIDs mixes ids one by one; it need not be strong, as sets are compared.
func hashIDs(ids []store.HolderID) uint32 {
	h := uint64(len(ids))
	for _, id := range ids {
		h = (h ^ uint64(id)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return uint32(h)
}
