package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// window is what has been accepted and not been given to the writer.
type window struct {
	messages int
	bytes    int
	last     last
	time     float64
	kinds    [event.NumKinds]int
}

// flight is a window that is being written.
type flight struct {
	window
	batches []store.Batch
	done    chan error
}

// send gives the window to the writer, when the one before it is written.
func (r *reader) send(ctx context.Context) error {
	for r.flying != nil {
		if err := r.landed(ctx, <-r.flying.done); err != nil {
			return err
		}
	}
	var changes rechunk.Changes
	take := func() (err error) {
		changes, err = r.chunk.Take(ctx, r.window.last.seq+1, r.readMap)
		return err
	}
	if err := r.retry(ctx, take); err != nil {
		return err
	}
	b := store.Batch{
		Pod: r.s.Pod, Rank: r.s.Rank, Model: r.s.Model,
		Guard: &store.Guard{Generation: r.gen, Fence: r.fence, Seq: r.window.last.seq + 1},
	}
	batches := changes.AppendBatches(r.buffers[0][:0], b)
	lasts := []last{r.window.last}
	if r.wrote {
		lasts = append(lasts, r.written)
	}
	b.Map = []store.MapOp{{MapKey: lastKey, Value: appendLasts(nil, blockkey.ModelOf(r.s.Model), lasts...)}}
	batches = append(batches, b)
	r.buffers[0], r.buffers[1] = r.buffers[1], batches
	r.flying = &flight{window: r.window, batches: batches}
	r.written, r.wrote = r.window.last, true
	r.window = window{}
	r.flying.done = r.in.writer.start(batches)
	if r.in.config.InProcess {
		return r.landed(ctx, <-r.flying.done)
	}
	return nil
}

// landed takes in what has become of the window that was being written, and tries again
// when that may help.
func (r *reader) landed(ctx context.Context, err error) error {
	for n := 1; err != nil; n++ {
		switch {
		case errors.Is(err, store.ErrInvalid):
			r.failed(err)
			r.flying = nil
			return fmt.Errorf("%w: %w", errInvalid, err)
		case final(err):
			r.flying = nil
			return err
		}
		r.failed(err)
		pause(ctx, backoff(n))
		if ctx.Err() != nil {
			r.flying = nil
			return ctx.Err()
		}
		err = <-r.in.writer.start(r.flying.batches)
	}
	w := r.flying.window
	r.flying = nil
	r.chunk.Done()
	r.count.applied(&w, r.chunk.Stats())
	o := &r.in.config.Observer
	for kind, n := range w.kinds {
		if n > 0 {
			o.Events(r.s.Pod, r.s.Rank, event.Kind(kind), n)
		}
	}
	if w.time >= earliestEvent {
		lag := max(0, time.Since(time.UnixMicro(int64(w.time*1e6))))
		r.count.lag.Store(int64(lag))
		o.Lag(r.s.Pod, r.s.Rank, lag)
	}
	return nil
}

// land waits for the window that is being written and forgets it.
func (r *reader) land() error {
	if r.flying == nil {
		return nil
	}
	err := <-r.flying.done
	r.flying = nil
	return err
}
