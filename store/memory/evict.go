package memory

import (
	"math/rand/v2"
	"sync/atomic"
)

// Eviction is by age. Every slot keeps the age of the index at which its block
// was last added or looked up. Victims are the oldest blocks of the chunk that
// has the oldest among a few chosen at random; of equals the last one goes first.
//
// Behind an evicted block a chain is unreachable, however many blocks are left
// of it. So victims should be tails, or whole chains. A lookup walks a chain from
// its head, and so renews the head whenever it renews a block behind it. A chain
// that no request asks for grows old as a whole and lies together, and goes as a
// whole, tail first. Random or least-frequently-used eviction takes heads as
// often as tails and leaves most of the survivors unreachable.
//
// The age moves by one with each eighth of the index that is filled anew. So a block that no request asks for
// is gone after about eight ages, and 64 are enough to tell old from young.
const (
	// agesOfALife is the number of ages in which the whole index is filled anew.
	agesOfALife = 8
	// sample is how many chunks are searched for the oldest blocks; up to
	// maxSample while all of them are young.
	sample, maxSample = 6, 32
)

// growOlder counts a new chunk, by which the age goes.
func (x *Index) growOlder() {
	l := &x.log
	l.mu.Lock()
	l.news += chunkSlots
	older := l.news >= max(chunkSlots, int(x.maxBlocks/agesOfALife))
	if older {
		l.news = 0
	}
	l.mu.Unlock()
	if older {
		x.age.Add(1)
	}
	// While there is plenty of room, lookups need not write ages.
	if near := x.blocks.Load() >= x.maxBlocks/4*3 || x.bytes.Load() >= x.maxBytes/4*3; near != x.touching.Load() {
		x.touching.Store(near)
	}
}

// makeRoom evicts what there is too much.
func (w *writer) makeRoom() {
	x := w.x
	over := func() int64 { return x.blocks.Load() + w.blocks - x.maxBlocks }
	full := func() bool { return x.bytes.Load()+x.sets.size.Load()+2*chunkBytes > x.maxBytes }
	if over() <= 0 && !full() {
		return
	}
	for over() > 0 && w.evict(int(over())) {
	}
	// Bytes come back in whole chunks, and from sets and tables later. A few
	// chunks at a time will do, since the next writer looks again.
	for i := 0; i < 4 && full() && w.evict(chunkSlots); i++ {
		w.flush()
	}
}

// evict drops up to n blocks of one chunk. It returns false when there is none.
// The caller holds no shard.
func (w *writer) evict(n int) bool {
	x := w.x
	var victim place
	var oldest uint32
	last := x.log.last()
	if last == 0 {
		return false
	}
	for seen, tried := 0, uint32(0); tried < last+maxSample; tried++ {
		if seen >= maxSample || seen >= sample && oldest > 1 {
			break
		}
		id := 1 + rand.Uint32N(last)
		if tried >= maxSample*4 { // few ids are in use: look at them in turn
			id = 1 + tried%last
		}
		c := x.log.chunk(id)
		if c == nil {
			continue
		}
		age, ok := w.oldest(c)
		if !ok {
			continue
		}
		if seen++; victim.c == nil || age > oldest {
			victim, oldest = place{c, makePos(id, 0)}, age
		}
	}
	if victim.c == nil {
		return false
	}
	for off := victim.c.n.Load(); off > 0 && n > 0; off-- {
		p := place{victim.c, victim.pos + off - 1}
		if ref := atomic.LoadUint32(p.ref()); ref == 0 || n < chunkSlots && w.ageOf(ref) != oldest {
			continue
		}
		if w.evictBlock(p) {
			n--
		}
	}
	return true
}

func (w *writer) ageOf(ref uint32) uint32 { return (w.age - ref>>setBits) & ageMask }

// oldest returns the age of the oldest block in a chunk.
func (w *writer) oldest(c *chunk) (age uint32, ok bool) {
	for i := range c.refs[:c.n.Load()] {
		if ref := atomic.LoadUint32(&c.refs[i]); ref != 0 {
			age, ok = max(age, w.ageOf(ref)), true
		}
	}
	return age, ok
}

func (w *writer) evictBlock(p place) bool {
	hash := w.x.hash(p.key())
	s := &w.x.shards[shardOf(hash)]
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := atomic.LoadUint32(p.ref())
	if ref == 0 {
		return false
	}
	w.set(s, hash, p, ref, 0)
	w.x.evicted.Add(1)
	return true
}
