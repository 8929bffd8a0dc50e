package memory

import "sync/atomic"

// Eviction is by age. Every slot keeps the age of the index at which its block
// was last added or looked up; a victim is the oldest of some twenty slots that
// a hand passes.
//
// What else could be evicted? Behind an evicted block a chain is unreachable,
// however many blocks are left of it. So victims should be tails, or whole
// chains. The age does that without knowing any chain: a lookup walks a chain
// from its head, and so renews the head whenever it renews a block behind it; a
// chain that nobody asks for grows old as a whole, and goes as a whole. Random
// or least-frequently-used eviction takes heads as often as tails and leaves
// most of the survivors unreachable.
//
// The age moves by one with each eighth of the index that is filled anew, so a
// block that nobody asks for is gone after about eight ages, and 64 are enough
// to tell old from young.
const (
	// agesOfALife is the number of ages in which the whole index is filled anew.
	agesOfALife = 8
	// sample is how many buckets are searched for the oldest block.
	sample = 4
)

// grewOld counts an insertion into the first shard. As any shard is a fair
// sample of all, it keeps the age for all. The caller holds the shard's lock.
func (x *Index) grewOld(s *shard) {
	if s.news++; s.news >= max(1, x.shardLimit/agesOfALife) {
		s.news = 0
		x.age.Add(1)
	}
	// While there is plenty of room, lookups need not write ages.
	if near := s.live*4 >= x.shardLimit*3 || x.bytes.Load() >= x.maxBytes/4*3; near != x.touching.Load() {
		x.touching.Store(near)
	}
}

// makeRoom sees to it that a block can be inserted: by a larger table, or by
// evicting one.
func (w *writer) makeRoom(s *shard, id uint8) {
	x := w.x
	for s.live >= x.shardLimit && w.evict(s) {
	}
	if s.live < fill*len(s.t) {
		return
	}
	n := min(larger(len(s.t)), x.shardLimit/fill+1)
	if grown := int64(n-len(s.t)) * bucketBytes; x.bytes.Load()+grown <= x.maxBytes || s.live < minShard {
		x.resize(s, id, n)
		return
	}
	w.evict(s)
}

// minShard is how many blocks a shard may have whatever MaxBytes says: all of
// them together are a small part of the least MaxBytes.
const minShard = 8

// forget makes room for holder sets by evicting a few old blocks, after one
// block's change had no room for a new set.
func (w *writer) forget(s *shard) {
	w.x.evicted.Add(1)
	for range sample {
		w.evict(s)
	}
}

// evict drops the oldest block of a few buckets. It returns false when the
// shard is empty. The caller holds the shard's lock.
func (w *writer) evict(s *shard) bool {
	var oldest uint32
	victim, at, found := 0, 0, false
	for n := 0; n < len(s.t) && (n < sample || !found); n++ {
		if s.hand >= len(s.t) {
			s.hand = 0
		}
		b := &s.t[s.hand]
		for slot := range b.keys {
			if b.keys[slot] == 0 {
				continue
			}
			age := (w.age - atomic.LoadUint32(&b.refs[slot])>>setBits) & ageMask
			if !found || age > oldest {
				victim, at, oldest, found = s.hand, slot, age, true
			}
		}
		s.hand++
	}
	if !found {
		return false
	}
	w.drop(s, victim, at, atomic.LoadUint32(&s.t[victim].refs[at])&setMask)
	w.x.evicted.Add(1)
	return true
}
