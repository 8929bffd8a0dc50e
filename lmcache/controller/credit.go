package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// maxWrite is how many keys are written at a time.
const maxWrite = store.MaxOpKeys

// doubt is about credit that may be false.
type doubt struct{ since time.Time }

// apply takes operations in. They are written with those that follow.
func (w *worker) apply(ctx context.Context, it *item) {
	if !w.open(ctx) {
		w.c.count.unplaced.Add(uint64(len(it.ops)))
		return
	}
	tier := locations[it.location].tier
	for _, o := range it.ops {
		if last := w.next[it.location]; o.seq != 0 {
			switch {
			case last == 0 && o.seq > 1:
				// What came before is missing, which is no false credit.
				w.wantSync("joined_late")
			case last != 0 && o.seq != last+1:
				w.suspect(it.location, fmt.Sprintf("operation %d after %d", o.seq-1, last-1))
			}
			w.next[it.location] = o.seq
		}
		w.pending.Key(o.kind, tier, o.key)
		w.keys++
		if o.kind == store.Add {
			w.c.count.admitted.Add(1)
		} else {
			w.c.count.evicted.Add(1)
		}
	}
	w.mu.Lock()
	if s := w.sync; s != nil && s.tier == tier {
		for _, o := range it.ops {
			s.since = append(s.since, change{o.kind, o.key})
		}
		if len(s.since) > w.c.config.QueueKeys {
			w.endSync(false)
		}
	}
	w.mu.Unlock()
	if w.keys >= maxWrite {
		w.flush(ctx)
	}
}

// suspect says that operations of a location were missed: it may have evicted what it is
// credited with.
func (w *worker) suspect(at int, why string) {
	l := &locations[at]
	w.c.count.gaps.Add(1)
	w.c.config.Observer.Lost(w.id, l.name, why)
	w.mu.Lock()
	canSync := l.synced && w.beats
	w.mu.Unlock()
	if !canSync {
		w.clear(l.tier)
		return
	}
	if w.doubt[l.tier].since.IsZero() {
		w.doubt[l.tier].since = time.Now()
	}
	w.wantSync("sequence_discontinuity")
}

// clear ends the credit of a tier, with what is written next.
func (w *worker) clear(tier store.Tier) {
	w.pending.Clear(tier)
	w.doubt[tier] = doubt{}
	w.c.count.cleared.Add(1)
}

// missed says that messages of any location were missed.
func (w *worker) missed(why string) {
	if w.registration == nil {
		return
	}
	seen := false
	for at := range w.next {
		if w.next[at] != 0 {
			w.suspect(at, why)
			// The hole in the numbers is this one.
			w.next[at] = 0
			seen = true
		}
	}
	if !seen {
		w.clear(store.CPU)
		w.clear(store.Disk)
	}
}

// flush writes what is pending, and tries until it is written.
func (w *worker) flush(ctx context.Context) {
	if len(w.pending.List) == 0 {
		return
	}
	w.write(ctx, w.pending.List)
	w.pending, w.keys = feed.Ops{}, 0
}

// write writes ops, and tries until they are written. It is false when they are not.
func (w *worker) write(ctx context.Context, ops []store.Op) bool {
	for try := 0; ; try++ {
		if !w.open(ctx) {
			return false
		}
		err := w.registration.Write(ctx, ops, w.marks()...)
		if err == nil {
			return true
		}
		if feed.Final(err) {
			w.lostLife(err)
		}
		if !w.failed(ctx, err, try) {
			return false
		}
	}
}

// marks are the numbers of the last operations.
func (w *worker) marks() []feed.Mark {
	var out []feed.Mark
	for at, n := range w.next {
		if n != 0 {
			out = append(out, feed.Mark{Kind: uint64(at) + 1, Value: n})
		}
	}
	return out
}
