package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
)

// The errors of Submit.
var (
	// ErrTooLong says that a request can never have room.
	ErrTooLong = errors.New("engine: prompt and output are longer than the cache")
	// ErrEmpty says that a request has no prompt, or no output.
	ErrEmpty = errors.New("engine: a request needs a prompt and an output of at least one token")
)

// Engine is one rank of a simulated engine.
type Engine struct {
	config    Config
	cache     cache
	told      tell
	waiting   []*sequence
	running   []*sequence
	batch     []work
	busy      bool
	prefills  bool          // the iteration computes a prompt
	stuck     bool          // what waits has no room until something else happens
	until     time.Duration // when the iteration ends, or the last one did
	quiet     int           // SGLang: iterations since events were last sent
	throttled float64       // how many times as long iterations take, 0 is 1
	hitRate   float64
	counts    Counts
}

// work is what an iteration computes of a request.
type work struct {
	q *sequence
	n int
}

// Report is what has happened. Advance appends to it.
type Report struct {
	Outputs []Output
	Batches []Batch
}

// Output is a token of a request.
type Output struct {
	ID    uint64
	At    time.Duration
	Token uint32
	// First is set with the first token of a request, Last with the last.
	First, Last bool
	// Admitted is when it was admitted first, and Hit what it reused then.
	Admitted time.Duration
	Hit      Hit
}

// Batch is the events that an engine sends in one message. They share memory with the
// engine and must not be changed.
type Batch struct {
	At     time.Duration
	Events []event.Event
}

// Counts count since the engine began.
type Counts struct {
	// Requests is how many were admitted, Prompt the tokens of their prompts, Reused
	// which of them were reused.
	Requests, Prompt uint64
	Reused           Reuse
	// Generated are tokens of outputs, Finished requests that ended, Preempted how often
	// one lost its place.
	Generated, Finished, Preempted uint64
	// Busy is how long the engine has computed, Prefilling how much of it in iterations
	// that computed a prompt.
	Busy, Prefilling time.Duration
}

// Reuse counts tokens by where they were.
type Reuse struct{ GPU, Host, Disk uint64 }

// Tokens is all that was reused.
func (r Reuse) Tokens() uint64 { return r.GPU + r.Host + r.Disk }

// Stats is what an engine is doing.
type Stats struct {
	Counts
	Usage
	Running, Waiting int
	// WaitingTokens is how many tokens of waiting prompts there are.
	WaitingTokens int
	// LastHitRate is which part, 0 to 1, of the prompts that the last iteration admitted
	// was reused.
	LastHitRate float64
}

// New returns an engine with an empty cache. Its error is ErrConfig.
func New(c Config) (*Engine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{config: c}
	if c.Kind == VLLM {
		e.cache = newPaged(&e.config, &e.told)
	} else {
		e.cache = newTree(&e.config, &e.told)
	}
	return e, nil
}

// Config returns the configuration with its defaults.
func (e *Engine) Config() Config { return e.config }

// Capacity returns how many tokens of one request have room.
func (e *Engine) Capacity() int { return e.cache.capacity() }

// Submit has a request wait from now on. Its errors are ErrTooLong and ErrEmpty.
func (e *Engine) Submit(now time.Duration, r Request) error {
	if len(r.Tokens) == 0 || len(r.Output) == 0 {
		return ErrEmpty
	}
	if need := len(r.Tokens) + len(r.Output); need > e.Capacity() {
		return fmt.Errorf("%w: %d tokens, it has %d", ErrTooLong, need, e.Capacity())
	}
	q := e.sequence(r)
	q.arrived = now
	e.stuck = false
	e.waiting = append(e.waiting, q)
	return nil
}

// Adapters adds the names of the adapters that are used and waited for.
func (e *Engine) Adapters(running, waiting map[string]bool) {
	for _, q := range e.running {
		if q.LoRA != "" {
			running[q.LoRA] = true
		}
	}
	for _, q := range e.waiting {
		if q.LoRA != "" {
			waiting[q.LoRA] = true
		}
	}
}

// sequence returns a request that nothing was done for.
func (e *Engine) sequence(r Request) *sequence {
	q := &sequence{Request: r, tokens: slices.Clone(r.Tokens), hasher: newHasher(&e.config, &r)}
	q.keys = q.hasher.extend(nil, q.tokens)
	return q
}

// Reusable returns what the cache would reuse of a request that came now. It changes
// nothing.
func (e *Engine) Reusable(r Request) Hit {
	if len(r.Tokens) == 0 {
		return Hit{}
	}
	return e.cache.reusable(e.sequence(r))
}

