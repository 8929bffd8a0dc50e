package ingest

import (
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Observer is told what happens. Any func may be nil. They are called from the
// goroutines that do the work, outside of locks, and must not block.
type Observer struct {
	// Connected and Disconnected report the connection to a rank's publisher. err says why it ended or why it
	// could not be made, for each try.
	Connected    func(pod string, rank int, peer string)
	Disconnected func(pod string, rank int, err error)
	// Began says that a generation has begun, and why. With Reason First there was none
	// before; with any other the blocks of the one before are gone.
	Began func(pod string, rank int, gen store.Generation, reason Reason)
	// Started says with which sequence of the engine a generation's events begin: 0 when
	// all of its life is known.
	Started func(pod string, rank int, gen store.Generation, seq uint64)
	// TookOver says that a generation goes on where another owner has left it, with
	// the sequence that comes next.
	TookOver func(pod string, rank int, gen store.Generation, next uint64)
	// Gap says that sequences from first to before next are missing.
	Gap func(pod string, rank int, first, next uint64)
	// Doubted says that the replay contradicts the live stream: it is another engine's, or
	// tells nonsense. The last number that was heard is live, and the one that was to come is
	// next. It is told once until the replay agrees with the live stream again.
	Doubted func(pod string, rank int, live, next uint64)
	// Replayed says that the replay socket was asked, with how many messages were
	// new to us. Argument err says why it ended early, nil if the engine said that
	// it was done.
	Replayed func(pod string, rank int, from uint64, messages int, err error)
	// Events tells how many events of one kind have been applied.
	Events func(pod string, rank int, kind event.Kind, n int)
	// Undecodable says that a message (event.ErrX in err) or n events in one could
	// not be understood and were left out.
	Undecodable func(pod string, rank int, seq uint64, n int, err error)
	// UnknownMedium says that an engine has blocks in a medium that maps to no tier, so
	// that they are left out. It is told once for each pod and medium, of the last 1,024
	// of which it was; RankStats.Blocks counts all such blocks.
	UnknownMedium func(pod string, rank int, medium string)
	// Lag reports the age of a batch's newest event, by the engine's clock, when it had been applied. It is
	// not reported for times before 2020, which are not real.
	Lag func(pod string, rank int, lag time.Duration)
	// OtherRank says that a batch names another data-parallel rank than the source
	// does. It is indexed under the source's. It is told once for each rank that is
	// named while a reader has the source, of 8 at most.
	OtherRank func(pod string, rank, named int)
	// Failed says that the index did not take a batch; it is tried again after a
	// pause.
	Failed func(pod string, rank int, err error)
}

// Reason is why a generation begins.
type Reason uint8

// The reasons.
const (
	// First: the rank had none.
	First Reason = iota + 1
	// NoReplay: after a connection or a loss there is nothing to replay from.
	NoReplay
	// Restarted: the engine's stream is another one than before.
	Restarted
	// Lost: messages are missing that the replay does not give.
	Lost
	// Ended: the generation was ended by another process, or the index has lost some
	// of it.
	Ended
	// Renamed: the blocks of the one before are filed under another model's name.
	Renamed
	// Contradicted: what a replay has told is not what comes live.
	Contradicted
)

// NumReasons is above all reasons; 0 means none.
const NumReasons = int(Contradicted) + 1

var reasonNames = [NumReasons]string{"unknown", "first", "no_replay", "restarted", "lost", "ended", "renamed", "contradicted"}

// String is the reason as one word, fit for the label of a metric.
func (r Reason) String() string { return reasonNames[r] }
