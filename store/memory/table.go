package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/pages"
)

const (
	// slots is the number of entries in a bucket: what fits in a cache line.
	slots = 7

	shardBits = 8
	numShards = 1 << shardBits
)

// bucket is one cache line of a table. Readers read it with atomic loads and no
// lock; writers hold the shard's lock.
type bucket struct {
	// passed counts the entries that did not fit here and lie further on. A
	// reader that does not find its key goes on only where it is not 0.
	passed uint32
	// built is how many entries resize has put here; nothing else reads it.
	built uint32
	// entries are the tag of a block in the upper half, its position in the log
	// in the lower; 0 is empty. They are read and written as one word.
	entries [slots]uint64
}

const bucketBytes = 64

// The hash of a block chooses its shard by the upper 8 bits. The next 32 are its
// tag, which chooses its home bucket. The tag is kept in the entry, so that a
// resize need not look at keys.
func shardOf(hash uint64) uint8 { return uint8(hash >> (64 - shardBits)) }

func tagOf(hash uint64) uint32 { return uint32(hash >> (32 - shardBits)) }

func makeEntry(tag, pos uint32) uint64 { return uint64(tag)<<32 | uint64(pos) }

func entryTag(e uint64) uint32 { return uint32(e >> 32) }

// table is the buckets of one shard. It has one at least.
type table []bucket

// home returns the home bucket of a tag. It ascends with the tag, so that a
// resize reads and writes in order, whatever the sizes.
func (t table) home(tag uint32) int { return int(uint64(tag) * uint64(len(t)) >> 32) }

func (t table) after(i int) int {
	if i++; i < len(t) {
		return i
	}
	return 0
}

// equal is 1 when a and b are equal. It compiles to no branch: where in its
// bucket a block lies is nothing that a branch predictor could learn.
func equal(a, b uint32) (r uint) {
	if a == b {
		r = 1
	}
	return r
}

func (b *bucket) tag(slot int) uint32 { return entryTag(atomic.LoadUint64(&b.entries[slot])) }

// match returns a bit for each entry that has the tag. Empty entries have tag 0.
func (b *bucket) match(tag uint32) uint {
	return equal(b.tag(0), tag) | equal(b.tag(1), tag)<<1 | equal(b.tag(2), tag)<<2 | equal(b.tag(3), tag)<<3 |
		equal(b.tag(4), tag)<<4 | equal(b.tag(5), tag)<<5 | equal(b.tag(6), tag)<<6
}

// free returns a bit for each entry that is empty.
func (b *bucket) free() (m uint) {
	for i := range b.entries {
		e := atomic.LoadUint64(&b.entries[i])
		// The sign of -e|e is that of "not 0".
		m |= uint(^(-e|e)>>63) << i
	}
	return m
}

// shard is the writers' side of a table. The padding keeps neighbours off each
// other's cache lines.
type shard struct {
	mu   sync.Mutex // protects all below, writing to the table, and the refs of the shard's blocks
	t    table
	live int // entries in t
	_    [64]byte
}

// find returns where a block is, nowhere if it is not. The caller holds the
// shard's lock.
func (s *shard) find(l *blockLog, tag uint32, k blockkey.StoreKey) place {
	t := s.t
	i := t.home(tag)
	for range t {
		b := &t[i]
		for m := b.match(tag); m != 0; m &= m - 1 {
			e := atomic.LoadUint64(&b.entries[bits.TrailingZeros(m)])
			if e == 0 {
				continue
			}
			if p, ok := l.at(uint32(e), k); ok {
				return p
			}
		}
		if atomic.LoadUint32(&b.passed) == 0 {
			break
		}
		i = t.after(i)
	}
	return place{}
}

// insert puts an entry that is not there into the first free slot from its home
// on. The caller holds the shard's lock.
func (x *Index) insert(id uint8, s *shard, tag, pos uint32) {
	if n := len(s.t); s.live*10 >= n*slots*8 {
		x.resize(id, s, larger(n))
	}
	t := s.t
	for i := t.home(tag); ; i = t.after(i) {
		b := &t[i]
		if m := b.free(); m != 0 {
			atomic.StoreUint64(&b.entries[bits.TrailingZeros(m)], makeEntry(tag, pos))
			s.live++
			return
		}
		atomic.AddUint32(&b.passed, 1)
	}
}

