package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Errors that callers tell apart with errors.Is. Besides them there are those of the scorer,
// ErrSettings and ErrPolicy.
var (
	// ErrNobody says that no pod may take the request; the message says what was asked.
	ErrNobody = errors.New("route: no pod may take the request")
	// ErrUnread is ErrNobody while the index is away: of the pods known before none may, and
	// others may have registered since.
	ErrUnread = fmt.Errorf("%w, as far as is known while the index is away", ErrNobody)
	// ErrBusy says that every pod that may take the request is at its limits.
	ErrBusy = errors.New("route: every pod is busy")
	// ErrRequest says that the request cannot be answered as it stands.
	ErrRequest = errors.New("route: bad request")
)

// What a Router does at most.
const (
	// maxFallbacks is how many places stand behind the chosen one in a Decision.
	maxFallbacks = 8
	// nominated is how many candidates the index of loads weighs: the cheapest by the last
	// picture, the least loaded, and one drawn.
	nominated = 8
	// pictureAge is how old a picture of the loads may be. All requests of that time share it;
	// booking looks at the loads themselves.
	pictureAge = 50 * time.Millisecond
	// maxModels bounds what is remembered by model.
	maxModels = 4096
)

// How long a decision waits at most. They are variables for tests, whose outcome is no matter of
// how busy a machine is.
var (
	// pictureWait is for a picture of the loads. With none in time the last one is used.
	pictureWait = 200 * time.Millisecond
	// predictWait is for its prediction to be written.
	predictWait = 100 * time.Millisecond
	// sessionWait is to learn, or to note, where a session is.
	sessionWait = 100 * time.Millisecond
)

// Scorer finds out which pods hold a prompt. *scorer.Scorer is one.
type Scorer interface {
	Score(ctx context.Context, r scorer.Request) (*scorer.Response, error)
}

// Pods knows which pods are registered. Every store.Index does.
type Pods interface {
	// Cached returns the last registry, without I/O.
	Cached() *store.Registry
}

// Index is where predictions are written. Every store.Index is one.
type Index interface {
	Apply(ctx context.Context, batches ...store.Batch) error
}

// Config is what a Router is made of.
type Config struct {
	// Scorer, Pods and Loads are required.
	Scorer Scorer
	Pods   Pods
	Loads  loads.Store
	// Index is where predictions are written, and Notes what routers note for each other of
	// them, of sessions and of the demand for prefixes. Without either nothing is predicted, and
	// without Notes no session is kept together.
	Index Index
	Notes notes.Store
	// Predicted, if not nil, is told how many blocks were predicted of a place, or why none.
	Predicted func(blocks int, err error)
	// Away, if not nil, is told with each request of a model whose loads can not be read or
	// changed, and why.
	Away func(model string, err error)
	// Settings are those of models that have none of their own; nil is DefaultSettings.
	Settings *Settings
	// Now is the clock, time.Now if nil. Seed makes the random numbers; 0 draws one.
	Now  func() time.Time
	Seed uint64
}

// Router routes requests. It is safe for concurrent use.
type Router struct {
	c     Config
	turn  atomic.Uint64
	views sync.Pool // of *View

	outcomes outcomes
	demands  demands

	mu     sync.Mutex // protects rand, cold and models
	rand   *rand.Rand
	cold   map[store.RankRef]uint64
	models map[string]*modelState
}

// New returns a Router.
func New(c Config) (*Router, error) {
	if c.Scorer == nil || c.Pods == nil || c.Loads == nil {
		return nil, errors.New("route: Scorer, Pods and Loads are required")
	}
	if c.Settings == nil {
		s := DefaultSettings()
		c.Settings = &s
	}
	if err := c.Settings.Validate(); err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Seed = cmp.Or(c.Seed, rand.Uint64())
	return &Router{c: c, rand: rand.New(rand.NewPCG(c.Seed, 0)), cold: map[store.RankRef]uint64{}, models: map[string]*modelState{}, demands: newDemands()}, nil
}

// Route chooses. Errors are ErrNobody, ErrBusy, ErrRequest, ErrSettings, ErrPolicy and the
// scorer's. An absent index or absent loads are not an error: the decision says so.
func (r *Router) Route(ctx context.Context, q Request) (*Decision, error) {
	if err := q.validate(); err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		var d *Decision
		var err error
		if q.Role == RolePair {
			d, err = r.routePair(ctx, &q, again)
		} else {
			d, err = r.route(ctx, &q, again)
		}
		if err == nil {
			r.noteChoice(q.Score.Model, d)
			r.noteDemand(q.Score.Model, d)
		}
		if !errors.Is(err, loads.ErrSettings) || again {
			return d, err
		}
	}
}

