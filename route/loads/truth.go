package loads

import (
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// When the index counts as wrong about a rank.
const (
	// minTruth is how many requests must have told what they were given.
	minTruth = 32
	// TruthWindow is at how many requests all counts of a rank are halved, so that what was
	// long ago counts less.
	TruthWindow = 256
	// TruthForget is how long a rank's counts are kept to which nothing is added.
	TruthForget = time.Hour
)

// Truth is what requests on a rank were promised and given, of one generation.
type Truth struct {
	store.RankRef
	// Generation is the rank's at that time.
	Generation store.Generation
	// Requests is of how many requests, Predicted how many tokens the index had them find
	// cached, and Delivered how many of these the engine had.
	Requests, Predicted, Delivered int64
}

// Lies reports whether less than half of what the index promises is there, of enough
// requests to tell.
func (t *Truth) Lies() bool { return t.Requests >= minTruth && 2*t.Delivered < t.Predicted }

// add adds what further requests found. A report on a generation that is over is left out, and a newer one
// begins anew. lua/truth.lua does the same.
func (t *Truth) add(more *Truth) {
	if more.Generation < t.Generation {
		return
	}
	if more.Generation > t.Generation {
		*t = Truth{RankRef: more.RankRef, Generation: more.Generation}
	}
	t.Requests, t.Predicted, t.Delivered = t.Requests+more.Requests, t.Predicted+more.Predicted, t.Delivered+more.Delivered
	for t.Requests > TruthWindow {
		t.Requests, t.Predicted, t.Delivered = t.Requests/2, t.Predicted/2, t.Delivered/2
	}
}

// CheckTruths returns ErrInvalid, with the reason, when AddTruth cannot be told this.
func CheckTruths(list []Truth) error {
	if len(list) > MaxTurns {
		return fmt.Errorf("%w: truths of %d ranks, the limit is %d", ErrInvalid, len(list), MaxTurns)
	}
	for i := range list {
		t := &list[i]
		if err := store.CheckPodName(t.Pod); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err := store.CheckRank(t.Rank); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if t.Requests < 0 || t.Requests > MaxEngineCount || t.Delivered < 0 || t.Delivered > t.Predicted || t.Predicted > MaxEngineCount {
			return fmt.Errorf("%w: %d requests of %v were given %d of %d tokens", ErrInvalid, t.Requests, t.RankRef, t.Delivered, t.Predicted)
		}
	}
	return nil
}

// CheckClaim returns ErrInvalid, with the reason, when Claim cannot be asked this.
func CheckClaim(what string, until time.Duration) error {
	if what == "" || len(what) > 2*store.MaxPodName {
		return fmt.Errorf("%w: a claim has 1 to %d bytes, this one %d", ErrInvalid, 2*store.MaxPodName, len(what))
	}
	if until < time.Millisecond || until > MaxLease {
		return fmt.Errorf("%w: a claim for %v, it can be 1 ms to %v", ErrInvalid, until, MaxLease)
	}
	return nil
}
