package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// slots is the number of blocks in a bucket: what fits in a cache line of
	// 64 bytes.
	slots = 5
	// fill is how many blocks a bucket has on average when its table grows:
	// 80 % of the slots. One in ten blocks then lies beyond its home.
	fill = 4

	shardBits = 8
	numShards = 1 << shardBits
)

// bucket is one cache line. Readers read it with atomic loads and no lock;
// writers hold the shard's lock and use atomic stores, but for a table that is
// not yet published.
//
// An insertion writes the reference first and the key last. A removal clears
// the key first and then moves the version; only then can the slot be filled
// again. A reader loads the version, the keys, the reference and the version
// again. Had the slot changed hands between key and reference, then
//
//  1. the removal cleared the key after the reader had seen it,
//  2. the version moved,
//  3. the next owner wrote its reference,
//  4. the reader loaded that reference, and then loads the moved version.
type bucket struct {
	// meta has the version in the upper 24 bits and, in the lower 8, the number
	// of blocks that passed this bucket because it was full. The count sticks
	// at 255 until the table is resized. A reader who does not find its key
	// goes on to the next bucket only where it is not 0.
	meta uint32
	// refs are ages and set ids; see ref.
	refs [slots]uint32
	// keys are slot keys; 0 is an empty slot.
	keys [slots]uint64
}

const (
	bucketBytes = 64
	passedMask  = 0xff
	versionStep = 1 << 8
)

// A ref is what a slot says about its block: the age in the upper 6 bits, the
// set of holders below.
const (
	setBits = 26
	setMask = 1<<setBits - 1
	ageMask = 1<<(32-setBits) - 1
)

func makeRef(set, age uint32) uint32 { return age<<setBits | set }

// The hash of a block chooses its shard by the upper 8 bits and its home bucket
// by the rest.
//
// slotKey is what a slot keeps of a hash: the bits that are not the shard's,
// and a one that tells it from an empty slot. Within a shard no two hashes have
// the same.
func slotKey(hash uint64) uint64 { return hash<<shardBits | 1 }

func shardOf(hash uint64) uint8 { return uint8(hash >> (64 - shardBits)) }

// home returns the home of a slot key in a table of n buckets. It ascends with
// the key, so that a resize reads and writes in order, whatever the sizes.
func home(key uint64, n int) int {
	hi, _ := bits.Mul64(key&^passedMask, uint64(n))
	return int(hi)
}

// equal is 1 when a and b are equal. It compiles to no branch: where in its
// bucket a block lies is nothing that a branch predictor could learn.
func equal(a, b uint64) (r uint) {
	if a == b {
		r = 1
	}
	return r
}

// match returns a bit for each slot that has the key.
func (b *bucket) match(key uint64) uint {
	return equal(atomic.LoadUint64(&b.keys[0]), key) |
		equal(atomic.LoadUint64(&b.keys[1]), key)<<1 |
		equal(atomic.LoadUint64(&b.keys[2]), key)<<2 |
		equal(atomic.LoadUint64(&b.keys[3]), key)<<3 |
		equal(atomic.LoadUint64(&b.keys[4]), key)<<4
}

// read returns the reference of the key in this bucket, 0 when it is not here;
// more says that it may have passed on to the next bucket.
func (b *bucket) read(key uint64) (ref uint32, slot int, more bool) {
	for {
		meta := atomic.LoadUint32(&b.meta)
		m := b.match(key)
		if m == 0 {
			return 0, 0, meta&passedMask != 0
		}
		slot = bits.TrailingZeros(m)
		ref = atomic.LoadUint32(&b.refs[slot])
		if atomic.LoadUint32(&b.meta) == meta {
			return ref, slot, false
		}
	}
}

// table is the buckets of one shard. It is never empty.
type table []bucket

// find returns where the key is; ok is false when it is nowhere. The caller
// holds the shard's lock.
func (t table) find(key uint64) (i, slot int, ok bool) {
	i = home(key, len(t))
	for range t {
		b := &t[i]
		if m := b.match(key); m != 0 {
			return i, bits.TrailingZeros(m), true
		}
		if atomic.LoadUint32(&b.meta)&passedMask == 0 {
			break
		}
		if i++; i == len(t) {
			i = 0
		}
	}
	return 0, 0, false
}

