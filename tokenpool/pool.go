package tokenpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/semaphore"

	"github.com/kvatlas/kvatlas/internal/bound"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/internal/proofs"
)

// Pool tokenizes texts. New makes one. All methods are safe for concurrent
// use.
type Pool struct {
	cfg  Config
	read func(data []byte, split bool) (encoder, error) // newLibrary, but in tests

	ctx    context.Context // of loads; ends with Close
	cancel context.CancelFunc
	done   chan struct{} // closed when Close begins
	gone   chan struct{} // closed when Close has ended
	wg     sync.WaitGroup

	run    chan *flight        // flights that wait for a worker
	bytes  *semaphore.Weighted // QueueBytes, held by flights to their end
	places *semaphore.Weighted // Queue, held by flights that wait for a load
	remote *semaphore.Weighted // half of Queue, by those whose model may not exist

	turns  turns
	memory *semaphore.Weighted // WorkBytes, held by parts of texts in work
	pieces *pieces             // nil keeps none
	proofs *semaphore.Weighted // one, held while a fast encoder is checked, or its reference is read behind
	kept   *proofs.Folder      // nil keeps none

	seed maphash.Seed
	n    counters

	mu      sync.Mutex // protects all below; no call out of the package is made under it
	closed  bool
	flights map[flightKey]*flight
	loads   map[string]*load
	loaded  *simplelru.LRU[string, *tokenizer]
	live    int             // tokenizers in memory and being read, MaxTokenizers at most
	leaving int             // those of them that are dropped and not closed yet
	wanting []chan struct{} // loads that wait for room, in order
	// distrusted are fingerprints of tokenizers whose fast encoder has differed.
	distrusted map[string]bool
	idents     *simplelru.LRU[string, ident] // of models loaded before
	failed     *simplelru.LRU[string, failure]
	chats      *simplelru.LRU[string, chatEntry] // of models loaded before
	recent     [recentFlights]uint64             // hashes of the texts that were done last
	ended      uint64                            // flights done; recent[(ended-1)%len] is the last
}

// Bounds of what is remembered about models that are not loaded, and about
// flights that have ended.
const (
	maxIdents     = 4096
	maxFailures   = 1024
	recentFlights = 512
)

// ident is what reports whether the prefix store's entries of a model still
// hold, when its tokenizer is not in memory.
type ident struct{ version, fingerprint string }

// failure is a load that failed.
type failure struct {
	version string
	until   time.Time
	err     error
}

// New returns a Pool and starts its workers. Close ends them.
func New(cfg Config) (*Pool, error) { return newPool(cfg, newLibrary) }

func newPool(cfg Config, read func([]byte, bool) (encoder, error)) (*Pool, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Pool{
		cfg:     cfg,
		read:    read,
		done:    make(chan struct{}),
		gone:    make(chan struct{}),
		run:     make(chan *flight, cfg.Queue),
		bytes:   semaphore.NewWeighted(cfg.QueueBytes),
		places:  semaphore.NewWeighted(int64(cfg.Queue)),
		remote:  semaphore.NewWeighted(int64(cfg.Queue+1) / 2),
		turns:   newTurns(cfg.Workers),
		memory:  semaphore.NewWeighted(cfg.WorkBytes),
		proofs:  semaphore.NewWeighted(1),
		seed:    maphash.MakeSeed(),
		flights: make(map[flightKey]*flight),
		loads:   make(map[string]*load),

		distrusted: make(map[string]bool),
	}
	if cfg.Fast && cfg.ProofDir != "" {
		p.kept = proofs.NewFolder(cfg.ProofDir)
	}
	if cfg.PieceBytes > 0 {
		p.pieces = newPieces(cfg.PieceBytes)
	}
	if cfg.Shared != nil {
		f, err := newFleet(cfg.Shared, cfg.SharedSecret, cfg.SharedTimeout)
		if err != nil {
			return nil, err
		}
		p.pieces.fleet = f
	}
	// NewLRU fails for a size below 1 only, and none is.
	p.loaded, _ = simplelru.NewLRU[string, *tokenizer](cfg.MaxTokenizers, nil)
	p.idents, _ = simplelru.NewLRU[string, ident](maxIdents, nil)
	p.failed, _ = simplelru.NewLRU[string, failure](maxFailures, nil)
	p.chats, _ = simplelru.NewLRU[string, chatEntry](maxChats, nil)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for range cfg.Workers {
		p.wg.Go(p.work)
	}
	if p.kept != nil {
		p.wg.Go(func() { _, _ = p.kept.Key() }) // the first load does not wait for the program's hash
	}
	if cfg.Shared != nil {
		p.wg.Go(func() { p.pieces.fleet.give(p.done) })
	}
	return p, nil
}

