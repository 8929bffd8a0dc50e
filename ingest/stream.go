package ingest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// holeWait is how long a push waits for the one before it, which may be on its way
// through another replica.
const holeWait = 250 * time.Millisecond

// stream is a push that is being applied under the guard of its sequence.
//
// The sequence numbers the pushes of a stream, which is named by one rank, its own, and
// may have events of any. Where the stream is stands in the own rank's generation,
// and each push is written there, whether it has events of that rank or not. Another rank
// has a generation that names the one that feeds it. It goes on as long as that one does:
//
//  1. the other ranks' events are written, each under its generation and the sequence
//  2. those of the own rank are written, which says that the whole push has been applied
//
// so a push that is tried again finds in the own rank whether all of it was done. In
// each other it finds whether that rank's part was. When a push is missing, the own
// generation ends before anything else is done, and then those that it fed. They end
// whether they are in the push or not: what is missing may have been about any of them.
type stream struct {
	in     *Ingester
	p      *Pushed
	mark   uint64
	states map[int]*pusher // by rank, of ranks that the push is about
	own    *pusher

	done map[int]RankResult // written in this call
}

// push applies the events.
func (s *stream) push(ctx context.Context) ([]RankResult, error) {
	s.done = map[int]RankResult{}
	for try := 0; ; try++ {
		err := s.once(ctx)
		if err == nil {
			return s.results(), nil
		}
		// Another process has ended a generation, or another replica has begun one: a few
		// times that passes.
		if try >= 2 || !errors.Is(err, store.ErrEnded) && !errors.Is(err, store.ErrFenced) {
			return nil, err
		}
	}
}

func (s *stream) results() []RankResult {
	out := make([]RankResult, 0, len(s.done))
	for _, r := range s.done {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b RankResult) int { return a.Rank - b.Rank })
	return out
}

func (s *stream) once(ctx context.Context) error {
	reason, duplicate, err := s.judge(ctx)
	if err != nil {
		s.own.forget(err)
		return err
	}
	if duplicate {
		for rank := range s.states {
			s.duplicate(rank)
		}
		return nil
	}
	if reason != 0 {
		if err := s.beginOwn(ctx, reason); err != nil {
			s.own.forget(err)
			return err
		}
	}
	for _, rank := range s.p.ranks() {
		if rank == s.p.Rank {
			continue
		}
		if err := s.feed(ctx, rank, reason); err != nil {
			s.states[rank].forget(err)
			return err
		}
	}
	if err := s.write(ctx, s.p.Rank, s.own, reason); err != nil {
		s.own.forget(err)
		return err
	}
	return nil
}

// duplicate notes that a rank's part of the push had been applied before, unless this
// call has done it.
func (s *stream) duplicate(rank int) {
	if _, ok := s.done[rank]; !ok {
		s.done[rank] = RankResult{Rank: rank, Skipped: len(s.p.eventsOf(rank)), Duplicate: true}
	}
}

// judge reports why the stream has to begin anew, 0 if it goes on, and whether the push
// has been applied already.
func (s *stream) judge(ctx context.Context) (reason Reason, duplicate bool, err error) {
	seq, own := *s.p.Seq, s.own
	deadline := time.Now().Add(holeWait)
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		if err := s.in.refresh(ctx, own, s.p.Pod, s.p.Rank); err != nil {
			return 0, false, err
		}
		if own.life.Seq == 0 || own.other || seq <= own.life.Seq || !time.Now().Add(wait).Before(deadline) {
			break
		}
		pause(ctx, wait)
		if ctx.Err() != nil {
			return 0, false, ctx.Err()
		}
	}
	if own.life.Generation == 0 || own.other {
		if err := s.claim(ctx); err != nil {
			return 0, false, err
		}
	}
	// The sequence n of the engine is n+1 in the index.
	switch next := own.life.Seq; {
	case own.other:
		return Renamed, false, nil
	case own.life.Generation == 0 && own.ended != 0:
		return Ended, false, nil
	case own.life.Generation == 0:
		return First, false, nil
	case own.feeder != feeder{}:
		return Restarted, false, nil // it was of another stream
	case next == 0:
	case seq > next:
		return Lost, false, nil
	case seq == next:
	case seq == next-1 && own.wrote && own.written.mark != s.mark, seq == 0 && next > 1:
		return Restarted, false, nil
	default:
		return 0, true, nil
	}
	return 0, false, nil
}

// claim makes sure that the pod is registered for the push's model before a generation of
// it begins. What a pod's ranks hold is of one model, and two streams that end each other
// would both get nothing. A registration that a push has made follows the stream that it
// was made for; any other is for its maker to change.
func (s *stream) claim(ctx context.Context) error {
	reg, err := s.in.config.Index.Registry(ctx)
	if err != nil {
		return err
	}
	i, known := reg.PodIndex(s.p.Pod)
	if !known {
		return store.ErrUnknownPod
	}
	p := reg.Pods[i]
	if p.Model == s.p.Model {
		return nil
	}
	if goesOn := s.own.other && *s.p.Seq == s.own.life.Seq; goesOn && byPush(&p) {
		p.Model = s.p.Model
		_, err := s.in.config.Index.Register(ctx, p)
		return err
	}
	return fmt.Errorf("%w: the pod %s is registered for the model %s, and numbered events of a pod are of one model: register %s "+
		"beside it (POST /v1/pods with beside), push its events under another pod name, or register the pod for it instead, which ends what it holds now", ErrOtherModel, p.Name, p.Model, s.p.Model)
}

// byPush reports whether a registration says no more than a push does, which registers an unregistered pod.
func byPush(p *store.Pod) bool {
	return reflect.DeepEqual(*p, store.Pod{Name: p.Name, Model: p.Model})
}

