package controller

import (
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/filing"
	"github.com/kvatlas/kvatlas/store"
)

// maxPeers is how many connections of one worker are remembered; it has three.
const maxPeers = 16

// worker is one of LMCache's workers. What sockets receive goes into its queue; run takes
// it from there and writes.
type worker struct {
	c    *Controller
	id   filing.ID
	wake chan struct{}
	stop context.CancelFunc

	mu       sync.Mutex // protects all of this block
	queue    []item
	overflow bool // messages found no room
	ip, peer string
	peers    map[*zmq.Peer]struct{}
	// stale are connections of the process before this one: what is still unread of them
	// is of another life.
	stale    map[*zmq.Peer]struct{}
	beats    bool // it sends heartbeats
	unmapped bool
	told     string // why, as the observer was told
	sync     *fullSync
	lastSync string // that was written
	want     string // why a full sync is wanted, "" when it is not
	wanted   time.Time
	asked    time.Time

	// What follows belongs to run.
	file    *filing.Worker
	fresh   bool                  // its process has just started
	next    [numLocations]uint64  // 1 + the last operation's number; 0 is not known
	doubt   [store.NumTiers]doubt // by tier
	pending filing.Ops
	keys    int // in pending
}

const numLocations = 6

// hear notes that a connection speaks for the worker. It is false for one of an earlier
// life of it.
func (w *worker) hear(p *zmq.Peer, m *message) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Type == "RegisterMsg" {
		w.stale, w.peers = w.peers, map[*zmq.Peer]struct{}{}
		delete(w.stale, p)
	} else if _, old := w.stale[p]; old {
		return false
	}
	if _, known := w.peers[p]; !known {
		for q := range w.peers {
			if q.Closed() {
				delete(w.peers, q)
			}
		}
		if len(w.peers) < maxPeers {
			w.peers[p] = struct{}{}
		}
	}
	if m.IP != "" {
		w.ip, w.peer = m.IP, m.PeerURL
	}
	if m.Type == "HeartbeatMsg" {
		w.beats = true
	}
	return true
}

// alive tells whether a connection of the worker is open.
func (w *worker) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.peers {
		if !p.Closed() {
			return true
		}
	}
	return false
}

// wantSync says that a full sync is wanted.
func (w *worker) wantSync(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want, w.wanted = why, time.Now()
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
		for _, it := range w.queue {
			w.c.count.queueKeys.Add(-int64(len(it.ops)))
		}
		w.queue = nil
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
			w.c.count.queueKeys.Add(-int64(len(it.ops)))
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
		w.open(ctx)
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
	if w.file != nil {
		w.file.Shut()
	}
	w.next = [numLocations]uint64{}
	w.doubt = [store.NumTiers]doubt{}
	w.pending, w.keys = filing.Ops{}, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endSync(false)
	w.want, w.asked = "", time.Time{}
}