// Tokens answers req. In short:
//
//   - Wait and Async give an error only if the request is at fault
//     (ErrTooLong, ErrInvalidText, ErrUnknownModel), if the tokenizer is
//     (ErrTokenizer, ErrLoad), if the caller has gone, or after Close
//     (ErrClosed). In all other cases they answer with what is known, and
//     Result.Exact reports whether that is all. A deadline of ctx is a shorter
//     budget to Wait.
//   - Sync waits for a place in a full queue too, and its answer is always
//     exact. When ctx ends first the error wraps ctx's, and ErrBusy as well if
//     the text did not even get into the queue.
//
// What Wait and Async do not wait for goes on behind, and into the prefix
// store.
func (p *Pool) Tokens(ctx context.Context, req prompt.Request) (prompt.Result, error) {
	if req.Mode > prompt.Sync {
		return prompt.Result{}, fmt.Errorf("tokenpool: unknown mode %d", req.Mode)
	}
	if err := checkText(req.Text, p.cfg.MaxTextBytes); err != nil {
		p.n.refused.Add(1)
		return prompt.Result{}, err
	}
	if req.Chat != nil && req.Text != "" {
		return prompt.Result{}, errors.New("tokenpool: a request with both a text and a chat")
	}
	if err := ctx.Err(); err != nil && (req.Mode == prompt.Sync || !errors.Is(err, context.DeadlineExceeded)) {
		return prompt.Result{}, fmt.Errorf("tokenpool: %w", err)
	}
	start := time.Now()
	budget := cmp.Or(req.Budget, p.cfg.Budget)
	within := ctx // how long the request waits for a tokenizer
	if req.Mode == prompt.Wait {
		var cancel context.CancelFunc
		within, cancel = bound.WithTimeout(ctx, max(budget, 0))
		defer cancel()
	}
	if len(req.Media) > 0 && req.Chat == nil {
		return prompt.Result{}, fmt.Errorf("%w: they belong to a chat", ErrMedia)
	}
	var rendered chat.Prompt
	var plan *media.Plan
	if req.Chat != nil {
		c, behind, err := p.chat(within, req)
		if err != nil || behind != "" {
			return p.count(partial(prefixcache.Match{}, behind), err)
		}
		inTime := ctx
		if req.Mode != prompt.Sync {
			var cancel context.CancelFunc
			inTime, cancel = bound.WithTimeout(ctx, time.Until(start.Add(p.textBudget(req.Mode, budget))))
			defer cancel()
		}
		rendered, behind, err = p.render(inTime, c, req)
		if behind != "" {
			return p.count(partial(prefixcache.Match{}, behind), nil)
		}
		if err == nil {
			plan, err = media.NewPlan(c.media, req.Media, rendered)
		}
		if err != nil {
			p.n.refused.Add(1)
			return prompt.Result{}, err
		}
		req.Text, req.NoSpecialTokens = rendered.Text, !req.AddsSpecialTokens()
		if len(rendered.Media) > 0 && plan == nil {
			req.Text = rendered.Text[:rendered.Sure]
		}
	}
	for {
		res, err := p.ask(within, req)
		// An abandoned flight: its owner went away before it was in the queue.
		if errors.Is(err, errAbandoned) {
			continue
		}
		if err != nil || len(rendered.Media) == 0 {
			return p.count(res, err)
		}
		if plan == nil {
			if res.Exact {
				res.Exact, res.Behind = false, prompt.BehindMedia
			}
			return p.count(res, nil)
		}
		ids, placed, all, found := plan.Apply(res.Tokens)
		if res.Exact && !found {
			// The template puts no markers, or others.
			plan, req.Text = nil, rendered.Text[:rendered.Sure]
			continue
		}
		res.Tokens, res.Media = ids, placed
		if !all && (res.Exact || found) {
			res.Exact, res.Behind, res.Bytes = false, prompt.BehindMedia, min(res.Bytes, rendered.Sure)
		}
		return p.count(res, nil)
	}
}

// textBudget is for how long a chat may be rendered. A request that does not wait has
// the pool's budget for it, since of a chat without its text nothing is known.
func (p *Pool) textBudget(mode prompt.Mode, budget time.Duration) time.Duration {
	if mode == prompt.Async || budget < time.Millisecond {
		return p.cfg.Budget
	}
	return budget
}

// ask is one try of Tokens. The request waits as long as ctx allows.
func (p *Pool) ask(ctx context.Context, req prompt.Request) (prompt.Result, error) {
	seen, err := p.look(req.Model, !req.NoSpecialTokens)
	if err != nil {
		return prompt.Result{}, err
	}
	known := p.find(seen.scope, &req)
	if known.Whole {
		return exact(known.Tokens, req.Text, prompt.FromPrefixStore), nil
	}
	f, err := p.submit(ctx, req, seen)
	switch {
	case errors.Is(err, errDoneMeanwhile):
		return p.ask(ctx, req)
	case errors.Is(err, ErrBusy) && req.Mode != prompt.Sync:
		return partial(known, prompt.BehindBusy), nil
	case err != nil:
		return prompt.Result{}, err
	}

	behind := prompt.BehindAsync
	if req.Mode != prompt.Async {
		if behind, err = p.await(ctx, f, req.Mode); err != nil {
			return prompt.Result{}, err
		}
	}
	if f.ended() {
		// There is no time left to try an abandoned text again where the budget is over.
		if res, err := f.result(); behind != prompt.BehindBudget || !errors.Is(err, errAbandoned) {
			return res, err
		}
	}
	if seen.scope == "" {
		// The tokenizer was not loaded when the store was to be asked.
		if again, err := p.look(req.Model, !req.NoSpecialTokens); err == nil {
			if known = p.find(again.scope, &req); known.Whole {
				return exact(known.Tokens, req.Text, prompt.FromPrefixStore), nil
			}
		}
	}
	return p.unfinished(&req, seen, known, behind)
}

