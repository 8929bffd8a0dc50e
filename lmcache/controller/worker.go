package controller

import (
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// worker is one of LMCache's workers. What sockets receive goes into its queue; run takes
// it from there and writes.
type worker struct {
	c    *Controller
	id   feed.ID
	wake chan struct{}
	stop context.CancelFunc

	// Controller.mu protects these.
	host   string                 // that its connections come from
	at     address                // where it listens
	conns  map[*zmq.Peer]struct{} // that speak for it, or have
	rivals []string               // processes that share its id and cannot be told apart
	life   uint64                 // how often it has registered
	// toldApart says that it was told that others have its id, at other hosts.
	toldApart bool
	by        string // where from, the last time
	toldLife  uint64 // the last of whose stale messages was told

	mu       sync.Mutex // protects all of this block
	queue    []item
	overflow bool // messages found no room
	ended    bool // run has: what comes belongs to no worker
	ip, peer string
	beats    bool // it sends heartbeats
	unmapped bool
	told     string // why, as the observer was told
	sync     *fullSync
	lastSync string // that was written
	want     string // why a full sync is wanted, "" when it is not
	wanted   time.Time
	asked    time.Time

	// What follows belongs to run.
	registration *feed.Worker
	fresh        bool                  // its process has just started
	barred       bool                  // it has no pod of its own: nothing is kept until review finds one
	lost         bool                  // another writer has its generation
	next         [numLocations]uint64  // 1 + the last operation's number; 0 is not known
	doubt        [store.NumTiers]doubt // by tier
	pending      feed.Ops
	keys         int // in pending
}

const numLocations = 6

// hear takes what a message says of the worker itself; Controller.mu is held.
func (w *worker) hear(m *message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.IP != "" {
		w.at = address{m.IP, m.Port}
		w.ip, w.peer = m.IP, m.PeerURL
	}
	if m.Type == "HeartbeatMsg" {
		w.beats = true
	}
}

// wantSync says that a full sync is wanted. It is false when there is no way to ask for it
// now.
func (w *worker) wantSync(why string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want, w.wanted = why, time.Now()
	return w.beats && !w.unmapped
}

// ask returns why the worker is to make a full sync now, "" if it is not.
func (w *worker) ask(again time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.want == "" || w.unmapped || w.sync != nil || time.Since(w.asked) < again {
		return ""
	}
	w.asked = time.Now()
	return w.want
}

// run writes until ctx is done.
func (w *worker) run(ctx context.Context) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range w.queue {
			w.c.count.queueKeys.Add(-w.queue[i].size())
		}
		w.queue, w.ended = nil, true
		w.endSync(false)
	}()
	for ctx.Err() == nil {
		list, overflow := w.take()
		if overflow {
			w.missed("there was no room for its messages")
		}
		for i := range list {
			it := &list[i]
			if ctx.Err() == nil {
				w.do(ctx, it)
			}
			w.c.count.queueKeys.Add(-it.size())
		}
		if w.keys > 0 || len(w.pending.List) > 0 {
			w.flush(ctx)
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
	}
}

// do does an item.
func (w *worker) do(ctx context.Context, it *item) {
	switch it.kind {
	case doOps:
		w.apply(ctx, it)
	case doRegister:
		w.flush(ctx)
		w.forget()
		w.fresh = true
		w.review(ctx)
	case doReview:
		w.flush(ctx)
		w.review(ctx)
	case doDeregister:
		w.flush(ctx)
		w.retire(ctx)
	case doSyncEnd:
		w.finishSync(ctx, it)
	case doRenew:
		w.flush(ctx)
		w.renew(ctx)
	}
}

// forget makes the worker one of which nothing is known.
func (w *worker) forget() {
	if w.registration != nil {
		w.registration.Shut()
	}
	w.next = [numLocations]uint64{}
	w.doubt = [store.NumTiers]doubt{}
	w.pending, w.keys = feed.Ops{}, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endSync(false)
	w.want, w.asked = "", time.Time{}
}
