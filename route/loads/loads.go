package loads

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable says that the loads cannot be reached or changed now. The caller
	// chooses by its last Picture.
	ErrUnavailable = errors.New("loads: unavailable")
	// ErrReadOnly says that the server's user may not change loads. It is ErrUnavailable too.
	ErrReadOnly = fmt.Errorf("%w: the user of Redis may not change loads", ErrUnavailable)
	// ErrNoMemory says that the loads' server has no memory left for what would be written. It
	// is ErrUnavailable too.
	ErrNoMemory = fmt.Errorf("%w: no memory", ErrUnavailable)
	// ErrBusy says that every candidate is above its Limits. Nothing was booked.
	ErrBusy = errors.New("loads: every candidate is busy")
	// ErrSettings says that the model's settings are others than the call was made by.
	// Nothing was booked; the next Picture has them.
	ErrSettings = errors.New("loads: the settings have changed")
	// ErrFull says that the model has MaxReservations running requests. Nothing was booked.
	ErrFull = errors.New("loads: too many running requests")
	// ErrMixed says that processes of several versions share the loads, and that each version
	// sees its own alone. It ends with the last request of the others.
	ErrMixed = errors.New("loads: processes of another version book requests, and neither sees the other's: update all of them")
	// ErrInvalid says that an argument cannot be right; the message says which.
	ErrInvalid = errors.New("loads: invalid argument")
)

// Limits of a call.
const (
	// MaxCandidates is how many candidates one call can weigh. A caller with more nominates.
	MaxCandidates = 64
	// MaxID is the longest id of a request in bytes.
	MaxID = 128
	// MaxReservations is how many requests of a model can run at a time.
	MaxReservations = 1 << 18
	// MaxLease is the longest time that a reservation lives without a sign of its client.
	MaxLease = 24 * time.Hour
	// MaxSettings is the most that PutSettings keeps, in bytes.
	MaxSettings = 64 << 10
	// MaxTokens is the longest prompt, and the longest output, in tokens.
	MaxTokens = 1 << 30
)

// Load is what running requests take of a (pod, rank).
type Load struct {
	// Generation is the rank's generation that the load belongs to, 0 before its first.
	Generation store.Generation `json:"generation"`
	// Work is the prefill that is booked and not done, in units: see Shape.Units.
	Work int64 `json:"work"`
	// Prefill is the same in tokens.
	Prefill int64 `json:"prefill_tokens"`
	// Blocks is how many index blocks running requests have in use. A prompt block that
	// several of them share counts once.
	Blocks int64 `json:"blocks"`
	// Requests is how many requests run.
	Requests int64 `json:"requests"`
	// Since is when the prefill that is at work now began, in microseconds of the Unix
	// epoch by the clock of the index.
	Since int64 `json:"-"`
	// Speed is how many units of prefill the rank does in a millisecond, learnt from
	// Done; 0 is not known. Samples is from how many requests.
	Speed   float64 `json:"speed,omitempty"`
	Samples int64   `json:"samples,omitempty"`
	// Learnt is when the last one was, in microseconds of the Unix epoch.
	Learnt int64 `json:"-"`
	// Filled is how many tokens requests have put into the rank's cache lately: those that
	// were booked there uncached. They fade, half of them in FillHalf, and are as of FilledAt,
	// in microseconds of the Unix epoch.
	Filled   float64 `json:"-"`
	FilledAt int64   `json:"-"`
}

// FillHalf is the time in which half of what Load.Filled counts fades.
const FillHalf = 200 * time.Second

// FilledBy returns Filled as it has faded by a time.
func (l *Load) FilledBy(now int64) float64 {
	if l.Filled <= 0 {
		return 0
	}
	return l.Filled * math.Pow(0.5, float64(max(0, now-l.FilledAt))/float64(FillHalf.Microseconds()))
}

// lasting is what there is of a load without its requests.
func (l *Load) lasting() Load {
	return Load{Speed: l.Speed, Samples: l.Samples, Learnt: l.Learnt, Filled: l.Filled, FilledAt: l.FilledAt}
}

// IsForgotten reports whether nothing is left of a load by a time, or nothing that counts.
func (l *Load) IsForgotten(now int64) bool {
	return l.Requests == 0 && now-max(l.Learnt, l.FilledAt) > ForgetSpeed.Microseconds()
}

// Wait returns for how many milliseconds a request that arrives now waits for the prefill
// before it. The rank has worked on that since Since, at a speed in units a millisecond.
func (l *Load) Wait(now int64, speed float64) float64 {
	if speed <= 0 || l.Work <= 0 {
		return 0
	}
	return max(0, float64(l.Work)/speed-max(0, float64(now-l.Since)/1000))
}