// try is what one try of Route goes by.
type try struct {
	picture loads.Picture
	version int64 // of the settings
	away    bool  // the loads cannot be read
	policy  Policy
	match   *scorer.Match
	unread  bool // the index was away, so that the pods are those known before
}

// begin finds out what a try goes by, tells the view, and begins the decision. fresh asks for a picture made
// after the call began.
func (r *Router) begin(ctx context.Context, q *Request, v *View, fresh bool) (t try, d *Decision, err error) {
	var base *Settings
	t.picture, base, t.version, t.away = r.picture(ctx, q.Score.Model, fresh)
	if v.Settings, err = base.override(q.Overrides); err != nil {
		return t, nil, err
	}
	if t.policy, err = ParsePolicy(v.Settings.Policy); err != nil {
		return t, nil, err
	}
	d = &Decision{Policy: t.policy.Name}
	v.Explain, v.Now, v.Turn = q.Explain, t.picture.Now, r.turn.Add(1)-1
	if t.match, t.unread, err = r.match(ctx, q, t.policy.Blind && !q.Score.ReturnTokens, d); err != nil {
		return t, nil, err
	}
	v.Tokens, v.BlockSize = d.size(&q.Score), t.match.BlockSize
	if len(t.match.Keys) > 0 {
		v.Prefix, v.HasPrefix = t.match.Keys[0], true
	}
	return t, d, nil
}

// route is one try of Route.
func (r *Router) route(ctx context.Context, q *Request, fresh bool) (*Decision, error) {
	v := r.takeView()
	defer r.giveBack(v)
	t, d, err := r.begin(ctx, q, v, fresh)
	if err != nil {
		return nil, err
	}
	if err := q.candidates(v, t.match, &t.picture); err != nil {
		return nil, nobody(err, t.unread)
	}
	v.learnSpeeds()
	r.draw(v)
	v.planPulls(t.match, q.Score.Model, &t.picture)
	w := t.policy.Weigh(v)
	totals := v.totals(w)
	was := r.keepTogether(ctx, q, v, totals, d)
	v.only = was.stay + 1
	chosen, err := r.take(ctx, q, v, w, &t, totals, d)
	if errors.Is(err, ErrBusy) && v.only > 0 { // the picture did not know
		v.only, d.Session.State = 0, SessionBusy
		chosen, err = r.take(ctx, q, v, w, &t, totals, d)
	}
	if err != nil {
		return nil, err
	}
	r.conclude(q, v, w, t.match, totals, chosen, d)
	if q.Explain && t.policy.Milliseconds {
		d.Ways = v.ways(totals)
	}
	r.bind(ctx, q, v, was, d)
	r.predict(ctx, v, t.match, q.Score.Model, &v.Candidates[chosen], d)
	return d, nil
}

// match finds out which pods hold the prompt. For a policy that does not ask, it looks up a
// prompt without tokens. That reads no block, and still brings up to date which pods are
// registered. unread says that the index was away, so that the pods are those known before.
func (r *Router) match(ctx context.Context, q *Request, blind bool, d *Decision) (match *scorer.Match, unread bool, err error) {
	ask := q.Score
	ask.Strategy, ask.EarlyExit, ask.Match, ask.Predicted, ask.Top = scorer.LongestPrefix, false, true, true, 1
	if blind {
		ask = scorer.Request{Model: ask.Model, Strategy: ask.Strategy, Match: true}
	}
	resp, err := r.c.Scorer.Score(ctx, ask)
	if err != nil {
		return nil, false, err
	}
	if blind {
		d.Tokens, d.Estimated = q.Score.Input.Size()
	} else {
		d.Score, d.Tokens = resp, resp.Tokens
	}
	unread = resp.Degraded == scorer.IndexUnavailable || resp.Degraded == scorer.IndexTimeout
	if match = resp.Match; match == nil || match.Registry == nil { // the index was away
		match = &scorer.Match{Registry: r.c.Pods.Cached(), BlockSize: resp.BlockSize}
	}
	return match, unread, nil
}

