package wire

import (
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// maxHeld bounds the messages that a slow link holds; further ones are lost on the way.
const maxHeld = 10_000

// link is the way of a rank's messages to its readers, and what goes wrong on it.
type link struct {
	pub *zmq.Publisher

	mu    sync.Mutex // protects all below
	lose  int        // so many of the next messages
	burn  bool       // those cannot be replayed either
	delay time.Duration
	rate  int // bytes a second, 0 for no limit
	held  []heldMessage
	free  time.Time // when the link has sent what is on it

	wake chan struct{}
	end  chan struct{}
	done chan struct{}
}

type heldMessage struct {
	zmq.Message
	due time.Time
}

func newLink(pub *zmq.Publisher) *link {
	l := &link{pub: pub, wake: make(chan struct{}, 1), end: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// close ends the link. What it holds is lost.
func (l *link) close() {
	close(l.end)
	<-l.done
}

// send sends a message, or what is left of it.
func (l *link) send(m zmq.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lose > 0 {
		l.lose--
		if !l.burn {
			l.pub.Keep(m)
		}
		return
	}
	if l.delay == 0 && l.rate == 0 && len(l.held) == 0 {
		l.pub.Publish(m)
		return
	}
	if len(l.held) >= maxHeld {
		l.pub.Keep(m)
		return
	}
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	if l.rate > 0 {
		l.free = l.free.Add(time.Duration(float64(len(m.Payload)) / float64(l.rate) * float64(time.Second)))
	}
	l.held = append(l.held, heldMessage{m, l.free.Add(l.delay)})
	l.rouse()
}

func (l *link) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// set changes what is wrong with the link. What it holds keeps its time, but for a link
// that is whole again: that sends it at once.
func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	if l.delay == 0 && l.rate == 0 {
		l.free = time.Time{}
		for i := range l.held {
			l.held[i].due = time.Time{}
		}
	}
	l.rouse()
}

// run sends what is held when its time has come.
func (l *link) run() {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.mu.Lock()
		wait := time.Hour
		for len(l.held) > 0 {
			if wait = time.Until(l.held[0].due); wait > 0 {
				break
			}
			l.pub.Publish(l.held[0].Message)
			l.held[0] = heldMessage{}
			l.held = l.held[1:]
			wait = time.Hour
		}
		l.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-l.end:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}
