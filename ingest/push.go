package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// Pushed are events that an engine pushes.
type Pushed struct {
	Pod, Model, Engine string
	Rank               int
	// Seq is the number of the events in the engine's stream, from 0, or nil.
	Seq    *uint64
	Events []event.Event
	// Skipped is how many more there were that could not be understood.
	Skipped int
}

// PushResult is what has become of the events of a push.
type PushResult struct {
	// Applied are events that have been applied, Skipped those that were understood
	// by nobody, are not for an index or had been applied before.
	Applied, Skipped int
	// Duplicate is true when the sequence had been applied before, Began when a new
	// generation had to begin.
	Duplicate, Began bool
}

// holeWait is how long a push waits for the one before it, which may be on its way
// through another replica.
const holeWait = 250 * time.Millisecond

// maxSeq is the highest sequence that the index can count.
const maxSeq = store.MaxSequence - 1

// pushers keeps the state of ranks that push, those that have pushed last.
type pushers struct {
	cache *lru.Cache[rankKey, *pusher]
}

func newPushers(limit int) (*pushers, error) {
	c, err := lru.New[rankKey, *pusher](limit)
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	return &pushers{cache: c}, nil
}

func (p *pushers) len() int { return p.cache.Len() }

// get returns the state of a rank.
func (p *pushers) get(key rankKey) *pusher {
	fresh := &pusher{busy: make(chan struct{}, 1)}
	if have, ok, _ := p.cache.PeekOrAdd(key, fresh); ok {
		p.cache.Get(key) // it is the latest now
		return have
	}
	return fresh
}

// pusher is what this process knows of a rank that pushes: a copy of what stands in the
// index, which is read again whenever that has moved.
type pusher struct {
	busy chan struct{} // holds a token while a push is under way; protects all below

	model   store.ModelInfo
	life    store.Life // as it was after the last push
	chunk   *rechunk.Chunker
	written last
	wrote   bool
	ended   store.Generation // cannot be gone on with, even if the index still has it

	// Without sequences: what has been pushed here, and under which ids.
	loose   *rechunk.Chunker
	holders []store.HolderID
}

// Push applies events that come in by another way than ZMQ and returns when the
// index has them.
//
// With a sequence they are applied in order, each once: one that has been applied
// is skipped, and as there is nothing to replay from, a hole, or a 0 that is not
// the last one again, begins a new generation. Without a sequence they are
// applied as they come, under no guard; what they need of blocks before is known to
// this process alone then. A rank must not be both read and pushed: ErrReading.
//
// Other errors are those of the index: store.ErrUnknownPod when the pod is not
// registered, store.ErrUnavailable, store.ErrInvalid and the like. A push with a
// sequence can be tried again after any error.
func (in *Ingester) Push(ctx context.Context, p Pushed) (PushResult, error) {
	if err := p.validate(); err != nil {
		return PushResult{}, err
	}
	if err := in.enter(); err != nil {
		return PushResult{}, err
	}
	defer in.active.Done()
	if in.reader(p.Pod, p.Rank) != nil {
		return PushResult{}, fmt.Errorf("%w: %s/%d, so its events cannot be pushed too", ErrReading, p.Pod, p.Rank)
	}
	state := in.pushers.get(rankKey{p.Pod, p.Rank})
	select {
	case state.busy <- struct{}{}:
		defer func() { <-state.busy }()
	case <-ctx.Done():
		return PushResult{}, ctx.Err()
	}
	if state.model.Name != p.Model {
		m, err := in.model(ctx, p.Model)
		if err != nil {
			return PushResult{}, err
		}
		*state = pusher{busy: state.busy, model: m}
	}
	var res PushResult
	var err error
	if p.Seq == nil {
		res, err = in.pushLoose(ctx, state, &p)
	} else {
		res, err = in.pushInOrder(ctx, state, &p)
	}
	res.Skipped += p.Skipped
	if err != nil {
		return PushResult{}, err
	}
	if f := in.config.Observer.Events; f != nil && res.Applied > 0 {
		var kinds [event.NumKinds]int
		for i := range p.Events {
			kinds[p.Events[i].Kind]++
		}
		for k, n := range kinds {
			if n > 0 {
				f(p.Pod, p.Rank, event.Kind(k), n)
			}
		}
	}
	return res, nil
}

