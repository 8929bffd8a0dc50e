package engine

import "github.com/kvatlas/kvatlas/ingest/event"

// shelf is a tier below the GPU. It has copies of blocks by their hashes, of which the
// least recently used goes down to the next shelf, or away.
type shelf struct {
	medium  string
	room    int
	below   *shelf // nil for none
	places  map[event.Hash]int32
	entries []shelfEntry
	free    []int32
	order   lru
	tell    *tell
}

type shelfEntry struct {
	link
	hash event.Hash
}

func (s *shelf) link(i int32) *link { return &s.entries[i].link }

// newShelves returns the host's shelf with the disk's below it, nil where there is no
// host.
func newShelves(c *Config, t *tell, host, disk string) *shelf {
	var below *shelf
	for _, v := range []struct {
		medium string
		room   int
	}{{disk, c.DiskBlocks}, {host, c.HostBlocks}} {
		if v.room > 0 {
			below = &shelf{medium: v.medium, room: v.room, below: below, places: map[event.Hash]int32{}, order: newLRU(), tell: t}
		}
	}
	return below
}

// has reports whether the shelf has a block.
func (s *shelf) has(h event.Hash) bool {
	_, ok := s.places[h]
	return ok
}

// touchAll makes the copies of a block here and on the shelves below the last to go.
func (s *shelf) touchAll(h event.Hash) {
	for ; s != nil; s = s.below {
		s.touch(h)
	}
}

// touch makes a block the last to go.
func (s *shelf) touch(h event.Hash) {
	if i, ok := s.places[h]; ok {
		s.order.remove(s, i)
		s.order.pushLast(s, i)
	}
}

// offer puts a block on the shelf and reports it by the event; one that is there is only
// touched.
func (s *shelf) offer(h event.Hash, e event.Event) {
	if s.has(h) {
		s.touch(h)
		return
	}
	if len(s.places) >= s.room {
		s.evict()
	}
	var i int32
	if n := len(s.free); n > 0 {
		i = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		i = int32(len(s.entries))
		s.entries = append(s.entries, shelfEntry{})
	}
	s.entries[i] = shelfEntry{hash: h}
	s.places[h] = i
	s.order.pushLast(s, i)
	s.tell.add(e)
}

// offerAll puts those of a request's blocks on the shelf that are not there, and reports
// each. Others than these go for them; where that is not enough it changes nothing and
// returns false. Those that are there are not touched.
func (s *shelf) offerAll(keys []event.Hash) bool {
	var fresh []event.Hash
	held := map[event.Hash]bool{}
	for _, h := range keys {
		if s.has(h) {
			held[h] = true
		} else {
			fresh = append(fresh, h)
		}
	}
	out := len(s.places) + len(fresh) - s.room
	if out > len(s.places)-len(held) {
		return false
	}
	for i := s.order.first; out > 0; {
		next := s.entries[i].next
		if !held[s.entries[i].hash] {
			s.evictEntry(i)
			out--
		}
		i = next
	}
	for _, h := range fresh {
		s.offer(h, event.Event{Kind: event.Stored, Hashes: []event.Hash{h}, Medium: s.medium})
	}
	return true
}

// evict takes the least recently used block down, or away.
func (s *shelf) evict() { s.evictEntry(s.order.first) }

func (s *shelf) evictEntry(i int32) {
	h := s.entries[i].hash
	if s.below != nil {
		s.below.offer(h, event.Event{Kind: event.Stored, Hashes: []event.Hash{h}, Medium: s.below.medium})
	}
	s.order.remove(s, i)
	delete(s.places, h)
	s.free = append(s.free, i)
	s.tell.removed(s.medium, 0, h)
}

// clear empties the shelf. What is below it stays. The event is the GPU's clear.
func (s *shelf) clear() {
	if s != nil {
		clear(s.places)
		s.entries, s.free, s.order = nil, nil, newLRU()
	}
}

// find returns how far the chain of hashes goes on from block from on the shelves. It
// returns how many of those blocks are on the first and on the second.
func (s *shelf) find(keys []event.Hash, from, limit int) (to, host, disk int) {
	for to = from; to < limit && s != nil; to++ {
		switch {
		case s.has(keys[to]):
			host++
		case s.below != nil && s.below.has(keys[to]):
			disk++
		default:
			return to, host, disk
		}
	}
	return to, host, disk
}

// count returns how many blocks it and the shelf below have, and have room for.
func (s *shelf) count(u *Usage) {
	if s == nil {
		return
	}
	u.Host, u.HostTotal = len(s.places), s.room
	if s.below != nil {
		u.Disk, u.DiskTotal = len(s.below.places), s.below.room
	}
}
