package route

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/store"
)

// Affinity says how long a session stays where it is, and when it does not.
type Affinity struct {
	// TTLS is how long a session that no request names is remembered, in seconds; 0 keeps none
	// together.
	TTLS float64 `json:"ttl_s"`
	// Absolute and Relative are the guard, both against the place with the fewest requests. A
	// session leaves a place with more than Absolute requests more than that, and more than
	// Relative times as many.
	Absolute int64   `json:"absolute"`
	Relative float64 `json:"relative"`
}

// DefaultAffinity are the settings of a model without its own.
func DefaultAffinity() Affinity { return Affinity{TTLS: 3600, Absolute: 32, Relative: 1.1} }

// SessionState says what became of a request's session.
type SessionState string

// The states.
const (
	SessionNew        SessionState = "new"        // it was not known
	SessionKept       SessionState = "kept"       // it goes where it went before
	SessionGone       SessionState = "gone"       // that place may not take the request, or is gone
	SessionBusy       SessionState = "busy"       // that place is at its limits
	SessionUnbalanced SessionState = "unbalanced" // far more runs there than elsewhere
	SessionUnknown    SessionState = "unknown"    // where it went cannot be read or written now
)

// Session is what became of a request's session.
type Session struct {
	State SessionState
	// Was is where it went before, if that is known.
	Was *store.RankRef
}

// bound is where a session is, as an index of the candidates; stay is -1 where it must not
// stay there.
type bound struct {
	stay int
	left time.Duration
}

// keepTogether finds out whether a request must go where its session is, and writes the state
// into the decision.
func (r *Router) keepTogether(ctx context.Context, q *Request, v *View, totals []float64, d *Decision) bound {
	free := bound{stay: -1}
	if q.Session == "" || r.c.Notes == nil || v.Settings.Affinity.TTLS == 0 {
		return free
	}
	d.Session = &Session{State: SessionNew}
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	at, err := r.c.Notes.Session(ctx, q.Score.Model, q.Session)
	if err != nil {
		d.Session.State = SessionUnknown
		return free
	}
	if at.Left == 0 {
		return free
	}
	d.Session.Was = &at.RankRef
	stay, fewest := -1, int64(math.MaxInt64)
	for i := range v.Candidates {
		if v.Candidates[i].RankRef == at.RankRef {
			stay = i
		}
		if !math.IsNaN(totals[i]) {
			fewest = min(fewest, v.Candidates[i].Load.Requests)
		}
	}
	switch s := &v.Settings.Affinity; {
	case stay < 0:
		d.Session.State = SessionGone
	case math.IsNaN(totals[stay]):
		d.Session.State = SessionBusy
	case s.isOver(v.Candidates[stay].Load.Requests, fewest):
		d.Session.State = SessionUnbalanced
	default:
		d.Session.State = SessionKept
		return bound{stay, at.Left}
	}
	return free
}

// isOver reports whether a place has so many more requests than the one with the fewest that
// sessions leave it.
func (a *Affinity) isOver(requests, fewest int64) bool {
	return requests-fewest > a.Absolute && float64(requests) > a.Relative*float64(fewest)
}

// bind notes where a booked request's session is now. What is noted already, and not long
// ago, is not noted again. A request that could not be booked leaves its session where it was.
func (r *Router) bind(ctx context.Context, q *Request, v *View, was bound, d *Decision) {
	if d.Session == nil || !q.Reserve || d.Again {
		return
	}
	if d.Reservation == "" { // the next one will not find it there
		if d.Session.State != SessionKept {
			d.Session.State = SessionUnknown
		}
		return
	}
	ttl := min(time.Duration(v.Settings.Affinity.TTLS*float64(time.Second)), notes.MaxLease)
	if d.Session.State == SessionKept && was.left > ttl/4*3 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	if err := r.c.Notes.Bind(ctx, q.Score.Model, q.Session, d.RankRef, max(ttl, time.Millisecond)); err != nil && d.Session.State != SessionKept {
		d.Session.State = SessionUnknown
	}
}

func (q *Request) checkSession() error {
	if q.Session == "" {
		return nil
	}
	if q.Role == RolePair {
		return fmt.Errorf("%w: a session goes to one place, not to a pair", ErrRequest)
	}
	if err := notes.CheckSession(q.Session); err != nil {
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return nil
}