// begin begins a new generation of a rank.
func (s *stream) begin(ctx context.Context, rank int, st *pusher, reason Reason) (err error) {
	fence := max(st.life.Fence, 1)
	// The index may have forgotten the model, and be told another block size since.
	if st.model, err = s.in.model(ctx, s.p.Model); err != nil {
		return err
	}
	gen, err := s.in.config.Index.Begin(ctx, s.p.Pod, rank, fence)
	if err != nil {
		return err
	}
	st.life, st.feeder, st.wrote, st.ended, st.other = store.Life{Generation: gen, Fence: fence}, feeder{}, false, 0, false
	if st.chunk, err = s.in.chunker(s.p.Pod, rank, st, true); err != nil {
		return err
	}
	s.in.config.Observer.Began(s.p.Pod, rank, gen, reason)
	return nil
}

// beginOwn begins the stream anew, and ends all that it fed. A rank that is in the push is
// begun when its turn comes; another one that holds blocks is now.
//
//  1. A: begins the own rank's generation 9 after a hole, and dies
//  2. B: gets the push again, and finds 9 with nothing applied
//
// so B begins once more, and ends what A has not.
func (s *stream) beginOwn(ctx context.Context, reason Reason) error {
	if err := s.begin(ctx, s.p.Rank, s.own, reason); err != nil {
		return err
	}
	reg, err := s.in.config.Index.Registry(ctx)
	if err != nil {
		return err
	}
	pod, known := reg.PodIndex(s.p.Pod)
	if !known {
		return store.ErrUnknownPod
	}
	for _, slot := range reg.Slots {
		if slot.Pod != pod || s.states[slot.Rank] != nil {
			continue
		}
		if err := s.endFed(ctx, slot.Rank, reason); err != nil {
			return err
		}
	}
	return nil
}

// endFed ends the generation of a rank that the push has nothing of, if the stream fed it.
func (s *stream) endFed(ctx context.Context, rank int, reason Reason) error {
	life, err := s.in.config.Index.Life(ctx, s.p.Pod, rank)
	if err != nil || life.Generation == 0 {
		return err
	}
	values, err := s.in.mapReader(life.Generation)(ctx, feederKey)
	switch {
	case errors.Is(err, store.ErrEnded): // or its map is lost, which ends it too
	case err != nil:
		return err
	default:
		if f := parseFeeder(values[0]); f == (feeder{}) || f.rank != s.p.Rank {
			return nil
		}
	}
	gen, err := s.in.config.Index.Begin(ctx, s.p.Pod, rank, max(life.Fence, 1))
	if err != nil {
		return err
	}
	s.in.config.Observer.Began(s.p.Pod, rank, gen, reason)
	s.done[rank] = RankResult{Rank: rank, Began: reason}
	return nil
}

// feed applies the events of a rank that does not name the stream. Argument began is why
// the stream has begun anew, 0 if it goes on.
func (s *stream) feed(ctx context.Context, rank int, began Reason) error {
	st := s.states[rank]
	if err := s.in.refresh(ctx, st, s.p.Pod, rank); err != nil {
		return err
	}
	mine := feeder{rank: s.p.Rank, gen: s.own.life.Generation}
	reason := Reason(0)
	switch {
	case st.life.Generation == 0 && st.ended != 0:
		reason = Ended
	case st.life.Generation == 0 && began == Renamed:
		reason = Renamed // the registration has ended it with the others
	case st.life.Generation == 0:
		reason = First
	case st.feeder != mine && began > First:
		reason = began
	case st.feeder != mine:
		reason = Restarted // it was of another stream, or of this one's former life
	case st.life.Seq > *s.p.Seq:
		s.duplicate(rank)
		return nil
	}
	if reason != 0 {
		if err := s.begin(ctx, rank, st, reason); err != nil {
			return err
		}
		st.feeder = mine
	}
	return s.write(ctx, rank, st, reason)
}

// write takes a rank's events in and writes them. began is why the rank's generation has
// just begun, 0 if it has not.
func (s *stream) write(ctx context.Context, rank int, st *pusher, began Reason) error {
	seq, gen := *s.p.Seq, st.life.Generation
	read := s.in.mapReader(gen)
	res := RankResult{Rank: rank, Began: began}
	if began != 0 && seq > 0 {
		st.chunk.NoteUnseen()
	}
	st.chunk.Tell(s.in.engineOf(s.p))
	if err := res.chunked(ctx, st.chunk, s.p.eventsOf(rank), read); err != nil {
		return err
	}
	changes, err := st.chunk.Take(ctx, seq+1, read)
	if err != nil {
		return err
	}
	b := store.Batch{Pod: s.p.Pod, Rank: rank, Model: s.p.Model, Guard: &store.Guard{Generation: gen, Fence: st.life.Fence, Seq: seq + 1}}
	batches := changes.AppendBatches(nil, b)
	lasts := []last{{seq, s.mark}}
	switch {
	case st != s.own && began == 0: // its feeder is written
	case st != s.own:
		b.Map = []store.MapOp{{MapKey: feederKey, Value: st.feeder.value()}}
	default:
		if st.wrote {
			lasts = append(lasts, st.written)
		}
		b.Map = []store.MapOp{{MapKey: lastKey, Value: appendLasts(nil, blockkey.ModelOf(s.p.Model), lasts...)}}
	}
	if err := s.in.write(ctx, append(batches, b)); err != nil {
		return err
	}
	st.chunk.Done()
	st.life.Seq = seq + 1
	st.written, st.wrote = lasts[0], true
	s.done[rank] = res
	return nil
}
