package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// Controller takes what LMCache's workers say into an index. Its methods are safe for
// concurrent use.
type Controller struct {
	config  Config
	sockets []*zmq.Listener
	pull    *zmq.Listener
	beats   *zmq.Listener // nil without a socket for heartbeats
	count   counters
	ctx     context.Context // of all that serves
	end     context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex // protects all below, and worker.life; it is taken before worker.mu
	roll     roll
	speakers map[*zmq.Peer]speaker
	sweepAt  int             // how many speakers there are when the closed are looked for
	told     map[string]bool // unknown locations, of which was told
	// lookAgain is when room is looked for again, after there was none.
	lookAgain time.Time
}

// New binds the sockets and serves until Close.
func New(ctx context.Context, c Config) (_ *Controller, err error) {
	if c, err = c.withDefaults(); err != nil {
		return nil, err
	}
	x := &Controller{config: c, roll: newRoll(), speakers: map[*zmq.Peer]speaker{}, told: map[string]bool{}}
	x.ctx, x.end = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	bind := func(endpoint string, kind zmq.Kind, handle func(*zmq.Peer, [][]byte)) (*zmq.Listener, error) {
		lc := c.listener(endpoint, kind)
		lc.Handle = handle
		lc.Refused = x.malformed
		l, err := zmq.Listen(ctx, lc)
		if err != nil {
			return nil, fmt.Errorf("controller: %s: %w", endpoint, err)
		}
		x.sockets = append(x.sockets, l)
		return l, nil
	}
	// Heartbeats first: their address is told by the next one.
	if c.Heartbeat != "" {
		if x.beats, err = bind(c.Heartbeat, zmq.Router, x.request); err != nil {
			return nil, err
		}
	}
	if c.Reply != "" {
		if _, err = bind(c.Reply, zmq.Router, x.request); err != nil {
			return nil, err
		}
	}
	if x.pull, err = bind(c.Pull, zmq.Pull, x.push); err != nil {
		return nil, err
	}
	x.wg.Go(x.beat)
	return x, nil
}

// Addrs are what the sockets are bound to: pull, reply, heartbeat; nil for those that
// are not there.
func (c *Controller) Addrs() (pull, reply, heartbeat net.Addr) {
	for _, l := range c.sockets {
		switch l {
		case c.pull:
			pull = l.Addr()
		case c.beats:
			heartbeat = l.Addr()
		default:
			reply = l.Addr()
		}
	}
	return pull, reply, heartbeat
}

// AskSync asks workers for a full sync with their next heartbeats: for an index that has
// lost something, or has what is wrong. It asks all that this process hears, those of an
// instance if it is not "", or one of these if worker is not below 0. Result heard is how
// many they are. Result asked leaves out those that cannot be asked: they have sent no
// heartbeat yet, or have no pod. They are asked if that changes.
//
// A worker is not asked while a full sync of it is under way, nor for Config.AskAgain after
// it was asked last, but then.
func (c *Controller) AskSync(instance string, worker int) (heard, asked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.roll.all() {
		if instance != "" && w.id.Instance != instance || worker >= 0 && w.id.Worker != worker {
			continue
		}
		heard++
		if w.wantSync("asked") {
			asked++
		}
	}
	return heard, asked
}

// Close ends all. Registrations are left to their leases, so that another process, or
// this one started again, can go on with them.
func (c *Controller) Close() error {
	c.end()
	var errs []error
	for _, l := range c.sockets {
		errs = append(errs, l.Close())
	}
	c.wg.Wait()
	return errors.Join(errs...)
}

func (c *Controller) malformed(addr string, err error) {
	c.count.malformed.Add(1)
	c.config.Observer.Malformed(addr, err)
}

// refused counts a message that asks for what cannot be.
func (c *Controller) refused(addr string, err error) {
	c.count.refused.Add(1)
	c.config.Observer.Malformed(addr, err)
}

// remove ends a worker.
func (c *Controller) remove(w *worker, silent bool) {
	c.mu.Lock()
	c.roll.drop(w)
	c.reviewID(w.id)
	c.mu.Unlock()
	w.stop()
	if silent {
		c.count.lapsed.Add(1)
	}
	c.config.Observer.Gone(w.id, silent)
}

// workersOf is how many workers the instance of a worker at a host has, as far as is known.
func (c *Controller) workersOf(reg *store.Registry, id feed.ID, host string, t feed.Target) int {
	n := max(c.config.Workers, id.Worker+1, feed.Workers(reg, id.Instance, t))
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := func(*worker) bool { return true }
	for other := range c.roll.instance(id.Instance) {
		if len(c.roll.of[other.id]) > 1 { // the instance's id is used at several hosts
			counts = func(o *worker) bool { return o.host == host }
		}
	}
	for other := range c.roll.instance(id.Instance) {
		if counts(other) {
			n = max(n, other.id.Worker+1)
		}
	}
	return n
}

// reviewID has all workers of an id look again which pod they work for, because there is
// one of them more or less. The caller holds c.mu.
func (c *Controller) reviewID(id feed.ID) {
	for _, w := range c.roll.of[id] {
		w.put(item{kind: doReview})
	}
}

// nudge makes the other workers of an instance renew, so that all tell the same number of
// them.
func (c *Controller) nudge(id feed.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.roll.instance(id.Instance) {
		if w.id.Worker < id.Worker {
			w.put(item{kind: doRenew})
		}
	}
}

// beat renews the workers that live, and ends those that do not.
func (c *Controller) beat() {
	tick := time.NewTicker(c.config.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		silent := c.unheard()
		for w := range c.roll.all() {
			if len(w.rivals) > 0 {
				c.judge(w)
			}
			w.put(item{kind: doRenew})
		}
		c.mu.Unlock()
		for _, w := range silent {
			c.remove(w, true)
		}
	}
}
