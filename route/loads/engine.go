package loads

import (
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// What is kept of engines' own loads.
const (
	// EngineEvery is how often an engine that does not report its load is asked for it.
	EngineEvery = 2 * time.Second
	// EngineStale is how long what an engine has told counts.
	EngineStale = 10 * time.Second
	// EngineForget is how long a rank's row is kept after the last report.
	EngineForget = time.Hour
	// MaxEngines is how many ranks of a model can have one. MaxEngineRanks is of how many
	// one call tells.
	MaxEngines     = 1 << 14
	MaxEngineRanks = store.MaxRanks
	// MaxMissed is the longest pause before an engine that did not answer is asked again.
	MaxMissed = time.Minute
	// EngineDoubt is for how long an engine must have run fewer requests than are booked
	// before those that it does not have count as gone. Until then they may be on their way.
	EngineDoubt = 5 * time.Second
	// assumedPrompt is how many tokens a request of others is taken to prefill where the
	// engine does not say it.
	assumedPrompt = 1024
	// MaxEngineCount bounds requests and tokens of an engine.
	MaxEngineCount = 1 << 40
)

// Engine is what the engine of a (pod, rank) says of its load at one moment.
type Engine struct {
	// Rank is the rank, and Generation its present one as the teller knows it.
	Rank       int
	Generation store.Generation
	// Running and Waiting are its requests.
	Running, Waiting int64
	// WaitingTokens is how many tokens the waiting ones have to prefill, negative if that is
	// not known.
	WaitingTokens int64
	// KVUsage is the share of its cache that requests have in use, 0 to 1; negative is not
	// known. KVTokens is for how many tokens the cache has room; 0 is not known.
	KVUsage  float64
	KVTokens int64
	// Progress is, of an engine whose numbers change only as it ends a request, 1 and how
	// many it has ended. Numbers told twice with the same one are old. Of other engines it
	// is 0.
	Progress int64

	// At is when it said so, in microseconds of the Unix epoch by the clock of the index.
	At int64
	// Booked is what was booked there at that moment.
	Booked Load
	// Gone is how many of the booked requests the engine has not had for a while.
	Gone int64

	put   int64 // when it was told last
	lacks int64 // the fewest booked requests that it did not have, since
	since int64
}

// Validate returns ErrInvalid, with the field and the reason, when no engine can say so.
func (e *Engine) Validate() error {
	if err := store.CheckRank(e.Rank); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, f := range []struct {
		name   string
		n, low int64
	}{
		{"running", e.Running, 0},
		{"waiting", e.Waiting, 0},
		{"waiting_tokens", e.WaitingTokens, -1},
		{"kv_tokens", e.KVTokens, 0},
		{"progress", e.Progress, 0},
	} {
		if f.n < f.low || f.n > MaxEngineCount {
			return fmt.Errorf("%w: %s is %d, it can be %d to %d", ErrInvalid, f.name, f.n, f.low, int64(MaxEngineCount))
		}
	}
	if !(e.KVUsage <= 1) || e.KVUsage < 0 && e.KVUsage != -1 {
		return fmt.Errorf("%w: kv_usage is %v, it can be 0 to 1", ErrInvalid, e.KVUsage)
	}
	return nil
}

// follow fills in what the index knows: when it was told, what was booked then, and which of
// that is gone. Argument old is what the engine told before, nil for nothing. The script
// lua/engine.lua does the same.
func (e *Engine) follow(old *Engine, booked Load, now int64) {
	e.At, e.put, e.Booked, e.since = now, now, booked, now
	if e.Progress > 0 && (old == nil || old.Progress == e.Progress) {
		e.At = 0
		if old != nil {
			e.At, e.Booked = old.At, old.Booked
		}
		return
	}
	e.lacks = max(0, booked.Requests-e.Running-e.Waiting)
	if e.Progress > 0 || old == nil || old.Generation != e.Generation || now-old.put > EngineStale.Microseconds() {
		return
	}
	least := min(old.lacks, e.lacks)
	e.Gone = min(old.Gone, e.lacks)
	if now-old.since >= EngineDoubt.Microseconds() {
		e.Gone = least
		return
	}
	e.lacks, e.since = least, old.since
}

// IsFresh reports whether what the engine said counts at a time.
func (e *Engine) IsFresh(now int64) bool { return now-e.At <= EngineStale.Microseconds() }

// Extra is what runs at a rank besides what is booked. It is negative where what is booked
// does not run.
type Extra struct {
	Work     int64 `json:"work"`
	Prefill  int64 `json:"prefill_tokens"`
	Blocks   int64 `json:"blocks"`
	Requests int64 `json:"requests"`
}

// Extra returns how the engine's load differs from what was booked when it said so. The
// rank's cache has room for so many index blocks. With a capacity of 0 that is not known;
// the shape is the model's.
func (e *Engine) Extra(shape Shape, capacity int) (x Extra) {
	if more := e.Running + e.Waiting - e.Booked.Requests; more > 0 {
		x.Requests = more
		if n := min(more, e.Waiting); n > 0 {
			if x.Prefill = n * assumedPrompt; e.WaitingTokens >= 0 {
				x.Prefill = max(0, e.WaitingTokens-e.Booked.Prefill)
			}
			x.Work = n * shape.Units(int(min(MaxTokens, x.Prefill/n)), 0)
		}
	}
	if e.KVUsage >= 0 && capacity > 0 {
		x.Blocks = max(0, int64(math.Ceil(e.KVUsage*float64(capacity)))-e.Booked.Blocks)
	}
	if e.Gone > 0 && e.Booked.Requests > 0 {
		gone := float64(min(e.Gone, e.Booked.Requests)) / float64(e.Booked.Requests)
		part := func(n int64) int64 { return -int64(gone * float64(n)) }
		x.Requests -= min(e.Gone, e.Booked.Requests)
		x.Work, x.Prefill = x.Work+part(e.Booked.Work), x.Prefill+part(e.Booked.Prefill)
		if x.Blocks == 0 {
			x.Blocks = part(e.Booked.Blocks)
		}
	}
	return x
}

// With returns the load with what runs besides, none of it below 0. Prefill that only others
// have booked begins now.
func (l *Load) With(x Extra, now int64) Load {
	out := *l
	out.Work, out.Prefill = max(0, l.Work+x.Work), max(0, l.Prefill+x.Prefill)
	out.Blocks, out.Requests = max(0, l.Blocks+x.Blocks), max(0, l.Requests+x.Requests)
	if l.Work == 0 {
		out.Since = now
	}
	return out
}

// CheckEngines returns ErrInvalid, with the reason, when the engine of a pod cannot say so.
func CheckEngines(pod string, ranks []Engine) error {
	if err := store.CheckPodName(pod); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(ranks) > MaxEngineRanks {
		return fmt.Errorf("%w: %d ranks, the limit is %d", ErrInvalid, len(ranks), MaxEngineRanks)
	}
	for i := range ranks {
		if err := ranks[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// MaxTurns is of how many pods one call of Turns asks.
const MaxTurns = 1024

// CheckTurns returns ErrInvalid, with the reason, when Turns cannot be asked of these pods.
func CheckTurns(pods []string) error {
	if len(pods) > MaxTurns {
		return fmt.Errorf("%w: %d pods, the limit is %d", ErrInvalid, len(pods), MaxTurns)
	}
	for _, pod := range pods {
		if err := store.CheckPodName(pod); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}
