package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
)

// booking is a reservation of the router's.
type booking struct {
	model, id string
	lease     time.Duration
	queue     int
	began     time.Time
	output    atomic.Int64 // tokens of the answer so far

	// Of Gateway.look.
	told    int64     // of output
	renewed time.Time // when the router was told last

	done *loads.Report // what it said to the first token; of the queue's goroutine
}

// reports tells the router what becomes of requests, beside their way. Those of one request go
// in their order.
type reports struct {
	router Router
	now    func() time.Time
	failed func(error)
	turn   atomic.Uint32
	queues []chan report
	away   atomic.Bool // the router's loads cannot be reached
	stop   chan struct{}
	ending sync.WaitGroup

	mu   sync.Mutex // protects owed
	owed []report   // ends that could not be told
}

// report is something that the router is to be told.
type report struct {
	kind   reportKind
	of     *booking
	tokens int // of output, or that were cached
	again  bool
}

type reportKind uint8

const (
	reportFirst reportKind = iota
	reportOutput
	reportEnd
)

func newReports(c *Config) *reports {
	r := &reports{router: c.Router, now: c.Now, failed: c.Observer.Unreported, stop: make(chan struct{})}
	for range reporters {
		q := make(chan report, queuedReports)
		r.queues = append(r.queues, q)
		r.ending.Go(func() { r.run(q) })
	}
	return r
}

// run tells what is in a queue until the end, and then what is left there.
func (r *reports) run(q <-chan report) {
	var s spell
	defer func() { s.end() }()
	for {
		select {
		case one := <-q:
			r.tell(s.context(r.now()), one)
			continue
		default:
		}
		select {
		case one := <-q:
			r.tell(s.context(r.now()), one)
		case <-r.stop:
			if len(q) == 0 {
				return
			}
		}
	}
}

// book returns the booking of a reservation.
func (r *reports) book(model, id string, lease time.Duration) *booking {
	now := r.now()
	return &booking{model: model, id: id, lease: lease, queue: int(r.turn.Add(1) % reporters), began: now, renewed: now}
}

func (r *reports) firstToken(b *booking)      { r.put(report{kind: reportFirst, of: b}) }
func (r *reports) end(b *booking, cached int) { r.put(report{kind: reportEnd, of: b, tokens: cached}) }

// progress reports an answer that has gone on, and renews the lease of one that has not.
func (r *reports) progress(b *booking, now time.Time) {
	n := b.output.Load()
	if n-b.told < tellTokens && now.Sub(b.renewed) < b.lease/3 {
		return
	}
	b.told, b.renewed = n, now
	r.put(report{kind: reportOutput, of: b, tokens: int(n)})
}

// put never blocks: an end that does not fit is tried again, and all else is dropped.
func (r *reports) put(one report) {
	if r.away.Load() && !one.again {
		r.owe(one)
		return
	}
	select {
	case r.queues[one.of.queue] <- one:
	default:
		r.owe(one)
	}
}

func (r *reports) owe(one report) {
	if one.kind != reportEnd {
		return
	}
	one.again = true
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) < maxOwed {
		r.owed = append(r.owed, one)
	}
}

func (r *reports) owes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.owed))
}

// retry tries again what is owed: one of them while the loads are away, else as many as find
// room. What is over with its lease is dropped.
func (r *reports) retry() {
	r.mu.Lock()
	owed := r.owed
	most := len(owed)
	if r.away.Load() {
		most = min(most, 1)
	}
	r.owed = append([]report(nil), owed[most:]...)
	r.mu.Unlock()
	for _, one := range owed[:most] {
		if r.now().Sub(one.of.began) < loads.MaxLease {
			r.put(one)
		}
	}
	if most == 0 {
		r.away.Store(false) // nothing is left to find out with: the next report does
	}
}

// spell is a context that reports of a queue share one after the other. With a timer for each
// of them a report would take twice as long.
type spell struct {
	ctx    context.Context
	cancel context.CancelFunc
	until  time.Time // of its use
}

// context returns one that ends in reportWait or up to twice that.
func (s *spell) context(now time.Time) context.Context {
	if s.ctx == nil || s.ctx.Err() != nil || !now.Before(s.until) {
		s.end()
		s.ctx, s.cancel = context.WithTimeout(context.Background(), 2*reportWait)
		s.until = now.Add(reportWait)
	}
	return s.ctx
}

func (s *spell) end() {
	if s.cancel != nil {
		s.cancel()
	}
}

func (r *reports) tell(ctx context.Context, one report) {
	b := one.of
	var err error
	switch one.kind {
	case reportFirst:
		var rep loads.Report
		if rep, err = r.router.Done(ctx, b.model, b.id, -1); err == nil {
			b.done = &rep
		}
	case reportOutput:
		_, err = r.router.Output(ctx, b.model, b.id, one.tokens)
	case reportEnd:
		_, err = r.router.Settle(ctx, b.model, b.id, b.done, one.tokens)
	}
	unreachable := err != nil && (errors.Is(err, loads.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded))
	r.away.Store(unreachable)
	if unreachable {
		r.owe(one)
	}
	if err != nil {
		r.failed(err)
	}
}

// close waits until what was put has been told.
func (r *reports) close() {
	r.retry()
	close(r.stop)
	r.ending.Wait()
}