// Cancel ends a request without further output. It does nothing where no request has the id.
func (e *Engine) Cancel(id uint64) {
	e.stuck = false
	named := func(q *sequence) bool { return q.ID == id }
	e.waiting = slices.DeleteFunc(e.waiting, named)
	if i := slices.IndexFunc(e.running, named); i >= 0 {
		q := e.running[i]
		e.running = slices.Delete(e.running, i, i+1)
		e.batch = slices.DeleteFunc(e.batch, func(w work) bool { return w.q == q })
		e.cache.release(q, false)
	}
}

// Clear empties the prefix cache. It returns false, and has done nothing, while requests
// hold blocks. vLLM reports it with its next iteration, SGLang when Advance is called.
func (e *Engine) Clear() bool { return e.cache.clear() }

// Occupy holds n blocks that no request uses, or as many as can be had, and returns how many
// it holds. So the cache is as good as full. Occupy(0) gives them back.
func (e *Engine) Occupy(n int) int {
	e.stuck = false
	return e.cache.occupy(max(n, 0))
}

// Throttle makes all computation from the next iteration on take factor times as long, as on an
// engine that lacks cores or power. A factor of 1 ends that; less counts as 1.
func (e *Engine) Throttle(factor float64) { e.throttled = max(1, factor) }

// Stats returns what the engine is doing.
func (e *Engine) Stats() Stats {
	s := Stats{Counts: e.counts, Usage: e.cache.usage(), LastHitRate: e.hitRate, Running: len(e.running), Waiting: len(e.waiting)}
	for _, q := range e.waiting {
		s.WaitingTokens += q.left()
	}
	return s
}

// Due returns when Advance has something to do next, if it has.
func (e *Engine) Due() (at time.Duration, ok bool) {
	switch {
	case e.busy:
		return e.until, true
	case len(e.running) > 0:
		return e.until, true
	case len(e.waiting) > 0 && !e.stuck:
		return max(e.until, e.waiting[0].arrived), true
	case len(e.told.events) > 0 && e.config.Kind != VLLM:
		return e.until, true
	}
	return 0, false
}

// Advance ends the iterations that end by now, and begins the ones that begin by then. It
// is to be called with times that never go back.
func (e *Engine) Advance(now time.Duration, r *Report) {
	for {
		if e.busy {
			if e.until > now {
				return
			}
			e.end(r)
		}
		start, ok := e.Due()
		if !ok || start > now {
			return
		}
		if !e.begin(start) {
			// Nothing can be computed: what waits does so for room.
			if e.config.Kind != VLLM {
				e.send(start, r)
			}
			e.stuck = len(e.waiting) > 0 && len(e.running) == 0
		}
	}
}

// begin begins an iteration, if there is anything to compute.
func (e *Engine) begin(at time.Duration) bool {
	e.cache.begin()
	e.batch = e.batch[:0]
	budget := e.config.BatchTokens
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		q := e.running[i]
		n := e.chunk(q, budget)
		if n == 0 {
			continue
		}
		for !e.cache.extend(q, q.computed+n) {
			preempted = true
			last := e.running[len(e.running)-1]
			e.preempt(last)
			if last == q {
				n = 0
				break
			}
		}
		if n > 0 {
			e.batch = append(e.batch, work{q, n})
			budget -= n
		}
	}
	var fetched time.Duration
	var admitted, reused int
	for len(e.waiting) > 0 && !preempted && budget > 0 && len(e.running) < e.config.BatchRequests {
		q := e.waiting[0]
		if q.arrived > at {
			break
		}
		if !e.cache.admit(q, ceil(len(q.Output)-q.said, e.config.BlockSize)*e.reserving()) {
			break
		}
		n := e.chunk(q, budget)
		if n == 0 || !e.cache.extend(q, q.computed+n) {
			q.computed = 0
			e.cache.release(q, false)
			break
		}
		e.waiting = e.waiting[1:]
		fetched += e.config.Timing.fetch(q.hit)
		admitted += len(q.tokens)
		reused += q.hit.Tokens()
		e.count(q, at)
		e.running = append(e.running, q)
		e.batch = append(e.batch, work{q, n})
		budget -= n
	}
	if len(e.batch) == 0 {
		// The last that ran may have made room for itself.
		return preempted && len(e.running) == 0 && e.begin(at)
	}
	if admitted > 0 {
		e.hitRate = float64(reused) / float64(admitted)
	}
	e.busy = true
	took := e.time() + fetched
	e.until = at + took
	e.counts.Busy += took
	if e.prefills {
		e.counts.Prefilling += took
	}
	return true
}

