package replica

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// errFull says that the blocks do not fit into the bytes that they may take.
var errFull = errors.New("replica: the index does not fit into the memory that it may take")

const (
	// minSlots is the size of an empty shard.
	minSlots = 16
	// stepSlots is how many slots are looked at under the lock at once.
	stepSlots = 4096
	slotBytes = int64(unsafe.Sizeof(slot{}))
)

// dead is the set of a slot whose block has lost all its holders.
const dead = ^uint32(0)

// slot is a block. Its key is written once, before its set.
type slot struct {
	key   uint64 // atomic
	set   uint32 // atomic; 0 is a slot that was never used
	round uint32 // of the shard when the block was last told; the writers' alone
}

// shard is the blocks of a partition.
type shard struct {
	// slots is replaced, not resized. Readers may go on in an old one.
	slots atomic.Pointer[[]slot]

	// Protected by table.mu.
	used  int // slots with a key
	live  int // those whose set is not dead
	round uint32
}

// table has the holders of blocks. It implements changelog.Sink.
type table struct {
	shards       [blockkey.Partitions]shard
	sets         sets
	seed, factor uint64 // keep others from choosing which blocks share a slot
	limit        int64
	bytes        atomic.Int64 // of slots
	blocks       atomic.Int64

	mu sync.Mutex // held for every change
}

func newTable(limit int64) *table {
	t := &table{seed: rand.Uint64(), factor: rand.Uint64() | 1, limit: limit}
	t.sets.init()
	for i := range t.shards {
		t.shards[i].slots.Store(t.alloc(minSlots))
	}
	return t
}

func (t *table) alloc(n int) *[]slot {
	s := make([]slot, n)
	t.bytes.Add(int64(n) * slotBytes)
	return &s
}

// home is where in a shard of n slots a block belongs. Keys are hashes already,
// most of them; but anyone may write any key.
func (t *table) home(k blockkey.StoreKey, n int) int {
	h := (uint64(k) ^ t.seed) * t.factor
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// find returns the set of a block, 0 when it has no holder. It takes no lock.
func (t *table) find(k blockkey.StoreKey) uint32 {
	slots := *t.shards[k.Partition()].slots.Load()
	for i := t.home(k, len(slots)); ; {
		s := &slots[i]
		// The set before the key: a slot with a set has its key, for good.
		set := atomic.LoadUint32(&s.set)
		if set == 0 {
			return 0
		}
		if atomic.LoadUint64(&s.key) == uint64(k) {
			if set == dead {
				return 0
			}
			return set
		}
		if i++; i == len(slots) {
			i = 0
		}
	}
}

// Anew implements changelog.Sink.
func (t *table) Anew(partitions uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.shards {
		if partitions>>p&1 != 0 {
			t.shards[p].round++
		}
	}
}

// Set implements changelog.Sink.
func (t *table) Set(keys []blockkey.StoreKey, holders []store.HolderID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	set, err := t.sets.intern(holders)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := t.put(k, set); err != nil {
			return err
		}
	}
	t.sets.reapSome()
	if t.size() > t.limit {
		return errFull
	}
	return nil
}

func (t *table) size() int64 { return t.bytes.Load() + t.sets.bytes.Load() }

// put gives a block another set, 0 for none. The caller holds mu.
func (t *table) put(k blockkey.StoreKey, set uint32) error {
	sh := &t.shards[k.Partition()]
	slots := *sh.slots.Load()
	i := t.home(k, len(slots))
	for slots[i].set != 0 && slots[i].key != uint64(k) {
		if i++; i == len(slots) {
			i = 0
		}
	}
	s := &slots[i]
	switch old := s.set; {
	case old == 0 && set == 0:
		return nil
	case old == 0:
		if (sh.used+1)*5 > len(slots)*4 {
			if err := t.rebuild(sh); err != nil {
				return err
			}
			return t.put(k, set)
		}
		sh.used++
		t.count(sh, 1)
		t.sets.count(set, 1)
		s.round = sh.round
		atomic.StoreUint64(&s.key, uint64(k))
		atomic.StoreUint32(&s.set, set)
	case set == 0 && old == dead:
	case set == 0:
		t.kill(sh, s)
		if len(slots) > 4*minSlots && sh.live*4 < len(slots) {
			return t.rebuild(sh)
		}
	case old == dead:
		t.count(sh, 1)
		t.sets.count(set, 1)
		s.round = sh.round
		atomic.StoreUint32(&s.set, set)
	default:
		s.round = sh.round
		if set != old {
			t.sets.count(set, 1)
			atomic.StoreUint32(&s.set, set)
			t.sets.count(old, -1)
		}
	}
	return nil
}

