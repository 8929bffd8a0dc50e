package ingest

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// Pushed is one push of events.
type Pushed struct {
	Pod, Model, Engine string
	// Rank names the stream of pushes that this one is of. Seq is its number in that
	// stream, from 0; nil is a push without order.
	Rank int
	Seq  *uint64
	// Ranks are the events. A push may have some of any ranks, and of none: engines
	// gather what their ranks have told since the last time.
	Ranks []RankEvents
	// Skipped is how many more there were that could not be understood.
	Skipped int
}

// RankEvents are the events that a push has of one rank, in order.
type RankEvents struct {
	Rank   int
	Events []event.Event
}

// PushResult is what has become of the events of a push.
type PushResult struct {
	// Applied are events that have been applied, Skipped those that could not be understood, are not for an
	// index or had been applied before.
	Applied, Skipped int
	// Ranks says it of each rank that the push has events of, ascending. It has the
	// one that names the stream too, if there is a sequence. It also has those whose
	// generations ended because a push before this one is missing.
	Ranks []RankResult
}

// RankResult is what has become of one rank's events.
type RankResult struct {
	Rank int
	// Applied and Skipped are as in PushResult, without what could not be understood.
	Applied, Skipped int
	// Duplicate reports whether the sequence had been applied before.
	Duplicate bool
	// Began is why a new generation had to begin, 0 if none had. With any reason but
	// First the rank has lost what it held.
	Began Reason
	// Blocks counts blocks of applied and skipped events that were not indexed, by
	// reason.
	Blocks [rechunk.NumReasons]uint64
}

// maxSeq is the highest sequence that the index can count.
const maxSeq = store.MaxSequence - 1

// Push applies events that come in by another way than ZMQ and returns when the
// index has them.
//
// With a sequence they are applied in order, each once: one that has been applied is
// skipped. There is nothing to replay from. So a hole begins a new generation of
// each rank that the stream has events of. A 0 that is not the last one again does
// so too. A push that has nothing of a rank is no hole in it. Without a sequence
// events are applied as they come, under no guard; what they need of blocks before
// is known to this process alone then. A rank must not be both read and pushed:
// ErrReading.
//
// Sequences are of one model, that of the pod's registration. A push of another is
// ErrOtherModel, unless it goes on where the last one of a pod that only a push has
// registered ended. That is the same stream with another name for its model: a new
// generation begins, for the registration that says so.
//
// Other errors are those of the index. The pod may not be registered
// (store.ErrUnknownPod), or its registration may lack a rank of the push
// (store.ErrNoRank). Others are store.ErrUnavailable, store.ErrInvalid and the like.
// A push with a sequence can be tried again after any error.
func (in *Ingester) Push(ctx context.Context, p Pushed) (PushResult, error) {
	if err := p.validate(); err != nil {
		return PushResult{}, err
	}
	if err := in.enter(); err != nil {
		return PushResult{}, err
	}
	defer in.active.Done()
	states, release, err := in.lockPushers(ctx, &p)
	if err != nil {
		return PushResult{}, err
	}
	defer release()
	var ranks []RankResult
	if p.Seq == nil {
		ranks, err = in.pushLoose(ctx, states, &p)
	} else {
		ranks, err = (&stream{in: in, p: &p, mark: p.mark(), states: states, own: states[p.Rank]}).push(ctx)
	}
	if err != nil {
		return PushResult{}, err
	}
	res := PushResult{Skipped: p.Skipped, Ranks: ranks}
	for i := range ranks {
		res.Applied += ranks[i].Applied
		res.Skipped += ranks[i].Skipped
		if ranks[i].Applied > 0 {
			in.countEvents(&p, ranks[i].Rank)
		}
	}
	return res, nil
}

// countEvents tells the observer of a rank's events that have been applied.
func (in *Ingester) countEvents(p *Pushed, rank int) {
	var kinds [event.NumKinds]int
	for _, e := range p.eventsOf(rank) {
		kinds[e.Kind]++
	}
	for k, n := range kinds {
		if n > 0 {
			in.config.Observer.Events(p.Pod, rank, event.Kind(k), n)
		}
	}
}

// engineOf returns the kind of the engine that pushes, as the push or else the pod's
// registration says; "" when neither does.
func (in *Ingester) engineOf(p *Pushed) string {
	if p.Engine != "" {
		return p.Engine
	}
	reg := in.config.Index.Cached()
	if i, known := reg.PodIndex(p.Pod); known {
		return reg.Pods[i].Engine
	}
	return ""
}

