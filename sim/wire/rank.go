package wire

import (
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/sim/engine"
)

// rank is one data-parallel rank of a running pod.
type rank struct {
	number  int
	clock   *clock
	form    encode.Form
	topic   string
	pub     *zmq.Publisher
	link    *link
	metrics *metrics
	wake    chan struct{}

	mu     sync.Mutex // protects all below
	engine *engine.Engine
	open   map[uint64]*answer
	seq    uint64
	report engine.Report
}

// answer is what a request is answered.
type answer struct {
	outputs chan engine.Output // has room for all of them
	stops   bool               // it ends by itself, not for its length
	arrived time.Duration
	prompt  int
	said    int
	last    time.Duration // when the last output came
	first   time.Duration
}

// submit has the engine answer a request. stops says that its answer ends by itself.
func (r *rank) submit(q engine.Request, stops bool) (*answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.now()
	if err := r.engine.Submit(now, q); err != nil {
		return nil, err
	}
	a := &answer{outputs: make(chan engine.Output, len(q.Output)), stops: stops, arrived: now, prompt: len(q.Tokens)}
	r.open[q.ID] = a
	r.rouse()
	return a, nil
}

// cancel ends a request whose client has gone.
func (r *rank) cancel(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.open[id]; ok {
		delete(r.open, id)
		r.engine.Cancel(id)
		r.metrics.abort(r.number)
		r.rouse()
	}
}

func (r *rank) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// do does something to the engine.
func (r *rank) do(f func(*engine.Engine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.engine)
	r.rouse()
}

// stats returns what the engine is doing.
func (r *rank) stats() engine.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Stats()
}

// published returns how many messages the rank has published.
func (r *rank) published() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq
}

// run runs the engine until ctx ends.
func (r *rank) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait := time.Hour
		if thawed := r.clock.stopped(); thawed != nil {
			select {
			case <-thawed:
			case <-ctx.Done():
			}
			continue
		}
		if at, ok := r.advance(); ok {
			wait = r.clock.wait(at)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// advance does what is to be done by now, and returns when there is more.
func (r *rank) advance() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Outputs, r.report.Batches = r.report.Outputs[:0], r.report.Batches[:0]
	r.engine.Advance(r.clock.now(), &r.report)
	// Events first, so that the reader of an answer can read them as well.
	for i := range r.report.Batches {
		r.publish(r.report.Batches[i].Events)
	}
	clear(r.report.Batches)
	for _, o := range r.report.Outputs {
		a := r.open[o.ID]
		if a == nil {
			continue
		}
		r.metrics.output(r.number, a, o)
		a.outputs <- o
		if o.Last {
			delete(r.open, o.ID)
			close(a.outputs)
		}
	}
	return r.engine.Due()
}

// publish sends events in a message.
func (r *rank) publish(events []event.Event) {
	b := event.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Rank: r.number, HasRank: true, Events: events}
	r.link.send(zmq.Message{Topic: r.topic, Seq: r.seq, Payload: encode.Append(nil, &b, r.form)})
	r.seq++
}

// close ends the rank's sockets, and what waits for an answer has none.
func (r *rank) close() error {
	r.mu.Lock()
	for id, a := range r.open {
		delete(r.open, id)
		close(a.outputs)
	}
	r.mu.Unlock()
	r.link.close()
	return r.pub.Close()
}
