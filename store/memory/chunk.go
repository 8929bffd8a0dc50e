package memory

import (
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
)

// chunkSlots is the number of blocks in a chunk. A chunk of 126 fills one of
// the allocator's size classes, 1,536 bytes.
const (
	chunkSlots = 126
	chunkBytes = 1536
	offBits    = 7
	offMask    = 1<<offBits - 1
)

// chunk is a stretch of the log of blocks, in the order in which they were
// added. Blocks of one chain come together, so that a lookup that has found one
// finds the next beside it.
//
// A slot is filled once. Its key never changes; its ref is 0 while the block is
// not there yet, and again when it has been removed or moved. It is never filled
// anew: the chunk goes as a whole when nothing in it lives.
type chunk struct {
	n    atomic.Uint32 // slots whose keys are written; those keys can be read without atomics
	live atomic.Int32  // slots taken whose blocks live or are coming, and one while open
	next atomic.Uint32 // the chunk in which the lane went on
	open atomic.Bool   // belongs to a lane
	keys [chunkSlots]blockkey.StoreKey
	refs [chunkSlots]uint32 // see makeRef; atomic
}

// A ref is what a slot says about its block. It has the age in the upper 6 bits
// and the set of holders below; 0 is no block.
const (
	setBits = 26
	setMask = 1<<setBits - 1
	ageMask = 1<<(32-setBits) - 1
)

func makeRef(set, age uint32) uint32 { return age<<setBits | set }

// place is where a block is: a chunk, and its id and the slot in pos. The zero
// place is nowhere.
type place struct {
	c   *chunk
	pos uint32 // chunk id and offset; never 0
}

func (p place) ref() *uint32               { return &p.c.refs[p.pos&offMask] }
func (p place) key() blockkey.StoreKey     { return p.c.keys[p.pos&offMask] }
func makePos(id uint32, off uint32) uint32 { return id<<offBits | off }

// blockLog is all chunks by id. Ids begin at 1 and are used again.
type blockLog struct {
	root []atomic.Pointer[chunkPage] // readers go through it; its length is fixed

	chunks atomic.Int64
	opened atomic.Int64 // lanes that have a chunk

	mu   sync.Mutex // protects all below, and writing to what root leads to
	free []uint32
	top  uint32 // the highest id ever used
	news int    // slots since the age last moved
}

// chunkPage is a page of the table of chunks.
type chunkPage [512]atomic.Pointer[chunk]

const maxChunks = 1<<(32-offBits) - 1

func (l *blockLog) init(maxBytes int64) {
	// Somewhat more than fit: limits are looked at before, not during a write.
	n := min(maxBytes/chunkBytes*9/8+2*lanes, maxChunks)
	l.root = make([]atomic.Pointer[chunkPage], n/int64(len(chunkPage{}))+1)
}

// chunk returns the chunk with this id, nil if there is none.
func (l *blockLog) chunk(id uint32) *chunk {
	if i := int(id) / len(chunkPage{}); i < len(l.root) {
		if page := l.root[i].Load(); page != nil {
			return page[id%uint32(len(page))].Load()
		}
	}
	return nil
}

// at returns the slot at a position, if it is one and has this key.
func (l *blockLog) at(pos uint32, k blockkey.StoreKey) (place, bool) {
	c := l.chunk(pos >> offBits)
	// The chunk may be another by now, whose slot is just being taken.
	if c == nil || atomic.LoadUint64((*uint64)(&c.keys[pos&offMask%chunkSlots])) != uint64(k) {
		return place{}, false
	}
	return place{c, pos}, true
}

// add makes a new chunk, open and empty; nil when there is no id left.
func (l *blockLog) add() (*chunk, uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var id uint32
	if n := len(l.free); n > 0 {
		id = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		if int(l.top)+1 >= min(len(l.root)*len(chunkPage{}), maxChunks) {
			return nil, 0
		}
		l.top++
		id = l.top
	}
	slot := &l.root[id/uint32(len(chunkPage{}))]
	if slot.Load() == nil {
		slot.Store(new(chunkPage))
	}
	c := new(chunk)
	c.live.Store(1)
	c.open.Store(true)
	slot.Load()[id%uint32(len(chunkPage{}))].Store(c)
	l.chunks.Add(1)
	return c, id
}

// drop gives a chunk back in which nothing lives.
func (l *blockLog) drop(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.root[id/uint32(len(chunkPage{}))].Load()[id%uint32(len(chunkPage{}))].Store(nil)
	l.free = append(l.free, id)
	l.chunks.Add(-1)
}

// last returns the highest chunk id.
func (l *blockLog) last() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.top
}

// lanes is the number of chunks that are being filled at once, so that the
// blocks of different holders do not lie between each other.
const lanes = 256

// lane is where a holder's new blocks go.
type lane struct {
	mu sync.Mutex // protects all below, and filling slots
	c  *chunk     // open; nil at first
	id uint32
	n  uint32 // slots taken
}

// take takes the next slot for a key. The slot's key is there for others once
// show has been called. It returns nowhere when there is no chunk left. The
// caller holds mu.
func (l *lane) take(x *Index, k blockkey.StoreKey) place {
	if l.c == nil || l.n == chunkSlots {
		c, id := x.newChunk()
		if c == nil {
			return place{}
		}
		if l.c != nil {
			l.show()
			l.c.next.Store(id)
			l.c.open.Store(false)
			if l.c.live.Add(-1) == 0 {
				x.dropChunk(l.id)
			}
		} else {
			x.log.opened.Add(1)
		}
		l.c, l.id, l.n = c, id, 0
	}
	atomic.StoreUint64((*uint64)(&l.c.keys[l.n]), uint64(k))
	l.c.live.Add(1)
	p := place{l.c, makePos(l.id, l.n)}
	l.n++
	return p
}

// show lets others see the slots that were taken.
func (l *lane) show() {
	if l.c != nil {
		l.c.n.Store(l.n)
	}
}

func (x *Index) newChunk() (*chunk, uint32) {
	c, id := x.log.add()
	if c != nil {
		x.bytes.Add(chunkBytes)
		x.growOlder()
	}
	return c, id
}

func (x *Index) dropChunk(id uint32) {
	x.log.drop(id)
	x.bytes.Add(-chunkBytes)
}
