package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// shake moves every block, sweeps, frees sets and resizes every table, whether
// there is reason to or not.
func (x *Index) shake() {
	for id := range x.log.last() {
		x.janitor.mu.Lock()
		if c := x.log.chunk(id + 1); c != nil && !c.open.Load() {
			x.janitor.empty(c, id+1)
		}
		x.janitor.mu.Unlock()
	}
	x.janitor.sweep()
	x.reap(reapStep)
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		x.resize(uint8(i), s, s.live/4+1)
		s.mu.Unlock()
	}
}

// closeLanes makes every chunk one that can be moved.
func (x *Index) closeLanes() {
	for _, l := range append([]*lane{&x.janitor.lane}, x.allLanes()...) {
		l.mu.Lock()
		if l.c != nil {
			l.c.open.Store(false)
			if l.c.live.Add(-1) == 0 {
				x.dropChunk(l.id)
			}
			l.c, l.n = nil, 0
			x.log.opened.Add(-1)
		}
		l.mu.Unlock()
	}
}

func (x *Index) allLanes() (all []*lane) {
	for i := range x.lanes {
		all = append(all, &x.lanes[i])
	}
	return all
}

// shaken is an index that is shaken after every change.
type shaken struct{ checked }

func (s shaken) Apply(ctx context.Context, batches ...store.Batch) error {
	err := s.checked.Apply(ctx, batches...)
	s.closeLanes()
	s.shake()
	checkInvariants(s.tb, s.Index)
	return err
}

func TestShakenHistories(t *testing.T) {
	storetest.Histories(t, func(t *testing.T) storetest.Subject {
		c := &clock{now: time.Unix(1000, 0)}
		return storetest.Subject{Index: shaken{checked{open(t, Config{Clock: c.Now}), t}}, Advance: c.Advance, Now: c.Now}
	})
}

// TestLookupsDuringUpheaval looks up blocks that one pod always holds and
// another never. Meanwhile others come and go, blocks are moved, chunk ids and
// set ids are used again, and tables are resized.
func TestLookupsDuringUpheaval(t *testing.T) {
	x := open(t, Config{MaxBlocks: 1 << 20})
	keys := randomKeys(rand.New(rand.NewPCG(1, 1)), 600)
	mustApply(t, x, benchBatch("stable", store.Add, keys), benchBatch("absent", store.Add, keys[:1]), benchBatch("absent", store.Remove, keys[:1]))
	stable := storetest.At{Pod: "stable"}

	var stop atomic.Bool
	var work, reads sync.WaitGroup
	for n := range 2 {
		reads.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(n)))
			for !stop.Load() {
				from := rng.IntN(len(keys))
				part := keys[from:]
				for i, at := range find(t, x, part) {
					ok := false
					for _, a := range at {
						ok = ok || a == stable
						if a.Pod == "absent" {
							t.Errorf("block %d is credited to absent", i)
							return
						}
					}
					if !ok {
						t.Errorf("block %d: stable is missing in %v", i, at)
						return
					}
				}
			}
		})
	}
	rounds := upheavals
	if testing.Short() {
		rounds = 10
	}
	for n := range 2 {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(n)))
			for i := range rounds {
				pod := fmt.Sprintf("pod%d-%d", n, i%7)
				from := rng.IntN(len(keys) - 100)
				other := randomKeys(rng, 400)
				mustApply(t, x,
					benchBatch(pod, store.Add, keys[from:from+100]), benchBatch(pod, store.Add, other),
					benchBatch("absent", store.Remove, keys), benchBatch(pod, store.Remove, other))
				if i%5 == 4 {
					if _, err := x.Retire(context.Background(), pod); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	work.Go(func() {
		for range rounds {
			x.closeLanes()
			x.shake()
		}
	})
	work.Wait()
	stop.Store(true)
	reads.Wait()
	checkInvariants(t, x)
}