func (t *table) count(sh *shard, n int) {
	sh.live += n
	t.blocks.Add(int64(n))
}

// kill removes a block. The caller holds mu.
func (t *table) kill(sh *shard, s *slot) {
	old := s.set
	atomic.StoreUint32(&s.set, dead)
	t.count(sh, -1)
	t.sets.count(old, -1)
}

// rebuild replaces the slots of a shard by as many as its blocks need. The caller
// holds mu.
func (t *table) rebuild(sh *shard) error {
	old := *sh.slots.Load()
	n := max(minSlots, sh.live*8/5+minSlots)
	if t.size()+int64(n-len(old))*slotBytes > t.limit {
		return errFull
	}
	next := t.alloc(n)
	for i := range old {
		if s := &old[i]; s.set != 0 && s.set != dead {
			j := t.home(blockkey.StoreKey(s.key), n)
			for (*next)[j].set != 0 {
				if j++; j == n {
					j = 0
				}
			}
			(*next)[j] = *s
		}
	}
	sh.used = sh.live
	sh.slots.Store(next)
	t.bytes.Add(-int64(len(old)) * slotBytes)
	return nil
}

// Whole implements changelog.Sink.
func (t *table) Whole(partitions uint64) {
	for p := range t.shards {
		if partitions>>p&1 != 0 {
			t.purge(&t.shards[p])
		}
	}
}

// purge removes the blocks of a shard that have not been told in its present round, some
// under the lock at once.
func (t *table) purge(sh *shard) {
	for at := 0; ; {
		t.mu.Lock()
		slots := *sh.slots.Load()
		for end := min(at+stepSlots, len(slots)); at < end; at++ {
			if s := &slots[at]; s.set != 0 && s.set != dead && s.round != sh.round {
				t.kill(sh, s)
			}
		}
		done := at >= len(slots)
		if done && len(slots) > 4*minSlots && sh.live*4 < len(slots) {
			_ = t.rebuild(sh) // smaller, so that there is room
		}
		t.sets.reapSome()
		t.mu.Unlock()
		if done {
			return
		}
		// What is rebuilt meanwhile is in another order: begin again.
		if next := *sh.slots.Load(); &next[0] != &slots[0] {
			at = 0
		}
	}
}

// clear forgets everything.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.shards {
		sh := &t.shards[p]
		for i, slots := 0, *sh.slots.Load(); i < len(slots); i++ {
			if s := &slots[i]; s.set != 0 && s.set != dead {
				t.kill(sh, s)
			}
		}
		_ = t.rebuild(sh) // smaller, so that there is room
	}
	t.sets.reap()
}

// window is how many blocks a lookup looks for at once, so that the processor
// fetches their slots side by side.
const window = 64

// lookup answers a query.
func (t *table) lookup(q *store.Query) (read int) {
	var (
		found [window]uint32
		ids   [window][]store.HolderID
	)
	for keys := q.Keys; len(keys) > 0; {
		n := min(window, len(keys))
		for {
			// See sets.reap for why this is right without a lock.
			freed := t.sets.freed.Load()
			for i, k := range keys[:n] {
				found[i] = t.find(k.In(q.Model))
			}
			for i, set := range found[:n] {
				if i == 0 || set != found[i-1] {
					ids[i] = t.sets.ids(set)
				}
			}
			if t.sets.freed.Load() == freed {
				break
			}
		}
		read += n
		for i := 0; i < n; {
			j := i + 1
			for j < n && found[j] == found[i] {
				j++
			}
			if !q.Fold.Run(j-i, ids[i]) {
				return read
			}
			i = j
		}
		keys = keys[n:]
	}
	return read
}