// totals are the costs of all candidates by the picture, NaN where one is at its limits.
func (v *View) totals(w loads.Weights) []float64 {
	out := v.floats(len(v.Candidates))
	for i := range out {
		if v.limits(&v.Candidates[i]).Busy(&v.Candidates[i].Booked) {
			out[i] = math.NaN()
			continue
		}
		out[i] = v.Total(i, w)
	}
	return out
}

// take chooses one of the candidates, and books it if that is asked and can be. It brings
// totals, and the loads of the candidates that were nominated, up to date.
func (r *Router) take(ctx context.Context, q *Request, v *View, w loads.Weights, t *try, totals []float64, d *Decision) (chosen int, err error) {
	order := v.perm() // of equal costs any may win
	if v.only > 0 {
		order = []int{v.only - 1}
	}
	d.Local = t.away
	if q.Reserve && !t.away {
		who := v.nominate(totals, order)
		call := q.call(v, t.match, w, t.version)
		call.Candidates = make([]loads.Candidate, 0, len(who))
		for _, i := range who {
			call.Candidates = append(call.Candidates, v.bookable(i, w))
		}
		b, err := r.c.Loads.Book(ctx, &call)
		if err == nil {
			d.Reservation, d.Again = call.ID, b.Again
			return v.booked(b, who, w, totals), nil
		}
		if why := unbooked(err); why != nil {
			return 0, why
		}
		r.tellAway(q.Score.Model, err)
		d.Local = true
	}
	shuffled := v.floats(len(order))
	for k, i := range order {
		shuffled[k] = totals[i]
	}
	k := loads.Pick(shuffled, v.Settings.Temperature, v.Rand.Float64())
	if k < 0 {
		return 0, ErrBusy
	}
	if q.Reserve {
		r.bookLocally(q.Score.Model, v, order[k])
	}
	return order[k], nil
}

// call is the booking of a request, without the candidates.
func (q *Request) call(v *View, match *scorer.Match, w loads.Weights, version int64) loads.Call {
	c := loads.Call{
		Model: q.Score.Model, ID: q.ID, Lease: v.Settings.lease(), Tokens: v.Tokens, Expected: q.Expected,
		BlockSize: v.BlockSize, Keys: match.Keys, Settings: version, Weights: w, Quadratic: v.Settings.Quadratic, Temperature: v.Settings.Temperature, Draw: v.Rand.Float64(),
		WantLoads: q.Explain,
	}
	if c.ID == "" {
		c.ID = "r" + strconv.FormatUint(v.Rand.Uint64(), 36) + strconv.FormatUint(v.Rand.Uint64(), 36)
	}
	return c
}

// unbooked is the error of Route for that of a booking, nil where the loads are away: then the
// request is routed without.
func unbooked(err error) error {
	switch {
	case errors.Is(err, loads.ErrBusy):
		return ErrBusy
	case errors.Is(err, loads.ErrFull):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, loads.ErrUnavailable):
		return nil
	}
	return err
}

// booked reads what a booking says into the view, and returns the candidate that has the request.
func (v *View) booked(b loads.Booked, who []int, w loads.Weights, totals []float64) (chosen int) {
	v.Now = b.Now
	for k := range b.Costs {
		totals[who[k]] = b.Costs[k]
		c := &v.Candidates[who[k]]
		if !v.Explain {
			continue
		}
		v.seeBooked(c, b.Loads[k])
		if c.Cost.Twin > 0 {
			if less := b.Costs[k] - v.Total(who[k], w); less < -1e-6 { // what else there was is the same
				c.Cost.Terms = append(c.Cost.Terms, Term{"twin_ms", less / c.Cost.Factor})
			}
		}
	}
	return v.find(b.RankRef)
}

// nominate returns up to nominated candidates, in the order of the draw. They are the cheapest,
// the two with the fewest requests, and the first of the draw.
func (v *View) nominate(totals []float64, order []int) []int {
	if len(order) <= nominated {
		return order
	}
	who := v.ints(nominated)[:0]
	who = append(who, order[0])
	who = appendLowest(who, 2, order, func(i int) float64 { return float64(v.Candidates[i].Load.Requests) })
	who = appendLowest(who, nominated-len(who), order, func(i int) float64 { return totals[i] })
	out := v.ints(nominated)[:0]
	for _, i := range order {
		if slices.Contains(who, i) {
			out = append(out, i)
		}
	}
	return out
}