func (p *Pushed) validate() error {
	if err := store.CheckPodName(p.Pod); err != nil {
		return err
	}
	if err := store.CheckRank(p.Rank); err != nil {
		return err
	}
	if err := (&store.Batch{Pod: p.Pod, Rank: p.Rank, Model: p.Model}).Validate(); err != nil {
		return err
	}
	if p.Seq != nil && *p.Seq > maxSeq {
		return fmt.Errorf("%w: seq is %d, it can be 0 to %d", store.ErrInvalid, *p.Seq, uint64(maxSeq))
	}
	for i := range p.Events {
		if k := p.Events[i].Kind; k == 0 || k >= event.NumKinds {
			return fmt.Errorf("%w: events[%d] is of no kind", store.ErrInvalid, i)
		}
	}
	return nil
}

// mark is a fingerprint of what the events say.
func (p *Pushed) mark() uint64 {
	h := xxh3.New()
	var buf []byte
	for i := range p.Events {
		e := &p.Events[i]
		buf = append(buf[:0], byte(e.Kind))
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(e.Hashes)))
		for _, v := range e.Hashes {
			buf = binary.BigEndian.AppendUint64(buf, uint64(v))
		}
		buf = binary.BigEndian.AppendUint64(buf, uint64(e.Parent))
		for _, v := range e.Tokens {
			buf = binary.BigEndian.AppendUint32(buf, v)
		}
		buf = append(append(buf, e.Medium...), 0)
		buf = append(append(buf, e.LoRA...), 0)
		buf = append(append(buf, e.Salt...), 0)
		_, _ = h.Write(buf) // a hash takes everything
	}
	return h.Sum64()
}

// chunked takes events into a Chunker, one by one, and counts those that had no effect
// by their nature.
func chunked(ctx context.Context, c *rechunk.Chunker, events []event.Event, read rechunk.Reader) (applied, skipped int, err error) {
	for i := range events {
		before := c.Stats()
		b := event.Batch{Events: events[i : i+1]}
		if err := c.Apply(ctx, &b, read); err != nil {
			return applied, skipped, err
		}
		after := c.Stats()
		left := after.UnknownRemoved - before.UnknownRemoved
		for r := range after.Skipped {
			left += after.Skipped[r] - before.Skipped[r]
		}
		if n := uint64(len(events[i].Hashes)); n > 0 && left >= n {
			skipped++
		} else {
			applied++
		}
	}
	return applied, skipped, nil
}