// redirect replaces the position of an entry, or with to 0 removes it. The
// caller holds the shard's lock.
func (x *Index) redirect(id uint8, s *shard, tag, pos, to uint32) {
	t := s.t
	home := t.home(tag)
	e := makeEntry(tag, pos)
	i, slot := home, 0
	for tries := 0; !t[i].holds(e, &slot); tries++ {
		if tries == len(t) {
			panic("memory: a block that lives has no entry") // else it would hang
		}
		i = t.after(i)
	}
	if to != 0 {
		atomic.StoreUint64(&t[i].entries[slot], makeEntry(tag, to))
		return
	}
	atomic.StoreUint64(&t[i].entries[slot], 0)
	for at := home; at != i; at = t.after(at) {
		atomic.AddUint32(&t[at].passed, ^uint32(0))
	}
	s.live--
	// A table that shrinks early moves each entry more than twice while the shard
	// empties. From a third on it is less than once, for 27 bytes a block at most.
	if n := len(s.t); n > 4 && s.live*3 < n*slots {
		x.resize(id, s, s.live/5+1)
	}
}

func (b *bucket) holds(e uint64, slot *int) bool {
	for i := range b.entries {
		if atomic.LoadUint64(&b.entries[i]) == e {
			*slot = i
			return true
		}
	}
	return false
}

// larger returns the size of the table to grow to: then it is two fifths full.
// Growing by half instead saves two bytes a block on average, and moves each entry
// twice while an index fills. New blocks then take a fifth longer.
func larger(n int) int { return 2*n + 1 }

// resize moves the shard's entries into a table of n buckets. Readers may go on
// in the old one: it still says where blocks were, and each block's slot says
// whether it is there. The caller holds the shard's lock.
func (x *Index) resize(id uint8, s *shard, n int) {
	old := s.t
	t := table(pages.Make[bucket](n))
	for i := range old {
		for slot := range old[i].entries {
			e := atomic.LoadUint64(&old[i].entries[slot])
			if e != 0 {
				t.put(e)
			}
		}
	}
	s.t = t
	x.tables[id].Store(&t)
	x.bytes.Add(int64(n-len(old)) * bucketBytes)
}

// put is insert into a table that no other goroutine can see.
func (t table) put(e uint64) {
	for i := t.home(entryTag(e)); ; i = t.after(i) {
		b := &t[i]
		if b.built < slots {
			b.entries[b.built] = e
			b.built++
			return
		}
		b.passed++
	}
}

// seek returns where a block is, without a lock; nowhere if it is not.
//
// The slot is the truth, the table only leads there. Writers keep to this order.
// A new block gets its ref and then its entry. A removed one loses its entry and
// then its ref. A moved one gets its new slot, its entry is exchanged, and then
// the old slot loses its ref. So a slot that has the key and no ref tells that
// the entry which led there is outdated. Another look finds the new one.
func (x *Index) seek(k blockkey.StoreKey, hash uint64) place {
	tag := tagOf(hash)
again:
	current := x.tables[shardOf(hash)].Load()
	t := *current
	i := t.home(tag)
	for range t {
		b := &t[i]
		for m := b.match(tag); m != 0; m &= m - 1 {
			entry := &b.entries[bits.TrailingZeros(m)]
			e := atomic.LoadUint64(entry)
			if e == 0 {
				continue
			}
			if p, ok := x.log.at(uint32(e), k); ok {
				if atomic.LoadUint32(p.ref()) != 0 {
					return p
				}
				goto again
			}
			// Another block has the same tag. Or the block has been moved since the
			// entry was read, or since the table was replaced, and its old chunk is
			// gone.
			if atomic.LoadUint64(entry) != e || x.tables[shardOf(hash)].Load() != current {
				goto again
			}
		}
		if atomic.LoadUint32(&b.passed) == 0 {
			break
		}
		i = t.after(i)
	}
	return place{}
}

// touch brings the home of a block near without waiting for it.
func (x *Index) touch(hash uint64) {
	t := *x.tables[shardOf(hash)].Load()
	atomic.LoadUint32(&t[t.home(tagOf(hash))].passed)
}

// follow returns the block after p in its chain, if that is k and lives.
func (x *Index) follow(p place, k blockkey.StoreKey) place {
	c, pos := p.c, p.pos+1
	if pos&offMask == chunkSlots {
		id := c.next.Load()
		c, pos = x.log.chunk(id), makePos(id, 0)
		if c == nil {
			return place{}
		}
	}
	if off := pos & offMask; off < c.n.Load() && c.keys[off] == k && atomic.LoadUint32(&c.refs[off]) != 0 {
		return place{c, pos}
	}
	return place{}
}
