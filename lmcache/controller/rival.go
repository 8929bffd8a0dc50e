package controller

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// address is where a worker's process listens, as it tells; the zero value is not known.
// Two processes that live have two of them, unless their hosts differ.
type address struct {
	ip   string
	port int
}

func (a address) known() bool { return a.ip != "" }

func (a address) String() string { return net.JoinHostPort(a.ip, fmt.Sprint(a.port)) }

// hostOf is the host that a connection comes from.
func hostOf(p *zmq.Peer) string {
	host, _, err := net.SplitHostPort(p.Addr())
	if err != nil {
		return p.Addr()
	}
	return host
}

// find returns the worker of an id that a connection can be of, nil if there is none;
// c.mu is held. A worker's connections come from one host. Where they do not, the address that it tells
// identifies it. Without one, only a worker that has just started, and sent no operation from its own host,
// is taken to have another way.
func (c *Controller) find(id feed.ID, p *zmq.Peer, told address, registers bool) *worker {
	list, host := c.roll.of[id], hostOf(p)
	for _, w := range list {
		if w.host == host {
			return w
		}
	}
	for _, w := range list {
		if told.known() && w.at == told {
			return w
		}
	}
	if registers {
		for _, w := range list {
			if !c.heard(w) { // its process has ended, and this one takes its place
				w.host = host
				return w
			}
		}
		return nil
	}
	if len(list) == 1 {
		w := list[0]
		if w.at.ip == host || w.life > 0 && p.Kind() == zmq.Pull && !c.pushed(w) {
			return w
		}
	}
	return nil
}

// speaking are the connections that speak for a worker; c.mu is held.
func (c *Controller) speaking(w *worker) func(yield func(*zmq.Peer, speaker) bool) {
	return func(yield func(*zmq.Peer, speaker) bool) {
		for p := range w.conns {
			if s := c.speakers[p]; !p.Closed() && s.w == w && s.life == w.life && !yield(p, s) {
				return
			}
		}
	}
}

// heard reports whether a connection speaks for the worker; c.mu is held.
func (c *Controller) heard(w *worker) bool {
	for range c.speaking(w) {
		return true
	}
	return false
}

// pushed reports whether operations can come of the worker by now; c.mu is held.
func (c *Controller) pushed(w *worker) bool {
	for p := range c.speaking(w) {
		if p.Kind() == zmq.Pull {
			return true
		}
	}
	return false
}

// rivals are the processes that use the worker's id at its host, nil if there is but one;
// c.mu is held. Each process has one address that it tells, and one PUSH socket. Nothing
// ties the two, so that operations of more than one process count for no worker.
func (c *Controller) rivals(w *worker) []string {
	told, pushes := map[address]string{}, []string{}
	for p, s := range c.speaking(w) {
		if s.told.known() && (told[s.told] == "" || p.Addr() < told[s.told]) {
			told[s.told] = p.Addr()
		}
		if p.Kind() == zmq.Pull {
			pushes = append(pushes, p.Addr())
		}
	}
	var out []string
	switch {
	case len(told) > 1:
		for a, from := range told {
			out = append(out, where(a.String(), from))
		}
	case len(pushes) > 1:
		out = pushes
	}
	slices.Sort(out)
	return out
}

// judge finds out whether one process or several use a worker's id, and has the worker act
// on it; c.mu is held. It returns those that were not known to, when they are several.
func (c *Controller) judge(w *worker) (found []string) {
	rivals := c.rivals(w)
	if slices.Equal(rivals, w.rivals) {
		return nil
	}
	before := w.rivals
	w.rivals = rivals
	if len(rivals) == 0 {
		c.settle(w)
	}
	w.put(item{kind: doReview})
	if len(rivals) > len(before) {
		return rivals
	}
	return nil
}

// apartBy are the processes that use an id at several hosts; Controller.mu is held.
func apartBy(list []*worker) (out []string) {
	for _, w := range list {
		w.mu.Lock()
		out = append(out, where(w.ip, w.host))
		w.mu.Unlock()
	}
	slices.Sort(out)
	return out
}

// where says where a process is.
func where(ip, host string) string { return fmt.Sprintf("%s (connected from %s)", ip, host) }

// settle takes over what the process reports itself that a worker is left to; c.mu is held.
func (c *Controller) settle(w *worker) {
	w.at = address{}
	peer := ""
	for _, s := range c.speaking(w) {
		if s.told.known() {
			w.at, peer = s.told, s.peer
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ip, w.peer, w.beats = w.at.ip, peer, false
	w.ip = cmp.Or(w.ip, w.host)
}

// leave forgets the connections of a process that deregisters while it shares the worker's
// id with others; c.mu is held.
func (c *Controller) leave(w *worker, p *zmq.Peer, told address) {
	for other, s := range c.speaking(w) {
		if other == p || told.known() && s.told == told {
			delete(w.conns, other)
			delete(c.speakers, other)
		}
	}
}

// place finds the target of a worker. It is feed.ErrShared where others have its id and
// the same claim to it.
func (w *worker) place(reg *store.Registry) (t feed.Target, err error) {
	c := w.c
	type other struct{ host, ip string }
	var others []other
	c.mu.Lock()
	rivals, host := slices.Clone(w.rivals), w.host
	for _, o := range c.roll.of[w.id] {
		if o != w {
			o.mu.Lock()
			others = append(others, other{o.host, o.ip})
			o.mu.Unlock()
		}
	}
	c.mu.Unlock()
	w.mu.Lock()
	ip := w.ip
	w.mu.Unlock()
	targets, err := c.config.Pods.Find(reg, w.id.Instance, ip)
	if err == nil {
		err = c.config.Pods.Doubt(reg, w.id.Instance, ip)
	}
	switch {
	case err != nil && len(rivals) == 0:
		return t, err
	case len(targets) > 1:
		return t, fmt.Errorf("%w %q: it is set to %d pods, which is for servers of MP mode", feed.ErrUnmapped, w.id.Instance, len(targets))
	case err == nil:
		t = targets[0]
	}
	if len(rivals) > 0 {
		return t, shared(rivals)
	}
	for _, o := range others {
		theirs, err := c.config.Pods.Find(reg, w.id.Instance, o.ip)
		if err == nil && theirs[0] == t && (!t.At(reg, ip) || t.At(reg, o.ip)) {
			return t, shared([]string{where(ip, host), where(o.ip, o.host)})
		}
	}
	return t, nil
}

// sharedError is feed.ErrShared with their names.
type sharedError struct{ by string }

func shared(by []string) error {
	const most = 4 // that are named
	text := strings.Join(by[:min(most, len(by))], " and ")
	if len(by) > most {
		text += fmt.Sprintf(" and %d more", len(by)-most)
	}
	return &sharedError{text}
}

func (e *sharedError) Error() string {
	return fmt.Sprintf("%v, so that nothing is kept of what they say: %s; give each an lmcache_instance_id of its own", feed.ErrShared, e.by)
}

// Is makes it feed.ErrShared.
func (e *sharedError) Is(target error) bool { return target == feed.ErrShared }
