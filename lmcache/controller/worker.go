package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/filing"
	"github.com/kvatlas/kvatlas/store"
)

// maxPeers is how many connections of one worker are remembered; it has three.
const maxPeers = 16

// maxWrite is how many keys are written at a time.
const maxWrite = store.MaxOpKeys

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

// doubt is about credit that may be false.
type doubt struct{ since time.Time }

// item is something for run to do.
type item struct {
	kind     itemKind
	location int
	ops      []op
	syncID   string
}

type itemKind uint8

const (
	doOps itemKind = iota
	doRegister
	doDeregister
	doSyncEnd
	doRenew
)

// op is an admission or an eviction.
type op struct {
	kind store.OpKind
	key  blockkey.Key
	// seq is 1 + its number, 0 when it has none.
	seq uint64
}

// put queues an item. Operations that find no room are dropped, and all that wait with
// them: what is left would have a hole.
func (w *worker) put(it item) {
	c := w.c
	n := int64(len(it.ops))
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n > 0 && c.count.queueKeys.Add(n) > int64(c.config.QueueKeys):
		dropped := n
		kept := w.queue[:0]
		for _, q := range w.queue {
			if dropped += int64(len(q.ops)); q.kind != doOps {
				kept = append(kept, q)
			}
		}
		clear(w.queue[len(kept):])
		w.queue = kept
		c.count.queueKeys.Add(-dropped)
		c.count.dropped.Add(uint64(dropped))
		w.overflow = true
	case it.kind == doRenew && len(w.queue) > 0 && w.queue[len(w.queue)-1].kind == doRenew:
		return // one is enough
	default:
		w.queue = append(w.queue, it)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued.
func (w *worker) take() (list []item, overflow bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, overflow = w.queue, w.overflow
	w.queue, w.overflow = nil, false
	return list, overflow
}

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

// pause waits before the next try. It is false when there is none.
func pause(ctx context.Context, try int) bool {
	t := time.NewTimer(min(5*time.Second, 50*time.Millisecond<<min(try, 10)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// open makes sure that there is a generation to write to. It is false when there is no
// pod for the worker, or ctx is done.
func (w *worker) open(ctx context.Context) bool {
	for try := 0; ctx.Err() == nil; try++ {
		if w.file != nil && w.file.Open() {
			return true
		}
		err := w.tryOpen(ctx)
		switch {
		case err == nil:
			return true
		case errors.Is(err, filing.ErrUnmapped):
			w.setUnmapped(err)
			return false
		case !w.failed(ctx, err, try):
			return false
		}
	}
	return false
}

// failed notes an error of the index and waits. It is false when the same call makes no
// sense again.
func (w *worker) failed(ctx context.Context, err error, try int) bool {
	if ctx.Err() != nil {
		return false
	}
	w.c.count.failures.Add(1)
	if told := w.c.config.Observer.Failed; told != nil {
		told(w.id, err)
	}
	if errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrClosed) {
		return false
	}
	return pause(ctx, try)
}

func (w *worker) setUnmapped(err error) {
	w.mu.Lock()
	w.unmapped = true
	why := err.Error()
	tell := w.told != why
	w.told = why
	w.mu.Unlock()
	if told := w.c.config.Observer.Unmapped; tell && told != nil {
		told(w.id, err)
	}
}

// tryOpen finds the worker's pod and begins or takes over its generation.
func (w *worker) tryOpen(ctx context.Context) error {
	c := w.c
	within, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	reg, err := c.config.Index.Registry(within)
	if err != nil {
		return err
	}
	w.mu.Lock()
	ip, peer, was := w.ip, w.peer, w.unmapped
	w.mu.Unlock()
	targets, err := c.config.Pods.Find(reg, w.id.Instance, ip)
	if err == nil && len(targets) > 1 {
		err = fmt.Errorf("%w %q: it is set to %d pods, which is for servers of MP mode", filing.ErrUnmapped, w.id.Instance, len(targets))
	}
	if err != nil {
		return err
	}
	if w.file == nil || w.file.Target() != targets[0] {
		w.file = filing.NewWorker(filing.Config{Index: c.config.Index, Lease: c.config.Lease, Timeout: c.config.Timeout}, w.id, targets[0], false)
	}
	w.file.IP, w.file.Peer = ip, peer
	w.file.Workers = c.workersOf(reg, w.id, targets[0])

	took := false
	if w.fresh {
		if err = w.file.Begin(ctx); err == nil && was {
			w.wantSync("pod_known") // what it has said until now was not kept
		}
	} else {
		kinds := make([]uint64, numLocations)
		for i := range kinds {
			kinds[i] = uint64(i) + 1
		}
		var marks []uint64
		if marks, took, err = w.file.TakeOver(ctx, kinds...); err == nil {
			copy(w.next[:], marks)
			w.wantSync("controller_restart")
		}
	}
	if err != nil {
		return err
	}
	w.fresh = false
	w.mu.Lock()
	w.unmapped, w.told = false, ""
	w.mu.Unlock()
	c.count.began.Add(1)
	if took {
		c.count.tookOver.Add(1)
	}
	if told := c.config.Observer.Began; told != nil {
		told(w.id, targets[0], took)
	}
	c.nudge(w.id)
	return nil
}

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
	if told := w.c.config.Observer.Lost; told != nil {
		told(w.id, l.name, why)
	}
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
	if w.file == nil {
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
	w.pending, w.keys = filing.Ops{}, 0
}

// write writes ops, and tries until they are written. It is false when they are not.
func (w *worker) write(ctx context.Context, ops []store.Op) bool {
	for try := 0; ; try++ {
		if !w.open(ctx) {
			return false
		}
		err := w.file.Write(ctx, ops, w.marks()...)
		if err == nil {
			return true
		}
		if filing.Final(err) {
			w.lostLife(err)
		}
		if !w.failed(ctx, err, try) {
			return false
		}
	}
}

// marks are the numbers of the last operations.
func (w *worker) marks() []filing.Mark {
	var out []filing.Mark
	for at, n := range w.next {
		if n != 0 {
			out = append(out, filing.Mark{Kind: uint64(at) + 1, Value: n})
		}
	}
	return out
}

// lostLife says that the generation is another writer's, or over. Since the worker talks
// to this process, it is to be taken over, and what is missing comes with a full sync.
func (w *worker) lostLife(err error) {
	if errors.Is(err, store.ErrFenced) {
		w.c.count.fenced.Add(1)
	}
	if told := w.c.config.Observer.Lost; told != nil {
		told(w.id, "", err.Error())
	}
	w.wantSync("controller_restart")
}

// finishSync writes a full sync whose end has come, if all of it is there.
func (w *worker) finishSync(ctx context.Context, it *item) {
	w.mu.Lock()
	s := w.sync
	if s == nil || s.id != it.syncID {
		w.mu.Unlock()
		w.c.count.refused.Add(1)
		return
	}
	s.ended, s.heard = true, time.Now()
	whole := s.whole()
	w.mu.Unlock()
	if !whole {
		return // its status tells what is missing
	}
	w.flush(ctx)
	// Batches do not change any more: all are there. Nobody but this goroutine appends to
	// since.
	var ops filing.Ops
	ops.Clear(s.tier)
	for i := 0; i < len(s.keys); i += store.MaxOpKeys {
		ops.List = append(ops.List, store.Op{Kind: store.Add, Tier: s.tier, Keys: s.keys[i:min(len(s.keys), i+store.MaxOpKeys)]})
	}
	for _, ch := range s.since {
		ops.Key(ch.kind, s.tier, ch.key)
	}
	if !w.write(ctx, ops.List) {
		return
	}
	w.doubt[s.tier] = doubt{}
	w.mu.Lock()
	if w.sync == s {
		w.endSync(true)
		if !w.wanted.After(s.begun) {
			w.want = ""
		}
	}
	w.mu.Unlock()
	if told := w.c.config.Observer.Synced; told != nil {
		told(w.id, s.location, len(s.keys), time.Since(s.begun))
	}
}

// retire ends the worker, as it wishes.
func (w *worker) retire(ctx context.Context) {
	for try := 0; w.open(ctx); try++ {
		err := w.file.Retire(ctx)
		if err == nil || !w.failed(ctx, err, try) {
			break
		}
	}
	w.c.remove(w, false)
}

// renew keeps the registration alive, and does what time asks for.
func (w *worker) renew(ctx context.Context) {
	c := w.c
	w.mu.Lock()
	if s := w.sync; s != nil && time.Since(s.heard) > c.config.SyncWait {
		w.endSync(false)
	}
	w.mu.Unlock()
	if w.file == nil || !w.file.Open() {
		_ = w.tryOnce(ctx)
		return
	}
	w.file.Workers = max(w.file.Workers, c.workersOf(c.config.Index.Cached(), w.id, w.file.Target()))
	created, err := w.file.Renew(ctx)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			c.count.failures.Add(1)
			if told := c.config.Observer.Failed; told != nil {
				told(w.id, err)
			}
		}
		return
	case created:
		w.forget()
		if told := c.config.Observer.Lost; told != nil {
			told(w.id, "", "its lease had run out")
		}
		w.open(ctx)
		return
	}
	for t := range w.doubt {
		if since := w.doubt[t].since; !since.IsZero() && time.Since(since) > c.config.SyncWait {
			w.clear(store.Tier(t))
		}
	}
	w.flush(ctx)
}

// tryOnce opens the worker if that can be done now.
func (w *worker) tryOnce(ctx context.Context) error {
	err := w.tryOpen(ctx)
	if errors.Is(err, filing.ErrUnmapped) {
		w.setUnmapped(err)
	}
	return err
}
