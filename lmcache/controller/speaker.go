package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// ErrFull says that there are as many workers as there can be.
var ErrFull = errors.New("controller: no room")

// errStranger says that a connection speaks for one worker and names another.
var errStranger = errors.New("controller: unknown worker")

// errGreedy says that a connection has made as many workers as it may.
var errGreedy = errors.New("controller: too many workers of one connection")

// errStale says that a connection has spoken for a worker that has registered on another
// one since.
var errStale = errors.New("controller: the worker has registered anew since")

// maxMade is how many workers one connection can make in a lease. One of LMCache's makes
// one; the rest is for names that were damaged.
const maxMade = 8

// speaker is the worker that a connection speaks for: the one that it has named last.
type speaker struct {
	w    *worker
	life uint64 // of the worker, when it began to speak for it
	// told is the address that it has told, and peer where its peers fetch chunks.
	told address
	peer string
	// stranger is the unknown worker that it has named last.
	stranger feed.ID
	// made is how many workers it has made since then.
	made  int
	since time.Time
}

// worker returns the worker that a message is of. It is errStale for one of a process that
// is gone, or has the name of another.
func (c *Controller) worker(p *zmq.Peer, m *message) (*worker, error) {
	id := feed.ID{Instance: m.Instance, Worker: m.Worker}
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Type, err)
	}
	c.mu.Lock()
	w, gone, err := c.speaksFor(p, id, m)
	var by string // where the worker has registered, if that is to be told
	if known := c.speakers[p].w; errors.Is(err, errStale) && known != nil && known.toldLife != known.life {
		known.toldLife, by = known.life, known.by
	}
	var rivals []string
	if w != nil {
		rivals = c.judge(w)
		if apart := c.roll.of[id]; rivals == nil && len(apart) > 1 && !w.toldApart {
			rivals = apartBy(apart)
			for _, o := range apart {
				o.toldApart = true
			}
		}
	}
	c.mu.Unlock()
	if len(rivals) > 0 {
		c.config.Observer.Shared(id, rivals)
	}
	for _, g := range gone {
		c.remove(g, true)
	}
	if errors.Is(err, errStale) {
		c.count.stale.Add(1)
	}
	if by != "" {
		c.config.Observer.Stale(id, p.Addr(), by)
	}
	return w, err
}

// speaksFor returns the worker of an id, and notes that the connection speaks for it. The
// caller holds c.mu, and once it does not any more it ends the workers in gone, which had to
// make room.
//
// LMCache's workers have connections of their own and register once, when they start. So an unknown worker
// may be one that another process has heard until now, of which this message is the first sign. On a
// connection that has spoken for another worker the id is more likely damaged, and is believed when it
// comes twice.
func (c *Controller) speaksFor(p *zmq.Peer, id feed.ID, m *message) (w *worker, gone []*worker, err error) {
	registers, told := m.Type == "RegisterMsg", address{m.IP, m.Port}
	was := c.speakers[p]
	speaks := c.roll.has(was.w) // else that one has ended, or there was none
	if speaks && was.w.id == id {
		w = was.w
	} else {
		w = c.find(id, p, told, registers)
	}
	if w == nil {
		if speaks && !registers && was.stranger != id {
			was.stranger = id
			c.speakers[p] = was
			return nil, nil, fmt.Errorf("%w: %s of %v, on a connection of %v", errStranger, m.Type, id, was.w.id)
		}
		if was.over(c.config.Lease) {
			was.made, was.since = 0, time.Now()
		}
		if was.made >= maxMade {
			return nil, nil, fmt.Errorf("%w: %v would be one more than %d within lmcache-lease (%v)", errGreedy, id, maxMade, c.config.Lease)
		}
		if gone, err = c.makeRoom(id); err != nil {
			return nil, gone, err
		}
		w = c.begin(id, p, registers)
		was.made++
	}
	if m.Type == "DeRegisterMsg" && told.known() && (len(w.rivals) > 0 || w.at.known() && w.at != told) {
		// It is no other's to end.
		c.leave(w, p, told)
		c.judge(w)
		return nil, gone, errStale
	}
	s := speaker{w: w, life: w.life, told: told, peer: m.PeerURL, made: was.made, since: was.since}
	switch {
	case registers:
		if !c.others(w, p, told) {
			w.life++ // what others still say is of the life before
		}
		w.by, s.life = p.Addr(), w.life
	case speaks && was.w == w:
		switch {
		case was.life != w.life:
			return nil, gone, errStale
		case !told.known():
			return w, gone, nil
		}
	}
	w.hear(m)
	if len(c.speakers) >= c.sweepAt {
		c.living()
		c.sweepAt = 2*len(c.speakers) + 64
	}
	if speaks && was.w != w {
		delete(was.w.conns, p)
	}
	w.conns[p] = struct{}{}
	c.speakers[p] = s
	return w, gone, nil
}