// await waits for the end of a flight. It returns why it has not ended, where that is no error.
func (p *Pool) await(ctx context.Context, f *flight, mode prompt.Mode) (prompt.Behind, error) {
	select {
	case <-f.done:
		return "", nil
	case <-ctx.Done():
		return outOfTime(ctx, mode)
	case <-p.done:
		return "", ErrClosed
	}
}

// unfinished answers a request that does not wait any longer with what is known of its text.
func (p *Pool) unfinished(req *prompt.Request, seen view, known prefixcache.Match, behind prompt.Behind) (prompt.Result, error) {
	if len(known.Tokens) == 0 {
		if err := p.lastFailure(req.Model, seen.version); err != nil {
			return prompt.Result{}, err
		}
	}
	return partial(known, behind), nil
}

// find asks the prefix store, if there is one and the scope is known.
func (p *Pool) find(scope string, req *prompt.Request) prefixcache.Match {
	if p.cfg.Store == nil || scope == "" {
		return prefixcache.Match{}
	}
	dst := req.Room[:0]
	if n := p.guess(len(req.Text)); cap(dst) < n {
		dst = make([]uint32, 0, n)
	}
	return p.cfg.Store.Find(dst, scope+req.Scope, req.Text)
}

// guess estimates how many tokens a text of n bytes has, going by those seen so far.
// Growing a slice of 100,000 tokens step by step costs as much as finding them.
func (p *Pool) guess(n int) int {
	tokens, bytes := p.n.tokens.Load()+p.n.reused.Load(), p.n.textBytes.Load()
	if bytes == 0 {
		tokens, bytes = 1, 4
	}
	return min(n, int(float64(n)*float64(tokens)/float64(bytes)*1.125)) + 8
}

func exact(tokens []uint32, text string, from prompt.Source) prompt.Result {
	return prompt.Result{Tokens: tokens, Source: from, Exact: true, Bytes: len(text)}
}

func partial(known prefixcache.Match, behind prompt.Behind) prompt.Result {
	if len(known.Tokens) == 0 {
		return prompt.Result{Source: prompt.FromNowhere, Behind: behind}
	}
	return prompt.Result{Tokens: known.Tokens, Source: prompt.FromPrefixStore, Bytes: known.Bytes, Behind: behind}
}

// Close ends the pool: requests that wait get ErrClosed, loads are cancelled,
// the texts in work are finished, and all tokenizers are closed. It returns
// when all goroutines have ended, which takes as long as the texts in work do;
// a second call waits likewise.
func (p *Pool) Close() error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	if again {
		<-p.gone
		return nil
	}
	close(p.done)
	p.cancel()
	p.wg.Wait()
	p.drain()

	p.mu.Lock()
	var out []dropped
	for _, t := range p.loaded.Values() {
		out = append(out, p.drop(t))
	}
	p.mu.Unlock()
	p.sendOff(out, "closed")
	close(p.gone)
	return nil
}

// counters count since New.
type counters struct {
	fromStore, fromTokenizer, partial, none atomic.Uint64
	busy, budget, refused, failed           atomic.Uint64
	tokenized, joined, textBytes            atomic.Uint64
	tokens, reused                          atomic.Uint64
	loads, loadErrors, dropped, refusedPuts atomic.Uint64
	fast, untilCheck, checked, differences  atomic.Uint64
	running, helping, waiting, held         atomic.Int64
}

// count counts an answer and passes it on.
func (p *Pool) count(res prompt.Result, err error) (prompt.Result, error) {
	switch {
	case err != nil:
		p.n.failed.Add(1)
	case res.Exact && res.Source == prompt.FromPrefixStore:
		p.n.fromStore.Add(1)
	case res.Exact:
		p.n.fromTokenizer.Add(1)
	case res.Source == prompt.FromPrefixStore:
		p.n.partial.Add(1)
	default:
		p.n.none.Add(1)
	}
	switch res.Behind {
	case prompt.BehindBusy:
		p.n.busy.Add(1)
	case prompt.BehindBudget:
		p.n.budget.Add(1)
	case prompt.BehindAsync, prompt.BehindMedia: // as asked for
	}
	return res, err
}