// write has the index take batches.
func (in *Ingester) write(ctx context.Context, batches []store.Batch) error {
	select {
	case err := <-in.writer.start(batches):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pushLoose applies events under no guard.
func (in *Ingester) pushLoose(ctx context.Context, s *pusher, p *Pushed) (res PushResult, err error) {
	reg, err := in.config.Index.Registry(ctx)
	if err != nil {
		return res, err
	}
	for _, id := range s.holders {
		if _, _, live := reg.Holder(id); !live {
			s.loose = nil // the blocks that it knows of are gone
		}
	}
	if s.loose == nil {
		if s.loose, err = rechunk.New(in.chunking(p.Pod, p.Rank, s.model.BlockSize, true)); err != nil {
			return res, fmt.Errorf("ingest: model %s: %w", p.Model, err)
		}
	}
	chunk := s.loose
	s.loose, s.holders = nil, nil // for all that goes wrong from here on
	none := func(_ context.Context, keys ...store.MapKey) ([][]byte, error) { return make([][]byte, len(keys)), nil }
	if res.Applied, res.Skipped, err = chunked(ctx, chunk, p.Events, none); err != nil {
		return res, err
	}
	changes, err := chunk.Take(ctx, 0, none)
	if err != nil {
		return res, err
	}
	if len(changes.Ops) > 0 {
		if err := in.write(ctx, []store.Batch{{Pod: p.Pod, Rank: p.Rank, Model: p.Model, Ops: changes.Ops}}); err != nil {
			return res, err
		}
		if reg, err = in.config.Index.Registry(ctx); err != nil {
			return res, err
		}
	}
	chunk.Done()
	s.loose = chunk
	for _, h := range reg.Holders() {
		if h.Pod == p.Pod && h.Rank == p.Rank {
			s.holders = append(s.holders, h.ID)
		}
	}
	return res, nil
}

// pushInOrder applies events under the guard of their sequence.
func (in *Ingester) pushInOrder(ctx context.Context, s *pusher, p *Pushed) (PushResult, error) {
	mark := p.mark()
	for try := 0; ; try++ {
		res, err := in.pushOnce(ctx, s, p, mark)
		if err == nil {
			return res, nil
		}
		if errors.Is(err, store.ErrEnded) {
			// By somebody; or the index has lost of its map what is needed, and would say
			// so again: then another begins.
			s.ended = s.life.Generation
		}
		s.life, s.chunk = store.Life{}, nil
		// Somebody has ended the generation, or another replica has begun one: a few
		// times that passes.
		if try >= 2 || !errors.Is(err, store.ErrEnded) && !errors.Is(err, store.ErrFenced) {
			return res, err
		}
	}
}

func (in *Ingester) pushOnce(ctx context.Context, s *pusher, p *Pushed, mark uint64) (res PushResult, err error) {
	seq := *p.Seq
	deadline := time.Now().Add(holeWait)
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		if err := in.refresh(ctx, s, p); err != nil {
			return res, err
		}
		if s.life.Seq == 0 || seq <= s.life.Seq || !time.Now().Add(wait).Before(deadline) {
			break
		}
		pause(ctx, wait)
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
	}
	// The sequence n of the engine is n+1 in the index.
	reason := Reason(0)
	switch next := s.life.Seq; {
	case s.life.Generation == 0 && s.ended != 0:
		reason = Ended
	case s.life.Generation == 0:
		reason = First
	case next == 0:
	case seq > next:
		reason = Lost
	case seq == next:
	case seq == next-1 && s.wrote && s.written.mark != mark, seq == 0 && next > 1:
		reason = Restarted
	default:
		return PushResult{Skipped: len(p.Events), Duplicate: true}, nil
	}
	if reason != 0 {
		fence := max(s.life.Fence, 1)
		// The index may have forgotten the model, and be told another block size since.
		if s.model, err = in.model(ctx, p.Model); err != nil {
			return res, err
		}
		gen, err := in.config.Index.Begin(ctx, p.Pod, p.Rank, fence)
		if err != nil {
			return res, err
		}
		s.life, s.wrote, s.ended = store.Life{Generation: gen, Fence: fence}, false, 0
		if s.chunk, err = in.chunker(p.Pod, p.Rank, s, true); err != nil {
			return res, err
		}
		res.Began = true
		if f := in.config.Observer.Began; f != nil {
			f(p.Pod, p.Rank, gen, reason)
		}
	}
	gen := s.life.Generation
	read := func(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
		return in.config.Index.ReadMap(ctx, gen, keys...)
	}
	if res.Applied, res.Skipped, err = chunked(ctx, s.chunk, p.Events, read); err != nil {
		return res, err
	}
	changes, err := s.chunk.Take(ctx, seq+1, read)
	if err != nil {
		return res, err
	}
	b := store.Batch{Pod: p.Pod, Rank: p.Rank, Model: p.Model, Guard: &store.Guard{Generation: gen, Fence: s.life.Fence, Seq: seq + 1}}
	batches := changes.AppendBatches(nil, b)
	lasts := []last{{seq, mark}}
	if s.wrote {
		lasts = append(lasts, s.written)
	}
	b.Map = []store.MapOp{{MapKey: lastKey, Value: appendLasts(nil, lasts...)}}
	if err := in.write(ctx, append(batches, b)); err != nil {
		return res, err
	}
	s.chunk.Done()
	s.life.Seq = seq + 1
	s.written, s.wrote = lasts[0], true
	return res, nil
}

func (in *Ingester) chunker(pod string, rank int, s *pusher, fresh bool) (*rechunk.Chunker, error) {
	c, err := rechunk.New(in.chunking(pod, rank, s.model.BlockSize, fresh))
	if err != nil {
		return nil, fmt.Errorf("ingest: model %s: %w", s.model.Name, err)
	}
	return c, nil
}

// refresh makes the state what stands in the index, if another replica or another life
// has moved that.
func (in *Ingester) refresh(ctx context.Context, s *pusher, p *Pushed) error {
	life, err := in.config.Index.Life(ctx, p.Pod, p.Rank)
	if err != nil {
		return err
	}
	if life == s.life && s.chunk != nil {
		return nil
	}
	s.life, s.chunk, s.wrote = life, nil, false
	if life.Generation == 0 {
		return nil
	}
	if life.Generation == s.ended {
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	if life.Seq, err = in.config.Index.TakeOver(ctx, life.Generation, life.Fence); err != nil {
		return err
	}
	if life.Seq == 0 {
		// Parts of something may have been applied.
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	read := func(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
		return in.config.Index.ReadMap(ctx, life.Generation, keys...)
	}
	torn, err := rechunk.Torn(ctx, life.Seq, read)
	if err != nil {
		return err
	}
	if torn {
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	values, err := read(ctx, lastKey)
	if err != nil {
		return err
	}
	s.life = life
	s.written.seq = life.Seq - 1
	s.written.mark, s.wrote = findLast(values[0], life.Seq-1)
	s.chunk, err = in.chunker(p.Pod, p.Rank, s, false)
	return err
}
