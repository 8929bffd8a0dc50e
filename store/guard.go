package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Errors of guarded writes. All of them are final for the writer that gets them:
// trying again does not help.
var (
	// ErrFenced says that another writer owns the generation under a higher
	// fence. Stop writing for it.
	ErrFenced = errors.New("store: another writer has taken the generation over")
	// ErrEnded says that the generation has ended, or that the index has lost
	// some of what was written under it. Begin a new one.
	ErrEnded = errors.New("store: the generation has ended")
	// ErrUnknownPod says that a pod is not registered.
	ErrUnknownPod = errors.New("store: the pod is not registered")
	// ErrNoRank says that the pod's registration declares how many ranks it has, and that this is not one of
	// them.
	ErrNoRank = errors.New("store: the pod has no such rank")
)

// Generation names one life of a (pod, rank): of its process and event stream.
// It is a number from the same series as the holder ids and is never given
// twice. 0 means none.
type Generation uint64

// Guard makes a batch one of a numbered series that a single writer owns.
//
//   - A batch whose fence is older than the generation's is refused with
//     ErrFenced, whatever its sequence.
//   - A batch whose sequence is not newer than the last that was applied is
//     skipped, which is no error; Stats.Duplicates counts it.
//   - A batch of an ended generation, or of one that is not of the batch's
//     (pod, rank), is refused with ErrEnded; under an old fence perhaps with
//     ErrFenced.
//
// A writer sends the batches of a generation one after the other, each when the
// last has returned. The triple (generation, fence, sequence) stands for one
// content for ever: a retry sends the same. An error may leave open what has
// been applied. Then the same batch again completes it, and so does one with a
// newer sequence that has all of its ops too. After TakeOver the sequences
// beyond the watermark are free to be cut anew.
type Guard struct {
	// Generation is what Begin has returned.
	Generation Generation
	// Fence numbers the writers that own the generation, ascending: it is given
	// by whatever chooses the owner. 1 to MaxSequence.
	Fence uint64
	// Seq is the batch's place in the series, 1 to MaxSequence. There may be
	// holes. A batch that folds several events has the sequence of the last.
	Seq uint64
}

// MaxSequence is the highest fence and sequence: what a float64 holds exactly,
// as the scripts in Redis count.
const MaxSequence = 1<<53 - 1

// Life is what an index knows about the present generation of a (pod, rank).
type Life struct {
	// Generation is 0 when the rank has none that Begin has begun.
	Generation Generation
	// Fence is that of the owner, Seq the watermark: all batches up to it have
	// been applied wholly.
	Fence, Seq uint64
}

// RefusedError says which generations of a call were refused, and why. What the
// call had for other generations has been applied, unless it was stopped.
type RefusedError struct {
	// Generations has ErrFenced or ErrEnded for each that was refused.
	Generations map[Generation]error
	// Stopped is what ended the call before all others were done; nil when nothing has.
	// Of what is not refused any part may have been applied then.
	Stopped error
}

// Error lists the generations.
func (e *RefusedError) Error() string {
	var parts []string
	if e.Stopped != nil {
		parts = append(parts, e.Stopped.Error())
	}
	for _, g := range slices.Sorted(maps.Keys(e.Generations)) {
		parts = append(parts, fmt.Sprintf("generation %d: %v", g, e.Generations[g]))
	}
	return strings.Join(parts, "; ")
}

// Unwrap makes errors.Is find each reason, and what has stopped the call. A caller whose part of a call is
// not refused looks at Stopped: the reasons are not its own.
func (e *RefusedError) Unwrap() []error {
	errs := slices.Collect(maps.Values(e.Generations))
	if e.Stopped != nil {
		errs = append(errs, e.Stopped)
	}
	return errs
}

// CheckFence returns ErrInvalid when no writer can have this fence.
func CheckFence(fence uint64) error {
	if fence < 1 || fence > MaxSequence {
		return fmt.Errorf("%w: fence is %d, it can be 1 to %d", ErrInvalid, fence, uint64(MaxSequence))
	}
	return nil
}

func (g *Guard) validate() error {
	if err := CheckFence(g.Fence); err != nil {
		return err
	}
	if g.Generation == 0 {
		return fmt.Errorf("%w: a guard without a generation", ErrInvalid)
	}
	if g.Seq < 1 || g.Seq > MaxSequence {
		return fmt.Errorf("%w: sequence is %d, it can be 1 to %d", ErrInvalid, g.Seq, uint64(MaxSequence))
	}
	return nil
}

// ApplyRounds applies the batches of a call round by round, and returns what Index.Apply does. Func
// apply puts the generations whose guards refuse into refused; an error of it ends the call.
func ApplyRounds(batches []Batch, apply func(round []Batch, refused *RefusedError) error) error {
	var refused RefusedError
	for _, round := range Rounds(batches) {
		if refused.Stopped = apply(round, &refused); refused.Stopped != nil {
			break
		}
	}
	if refused.Generations != nil {
		return &refused
	}
	return refused.Stopped
}

// Rounds cuts the batches of a call into lists, in order, each of which an index can fold
// into one change. In a list all batches have guards or none has, and those of one (pod,
// rank) have the same guard. Batches with one guard are one content together. A batch that
// enrols a pod comes in a later list than predictions for that pod, which do nothing if it
// is not there. It is for implementations of Index.
func Rounds(batches []Batch) [][]Batch {
	type who struct {
		pod  string
		rank int
	}
	var out [][]Batch
	var seen map[who]Guard
	var predicted []string // pods for which nothing but predictions has come
	begin := 0
	for i := range batches {
		b := &batches[i]
		fits := (b.Guard != nil) == (batches[begin].Guard != nil)
		if b.Guard != nil && fits {
			last, ok := seen[who{b.Pod, b.Rank}]
			fits = !ok || last == *b.Guard
		}
		enrols := b.Guard == nil && b.Enrols()
		fits = fits && (!enrols || !slices.Contains(predicted, b.Pod))
		if !fits {
			out = append(out, batches[begin:i])
			begin, seen, predicted = i, nil, nil
		}
		if b.Guard == nil && !enrols && slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Kind == Add }) {
			predicted = append(predicted, b.Pod)
		}
		if b.Guard != nil {
			if seen == nil {
				seen = map[who]Guard{}
			}
			seen[who{b.Pod, b.Rank}] = *b.Guard
		}
	}
	if begin < len(batches) {
		out = append(out, batches[begin:])
	}
	return out
}