// In returns the load as it stands in a generation of its rank. When that is newer, the
// engine has restarted. Then nothing is left but what was learnt of its speed, and Filled,
// which fades.
func (l *Load) In(gen store.Generation) Load {
	if l.IsVoid(gen) {
		return l.lasting()
	}
	return *l
}

// IsVoid reports whether the load is of a generation that ended before this one.
func (l *Load) IsVoid(gen store.Generation) bool { return l.Generation != 0 && l.Generation < gen }

// Add adds a request that goes to a candidate at a time. It brings these blocks, and puts these
// tokens into the cache.
func (l *Load) Add(c *Candidate, blocks int64, fills int, now int64) {
	if l.Work == 0 {
		l.Since = now
	}
	l.Work, l.Prefill, l.Requests, l.Blocks = l.Work+c.Work, l.Prefill+int64(c.Uncached), l.Requests+1, l.Blocks+blocks
	l.Filled, l.FilledAt = l.FilledBy(now)+float64(fills), now
}

// Weights are the factors of a cost that depends on load:
//
//	cost = Factor x (Base + Wait x wait
//	     + max(0, Floor + Prefill x prefill tokens + Decode x all blocks)
//	     + Blocks x all blocks + Requests x requests)
//
// with Base, Floor and Factor of the candidate, where all blocks are those of the load and
// those that the request adds. Index and caller compute it alike.
type Weights struct {
	Wait, Prefill, Decode, Blocks, Requests float64
}

// CountsBlocks reports whether a cost depends on blocks.
func (w Weights) CountsBlocks() bool { return w.Decode != 0 || w.Blocks != 0 }

// Limits are the loads at which a candidate is busy; 0 is no limit, below 0 it always is.
type Limits struct {
	Requests, Prefill, Blocks int64
}

// Busy reports whether the load has reached a limit.
func (m Limits) Busy(l *Load) bool {
	return m.Requests != 0 && l.Requests >= m.Requests || m.Prefill != 0 && l.Prefill >= m.Prefill || m.Blocks != 0 && l.Blocks >= m.Blocks
}

// Candidate is a (pod, rank) that a request may go to.
type Candidate struct {
	store.RankRef
	// Generation is the rank's present one as the caller knows it, 0 where it has none.
	Generation store.Generation
	// Uncached is how many tokens of the prompt it has to prefill, Work the same in units.
	Uncached int
	Work     int64
	// Base, Floor and Factor are the parts of its cost that no load changes: see Weights.
	Base, Floor, Factor float64
	// Twin is by how much Base is less for each unit of Work that the rank does anyway. Such work
	// is that of a running request with the same beginning. With 0 it takes no notice of what
	// runs.
	Twin float64
	// Speed is the speed to reckon with, in units a millisecond. The index goes by it and not
	// by what it has learnt, of which the caller may know better.
	Speed float64
	// Limits say when it is busy.
	Limits Limits
}

// Cost returns what the candidate costs at a load, when the request adds so many blocks.
func (c *Candidate) Cost(w Weights, l *Load, added int64, now int64) float64 {
	blocks := float64(l.Blocks + added)
	return c.Factor * (c.Base + w.Wait*l.Wait(now, c.Speed) + max(0, c.Floor+w.Prefill*float64(l.Prefill)+w.Decode*blocks) +
		w.Blocks*blocks + w.Requests*float64(l.Requests))
}

// Call books a request.
type Call struct {
	// Model is the model that it asks for: loads of different models are apart.
	Model string
	// ID names the request, 1 to MaxID bytes without control characters. A call with the
	// id of a request that runs books nothing and returns what the first one chose.
	ID string
	// Lease is how long the reservation lives without Done or Output, up to MaxLease.
	Lease time.Duration
	// Tokens is the length of the prompt, Expected that of the output; 0 is not known.
	Tokens, Expected int
	// BlockSize is the index block size in tokens.
	BlockSize int
	// Keys is the chain of the prompt: its full index blocks. Nil where only Tokens is
	// known; then no block is shared.
	Keys []blockkey.Key
	// Settings is the version of the settings that the call was made by: see Picture.
	Settings int64
	// Weights are those of the policy.
	Weights Weights
	// Quadratic is that of the model's Shape, for the work that a running request spares.
	Quadratic float64
	// Temperature, if above 0, draws among the candidates instead of taking the cheapest:
	// see Pick. Draw is the random number for it, in [0, 1).
	Temperature, Draw float64
	// WantLoads asks for Booked.Loads, which take time that few have a use for.
	WantLoads bool
	// Candidates are the places that may be taken, at most MaxCandidates. Of equal costs the first
	// one wins, so the caller shuffles them.
	Candidates []Candidate
}

// Booked is what became of a call.
type Booked struct {
	// RankRef is the candidate that was taken.
	store.RankRef
	// Again says that the request was booked before. Costs is nil then.
	Again bool
	// Costs are those of the call's candidates; NaN where one is busy.
	Costs []float64
	// Loads are their loads before this request was added, if the call wants them.
	Loads []Load
	// Now is when it was booked, in microseconds of the Unix epoch.
	Now int64
}

