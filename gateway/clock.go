package gateway

import (
	"context"
	"net/http"
	"time"
)

// phase is what an exchange waits for.
type phase int64

const (
	phaseNone   phase = iota
	phaseRoute        // the router
	phaseHeader       // the header of the answer
	phaseFirst        // the first byte of its body
	phaseIdle         // the next read of it
	phaseClient       // the client, which takes what has come
)

// phaseBits is how many bits of a time are the phase instead. Times are exact to 8 ns.
const phaseBits = 3

// await notes what the exchange waits for from now on, and for how long at most. Setting it is
// two instructions: one goroutine watches over all exchanges. Timers and deadlines of
// connections of each would be a tenth of what a short answer costs.
func (x *exchange) await(p phase, most time.Duration) {
	x.due.Store(x.g.c.Now().Add(most).UnixNano()&^(1<<phaseBits-1) | int64(p))
}

// awaitNothing ends that.
func (x *exchange) awaitNothing() { x.due.Store(0) }

// watchEvery is how often exchanges are looked at. The shortest of the times that were set is
// exceeded by a quarter at most.
func (c *Config) watchEvery() time.Duration {
	return min(lookEvery, max(time.Millisecond, min(c.Header, c.FirstToken, c.Idle)/4))
}

// endOverdue ends what has waited for too long.
func (g *Gateway) endOverdue() {
	now := g.c.Now().UnixNano()
	g.running.mu.Lock()
	defer g.running.mu.Unlock()
	for x := range g.running.all {
		// What goes on in this moment has another time by now, and is left alone.
		if at := x.due.Load(); at != 0 && at < now && x.due.CompareAndSwap(at, 0) {
			x.expire(phase(at & (1<<phaseBits - 1)))
		}
		if at := x.client.due.Load(); at != 0 && at < now && x.client.due.CompareAndSwap(at, 0) {
			setReadDeadline(x.w, past)
		}
	}
}

// expire ends what the exchange waits for. It is called by the goroutine that watches, while
// the exchange cannot end.
func (x *exchange) expire(p phase) {
	switch p {
	case phaseClient:
		_ = http.NewResponseController(x.w).SetWriteDeadline(past)
	case phaseRoute:
		x.giveUp(errRouteTime)
	case phaseHeader:
		x.giveUp(errHeaderTime)
	case phaseFirst:
		x.giveUp(errFirstTime)
	case phaseIdle:
		x.giveUp(errIdle)
	case phaseNone:
	}
}

// past ends what waits for a connection.
var past = time.Unix(1, 0)

// setReadDeadline bounds how long anything waits for the client to send.
func setReadDeadline(w http.ResponseWriter, at time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(at) // recorders of tests have none
}

// giveUp ends the work for the exchange that goes on now.
func (x *exchange) giveUp(why error) {
	if w := x.work.Load(); w != nil {
		w.cancel(why)
	}
}

// work is what is done for an exchange until it has an answer or begins anew elsewhere.
type work struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	pod    *pod // where it is, nil before it is sent
}

// giveUpAt ends the attempts at a pod that wait for the first byte of their answer.
func (g *Gateway) giveUpAt(p *pod) {
	g.running.mu.Lock()
	defer g.running.mu.Unlock()
	for x := range g.running.all {
		at := x.due.Load()
		if of := phase(at & (1<<phaseBits - 1)); of != phaseHeader && of != phaseFirst {
			continue
		}
		if w := x.work.Load(); w != nil && w.pod == p && x.due.CompareAndSwap(at, 0) {
			w.cancel(errEjected)
		}
	}
}
