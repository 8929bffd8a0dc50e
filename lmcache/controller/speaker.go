package controller

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/filing"
)

// ErrFull says that there are as many workers as there can be.
var ErrFull = errors.New("controller: no room")

// errStranger says that a connection speaks for one worker and names another.
var errStranger = errors.New("controller: nobody knows the worker")

// speaker is whom a connection speaks for: the worker that it has named last.
type speaker struct {
	w    *worker
	life uint64 // of the worker, when it began to speak for it
	// stranger is whom it has named last of those that nobody knows.
	stranger filing.ID
}

// worker returns the worker that a message is of, which is nil for one of a process that
// is gone.
func (c *Controller) worker(p *zmq.Peer, m *message) (*worker, error) {
	id := filing.ID{Instance: m.Instance, Worker: m.Worker}
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Type, err)
	}
	w, err := c.speaksFor(p, id, m)
	if w != nil {
		w.hear(m)
	}
	return w, err
}

// speaksFor returns the worker of an id, and notes that the connection speaks for it.
//
// LMCache's workers have connections of their own and register once, when they start: a
// worker that nobody knows may be one that another process has heard until now, of which
// this message is the first sign. On a connection that has spoken for somebody else it is
// more likely damaged, and it is taken for what it says when it says so twice.
func (c *Controller) speaksFor(p *zmq.Peer, id filing.ID, m *message) (*worker, error) {
	registers := m.Type == "RegisterMsg"
	c.mu.Lock()
	defer c.mu.Unlock()
	was, speaks := c.speakers[p]
	speaks = speaks && c.workers[was.w.id] == was.w // else that one has ended
	w := c.workers[id]
	if w == nil {
		if speaks && !registers && was.stranger != id {
			was.stranger = id
			c.speakers[p] = was
			return nil, fmt.Errorf("%w: %s of %v, on a connection of %v", errStranger, m.Type, id, was.w.id)
		}
		var err error
		if w, err = c.begin(id, p, registers); err != nil {
			return nil, err
		}
	}
	switch {
	case registers:
		w.life++ // what others still say is of the life before
	case speaks && was.w == w:
		if was.life != w.life {
			return nil, nil
		}
		return w, nil
	}
	if len(c.speakers) >= c.sweepAt {
		c.living()
		c.sweepAt = 2*len(c.speakers) + 64
	}
	c.speakers[p] = speaker{w: w, life: w.life}
	return w, nil
}

// begin makes a worker; c.mu is held.
func (c *Controller) begin(id filing.ID, p *zmq.Peer, registers bool) (*worker, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if len(c.workers) >= c.config.MaxWorkers {
		return nil, fmt.Errorf("%w: %v would be one more than %d workers", ErrFull, id, c.config.MaxWorkers)
	}
	ctx, stop := context.WithCancel(c.ctx)
	w := &worker{c: c, id: id, wake: make(chan struct{}, 1), stop: stop}
	if host, _, err := net.SplitHostPort(p.Addr()); err == nil {
		w.ip = host // as good a guess as there is, until it tells
	}
	c.workers[id] = w
	c.wg.Go(func() { w.run(ctx) })
	if !registers {
		// Find its pod, and take its generation over.
		w.put(item{kind: doRenew})
	}
	return w, nil
}

// living forgets connections that are over, and returns the workers that others speak for;
// c.mu is held.
func (c *Controller) living() map[*worker]bool {
	alive := map[*worker]bool{}
	for p, s := range c.speakers {
		switch {
		case p.Closed() || c.workers[s.w.id] != s.w:
			delete(c.speakers, p)
		case s.life == s.w.life:
			alive[s.w] = true
		}
	}
	return alive
}