// Done says that a request's prefill has ended.
type Done struct {
	// Cached is how many tokens of the prompt the engine had cached; negative is not
	// known, and what was predicted counts.
	Cached int
	// Shape is that of the model, for the learning of the rank's speed. The zero value
	// learns nothing.
	Shape Shape
}

// Report is what became of Done, Output or End.
type Report struct {
	// Known says that the request runs. It is false when it has ended, when its lease is
	// over, and when it was never booked: none of them is an error.
	Known bool
	// RankRef is where it runs; after Done, where it was prefilled.
	store.RankRef
	// Predicted is how many tokens of its prompt were thought to be cached there.
	Predicted int
	// Tokens is the length of its prompt.
	Tokens int
	// First says that the report changed something: it is not the second of its kind.
	First bool
	// Prefill is, after End, where it was prefilled.
	Prefill store.RankRef
	// WithoutDone says, after End, that no Done has told of its prefill.
	WithoutDone bool
}

// Picture are the loads of a model at one moment.
type Picture struct {
	// Loads has every (pod, rank) with running requests, a learnt speed, or a cache that was
	// filled lately.
	Loads map[store.RankRef]Load
	// Engines has every (pod, rank) whose engine has told its own load within EngineStale.
	Engines map[store.RankRef]Engine
	// Now is when that was, in microseconds of the Unix epoch by the clock of the index.
	Now int64
	// Settings is what PutSettings has put last, nil if it never has, and Version how often
	// it has.
	Settings []byte
	Version  int64
}

// Difference is a load that is not the sum of its reservations.
type Difference struct {
	store.RankRef
	// Load is what the index had, Reserved what the reservations come to.
	Load, Reserved Load
}

// Store keeps loads. Memory and loads/redis implement it with one contract, held together
// by the suite in loads/loadstest. All methods are safe for concurrent use.
type Store interface {
	// Book chooses and books in one step. A reservation with an expired lease may count until the next
	// Loads. It never stands in the way of a call with its id, nor counts for ErrFull. The error is ErrBusy,
	// ErrFull, ErrSettings, ErrInvalid or ErrUnavailable; only after the last one may something be booked.
	Book(ctx context.Context, c *Call) (Booked, error)
	// BookPair chooses the place that prefills a request and the one that decodes it, and books both in one
	// step under its one id. The prefill pod has the request until Done, the other one until End. A call with
	// the id of a request that runs books nothing, as with Book.
	BookPair(ctx context.Context, c *PairCall) (BookedPair, error)
	// Done takes the prefill of a request off its rank's load, learns the rank's speed, and
	// renews the lease.
	Done(ctx context.Context, model, id string, d Done) (Report, error)
	// Output says how many tokens a request has put out so far. With an expected length the
	// blocks of the output fade as it is approached: floor(tokens / block size) x
	// max(0, 1 - tokens / expected). It renews the lease. A count that is not above the
	// last one only renews.
	Output(ctx context.Context, model, id string, tokens int) (Report, error)
	// End takes the request off its rank's load and forgets it.
	End(ctx context.Context, model, id string) (Report, error)
	// Loads returns the loads of a model. It first ends reservations with expired leases, in
	// steps: a call may leave some for the next one.
	Loads(ctx context.Context, model string) (Picture, error)
	// PutSettings keeps what routers shall go by for a model, at most MaxSettings bytes. All
	// of them see it with their next Book or Loads.
	PutSettings(ctx context.Context, model string, settings []byte) error
	// Audit compares the loads of a model with its reservations and sets right what differs. The
	// error may be ErrMixed.
	Audit(ctx context.Context, model string) ([]Difference, error)

	// PutEngine keeps what the engine of a pod says of its ranks, at most MaxEngineRanks, and
	// what is booked there at that moment. The pod's next turn is EngineEvery later. Beyond
	// MaxEngines rows of the model it keeps no new ones.
	PutEngine(ctx context.Context, model, pod string, ranks []Engine) error
	// Turns returns up to most of the pods whose engines are to be asked for their load now.
	// It is then the caller's to do: no other gets the turn for EngineEvery.
	Turns(ctx context.Context, model string, pods []string, most int) ([]string, error)
	// Missed says that the engine of a pod did not answer. Its next turn comes the later the
	// more often in a row, up to MaxMissed.
	Missed(ctx context.Context, model, pod string) error

	// AddTruth adds what requests on ranks were promised and given, of at most MaxTurns ranks.
	AddTruth(ctx context.Context, model string, list []Truth) error
	// Truths returns the sums by rank.
	Truths(ctx context.Context, model string) (map[store.RankRef]Truth, error)
	// Claim reports whether the caller has something to do for a model that only one of all
	// processes shall do until then.
	Claim(ctx context.Context, model, what string, until time.Duration) (bool, error)
}

