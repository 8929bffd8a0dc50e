package server

import (
	"container/list"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
)

const (
	// uncounted is how much of a request is not held against MaxInFlightBytes, so
	// that a small one is answered beside large ones.
	uncounted = 16 << 10
	// madeOfBody is how many bytes a request takes for each of its body. They hold
	// the body, its tokens, their block keys, and what is needed to make one of the
	// other.
	madeOfBody = 4
	// arrivals is how many bodies may be on their way for each request that may be
	// in flight.
	arrivals = 8
	// slowAfter is how long a body or an answer may be on its way when there is no
	// room for others.
	slowAfter = time.Second
)

// transfers are the bodies that are coming and the large answers that are going, for
// which only their clients know how long they take. They are not in flight. When there
// is no room for another, the one that has been on its way longest is cut off.
type transfers struct {
	slowAfter time.Duration

	mu      sync.Mutex // protects what follows, and place, since, until, late and cut of the calls in all
	all     list.List  // of *call, oldest first
	watched bool       // a timer will call cutLate
}

// errCutOff says that a transfer was cut off for others, errLate that its time was over.
var (
	errCutOff = errors.New("server: a slow client was cut off")
	errLate   = errors.New("server: a body was late")
)

// transfer does f, which waits for the client and which cut ends from outside, as one of
// at most most transfers. It is cut off at until, if that is not zero.
func (c *call) transfer(most int, until time.Time, cut func(), f func() error) (err error) {
	t := &c.s.transfers
	t.mu.Lock()
	if t.all.Len() >= most && !c.s.cutSlowest() {
		t.mu.Unlock()
		return c.s.overloaded("bodies on their way")
	}
	c.since, c.until, c.cut, c.place = time.Now(), until, cut, t.all.PushBack(c)
	if !until.IsZero() {
		c.s.watchTransfers(until)
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c.place == nil {
			err = errCutOff
			return
		}
		t.all.Remove(c.place)
		c.place = nil
		if c.late {
			err = errLate
		}
	}()
	return f()
}

// watchTransfers has transfers cut off that are late, the first of them at a time. Callers
// hold transfers.mu.
//
// There is one timer for all. All bodies have the same time to come, so those behind the
// first are due later. One that starts while a timer runs need not touch it.
func (s *Server) watchTransfers(at time.Time) {
	if t := &s.transfers; !t.watched {
		t.watched = true
		time.AfterFunc(time.Until(at), s.cutLate)
	}
}

// cutLate cuts off the transfers whose time is over, and waits for the next.
func (s *Server) cutLate() {
	t := &s.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched = false
	now := time.Now()
	for e := t.all.Front(); e != nil; e = e.Next() {
		c, _ := e.Value.(*call)
		switch {
		case c.until.IsZero() || c.late:
		case now.Before(c.until):
			s.watchTransfers(c.until)
			return
		default:
			c.late = true
			c.cut()
		}
	}
}

// cutSlowest cuts off the transfer that has been on its way longest, if that is long.
// Callers hold transfers.mu.
func (s *Server) cutSlowest() bool {
	e := s.transfers.all.Front()
	if e == nil {
		return false
	}
	c, _ := e.Value.(*call)
	if time.Since(c.since) < s.transfers.slowAfter {
		return false
	}
	s.transfers.all.Remove(e)
	c.place = nil
	s.inFlightBytes.Add(-c.held.Swap(0))
	s.metrics.CutOffClient()
	c.cut()
	return true
}

// hold counts bytes that the call takes, beyond what is uncounted, among those of all
// requests in flight. Slow transfers make way.
func (c *call) hold(n int64) error {
	limit := c.s.cfg.Limits.MaxInFlightBytes
	c.held.Add(n)
	if c.s.inFlightBytes.Add(n) <= limit {
		return nil
	}
	c.s.transfers.mu.Lock()
	defer c.s.transfers.mu.Unlock()
	for c.s.inFlightBytes.Load() > limit {
		if !c.s.cutSlowest() {
			return c.s.overloaded("bytes of requests")
		}
	}
	return nil
}

// holdBody holds what a body of n bytes takes, of which it may have held a part.
func (c *call) holdBody(n int) error {
	want := min(madeOfBody*int64(n-uncounted), c.s.cfg.Limits.MaxInFlightBytes)
	if more := want - c.held.Load(); more > 0 {
		return c.hold(more)
	}
	return nil
}

// enter counts the call among the requests in flight; its end is counted by serve.
func (c *call) enter() error {
	if c.entered {
		return nil
	}
	c.entered = true
	if c.s.inFlight.Add(1) > int64(c.s.cfg.Limits.MaxInFlight) {
		return c.s.overloaded("requests")
	}
	return nil
}

// takeTurn waits for a turn to read a body of n bytes. Large bodies have few turns, since
// otherwise small requests would wait for all of them. The turn is to be given back.
func (c *call) takeTurn(n int) (giveBack func(), err error) {
	if n <= uncounted {
		return func() {}, nil
	}
	select {
	case c.s.reading <- struct{}{}:
		return func() { <-c.s.reading }, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}

// cutBody ends the reading of the body, cutAnswer the writing of the answer.
func (c *call) cutBody() { c.deadline(time.Unix(1, 0)) }

func (c *call) cutAnswer() {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Unix(1, 0)) // recorders in tests have none
}

// valueBytes is what a JSON value of a chat takes while its template is rendered, at most.
// Measured are 33 of a number, 105 of an empty object and 152 of an array in another. It is
// up to 80 bytes for each of the body, which madeOfBody does not know.
const valueBytes = 160

// holdChat holds what the JSON values of a chat take, and refuses those that take more than
// all requests may.
func (c *call) holdChat(q *prompt.Chat) error {
	want := valueBytes * int64(request.ChatValues(q))
	if want <= uncounted {
		return nil
	}
	limit := c.s.cfg.Limits.MaxInFlightBytes
	if want > limit {
		return refusal.TooLarge("", "the chat has %d JSON values, which take %d bytes each while it is rendered; all requests together may take %d", want/valueBytes, valueBytes, limit)
	}
	// As with bodies, one that takes more than all with its body is let in alone.
	if more := min(want, limit-c.held.Load()); more > 0 {
		return c.hold(more)
	}
	return nil
}
