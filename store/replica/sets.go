package replica

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

// sets interns sets of holders: equal ones are one, with a small number. 0 is the
// empty set and has no entry. Its methods need the table's lock, but
// for ids.
type sets struct {
	// root leads to all sets by number, through pages that stay once they are there.
	root  [1 << 12]atomic.Pointer[setPage]
	freed atomic.Uint64 // how often sets have been freed
	bytes atomic.Int64

	byHash map[uint64]uint32
	top    uint32   // the highest number ever used
	free   []uint32 // numbers to use again
	zeros  []uint32 // sets without a reference
	live   int
}

const pageSize = 1 << 12

type setPage [pageSize]atomic.Pointer[set]

// set is a set of holders. Readers read only its ids, which stay what they are.
type set struct {
	list   []store.HolderID // ascending
	hash   uint64
	next   uint32 // the next one with the same hash
	refs   int
	queued bool // is in zeros
}

// setBytes is what a set takes beside its ids: itself, its entries in a page, in
// the map and in lists.
const setBytes = 64 + 8 + 32

func (s *sets) init() { s.byHash = map[uint64]uint32{} }

// ids returns the holders of a set, for reading. The number must come from a slot,
// and mean what it meant there only if freed has not moved since before the slot
// was read.
func (s *sets) ids(n uint32) []store.HolderID {
	if n == 0 {
		return nil
	}
	if e := s.root[n/pageSize].Load()[n%pageSize].Load(); e != nil {
		return e.list
	}
	return nil
}

// get returns a set that is referred to.
func (s *sets) get(n uint32) *set { return s.root[n/pageSize].Load()[n%pageSize].Load() }

// intern returns the number of the set with these holders. It copies them.
func (s *sets) intern(ids []store.HolderID) (uint32, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	h := hash(ids)
	for n := s.byHash[h]; n != 0; n = s.get(n).next {
		if slices.Equal(s.get(n).list, ids) {
			return n, nil
		}
	}
	var n uint32
	if l := len(s.free); l > 0 {
		n, s.free = s.free[l-1], s.free[:l-1]
	} else {
		if s.top+1 == uint32(len(s.root))*pageSize {
			return 0, fmt.Errorf("%w: it has %d different sets of holders", errFull, s.top)
		}
		s.top++
		n = s.top
	}
	page := &s.root[n/pageSize]
	if page.Load() == nil {
		page.Store(new(setPage))
	}
	page.Load()[n%pageSize].Store(&set{list: slices.Clone(ids), hash: h, next: s.byHash[h]})
	s.byHash[h] = n
	s.live++
	s.bytes.Add(setBytes + 4*int64(len(ids)))
	s.queue(n)
	return n, nil
}

// queue notes that a set may be unused.
func (s *sets) queue(n uint32) {
	if e := s.get(n); !e.queued {
		e.queued = true
		s.zeros = append(s.zeros, n)
	}
}

// count changes the number of slots that refer to a set.
func (s *sets) count(n uint32, by int) {
	e := s.get(n)
	if e.refs += by; e.refs == 0 {
		s.queue(n)
	}
}

// reapSome frees unused sets, when there is enough of it: each time costs
// readers a second look at a few blocks.
func (s *sets) reapSome() {
	if len(s.zeros) >= max(256, s.live/8) {
		s.reap()
	}
}

// reap frees the sets that no slot refers to.
//
// It moves freed before it frees the first. A reader may have read a slot before
// its set was given up, and fetch what the number means by then. It finds that
// freed has moved since it began, and looks again.
func (s *sets) reap() {
	s.freed.Add(1)
	for _, n := range s.zeros {
		e := s.get(n)
		e.queued = false
		if e.refs != 0 {
			continue
		}
		if first := s.byHash[e.hash]; first != n {
			at := s.get(first)
			for at.next != n {
				at = s.get(at.next)
			}
			at.next = e.next
		} else if e.next != 0 {
			s.byHash[e.hash] = e.next
		} else {
			delete(s.byHash, e.hash)
		}
		s.root[n/pageSize].Load()[n%pageSize].Store(nil)
		s.free = append(s.free, n)
		s.live--
		s.bytes.Add(-setBytes - 4*int64(len(e.list)))
	}
	s.zeros = s.zeros[:0]
	if s.live == 0 {
		s.byHash = map[uint64]uint32{} // a Go map never gives memory back
	}
}

func hash(ids []store.HolderID) uint64 {
	h := uint64(len(ids))
	for _, id := range ids {
		h = (h ^ uint64(id)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}
