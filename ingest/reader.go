package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// maxReplay bounds one answer where nothing is credited that it could put in doubt.
const maxReplay = 10 * time.Second

// windowBytes bounds the payloads that are written as one batch.
const windowBytes = 4 << 20

// earliestEvent is 2020 in seconds since 1970. Before it there was no engine: an earlier value is no time,
// but the count of a record made by hand.
const earliestEvent = 1577836800

// errNumber says that a message's number has no place in the index.
var errNumber = fmt.Errorf("ingest: the number of a message is not below %d", uint64(store.MaxSequence))

// errInvalid says that the index will never take what is in the window.
var errInvalid = errors.New("ingest: the index refuses the batch")

// reader reads the stream of one rank. What it does in which order:
//
//  1. the subscriber's goroutine puts messages into the queue, and stops reading the
//     connection while that is full
//  2. the reader's goroutine takes them out, the follower brings them into order
//  3. what is accepted goes through the Chunker into the window
//  4. the window is written when the queue is empty or the window full, one at a
//     time; the next is filled meanwhile
//  5. the answer is awaited before the next one is written
//
// The sequence, the fingerprint of the last message and the map stand in the same batch
// as the blocks.
type reader struct {
	in     *Ingester
	s      Source
	fence  uint64
	model  store.ModelInfo
	f      follower
	q      *queue
	ring   *ring
	count  counters
	epoch  uint64 // of the connection that is being followed
	gen    store.Generation
	chunk  *rechunk.Chunker
	decode event.Decoder
	batch  event.Batch
	named  []int // other ranks that the engine has named, of which was told

	window  window
	flying  *flight
	written last // of the batch before, if wrote
	wrote   bool
	buffers [2][]store.Batch // of flying, and of the one before

	reserved int64 // bytes of Ingester.replays
}

// run reads until ctx is done or the rank is lost to another reader.
func (r *reader) run(ctx context.Context) error {
	defer r.settle()
	err := r.resume(ctx)
	silence := r.in.config.Quiet
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		switch {
		case err == nil, errors.Is(err, errStale):
		case errors.Is(err, store.ErrEnded):
			pause(ctx, backoff(1)) // a process that ends generations again and again
			err = r.f.resync(ctx, Ended)
			continue
		case errors.Is(err, errInvalid):
			err = r.f.giveUp(ctx, Lost, r.f.next)
			continue
		default:
			r.leave(ctx)
			return err
		}
		if ctx.Err() != nil {
			r.leave(ctx)
			return ctx.Err()
		}
		r.settle()
		err = r.step(ctx, quiet, &silence)
	}
}

// leave ends what is under way, whatever comes of it. A reader that is called off parks what
// the map does not have.
func (r *reader) leave(ctx context.Context) {
	_ = r.land()
	if ctx.Err() == nil || r.in.ctx.Err() != nil || r.chunk == nil || !r.chunk.Alone() {
		return
	}
	if r.window.messages > 0 && r.send(ctx) != nil || !r.wrote {
		return
	}
	r.in.park(context.WithoutCancel(ctx), r)
}

// step takes the next thing that is to be done, or waits for one.
func (r *reader) step(ctx context.Context, quiet *time.Timer, silence *time.Duration) error {
	if e, ok := r.q.pop(); ok {
		*silence = r.in.config.Quiet
		quiet.Reset(*silence)
		if e.connected {
			r.epoch, _ = r.q.connection()
			return r.f.connect(ctx)
		}
		return r.f.receive(ctx, e.Message)
	}
	if r.window.messages > 0 && r.flying == nil {
		return r.send(ctx)
	}
	var done chan error
	if r.flying != nil {
		done = r.flying.done
	}
	var review <-chan time.Time
	if r.f.behind {
		review = time.After(time.Until(r.f.since.Add(r.f.patience)))
	}
	select {
	case err := <-done:
		return r.landed(ctx, err)
	case <-review:
		return r.f.review(ctx)
	case <-r.q.wake:
	case <-ctx.Done():
	case <-quiet.C:
		*silence = min(2**silence, max(time.Minute, r.in.config.Quiet))
		quiet.Reset(*silence/2 + rand.N(*silence/2+1))
		if epoch, online := r.q.connection(); online && epoch == r.epoch {
			return r.f.probe(ctx)
		}
	}
	return nil
}

