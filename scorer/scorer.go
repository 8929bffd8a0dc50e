package scorer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/bound"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/store"
)

// Tokenizer turns a text or a chat into tokens. *tokenpool.Pool is one; an orchestrator
// that tokenizes by itself can put in its own.
type Tokenizer interface {
	Tokens(ctx context.Context, r prompt.Request) (prompt.Result, error)
}

// TokenizerFunc makes a Tokenizer of a func.
type TokenizerFunc func(ctx context.Context, r prompt.Request) (prompt.Result, error)

// Tokens implements Tokenizer.
func (f TokenizerFunc) Tokens(ctx context.Context, r prompt.Request) (prompt.Result, error) {
	return f(ctx, r)
}

// Looker is the part of store.Index that scoring needs.
type Looker interface {
	Lookup(ctx context.Context, queries ...*store.Query) error
	Cached() *store.Registry
}

// Config is what a Scorer is made of.
type Config struct {
	// Index is the block index. Required.
	Index Looker
	// Tokenizer turns prompts into tokens; nil refuses prompts and takes tokens
	// and block keys only.
	Tokenizer Tokenizer
	// Strategy is used where a request names none; default longest_prefix.
	Strategy Strategy
	// Weights are the tier weights; nil is DefaultWeights.
	Weights *Weights
	// BlockSize is the index block size, in tokens, of models that the index
	// does not know yet; default 64, at most 65,536.
	BlockSize int
	// Budget is how long the index may take before the answer is given
	// without the rest; default 50 ms. An index in memory, which answers at
	// once, needs none: Unbounded saves half a microsecond a call.
	Budget time.Duration
	// Usage counts recent uses of blocks; nil does not count.
	Usage *Usage
	// Chunks says what else to ask the index for; nil is nothing. With it what engines hold in
	// chunks of another cache counts beside their blocks. Entries, if it asks for any, need an
	// Index that knows them.
	Chunks Chunks
	// Now is the clock; default time.Now.
	Now store.Clock
	// Observer receives each scored request.
	Observer Observer
}

// Observer is told what a Scorer does. Nil funcs are skipped; they are called
// on the request's goroutine and must be quick.
type Observer struct {
	// Scored is called once for each answered prompt.
	Scored func(model string, r *Response)
	// Stage is called with the time of each stage of each call.
	Stage func(name string, took time.Duration)
	// IndexFailed is called with the error behind a degraded answer.
	IndexFailed func(err error)
}

// Unbounded is a Config.Budget without a bound but that of each call's context.
const Unbounded time.Duration = -1