// others reports whether an open connection has told another address than a process that
// registers on p. That process lives too, and is not a predecessor. The caller holds c.mu.
func (c *Controller) others(w *worker, p *zmq.Peer, told address) bool {
	for other, s := range c.speaking(w) {
		if other != p && s.told.known() && s.told != told {
			return true
		}
	}
	return false
}

// over reports whether a lease has passed since the first of the workers that it has made.
func (s *speaker) over(lease time.Duration) bool { return time.Since(s.since) >= lease }

// makeRoom makes room for one more worker; c.mu is held. Workers without a connection go first, which beat
// would find otherwise. What they hold in the index lives on to the end of its lease, and one that is heard
// again begins again.
func (c *Controller) makeRoom(id feed.ID) (gone []*worker, err error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if c.roll.n < c.config.MaxWorkers {
		return nil, nil
	}
	// To look costs as much as there are connections, and each message may ask for it.
	if now := time.Now(); now.After(c.lookAgain) {
		if gone = c.unheard(); len(gone) > 0 {
			return gone, nil
		}
		c.lookAgain = now.Add(c.config.Lease / 30)
	}
	return nil, fmt.Errorf("%w: %v would be one more than %d workers (2/5 of index-max-pods)", ErrFull, id, c.config.MaxWorkers)
}

// begin makes a worker, for which there must be room; c.mu is held.
func (c *Controller) begin(id feed.ID, p *zmq.Peer, registers bool) *worker {
	ctx, stop := context.WithCancel(c.ctx)
	// Where it comes from is as good a guess of its IP as there is, until it tells.
	w := &worker{c: c, id: id, wake: make(chan struct{}, 1), stop: stop, host: hostOf(p), ip: hostOf(p), conns: map[*zmq.Peer]struct{}{}}
	c.reviewID(id)
	c.roll.add(w)
	c.wg.Go(func() { w.run(ctx) })
	if !registers {
		// Find its pod, and take its generation over.
		w.put(item{kind: doRenew})
	}
	return w
}

// unheard takes the workers without a connection off the list, and returns them; c.mu
// is held. They are to be ended with remove.
func (c *Controller) unheard() (silent []*worker) {
	alive := c.living()
	for w := range c.roll.all() {
		if !alive[w] {
			silent = append(silent, w)
		}
	}
	for _, w := range silent {
		c.roll.drop(w)
	}
	return silent
}

// living forgets connections that are over, and returns the workers that others speak for;
// c.mu is held.
func (c *Controller) living() map[*worker]bool {
	alive := map[*worker]bool{}
	for p, s := range c.speakers {
		switch {
		case p.Closed():
			delete(c.speakers, p)
			delete(s.w.conns, p)
		case !c.roll.has(s.w):
			// What it has made counts on.
			if s.over(c.config.Lease) {
				delete(c.speakers, p)
			}
		case s.life == s.w.life:
			alive[s.w] = true
		}
	}
	return alive
}
