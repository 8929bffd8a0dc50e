package prefixcache

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// shard is one part of an LRU's entries. The list of golang-lru keeps them in
// the order in which they were placed. It is the unlocked simplelru, because a
// read must not take the write lock to move what it found to the front. Reads
// mark the entry instead, and eviction moves marked entries.
type shard struct {
	mu  sync.RWMutex
	lru *simplelru.LRU[key, *chunk] // guarded by mu

	bytes   int64         // what the entries take; guarded by mu
	entries atomic.Int64  // written under mu
	oldest  atomic.Uint64 // tick of the oldest entry, MaxUint64 if none; written under mu

	_ [64]byte // keeps readers of neighbouring shards off one cache line
}

// reset makes the shard empty. The new list also gives back the memory of the
// map, which never shrinks. The caller holds mu, or has the shard to itself.
func (s *shard) reset() {
	s.lru, _ = simplelru.NewLRU[key, *chunk](math.MaxInt, nil) // fails for sizes below 1 only
	s.bytes = 0
	s.entries.Store(0)
	s.oldest.Store(math.MaxUint64)
}

// get returns the entry under k if it follows parent, and marks it as read.
func (s *shard) get(k key, parent uint64) *chunk {
	s.mu.RLock()
	c, ok := s.lru.Peek(k)
	s.mu.RUnlock()
	if !ok || c.parent != parent {
		return nil
	}
	c.mark()
	return c
}

// mark marks c as read. It writes only when that changes something, so that
// hot entries stay in the caches of all CPUs.
func (c *chunk) mark() {
	if !c.ref.Load() {
		c.ref.Store(true)
	}
}

// add puts c under k unless an entry that does as well is there. It returns the entry that is there now.
// Of the bytes taken for c and for the entry it replaced, it returns how many are free again.
func (s *shard) add(k key, c *chunk, exact bool, clock *atomic.Uint64) (kept *chunk, freed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.lru.Peek(k)
	if ok && old.parent == c.parent && (!exact || old.drop == c.drop && slices.Equal(old.tokens, c.tokens)) {
		old.mark()
		return old, c.cost()
	}
	if ok {
		freed = old.cost()
	} else {
		s.entries.Add(1)
	}
	s.lru.Add(k, c)
	s.bytes += c.cost() - freed
	c.tick = clock.Add(1)
	s.noteOldest()
	return c, freed
}

// renew places the entry under k anew, if it is still there.
func (s *shard) renew(k key, clock *atomic.Uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.lru.Get(k); ok {
		c.tick = clock.Add(1)
		s.noteOldest()
	}
}

// evict looks at the oldest entry. If it was read since it was placed, and
// chance is set, it is placed anew; else it is dropped. It returns the bytes
// that are free now.
func (s *shard) evict(chance bool, clock *atomic.Uint64) (freed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, c, ok := s.lru.GetOldest()
	if !ok {
		return 0
	}
	if chance && c.ref.Swap(false) {
		s.lru.Get(k)
		c.tick = clock.Add(1)
	} else {
		s.lru.RemoveOldest()
		freed = c.cost()
		s.bytes -= freed
		s.entries.Add(-1)
	}
	s.noteOldest()
	return freed
}

// purge drops all entries and returns the bytes that are free now.
func (s *shard) purge() (freed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed = s.bytes
	s.reset()
	return freed
}

// noteOldest publishes the tick of the oldest entry. The caller holds mu.
func (s *shard) noteOldest() {
	if _, c, ok := s.lru.GetOldest(); ok {
		s.oldest.Store(c.tick)
	} else {
		s.oldest.Store(math.MaxUint64)
	}
}
