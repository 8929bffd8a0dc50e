package ingest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// maxCall is how many batches one call of Apply has at most.
const maxCall = 1024

// writer writes the batches of many ranks, those that come at about the same time in
// one call. On a cluster that makes a call a partition carry many blocks. A batch
// that comes when nothing is under way is written at once.
type writer struct {
	index  store.Index
	linger time.Duration
	direct bool          // a call is made by the one that starts it
	slots  chan struct{} // one token for each call that may be under way
	wake   chan struct{}

	mu      sync.Mutex // protects pending, flying
	pending []*write
	flying  int
}

// write is what one rank has given to be written.
type write struct {
	batches []store.Batch
	done    chan error // of room for one
}

func newWriter(c *Config) *writer {
	return &writer{index: c.Index, linger: c.Linger, direct: c.InProcess, slots: make(chan struct{}, c.Writers), wake: make(chan struct{}, 1)}
}

// start gives batches of one generation to be written; the channel tells what has
// become of them. Until it does they must be left alone.
func (w *writer) start(batches []store.Batch) chan error {
	p := &write{batches: batches, done: make(chan error, 1)}
	if w.direct {
		w.call(context.Background(), []*write{p})
		return p.done
	}
	w.mu.Lock()
	w.pending = append(w.pending, p)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return p.done
}

// run starts calls until ctx is done and nothing waits any more. Its calls are not
// cancelled with ctx: each is bounded by the index's own time limits.
func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		w.mu.Lock()
		n, busy := len(w.pending), w.flying > 0
		w.mu.Unlock()
		if n == 0 {
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		if busy && n < maxCall {
			pause(ctx, w.linger)
		}
		w.slots <- struct{}{}
		list := w.grab()
		wg.Go(func() {
			w.call(context.WithoutCancel(ctx), list)
			w.mu.Lock()
			w.flying--
			w.mu.Unlock()
			<-w.slots
		})
	}
}

// grab takes what one call is to write.
func (w *writer) grab() []*write {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.pending), maxCall)
	list := w.pending[:n:n]
	w.pending = w.pending[n:]
	if len(w.pending) == 0 {
		w.pending = nil
	}
	w.flying++
	return list
}

// call writes a list, and tells each what has become of it.
func (w *writer) call(ctx context.Context, list []*write) {
	batches := list[0].batches
	if len(list) > 1 {
		batches = nil
		for _, p := range list {
			batches = append(batches, p.batches...)
		}
	}
	err := w.index.Apply(ctx, batches...)
	refused, ok := errors.AsType[*store.RefusedError](err)
	if ok {
		err = refused.Stopped // all that is said to callers that are not refused
	}
	// One of them may be at fault for all.
	alone := len(list) > 1 && err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrClosed)
	for _, p := range list {
		switch why := p.refusal(refused); {
		case why != nil:
			p.done <- why
		case alone:
			w.call(ctx, []*write{p})
		default:
			p.done <- err
		}
	}
}

// refusal is why the generation of what was to be written is refused, nil if it is not.
func (p *write) refusal(r *store.RefusedError) error {
	if r == nil {
		return nil
	}
	for i := range p.batches {
		if g := p.batches[i].Guard; g != nil && r.Generations[g.Generation] != nil {
			return r.Generations[g.Generation]
		}
	}
	return nil
}

// pause waits, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
