package memory

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

const (
	// reapStep is how many sets are looked at while the gate is held.
	reapStep = 1024
	// compactStep is how many chunks are emptied in one step.
	compactStep = 4
	// maxEnded is how many ended holders may wait to be swept. Beyond it, a writer sweeps first.
	maxEnded = 1 << 16
)

// janitor gives back the memory of what is gone, in short steps.
//
// It sweeps. A retirement or a clear only ends holder ids, in O(1), and no lookup credits them from then on.
// What remains of them in the sets of blocks is taken out later.
//
// It compacts. Chunks that have more dead slots than live ones for long are emptied into others, so that the
// log stays in proportion to its blocks.
//
// It has a goroutine, so that an index at rest shrinks too, and writes cost the
// same while it works. Should it fall far behind, writers lend a hand.
type janitor struct {
	x    *Index
	work chan struct{} // has room for one: wake never waits
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu   sync.Mutex // held to sweep or compact; protects all below
	hand uint32     // the chunk that was last looked at to compact
	lane lane
}

func (j *janitor) start(x *Index) {
	j.x = x
	j.work, j.quit, j.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(j.done)
		for {
			select {
			case <-j.quit:
				return
			case <-j.work:
				j.clean()
			}
		}
	}()
}

func (j *janitor) stop() {
	j.once.Do(func() { close(j.quit) })
	<-j.done
}

// clean does all that is to be done.
func (j *janitor) clean() {
	for !j.stopped() {
		swept := j.sweep()
		compacted := j.compact(compactStep)
		if !swept && !compacted {
			return
		}
		runtime.Gosched()
	}
}

func (j *janitor) stopped() bool {
	select {
	case <-j.quit:
		return true
	default:
		return false
	}
}

// wake starts the janitor if there is something to do.
func (j *janitor) wake() {
	if j.x.registry.ended.Load() == 0 && !j.x.wasteful(3) {
		return
	}
	select {
	case j.work <- struct{}{}:
	default:
	}
}

// keepUp wakes the janitor, and helps where it lags far behind.
func (j *janitor) keepUp() {
	j.wake()
	if j.x.registry.ended.Load() > maxEnded {
		j.sweep()
	}
	if j.x.wasteful(2) {
		j.compact(compactStep)
	}
}

// wasteful reports whether one in part of the log's slots is dead. Slots that are
// still to be filled do not count.
func (x *Index) wasteful(part int64) bool {
	slots := x.log.chunks.Load() * chunkSlots
	return slots-x.blocks.Load() > slots/part+(x.log.opened.Load()+4)*chunkSlots
}

// sweep takes the ids of ended lives out of all sets. It returns false when
// there are none.
func (j *janitor) sweep() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	x := j.x
	// Those that have ended before the gate is closed have no writer any more that looked them up while they
	// lived. The others are for the next time.
	x.gate.Lock()
	ended := x.registry.ended.Load()
	x.gate.Unlock()
	if ended == 0 {
		return false
	}
	alive := x.registry.alive()
	// A chunk that is made from now on has no ended holder in it, nor does a
	// block move meanwhile: that takes j.mu.
	for id := range x.log.last() {
		if j.stopped() {
			return false
		}
		x.sweepChunk(id+1, alive)
		if id%64 == 0 {
			runtime.Gosched()
		}
	}
	for x.reap(reapStep) {
	}
	x.registry.ended.Add(-ended)
	return true
}

// alive returns a func that knows the holders of this moment, and takes those
// that begin later for alive.
func (g *registry) alive() func(store.HolderID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, last := g.snapshot(), g.lastID
	return func(id store.HolderID) bool {
		if id > last {
			return true
		}
		_, _, live := r.AnyHolder(id)
		return live
	}
}

func (x *Index) sweepChunk(id uint32, alive func(store.HolderID) bool) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	c := x.log.chunk(id)
	if c == nil || x.closed.Load() {
		return
	}
	w := writer{x: x}
	defer w.flush()
	for off := range c.n.Load() {
		ref := atomic.LoadUint32(&c.refs[off])
		if ref == 0 || w.swept(ref&setMask, alive) == ref&setMask {
			continue
		}
		p := place{c, makePos(id, off)}
		hash := x.hash(p.key())
		s := &x.shards[shardOf(hash)]
		s.mu.Lock()
		if ref = atomic.LoadUint32(p.ref()); ref != 0 {
			w.set(s, hash, p, ref, w.swept(ref&setMask, alive))
		}
		s.mu.Unlock()
	}
}

// swept returns a set without its ended holders. Where there is no memory for
// the smaller set, the block goes.
func (w *writer) swept(set uint32, alive func(store.HolderID) bool) uint32 {
	k := &w.known[set%uint32(len(w.known))]
	if k.from != set || !k.ok {
		k.from, k.ok = set, true
		var ok bool
		if k.to, ok = w.x.sets.only(set, alive); !ok {
			w.x.evicted.Add(1)
		}
	}
	return k.to
}

// compact empties up to n chunks of which a quarter or more is dead, if the log
// is wasteful. It returns false when it is not, or when there is no such chunk.
func (j *janitor) compact(n int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	x := j.x
	// Begin at a third, end at a quarter.
	if !x.wasteful(4) {
		return false
	}
	last := x.log.last()
	for tried := uint32(0); tried < last && n > 0; tried++ {
		if j.hand++; j.hand > last {
			j.hand = 1
		}
		c := x.log.chunk(j.hand)
		if c == nil || c.open.Load() || c.live.Load() > chunkSlots*3/4 {
			continue
		}
		j.empty(c, j.hand)
		n--
	}
	return n == 0
}

// empty moves what lives in a chunk into the janitor's lane, in order.
func (j *janitor) empty(c *chunk, id uint32) {
	x := j.x
	x.gate.RLock()
	defer x.gate.RUnlock()
	if x.closed.Load() {
		return
	}
	j.lane.mu.Lock()
	defer j.lane.mu.Unlock()
	w := writer{x: x}
	defer w.flush()
	for off := range c.n.Load() {
		if atomic.LoadUint32(&c.refs[off]) == 0 {
			continue
		}
		from := place{c, makePos(id, off)}
		to := j.lane.take(x, from.key())
		if to.c == nil {
			return
		}
		j.lane.show()
		hash := x.hash(from.key())
		s := &x.shards[shardOf(hash)]
		s.mu.Lock()
		if ref := atomic.LoadUint32(from.ref()); ref != 0 {
			atomic.StoreUint32(to.ref(), ref)
			x.redirect(shardOf(hash), s, tagOf(hash), from.pos, to.pos)
			atomic.StoreUint32(from.ref(), 0)
			w.die(from)
		} else {
			w.die(to)
		}
		s.mu.Unlock()
	}
}

// reap frees unused sets, and reports whether there are more.
func (x *Index) reap(limit int) (more bool) {
	x.gate.Lock()
	defer x.gate.Unlock()
	return x.sets.reap(limit)
}