// reserving is 1 where the output's room is reserved too.
func (e *Engine) reserving() int {
	if e.config.Reserve {
		return 1
	}
	return 0
}

// count counts a request that is admitted. One that was preempted has been counted.
func (e *Engine) count(q *sequence, at time.Duration) {
	if q.resumes {
		return
	}
	q.admitted = at
	q.first = q.hit
	e.counts.Requests++
	e.counts.Prompt += uint64(len(q.Tokens))
	e.counts.Reused.GPU += uint64(q.hit.GPU)
	e.counts.Reused.Host += uint64(q.hit.Host)
	e.counts.Reused.Disk += uint64(q.hit.Disk)
}

// chunk is how many tokens of q the iteration computes. Chunks of SGLang end with a page,
// but for the last.
func (e *Engine) chunk(q *sequence, budget int) int {
	n := min(q.left(), budget)
	switch {
	case e.config.State:
		return e.stateChunk(q, n)
	case e.config.Kind == SGLang && n < q.left():
		n -= n % e.config.BlockSize
	}
	return n
}

// stateChunk is how many of n tokens of q are computed where there are states. A chunk ends
// where a state can be kept, and the state before a prompt's last token is kept.
func (e *Engine) stateChunk(q *sequence, n int) int {
	size, start := e.config.BlockSize, q.computed
	prefill := max(len(q.Tokens), len(q.tokens)-1)
	if start >= prefill {
		return n // it generates
	}
	end := start + n
	if aligned := end / size * size; end < prefill && (aligned > start || size <= e.config.BatchTokens) {
		end = aligned
	}
	stops := [...]int{(len(q.tokens) - 1) / size * size, 0, 0}
	if start%size != 0 {
		stops[1] = ceil(start, size) * size
	}
	if start < q.junction && q.junction < end {
		stops[2] = start + (q.junction-start)/size*size
	}
	for _, s := range stops {
		if start < s && s < end {
			end = s
		}
	}
	return max(0, end-start)
}

// preempt has a running request wait again, before all others. What it has computed is
// computed again, but for what is still in the cache.
func (e *Engine) preempt(q *sequence) {
	e.running = slices.DeleteFunc(e.running, func(o *sequence) bool { return o == q })
	e.batch = slices.DeleteFunc(e.batch, func(w work) bool { return w.q == q })
	e.cache.release(q, false)
	q.computed, q.resumes = 0, true
	e.waiting = slices.Insert(e.waiting, 0, q)
	e.counts.Preempted++
}

// time returns how long the iteration takes.
func (e *Engine) time() (d time.Duration) {
	e.prefills = false
	decodes := false
	active := 0
	for _, q := range e.running {
		active += q.computed
	}
	for _, w := range e.batch {
		if w.n == 1 && w.q.said > 0 {
			decodes = true
			continue
		}
		e.prefills = true
		d += e.config.Timing.prefill(w.q.computed, w.n)
	}
	if e.prefills {
		d += e.config.Timing.batch()
	}
	if decodes {
		d += e.config.Timing.decode(min(1, float64(active)/float64(e.Capacity())))
	}
	return time.Duration(float64(d) * max(1, e.throttled))
}

// end ends the iteration.
func (e *Engine) end(r *Report) {
	e.busy = false
	for _, w := range e.batch {
		q := w.q
		q.computed += w.n
		e.cache.fill(q)
		if q.left() > 0 {
			continue
		}
		o := Output{ID: q.ID, At: e.until, Token: q.Output[q.said], First: q.said == 0, Last: q.said == len(q.Output)-1, Admitted: q.admitted, Hit: q.first}
		q.say(o.Token)
		e.counts.Generated++
		if o.Last {
			e.cache.release(q, true)
			e.counts.Finished++
		}
		r.Outputs = append(r.Outputs, o)
	}
	e.running = slices.DeleteFunc(e.running, func(q *sequence) bool { return q.said == len(q.Output) })
	e.batch = e.batch[:0]
	e.quiet++
	if e.config.Kind != SGLang || e.prefills || e.quiet >= decodeLogInterval || len(e.running)+len(e.waiting) == 0 {
		e.send(e.until, r)
	}
}

// decodeLogInterval is after how many iterations without a prompt SGLang sends its events.
const decodeLogInterval = 40

// send sends the events that there are.
func (e *Engine) send(at time.Duration, r *Report) {
	e.quiet = 0
	if len(e.told.events) == 0 {
		return
	}
	r.Batches = append(r.Batches, Batch{At: at, Events: e.told.events})
	e.told.events = nil
}