// readOn goes on where bucket.read in the home bucket said more.
func (t table) readOn(key uint64) (ref uint32, b *bucket, slot int) {
	i := home(key, len(t))
	for range len(t) - 1 {
		if i++; i == len(t) {
			i = 0
		}
		b = &t[i]
		ref, slot, more := b.read(key)
		if !more {
			return ref, b, slot
		}
	}
	return 0, b, 0
}

// insert puts a key that is not there into the first free slot from its home
// on. There must be one. The caller holds the shard's lock.
func (t table) insert(key uint64, ref uint32) {
	i := home(key, len(t))
	for {
		b := &t[i]
		if free := b.match(0); free != 0 {
			slot := bits.TrailingZeros(free)
			atomic.StoreUint32(&b.refs[slot], ref)
			atomic.StoreUint64(&b.keys[slot], key)
			return
		}
		if b.meta&passedMask != passedMask {
			atomic.StoreUint32(&b.meta, b.meta+1)
		}
		if i++; i == len(t) {
			i = 0
		}
	}
}

// fill is insert into a table that nobody else can see.
func (t table) fill(key uint64, ref uint32) {
	i := home(key, len(t))
	for {
		b := &t[i]
		for slot := range b.keys {
			if b.keys[slot] == 0 {
				b.keys[slot], b.refs[slot] = key, ref
				return
			}
		}
		if b.meta&passedMask != passedMask {
			b.meta++
		}
		if i++; i == len(t) {
			i = 0
		}
	}
}

// remove empties a slot. The caller holds the shard's lock.
func (t table) remove(i, slot int) {
	b := &t[i]
	key := b.keys[slot]
	atomic.StoreUint64(&b.keys[slot], 0)
	atomic.StoreUint32(&b.meta, b.meta+versionStep)
	for at := home(key, len(t)); at != i; {
		if p := &t[at]; p.meta&passedMask != passedMask {
			atomic.StoreUint32(&p.meta, p.meta-1)
		}
		if at++; at == len(t) {
			at = 0
		}
	}
}

// view is where readers find the tables. It is immutable. A new one is
// published whenever a table has been replaced or set ids have been freed:
// what a reader has read by the old one then has no meaning any more.
type view struct {
	tables [numShards]table
}

// shard is the writers' side of a table. The padding keeps neighbours off each
// other's cache lines.
type shard struct {
	mu sync.Mutex // protects all below, and writing to the table

	t    table
	live int // blocks in t
	hand int // where the next eviction looks
	news int // insertions since the age last moved; shard 0 only
	// swept is the table that the sweeper is in the middle of.
	swept *bucket

	_ [64]byte
}

// resize moves the shard into a table of n buckets and publishes it. The caller
// holds the shard's lock. Readers go on in the old table until then.
func (x *Index) resize(s *shard, id uint8, n int) {
	old := s.t
	t := make(table, n)
	for i := range old {
		b := &old[i]
		for slot := range b.keys {
			if key := b.keys[slot]; key != 0 {
				t.fill(key, atomic.LoadUint32(&b.refs[slot]))
			}
		}
	}
	s.t = t
	s.hand = 0
	x.bytes.Add(int64(n-len(old)) * bucketBytes)
	x.publish(func(v *view) { v.tables[id] = t })
}

// publish replaces the view by an edited copy.
func (x *Index) publish(edit func(*view)) {
	x.viewMu.Lock()
	defer x.viewMu.Unlock()
	v := *x.view.Load()
	edit(&v)
	x.view.Store(&v)
}

// larger and smaller return the size of the table to move to.
func larger(n int) int {
	if n < 16 {
		return 2 * n
	}
	// Small steps: a table is two thirds full at least, and copying in order is
	// cheap.
	return n + n/4
}

func smaller(live int) int { return live/3 + 1 }

// sparse tells that a table should shrink.
func sparse(live, n int) bool { return n > 4 && live < 2*n }
