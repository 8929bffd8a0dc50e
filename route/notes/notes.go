// Package notes keeps what routers note for each other beside loads. That is under which
// time their predictions end, where sessions are, and what each has counted of the demand
// for prefixes.
//
// Memory keeps it in one process; notes/redis shares it. Both keep to one contract, the
// suite in notes/notestest. What is lost of it costs placement and no more.
package notes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/store"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable says that the notes cannot be reached or changed now.
	ErrUnavailable = errors.New("notes: unavailable")
	// ErrInvalid says that an argument cannot be right; the message says which.
	ErrInvalid = errors.New("notes: invalid argument")
)

// Limits of what is noted.
const (
	// MaxSession is the longest name of a session in bytes.
	MaxSession = 256
	// MaxSessions is how many sessions of a model are remembered; the one whose lease ends
	// first makes room for the next.
	MaxSessions = 1 << 18
	// MaxLease is the longest lease of a session, and the longest life of a prediction.
	MaxLease = 24 * time.Hour
	// MaxDemand bounds a process's report on the demand for a model's prefixes, in bytes. MaxTellers bounds
	// how many processes are kept: the one with the oldest report makes room.
	MaxDemand  = 256 << 10
	MaxTellers = 64
	// MaxTeller is the longest name of a process in bytes.
	MaxTeller = 64
	// DemandForget is how long the last report of a process is kept.
	DemandForget = 30 * time.Minute
	// slices is how many parts the life of a prediction is cut into. With the one that is
	// written and one that its size has cut off early they fit store.MaxPredicted.
	slices = 4
)

// Slice asks under which end some blocks of a rank are predicted.
type Slice struct {
	// Model and RankRef are where the blocks are held.
	Model string
	store.RankRef
	// Blocks is how many there are, at most Max.
	Blocks int64
	// TTL is how long a prediction holds: at least so long, and at most a quarter longer.
	TTL time.Duration
	// Max is how many blocks may be predicted of the rank. When there are more the oldest
	// slices end until Keep are left.
	Max, Keep int64
}

// Sliced is the answer.
type Sliced struct {
	// Until is the end to write the blocks under, by the clock of the notes.
	Until time.Time
	// Over are the ends of predictions that are to end now.
	Over []time.Time
}

// Bound is where a session is.
type Bound struct {
	store.RankRef
	// Left is how much of its lease is left; 0 is a session that is not known.
	Left time.Duration
}

// Store keeps notes. All methods are safe for concurrent use.
type Store interface {
	// Slice counts blocks that are about to be predicted.
	Slice(ctx context.Context, s Slice) (Sliced, error)
	// Session returns where a session is bound.
	Session(ctx context.Context, model, session string) (Bound, error)
	// Bind binds a session for a time, wherever it was bound before.
	Bind(ctx context.Context, model, session string, at store.RankRef, lease time.Duration) error
	// PutDemand keeps what a process has counted for a model, in place of what it told before.
	PutDemand(ctx context.Context, model, process string, counted []byte) error
	// Demand returns the reports on a model, by process, of the last DemandForget.
	Demand(ctx context.Context, model string) (map[string][]byte, error)
}

// Validate returns ErrInvalid, with the reason, for a question that cannot be asked.
func (s *Slice) Validate() error {
	switch {
	case s.Blocks < 1 || s.Blocks > s.Max || s.Keep < 0 || s.Keep > s.Max:
		return fmt.Errorf("%w: %d blocks, of up to %d with %d kept", ErrInvalid, s.Blocks, s.Max, s.Keep)
	case s.TTL < slices*time.Millisecond || s.TTL > MaxLease:
		return fmt.Errorf("%w: predictions hold %v, it can be %v to %v", ErrInvalid, s.TTL, slices*time.Millisecond, MaxLease)
	}
	return checkPlace(s.RankRef)
}

// Step is the distance between the ends of slices in ms.
func (s *Slice) Step() int64 { return s.TTL.Milliseconds() / slices }

// CheckSession returns ErrInvalid when this is no name of a session.
func CheckSession(session string) error {
	if session == "" || len(session) > MaxSession {
		return fmt.Errorf("%w: the name of a session has 1 to %d bytes, this one %d", ErrInvalid, MaxSession, len(session))
	}
	return nil
}

// CheckBind returns ErrInvalid for arguments that Bind refuses.
func CheckBind(session string, at store.RankRef, lease time.Duration) error {
	if lease < time.Millisecond || lease > MaxLease {
		return fmt.Errorf("%w: the lease of a session is %v, it can be 1 ms to %v", ErrInvalid, lease, MaxLease)
	}
	if err := checkPlace(at); err != nil {
		return err
	}
	return CheckSession(session)
}

// CheckDemand returns ErrInvalid when no process can tell this.
func CheckDemand(process string, counted []byte) error {
	if process == "" || len(process) > MaxTeller {
		return fmt.Errorf("%w: the name of a process has 1 to %d bytes, this one %d", ErrInvalid, MaxTeller, len(process))
	}
	if len(counted) > MaxDemand {
		return fmt.Errorf("%w: %d bytes of demand, the limit is %d", ErrInvalid, len(counted), MaxDemand)
	}
	return nil
}

func checkPlace(at store.RankRef) error {
	if err := errors.Join(store.CheckPodName(at.Pod), store.CheckRank(at.Rank)); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// SessionKey stands for a session wherever it is kept: names may say something of users.
func SessionKey(session string) [16]byte {
	h := xxh3.HashString128Seed(session, 1337)
	return h.Bytes()
}