// Validate returns ErrInvalid, with the field and the reason, for a call that cannot be made.
func (c *Call) Validate() error {
	switch {
	case c.Lease < time.Millisecond || c.Lease > MaxLease:
		return fmt.Errorf("%w: lease is %v, it can be 1 ms to %v", ErrInvalid, c.Lease, MaxLease)
	case c.Tokens < 0 || c.Tokens > MaxTokens:
		return fmt.Errorf("%w: %d tokens, it can be 0 to %d", ErrInvalid, c.Tokens, MaxTokens)
	case c.Expected < 0 || c.Expected > MaxTokens:
		return fmt.Errorf("%w: %d expected tokens, it can be 0 to %d", ErrInvalid, c.Expected, MaxTokens)
	case c.BlockSize < 1 || c.BlockSize > MaxTokens:
		return fmt.Errorf("%w: block size is %d", ErrInvalid, c.BlockSize)
	case len(c.Keys)*c.BlockSize > c.Tokens:
		return fmt.Errorf("%w: %d blocks of %d tokens, the prompt has %d tokens", ErrInvalid, len(c.Keys), c.BlockSize, c.Tokens)
	case len(c.Candidates) == 0 || len(c.Candidates) > MaxCandidates:
		return fmt.Errorf("%w: %d candidates, it can be 1 to %d", ErrInvalid, len(c.Candidates), MaxCandidates)
	case !(c.Quadratic >= 0 && c.Quadratic <= 1):
		return fmt.Errorf("%w: quadratic is %v, it can be 0 to 1", ErrInvalid, c.Quadratic)
	case !(c.Temperature >= 0) || math.IsInf(c.Temperature, 0) || !(c.Draw >= 0 && c.Draw < 1):
		return fmt.Errorf("%w: temperature %v with draw %v", ErrInvalid, c.Temperature, c.Draw)
	}
	for _, f := range []float64{c.Weights.Wait, c.Weights.Prefill, c.Weights.Decode, c.Weights.Blocks, c.Weights.Requests} {
		if !isFinite(f) {
			return fmt.Errorf("%w: weights are %v", ErrInvalid, c.Weights)
		}
	}
	for i := range c.Candidates {
		if err := c.Candidates[i].validate(); err != nil {
			return err
		}
	}
	return CheckID(c.ID)
}

func (c *Candidate) validate() error {
	switch {
	case !(c.Twin >= 0) || math.IsInf(c.Twin, 0):
		return fmt.Errorf("%w: a unit that is spared at %v is worth %v", ErrInvalid, c.RankRef, c.Twin)
	case !isFinite(c.Base) || !isFinite(c.Floor) || !isFinite(c.Factor) || !isFinite(c.Speed):
		return fmt.Errorf("%w: the cost of %v is %v x (%v, %v) at a speed of %v", ErrInvalid, c.RankRef, c.Factor, c.Base, c.Floor, c.Speed)
	case c.Uncached < 0 || c.Uncached > MaxTokens || c.Work < 0 || c.Work > maxWork:
		return fmt.Errorf("%w: %v has %d tokens to prefill, %d units", ErrInvalid, c.RankRef, c.Uncached, c.Work)
	}
	if err := store.CheckPodName(c.Pod); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := store.CheckRank(c.Rank); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// CheckID returns ErrInvalid when this cannot be the id of a request.
func CheckID(id string) error {
	if id == "" || len(id) > MaxID {
		return fmt.Errorf("%w: a request's id has 1 to %d bytes, this one %d", ErrInvalid, MaxID, len(id))
	}
	for _, b := range []byte(id) {
		if b < ' ' || b == 0x7f {
			return fmt.Errorf("%w: a request's id has no control characters", ErrInvalid)
		}
	}
	return nil
}

// CheckSettings returns ErrInvalid when this is more than PutSettings keeps.
func CheckSettings(b []byte) error {
	if len(b) > MaxSettings {
		return fmt.Errorf("%w: settings of %d bytes, the limit is %d", ErrInvalid, len(b), MaxSettings)
	}
	return nil
}

// CheckOutput returns ErrInvalid when so many tokens are out of bounds for Output.
func CheckOutput(tokens int) error {
	if tokens < 0 || tokens > MaxTokens {
		return fmt.Errorf("%w: %d tokens, it can be 0 to %d", ErrInvalid, tokens, MaxTokens)
	}
	return nil
}

// Marked returns the marks of the prompt, and how many of its blocks none of them stands for:
// see Marks.
func (c *Call) Marked() (marks []blockkey.Key, tail int64) {
	marks, covered := Marks(c.Keys)
	return marks, int64((c.Tokens+c.BlockSize-1)/c.BlockSize - covered)
}

func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