func (c *Config) validate() error {
	if c.Index == nil {
		return errors.New("scorer: Config.Index is required")
	}
	c.Strategy = cmp.Or(c.Strategy, LongestPrefix)
	if _, err := ParseStrategy(string(c.Strategy)); err != nil {
		return err
	}
	if c.Weights == nil {
		w := DefaultWeights()
		c.Weights = &w
	}
	if err := c.Weights.validate(); err != nil {
		return err
	}
	c.BlockSize = cmp.Or(c.BlockSize, store.DefaultBlockSize)
	if c.BlockSize < 1 || c.BlockSize > store.MaxBlockSize {
		return fmt.Errorf("scorer: Config.BlockSize is %d, it must be within 1 and %d", c.BlockSize, store.MaxBlockSize)
	}
	c.Budget = cmp.Or(c.Budget, 50*time.Millisecond)
	if c.Budget < 0 && c.Budget != Unbounded {
		return fmt.Errorf("scorer: Config.Budget is %v, it must be positive", c.Budget)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Scorer ranks pods. It is safe for concurrent use.
type Scorer struct {
	cfg    Config
	place  [store.NumTiers]uint8
	tierAt [store.NumTiers]store.Tier
	folds  sync.Pool // of *chain
	rooms  sync.Pool // of *room
}

// New returns a Scorer.
func New(cfg Config) (*Scorer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Scorer{cfg: cfg, place: cfg.Weights.order()}
	for t, p := range s.place {
		s.tierAt[p] = store.Tier(t)
	}
	s.folds.New = func() any { return new(chain) }
	s.rooms.New = func() any { return new(room) }
	return s, nil
}

// Score ranks the pods for one prompt.
//
// An unknown model scores nothing; its text is the tokenizer's error. Faults of the index are
// not errors: the answer is degraded. A canceled context is an error. So is a deadline that
// has passed before an index is asked that cannot answer at once; one that passes meanwhile
// is not.
func (s *Scorer) Score(ctx context.Context, r Request) (*Response, error) {
	rs, err := s.ScoreAll(ctx, []Request{r})
	if err != nil {
		var in *InputError
		if errors.As(err, &in) {
			return nil, in.Err
		}
		return nil, err
	}
	return rs[0], nil
}

// InputError says which of several requests was refused.
type InputError struct {
	// Index is the request's place, from 0.
	Index int
	Err   error
}

// Error implements error.
func (e *InputError) Error() string { return fmt.Sprintf("request %d: %v", e.Index, e.Err) }

// Unwrap gives the reason.
func (e *InputError) Unwrap() error { return e.Err }

// tokenizeParallel bounds how many prompts of one call wait for the tokenizer
// at once; the tokenizer's own queue bounds all calls together.
const tokenizeParallel = 64

// ScoreAll ranks the pods for several prompts, which share the index's round
// trips. The first refused request fails all, as an *InputError.
func (s *Scorer) ScoreAll(ctx context.Context, rs []Request) ([]*Response, error) {
	jobs := make([]job, len(rs))
	watch := stopwatch{now: s.cfg.Now, last: s.cfg.Now(), observe: s.cfg.Observer.Stage}
	for i := range rs {
		r, err := rs[i].validate(s.cfg.Strategy)
		if err != nil {
			return nil, &InputError{Index: i, Err: err}
		}
		jobs[i] = job{req: &rs[i], resp: &Response{Exact: true}, rule: r}
		watch.keep = watch.keep || rs[i].Explain
	}
	if err := s.tokenize(ctx, jobs); err != nil {
		return nil, err
	}
	watch.lap("tokenize")
	late := ctx.Err()

	for i := range jobs {
		jobs[i].chain = s.folds.Get().(*chain)
	}
	defer s.release(jobs)
	// One budget for all that is asked of the index.
	within := ctx
	if s.cfg.Budget != Unbounded {
		var cancel context.CancelFunc
		within, cancel = bound.WithTimeout(ctx, s.cfg.Budget)
		defer cancel()
	}
	s.hash(jobs, s.models(within))
	watch.lap("hash")

	err := s.lookup(within, jobs)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err() // no caller waits for an answer
	}
	if err != nil && late != nil { // an index in memory answers all the same
		return nil, fmt.Errorf("scorer: before the index was asked: %w", late)
	}
	watch.lap("lookup")

	out := make([]*Response, len(jobs))
	for i := range jobs {
		s.finish(&jobs[i], err)
		out[i] = jobs[i].resp
	}
	watch.lap("rank")
	for i := range jobs {
		if ex := out[i].Explanation; ex != nil {
			ex.Stages = watch.stages
		}
		if s.cfg.Observer.Scored != nil {
			s.cfg.Observer.Scored(rs[i].Model, out[i])
		}
	}
	return out, nil
}

// job is one request on its way.
type job struct {
	req     *Request
	resp    *Response
	rule    *rule
	tokens  []uint32
	objects []blockkey.Object
	room    *room // of tokens; nil where there is no tokenizer to use it
	chain   *chain
}

// room is memory for the tokens of a known prompt, used again for the next one.
type room struct{ tokens []uint32 }

// maxRoom is the most tokens that a room is kept for.
const maxRoom = 1 << 20

// fit makes the room large enough for n tokens, and for the next prompt to have a few more.
func (r *room) fit(n int) {
	if n > cap(r.tokens) && n <= maxRoom {
		r.tokens = make([]uint32, 0, n+n/8)
	}
}

// rest returns the tokens behind the last whole block. There are none of block keys.
func (j *job) rest() []uint32 {
	return j.tokens[min(j.resp.Blocks*j.resp.BlockSize, len(j.tokens)):]
}

// tokenize fills in the tokens of all jobs. Of several that are refused the first in order is
// told, whichever is refused first, so that equal requests get equal answers.
func (s *Scorer) tokenize(ctx context.Context, jobs []job) error {
	var g *errgroup.Group // nil until there is a text
	var refused []error
	for i := range jobs {
		j := &jobs[i]
		switch in := &j.req.Input; in.kind {
		case inputTokens:
			ids := j.req.Truncation.Given(in.tokens)
			if len(ids) < len(in.tokens) && len(j.req.Objects) > 0 {
				return &InputError{Index: i, Err: fmt.Errorf("%w: it has images, audio or video", ErrCut)}
			}
			j.tokens, j.objects, j.resp.Source = ids, j.req.Objects, SourceTokens
		case inputKeys:
			j.resp.Source = SourceBlockKeys
		case inputText, inputChat:
			if s.cfg.Tokenizer == nil {
				return &InputError{Index: i, Err: ErrNoTokenizer}
			}
			if len(jobs) == 1 {
				return wrapInput(0, s.tokenizeText(ctx, j))
			}
			if g == nil {
				g, refused = &errgroup.Group{}, make([]error, len(jobs))
				g.SetLimit(tokenizeParallel)
			}
			g.Go(func() error {
				refused[i] = s.tokenizeText(ctx, j)
				return nil
			})
		}
	}
	if g == nil {
		return nil
	}
	_ = g.Wait() // each has its own
	for i, err := range refused {
		if err != nil {
			return wrapInput(i, err)
		}
	}
	return nil
}

// ToolForm is the form that a model's engines give to the tools of a chat. That of
// SGLang changes from release to release, and is near to what clients send. Empty is
// not known.
func ToolForm(reg *store.Registry, model string) prompt.ToolForm {
	if reg.EngineOf(model) == "sglang" {
		return prompt.ToolsAsSent
	}
	return ""
}

func wrapInput(i int, err error) error {
	if err == nil {
		return nil
	}
	return &InputError{Index: i, Err: err}
}

func (s *Scorer) tokenizeText(ctx context.Context, j *job) error {
	j.room = s.rooms.Get().(*room)
	ask := prompt.Request{
		Model:           j.req.Model,
		Text:            j.req.Input.text,
		Chat:            j.req.Input.chat,
		Media:           j.req.Media,
		NoSpecialTokens: j.req.NoSpecialTokens,
		Scope:           j.req.Scope,
		Mode:            j.req.Mode,
		Budget:          j.req.Wait,
		Room:            j.room.tokens,
	}
	if ask.Chat != nil {
		own := *ask.Chat // which callers may share
		own.ToolForm = ToolForm(s.cfg.Index.Cached(), j.req.Model)
		ask.Chat = &own
	}
	res, err := j.req.Truncation.Tokenized(ctx, s.cfg.Tokenizer, ask)
	if err != nil {
		return err
	}
	j.tokens = res.Tokens
	if res.Source == prompt.FromPrefixStore {
		j.room.fit(cap(res.Tokens))
	}
	for _, m := range res.Media {
		if hash, ok := blockkey.ObjectHash(m.Hash); ok {
			j.objects = append(j.objects, blockkey.Object{Hash: hash, Ranges: []blockkey.Range{{Start: m.Offset, End: m.Offset + m.Length}}})
		}
	}
	j.resp.Source, j.resp.Exact = string(res.Source), res.Exact
	switch res.Behind {
	case prompt.BehindBudget, prompt.BehindAsync:
		j.resp.Degraded = TokenizationBudget
	case prompt.BehindBusy:
		j.resp.Degraded = TokenizationBusy
	case prompt.BehindMedia:
		j.resp.Degraded = Multimodal
	}
	return nil
}

// models returns the registry that block sizes are taken from: the one in memory, which each lookup
// brings up to date. Before the first lookup of this process, one of no blocks brings it.
func (s *Scorer) models(ctx context.Context) *store.Registry {
	known := store.OnlyRegistry{Registry: s.cfg.Index.Cached()}
	if known.Epoch == 0 {
		_ = s.cfg.Index.Lookup(ctx, &store.Query{Fold: &known}) // that of the blocks says what is wrong
	}
	return known.Registry
}

// hash makes the block keys of all jobs with the block sizes of reg.
func (s *Scorer) hash(jobs []job, reg *store.Registry) {
	for i := range jobs {
		j := &jobs[i]
		size := s.cfg.BlockSize
		if info, ok := reg.Models[j.req.Model]; ok {
			size = info.BlockSize
		}
		c := j.chain
		if j.req.Input.kind == inputKeys {
			c.fold.Keys = append(c.fold.Keys[:0], j.req.Input.keys...)
			j.resp.Tokens = len(c.fold.Keys) * size
		} else {
			keys := blockkey.Chain{BlockSize: size, Seed: blockkey.NativeSeed(j.req.LoRA, j.req.Salt)}
			c.fold.Keys = keys.AppendObjects(c.fold.Keys[:0], j.tokens, j.objects)
			j.resp.Tokens = len(j.tokens)
		}
		j.resp.Blocks, j.resp.BlockSize = len(c.fold.Keys), size
		f := &c.fold
		f.reset()
		f.predicted = j.req.Predicted
		// Engines compute a prompt's last token, whatever they hold. Of keys, and of the
		// beginning of a text, more tokens may follow.
		f.room = anyTokens
		if j.req.Input.kind != inputKeys && j.resp.Exact {
			f.room = max(len(j.tokens)-1, 0)
		}
		f.Extent, f.earlyExit, f.explain = j.rule.extent, j.req.EarlyExit, j.req.Explain
		f.explained = share{MaxExplainedBlocks / len(jobs), MaxExplainedHolders / len(jobs)}
		f.place, f.tierAt, f.only, f.model, f.BlockSize = s.place, s.tierAt, j.req.Pods, j.req.Model, size
		if s.cfg.Chunks != nil {
			s.askForChunks(j, size)
		}
	}
}

// lookup asks the index for all jobs at once.
func (s *Scorer) lookup(ctx context.Context, jobs []job) error {
	n := len(jobs)
	for i := range jobs {
		n += len(jobs[i].chain.fold.sources)
	}
	queries := make([]store.Query, n) // one allocation for all
	ptrs := make([]*store.Query, n)
	for i := range queries {
		ptrs[i] = &queries[i]
	}
	rest := queries
	for i := range jobs {
		f := &jobs[i].chain.fold
		lead := &rest[len(f.sources)]
		*lead = store.Query{
			Model: blockkey.ModelOf(jobs[i].req.Model),
			Keys:  f.Keys,
			Fold:  f,
			Span:  f.BlockSize,
			Named: f.only,
		}
		for k, src := range f.sources {
			q := &rest[k]
			*q = jobs[i].chain.chunks[k]
			q.Model, q.Fold, q.Lead = lead.Model, src, lead
		}
		rest = rest[len(f.sources)+1:]
	}
	err := s.cfg.Index.Lookup(ctx, ptrs...)
	if err != nil && s.cfg.Observer.IndexFailed != nil {
		s.cfg.Observer.IndexFailed(err)
	}
	return err
}

// release gives the working memory of the jobs back.
func (s *Scorer) release(jobs []job) {
	for i := range jobs {
		s.folds.Put(jobs[i].chain)
		if jobs[i].room != nil {
			s.rooms.Put(jobs[i].room)
		}
	}
}

// stopwatch times the stages of one call.
type stopwatch struct {
	now     store.Clock
	last    time.Time
	keep    bool
	stages  []Stage
	observe func(string, time.Duration)
}

// lap ends a stage, if its time is wanted.
func (w *stopwatch) lap(name string) {
	if !w.keep && w.observe == nil {
		return
	}
	t := w.now()
	took := t.Sub(w.last)
	w.last = t
	if w.keep {
		w.stages = append(w.stages, Stage{Name: name, Took: took})
	}
	if w.observe != nil {
		w.observe(name, took)
	}
}