func (p *Pushed) validate() error {
	if err := store.CheckPodName(p.Pod); err != nil {
		return err
	}
	if err := (&store.Batch{Pod: p.Pod, Rank: p.Rank, Model: p.Model}).Validate(); err != nil {
		return err
	}
	if p.Seq != nil && *p.Seq > maxSeq {
		return fmt.Errorf("%w: seq is %d, it can be 0 to %d", store.ErrInvalid, *p.Seq, uint64(maxSeq))
	}
	for i := range p.Ranks {
		r := &p.Ranks[i]
		if err := store.CheckRank(r.Rank); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Ranks[:i], func(o RankEvents) bool { return o.Rank == r.Rank }) {
			return fmt.Errorf("%w: rank %d is there twice", store.ErrInvalid, r.Rank)
		}
		for j := range r.Events {
			if k := r.Events[j].Kind; k == 0 || k >= event.NumKinds {
				return fmt.Errorf("%w: event %d of rank %d is of no kind", store.ErrInvalid, j, r.Rank)
			}
		}
	}
	return nil
}

// eventsOf returns the events that the push has of a rank.
func (p *Pushed) eventsOf(rank int) []event.Event {
	for i := range p.Ranks {
		if p.Ranks[i].Rank == rank {
			return p.Ranks[i].Events
		}
	}
	return nil
}

// ranks returns the ranks that the push is about, ascending.
func (p *Pushed) ranks() []int {
	out := make([]int, 0, len(p.Ranks)+1)
	for i := range p.Ranks {
		out = append(out, p.Ranks[i].Rank)
	}
	if p.Seq != nil {
		out = append(out, p.Rank)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mark is a fingerprint of what the events say. The rank stands in it where it is not
// the stream's own.
func (p *Pushed) mark() uint64 {
	h := xxh3.New()
	var buf []byte
	for _, rank := range p.ranks() {
		if rank != p.Rank {
			_, _ = h.Write(binary.BigEndian.AppendUint16(buf[:0], uint16(rank))) // a hash takes everything
		}
		events := p.eventsOf(rank)
		for i := range events {
			buf = appendMarked(buf[:0], &events[i])
			_, _ = h.Write(buf)
		}
	}
	return h.Sum64()
}

func appendMarked(buf []byte, e *event.Event) []byte {
	buf = append(buf, byte(e.Kind))
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
	return append(append(buf, e.Salt...), 0)
}

// chunked takes events into a Chunker and counts those that had no effect
// by their nature.
func (r *RankResult) chunked(ctx context.Context, c *rechunk.Chunker, events []event.Event, read rechunk.Reader) error {
	begin := c.Stats()
	before := begin
	err := c.ApplyEach(ctx, &event.Batch{Events: events}, read, func(i int) {
		after := c.Stats()
		left := after.UnknownRemoved - before.UnknownRemoved
		for r := range after.Skipped {
			left += after.Skipped[r] - before.Skipped[r]
		}
		if n := uint64(len(events[i].Hashes)); n > 0 && left >= n {
			r.Skipped++
		} else {
			r.Applied++
		}
		before = after
	})
	for reason, n := range before.Skipped {
		r.Blocks[reason] = n - begin.Skipped[reason]
	}
	return err
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
func (in *Ingester) pushLoose(ctx context.Context, states map[int]*pusher, p *Pushed) (out []RankResult, err error) {
	for _, rank := range p.ranks() {
		res, err := in.pushLooseRank(ctx, states[rank], p, rank)
		if err != nil {
			return nil, err
		}
		out = append(out, res)
	}
	return out, nil
}

func (in *Ingester) pushLooseRank(ctx context.Context, s *pusher, p *Pushed, rank int) (res RankResult, err error) {
	res.Rank = rank
	reg, err := in.config.Index.Registry(ctx)
	if err != nil {
		return res, err
	}
	for _, id := range s.holders {
		if _, _, live := reg.AnyHolder(id); !live {
			s.loose = nil // the blocks that it knows of are gone
		}
	}
	if s.loose == nil {
		if s.loose, err = rechunk.New(in.chunking(p.Pod, "", rank, s.model.BlockSize, true)); err != nil {
			return res, fmt.Errorf("ingest: model %s: %w", p.Model, err)
		}
		s.loose.NoteUnseen()
	}
	chunk := s.loose
	s.loose, s.holders = nil, nil // for all that goes wrong from here on
	none := func(_ context.Context, keys ...store.MapKey) ([][]byte, error) { return make([][]byte, len(keys)), nil }
	chunk.Tell(in.engineOf(p))
	if err := res.chunked(ctx, chunk, p.eventsOf(rank), none); err != nil {
		return res, err
	}
	changes, err := chunk.Take(ctx, 0, none)
	if err != nil {
		return res, err
	}
	if len(changes.Ops) > 0 {
		if err := in.write(ctx, []store.Batch{{Pod: p.Pod, Rank: rank, Model: p.Model, Ops: changes.Ops, Reuse: changes.Reuse}}); err != nil {
			return res, err
		}
		if reg, err = in.config.Index.Registry(ctx); err != nil {
			return res, err
		}
	}
	chunk.Done()
	s.loose = chunk
	for _, h := range reg.Holders() {
		if h.Pod == p.Pod && h.Rank == rank && h.Tier != store.Predicted {
			s.holders = append(s.holders, h.ID)
		}
	}
	return res, nil
}