// resume takes the rank over where its last reader has left it.
func (r *reader) resume(ctx context.Context) error {
	err := r.retry(ctx, func() (err error) {
		r.model, err = r.in.model(ctx, r.s.Model)
		return err
	})
	if err != nil {
		return err
	}
	var life store.Life
	if err := r.retry(ctx, func() (err error) {
		life, err = r.in.config.Index.Life(ctx, r.s.Pod, r.s.Rank)
		return err
	}); err != nil {
		return err
	}
	if life.Generation == 0 {
		return r.begin(ctx, First)
	}
	var mark uint64
	known, renamed := false, false
	next := uint64(0)
	kept := r.in.unpark(rankKey{r.s.Pod, r.s.Rank})
	err = r.retry(ctx, func() error {
		next, err = r.in.config.Index.TakeOver(ctx, life.Generation, r.fence)
		if err != nil || next == 0 {
			return err
		}
		r.gen = life.Generation
		if kept.gen != r.gen || kept.seq != next || kept.size != r.model.BlockSize {
			kept = parked{}
			if torn, err := rechunk.Torn(ctx, next, r.readMap); err != nil || torn {
				return err
			}
		}
		values, err := r.readMap(ctx, lastKey)
		if err == nil {
			// Sequence n of the engine is n+1 in the index, which begins with 1.
			mark, known = findLast(values[0], next-1)
			renamed = otherModel(values[0], r.s.Model)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrEnded):
		return r.begin(ctx, Ended)
	case err != nil:
		return err
	case next == 0:
		// Nothing has been applied wholly, and parts of something may have been.
		return r.begin(ctx, First)
	case renamed:
		return r.begin(ctx, Renamed)
	case !known:
		// Its last owner has died in the middle of a batch, or has not left the last
		// message.
		return r.begin(ctx, Lost)
	}
	if r.chunk = kept.chunk; r.chunk != nil {
		r.chunk.GoOn(r.s.Engine)
	} else if err := r.newChunker(false); err != nil {
		return err
	}
	r.wrote, r.written = true, last{next - 1, mark}
	r.f.known, r.f.next, r.f.mark = true, next, mark
	r.count.generation(r.gen)
	r.in.config.Observer.TookOver(r.s.Pod, r.s.Rank, r.gen, next)
	return nil
}

func (r *reader) newChunker(fresh bool) (err error) {
	r.count.rechunked()
	c := r.in.chunking(r.s.Pod, r.s.Engine, r.s.Rank, r.model.BlockSize, fresh)
	c.Alone = r.in.config.InProcess
	r.chunk, err = rechunk.New(c)
	if err != nil {
		return fmt.Errorf("ingest: model %s: %w", r.model.Name, err)
	}
	return nil
}

// retry tries something until it is done or cannot be: the index is away, or full.
func (r *reader) retry(ctx context.Context, f func() error) error {
	for n := 1; ; n++ {
		err := f()
		if err == nil || final(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.failed(err)
		pause(ctx, backoff(n))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// final reports whether trying again does not help.
func final(err error) bool {
	return slices.ContainsFunc([]error{store.ErrFenced, store.ErrEnded, store.ErrUnknownPod, store.ErrNoRank, store.ErrClosed, store.ErrInvalid, store.ErrModelConflict},
		func(e error) bool { return errors.Is(err, e) })
}

// backoff is the pause before the n-th try again: 50 ms, doubled up to 2 s, of which a
// random half is taken off.
func backoff(n int) time.Duration {
	d := min(50*time.Millisecond<<min(n-1, 8), 2*time.Second)
	return d/2 + rand.N(d/2+1)
}

func (r *reader) failed(err error) {
	r.count.failures.Add(1)
	r.in.config.Observer.Failed(r.s.Pod, r.s.Rank, err)
}

// replayable implements actions.
func (r *reader) replayable() bool { return r.s.Replay != "" }

// now implements actions.
func (r *reader) now() time.Time { return time.Now() }

// doubt implements actions.
func (r *reader) doubt(live, next uint64) {
	r.count.doubts.Add(1)
	r.in.config.Observer.Doubted(r.s.Pod, r.s.Rank, live, next)
}

// replay implements actions. Room for an answer is reserved while it comes, and what it
// takes stays so until the reader is done with it: see settle.
func (r *reader) replay(ctx context.Context, from uint64, limit time.Duration, gap bool) (messages []zmq.Message, took time.Duration, err error) {
	r.settle()
	c := &r.in.config
	began := time.Now()
	defer func() { took = time.Since(began) }()
	limit = cmp.Or(limit, maxReplay)
	turn, cancel := ctx, func() {}
	if gap {
		turn, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	if err := r.in.replays.Acquire(turn, c.ReplayBytes); err != nil {
		return nil, 0, err
	}
	if !gap {
		began = time.Now()
		turn, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	size := int64(0)
	defer func() {
		r.reserved = min(size, c.ReplayBytes)
		r.in.replays.Release(c.ReplayBytes - r.reserved)
	}()
	full := false
	err = zmq.Replay(turn, zmq.ReplayConfig{
		Endpoint: r.s.Replay, Curve: r.s.Curve, Filter: c.Wire.Filter, MaxMessage: c.Wire.MaxMessage, ConnectTimeout: c.Wire.ConnectTimeout, Idle: c.ReplayIdle,
	}, from, func(m zmq.Message) error {
		if m.Seq >= store.MaxSequence {
			return errNumber
		}
		messages = append(messages, m)
		if size += sizeOf(&m); size >= c.ReplayBytes && len(messages) > 1 {
			full = true
			return zmq.ErrStop
		}
		return nil
	})
	if full && err == nil {
		err = zmq.ErrCut // by ourselves: there may be more
	}
	r.count.replays.Add(1)
	c.Observer.Replayed(r.s.Pod, r.s.Rank, from, len(messages), err)
	return messages, 0, err
}

// settle gives back the room of an answer whose messages are done with.
func (r *reader) settle() {
	if r.reserved > 0 {
		r.in.replays.Release(r.reserved)
		r.reserved = 0
	}
}

// gap implements actions.
func (r *reader) gap(first, next uint64) {
	r.count.gaps.Add(1)
	r.in.config.Observer.Gap(r.s.Pod, r.s.Rank, first, next)
}

// pause implements actions.
func (r *reader) pause(ctx context.Context, n int, limit time.Duration) error {
	r.settle()
	if r.stale() {
		return errStale
	}
	d := backoff(n + 1)
	if limit > 0 {
		d = min(d, limit)
	}
	pause(ctx, d)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.stale() {
		return errStale
	}
	return nil
}

func (r *reader) stale() bool {
	epoch, online := r.q.connection()
	return epoch != r.epoch || !online
}

// begin implements actions: it ends the generation, with what is in the window and on
// its way to the index, and begins another one.
func (r *reader) begin(ctx context.Context, reason Reason) error {
	if err := r.land(); errors.Is(err, store.ErrFenced) {
		return err
	}
	r.window, r.wrote = window{}, false
	err := r.retry(ctx, func() (err error) {
		// The index may have forgotten the model, and be told another block size since.
		if r.model, err = r.in.model(ctx, r.s.Model); err != nil {
			return err
		}
		r.gen, err = r.in.config.Index.Begin(ctx, r.s.Pod, r.s.Rank, r.fence)
		return err
	})
	if err != nil {
		return err
	}
	r.count.generation(r.gen)
	r.count.generations.Add(1)
	r.count.begun[reason].Add(1)
	r.ring.reset()
	r.in.config.Observer.Began(r.s.Pod, r.s.Rank, r.gen, reason)
	return r.newChunker(true)
}

// accept implements actions.
func (r *reader) accept(ctx context.Context, m zmq.Message, mark uint64) error {
	if !r.wrote && r.flying == nil && r.window.messages == 0 {
		if m.Seq > 0 {
			r.chunk.NoteUnseen()
		}
		r.in.config.Observer.Started(r.s.Pod, r.s.Rank, r.gen, m.Seq)
	}
	r.ring.add(m)
	r.count.accepted(m.Seq)
	if err := r.decode.Decode(m.Payload, &r.batch); err != nil {
		r.chunk.NoteUnseen()
		r.undecodable(m.Seq, 1, err)
	} else {
		if r.batch.Skipped > 0 {
			r.chunk.NoteUnseen()
			r.undecodable(m.Seq, r.batch.Skipped, skipError(r.batch.Skips))
		}
		if r.batch.HasRank && r.batch.Rank != r.s.Rank {
			r.otherRank(r.batch.Rank)
		}
		if err := r.retry(ctx, func() error { return r.chunk.Apply(ctx, &r.batch, r.readMap) }); err != nil {
			return err
		}
		for i := range r.batch.Events {
			r.window.kinds[r.batch.Events[i].Kind]++
		}
		r.window.time = r.batch.Time
	}
	r.window.messages++
	r.window.bytes += len(m.Payload)
	r.window.last = last{m.Seq, mark}
	if r.window.messages < r.in.config.WindowMessages && r.window.bytes < windowBytes {
		return nil
	}
	return r.send(ctx)
}

// maxNamed is of how many other ranks a reader tells.
const maxNamed = 8

func (r *reader) otherRank(named int) {
	if len(r.named) == maxNamed || slices.Contains(r.named, named) {
		return
	}
	r.named = append(r.named, named)
	r.in.config.Observer.OtherRank(r.s.Pod, r.s.Rank, named)
}

func (r *reader) undecodable(seq uint64, n int, err error) {
	r.count.undecodable.Add(uint64(n))
	r.in.config.Observer.Undecodable(r.s.Pod, r.s.Rank, seq, n, err)
}

// skipError says in words why the first event of a message was left out.
func skipError(skips []event.Skip) error {
	if len(skips) == 0 {
		return errors.New("ingest: events were left out")
	}
	return fmt.Errorf("ingest: event %d: %v %s", skips[0].Index, skips[0].Reason, skips[0].Field)
}

func (r *reader) readMap(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
	return r.in.config.Index.ReadMap(ctx, r.gen, keys...)
}