// appendLowest appends the n of order that cost least and are not yet in dst, cheapest first.
// Of equal ones the first of order comes first.
func appendLowest(dst []int, n int, order []int, cost func(i int) float64) []int {
	first := len(dst)
	for _, i := range order {
		c, at := cost(i), len(dst)
		for at > first && compareCosts(c, cost(dst[at-1])) < 0 {
			at--
		}
		if at-first >= n || slices.Contains(dst[:first], i) {
			continue
		}
		if len(dst)-first == n {
			dst = dst[:len(dst)-1]
		}
		dst = slices.Insert(dst, at, i)
	}
	return dst
}

// compareCosts puts candidates that cannot be taken last.
func compareCosts(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return 1
	case math.IsNaN(b):
		return -1
	}
	return cmp.Compare(a, b)
}

// conclude writes the decision, and remembers what the next one needs.
func (r *Router) conclude(q *Request, v *View, w loads.Weights, match *scorer.Match, totals []float64, chosen int, d *Decision) {
	c := &v.Candidates[chosen]
	d.RankRef, d.Held, d.Predicted, d.Pull = c.RankRef, c.Held, c.Predicted, c.Pull
	d.Lease = v.Settings.lease()
	if p, ok := match.Registry.PodIndex(c.Pod); ok {
		d.Address = match.Registry.Pods[p].Address
	}
	d.Best = v.maxHeld()
	if !v.isWarm() {
		r.mu.Lock()
		if len(r.cold) >= maxModels*16 {
			clear(r.cold)
		}
		r.cold[c.RankRef] = v.Turn + 1
		r.mu.Unlock()
	}
	order := v.ints(len(totals))
	for i := range order {
		order[i] = i
	}
	if q.Explain {
		slices.SortStableFunc(order, func(a, b int) int { return compareCosts(totals[a], totals[b]) })
	} else {
		order = appendLowest(v.ints(maxFallbacks + 1)[:0], maxFallbacks+1, order, func(i int) float64 { return totals[i] })
	}
	d.Fallbacks = make([]store.RankRef, 0, min(maxFallbacks, len(totals)-1))
	for _, i := range order {
		k := &v.Candidates[i]
		if i != chosen && len(d.Fallbacks) < maxFallbacks && !math.IsNaN(totals[i]) {
			d.Fallbacks = append(d.Fallbacks, k.RankRef)
		}
		if q.Explain {
			d.Costs = append(d.Costs, PlaceCost{RankRef: k.RankRef, Total: totals[i], Terms: v.terms(k, w), Load: k.Booked, Extra: k.Extra, Held: k.Held, Predicted: k.Predicted})
		}
	}
}

// terms are those of the policy and what the load adds to them.
func (v *View) terms(c *Candidate, w loads.Weights) []Term {
	out := slices.Clone(c.Cost.Terms)
	blocks := float64(c.Load.Blocks + c.Added)
	for _, t := range []Term{
		{"wait_ms", w.Wait * c.Load.Wait(v.Now, v.speedOf(c))},
		{"prefill_load", w.Prefill * float64(c.Load.Prefill)},
		{"decode_load", w.Decode * blocks},
		{"blocks_load", w.Blocks * blocks},
		{"requests_load", w.Requests * float64(c.Load.Requests)},
	} {
		if t.Value != 0 {
			out = append(out, t)
		}
	}
	if c.Cost.Factor != 1 {
		out = append(out, Term{"preference_factor", c.Cost.Factor})
	}
	return out
}

// Settings returns those of a model as they stand now.
func (r *Router) Settings(ctx context.Context, model string) (Settings, error) {
	_, s, _, away := r.picture(ctx, model, true)
	if away {
		return *s, loads.ErrUnavailable
	}
	return *s, nil
}

// PutSettings replaces those of a model by the base settings with the fields of a JSON object,
// and returns them. Every router goes by them with its next booking, and at the latest 50 ms
// later.
func (r *Router) PutSettings(ctx context.Context, model string, object []byte) (Settings, error) {
	s, err := r.c.Settings.Merge(object)
	if err != nil {
		return Settings{}, err
	}
	if err := r.c.Loads.PutSettings(ctx, model, object); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// PutEngine tells what the engine of a pod says of its own load.
func (r *Router) PutEngine(ctx context.Context, model, pod string, ranks []loads.Engine) error {
	return r.c.Loads.PutEngine(ctx, model, pod, ranks)
}

// Loads returns the loads of a model as they stand now.
func (r *Router) Loads(ctx context.Context, model string) (loads.Picture, error) {
	r.state(model)
	return r.c.Loads.Loads(ctx, model)
}
