package memory

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

const (
	// sweepStep is how many buckets are swept under one lock: some ten
	// microseconds.
	sweepStep = 512
	// reapStep is how many sets are looked at while the gate is held.
	reapStep = 1024
	// maxEnded is how many ended holders may wait to be swept. Beyond it, who
	// writes sweeps first.
	maxEnded = 1 << 16
)

// sweeper takes the ids of ended lives out of the sets of blocks. A retirement
// or a clear only ends the ids, in O(1), and no lookup credits them from then
// on; what they leave behind is memory, which the sweeper gives back in short
// steps. It has a goroutine, so that an index at rest shrinks too, and writes
// cost the same while it works.
type sweeper struct {
	x     *Index
	work  chan struct{} // has room for one: wake never waits
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once
	steps atomic.Uint64 // for tests

	mu sync.Mutex // held during a pass
}

func (s *sweeper) start(x *Index) {
	s.x = x
	s.work, s.quit, s.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.done)
		for {
			select {
			case <-s.quit:
				return
			case <-s.work:
				for s.pass() {
				}
			}
		}
	}()
}

func (s *sweeper) stop() {
	s.once.Do(func() { close(s.quit) })
	<-s.done
}

// wake starts a pass if there is something to sweep.
func (s *sweeper) wake() {
	if s.x.registry.ended.Load() == 0 {
		return
	}
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// keepUp makes a writer wait while too much waits to be swept.
func (s *sweeper) keepUp() {
	if s.x.registry.ended.Load() > maxEnded {
		s.pass()
	}
}

func (s *sweeper) stopped() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

// pass sweeps the whole index once. It returns whether there is more to do.
func (s *sweeper) pass() (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.x
	// Those who have ended before the gate is closed have no writer any more
	// who looked them up while they lived. The others are for the next pass.
	x.gate.Lock()
	ended := x.registry.ended.Load()
	x.gate.Unlock()
	if ended == 0 || s.stopped() {
		return false
	}
	alive := x.registry.alive()
	for id := range x.shards {
		for from := 0; from >= 0; {
			if s.stopped() {
				return false
			}
			from = x.sweepShard(uint8(id), from, alive)
			s.steps.Add(1)
			runtime.Gosched()
		}
	}
	for x.reap(reapStep) {
	}
	return x.registry.ended.Add(-ended) > 0
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
		_, _, live := r.Holder(id)
		return live
	}
}

// sweepShard sweeps some buckets of a shard and returns where to go on, -1 at
// the end.
func (x *Index) sweepShard(id uint8, from int, alive func(store.HolderID) bool) (next int) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	s := &x.shards[id]
	s.mu.Lock()
	defer s.mu.Unlock()
	w := writer{x: x}
	defer w.flush()
	// A table that has been resized since the last step has its blocks in the
	// same order, at other places: what was swept is swept, the rest may be
	// anywhere. So begin again; resizes are rare.
	if from > 0 && s.swept != &s.t[0] {
		from = 0
	}
	s.swept = &s.t[0]
	to := min(from+sweepStep, len(s.t))
	for i := from; i < to; i++ {
		b := &s.t[i]
		for slot := range b.keys {
			if b.keys[slot] == 0 {
				continue
			}
			ref := atomic.LoadUint32(&b.refs[slot])
			set := ref & setMask
			k := &w.known[set%uint32(len(w.known))]
			if !k.ok || k.from != set {
				k.from = set
				if k.to, k.ok = x.sets.only(set, alive); !k.ok {
					// No memory for the smaller set: then for none.
					x.evicted.Add(1)
					k.to, k.ok = 0, true
				}
			}
			switch k.to {
			case set:
			case 0:
				w.drop(s, i, slot, set)
			default:
				atomic.StoreUint32(&b.refs[slot], ref&^setMask|k.to)
				w.move(set, k.to)
			}
		}
	}
	if to < len(s.t) {
		return to
	}
	s.swept = nil
	if sparse(s.live, len(s.t)) {
		x.resize(s, id, smaller(s.live))
	}
	return -1
}

// reap frees sets that nobody refers to. It returns whether there are more.
func (x *Index) reap(limit int) (more bool) {
	x.gate.Lock()
	defer x.gate.Unlock()
	return x.sets.reap(limit, func() { x.publish(func(*view) {}) })
}
