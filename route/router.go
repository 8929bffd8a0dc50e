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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Errors that callers tell apart with errors.Is. Besides them there are those of the scorer,
// ErrSettings and ErrPolicy.
var (
	// ErrNobody says that no pod may take the request; the message says what was asked.
	ErrNobody = errors.New("route: no pod may take the request")
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
	// pictureWait bounds the reading of one. With none in time the last one is used.
	pictureWait = 200 * time.Millisecond
	// maxModels bounds what is remembered by model.
	maxModels = 4096
)

// Scorer finds out who holds a prompt. *scorer.Scorer is one.
type Scorer interface {
	Score(ctx context.Context, r scorer.Request) (*scorer.Response, error)
}

// Pods knows who is registered. Every store.Index does.
type Pods interface {
	// Cached returns the last registry, without I/O.
	Cached() *store.Registry
}

// Config is what a Router is made of.
type Config struct {
	// Scorer, Pods and Loads are required.
	Scorer Scorer
	Pods   Pods
	Loads  loads.Store
	// Settings are those of models that have none of their own; nil is DefaultSettings.
	Settings *Settings
	// Now is the clock, time.Now if nil. Seed makes the random numbers; 0 draws one.
	Now  func() time.Time
	Seed uint64
}

// Router routes requests. It is safe for concurrent use.
type Router struct {
	c    Config
	turn atomic.Uint64

	mu     sync.Mutex // protects rand, cold and models
	rand   *rand.Rand
	cold   map[store.RankRef]uint64
	models map[string]*modelState
}

// modelState is what is remembered of a model.
type modelState struct {
	mu       sync.Mutex // protects all below, and is held while a picture is read
	picture  loads.Picture
	read     time.Time // zero before the first
	failed   error     // of the last try; nil if it succeeded
	settings Settings
	version  int64 // of settings; -1 before the first
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
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	return &Router{c: c, rand: rand.New(rand.NewPCG(c.Seed, 0)), cold: map[store.RankRef]uint64{}, models: map[string]*modelState{}}, nil
}

// Request asks where a prompt shall go.
type Request struct {
	// Score is the prompt and how it is read. Its Pods are the pods that may be chosen; nil is
	// all of the model.
	Score scorer.Request
	// Reserve books the request under ID. Without it nothing is booked.
	Reserve bool
	// ID names the request; empty draws one. A second call with the ID of a request that runs
	// returns what the first one chose.
	ID string
	// Overrides, if not nil, is a JSON object with fields of Settings that this request has
	// otherwise.
	Overrides []byte
	// Expected is the length of the output in tokens; 0 is not known.
	Expected int
	// Role is what the pod is for: "prefill", "decode" or, for all of a request, "".
	Role string
	// Pinned, if not nil, is the pod that must be chosen, and the rank unless that is negative.
	Pinned *store.RankRef
	// Required are labels that the pod must have. Preferred are weights of labels, as
	// name=value, that make a pod cheaper or, below 0, dearer.
	Required  map[string]string
	Preferred map[string]float64
	// Explain asks for Decision.Costs.
	Explain bool
}

// Decision says where a request goes.
type Decision struct {
	// RankRef is the pod and the rank. Address is where the pod serves, when its name is not
	// that.
	store.RankRef
	Address string
	// Fallbacks are where to go if it fails, best first.
	Fallbacks []store.RankRef
	// Policy is who decided.
	Policy string
	// Held is how many tokens of the prompt the place can reuse, by tier. Best is the most
	// that any place can, of those that may take the request.
	Held [store.NumTiers]int
	Best int
	// Costs are those of all candidates, cheapest first, if they were asked for.
	Costs []PlaceCost
	// Reservation is the ID that the request was booked under; empty if it was not. Again says
	// that it had been booked before.
	Reservation string
	Again       bool
	// Local says that loads could not be reached: the choice was made by the last picture of
	// them, and nothing was booked.
	Local bool
	// Score is what the scorer found; nil if the policy needed none.
	Score *scorer.Response
	// Tokens is the length of the prompt, an estimate if Estimated.
	Tokens    int
	Estimated bool
}

// Cached is how many tokens of the prompt the place can reuse.
func (d *Decision) Cached() (n int) {
	for _, held := range d.Held {
		n += held
	}
	return n
}

// PlaceCost is what a candidate costs.
type PlaceCost struct {
	store.RankRef
	// Total is the cost. It is NaN of one that is at its limits.
	Total float64
	// Terms are what it is made of: those of the policy, then what the load adds.
	Terms []Term
	// Load is what runs there, and Held what it can reuse, in tokens by tier.
	Load loads.Load
	Held [store.NumTiers]int
}

// Route chooses. Errors are ErrNobody, ErrBusy, ErrRequest, ErrSettings, ErrPolicy and the
// scorer's. That loads or the index are away is none: the decision says so.
func (r *Router) Route(ctx context.Context, q Request) (*Decision, error) {
	if err := q.validate(); err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		d, err := r.route(ctx, &q, again)
		if !errors.Is(err, loads.ErrSettings) || again {
			return d, err
		}
	}
}

func (q *Request) validate() error {
	switch q.Role {
	case "", "prefill", "decode":
	default:
		return fmt.Errorf("%w: role %.40q is none of prefill, decode", ErrRequest, q.Role)
	}
	if q.Expected < 0 || q.Expected > loads.MaxTokens {
		return fmt.Errorf("%w: %d expected tokens", ErrRequest, q.Expected)
	}
	if q.ID != "" {
		if err := loads.CheckID(q.ID); err != nil {
			return fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	for label, w := range q.Preferred {
		if math.IsNaN(w) || math.Abs(w) > 1e6 {
			return fmt.Errorf("%w: the weight of label %.40q is %v", ErrRequest, label, w)
		}
		if !strings.Contains(label, "=") {
			return fmt.Errorf("%w: preferred label %.40q is not of the form name=value", ErrRequest, label)
		}
	}
	return nil
}

// route is one try of Route. fresh asks for a picture made after the call began.
func (r *Router) route(ctx context.Context, q *Request, fresh bool) (*Decision, error) {
	model := q.Score.Model
	picture, base, version, away := r.picture(ctx, model, fresh)
	settings, err := base.override(q.Overrides)
	if err != nil {
		return nil, err
	}
	policy, err := ParsePolicy(settings.Policy)
	if err != nil {
		return nil, err
	}
	d := &Decision{Policy: policy.Name}
	v := &View{Settings: settings, Explain: q.Explain, Now: picture.Now, Turn: r.turn.Add(1) - 1}
	match, err := r.match(ctx, q, policy.Blind, d)
	if err != nil {
		return nil, err
	}
	v.Tokens, v.BlockSize = d.Tokens, match.BlockSize
	if len(match.Keys) > 0 {
		v.Prefix, v.HasPrefix = match.Keys[0], true
	}
	if err := q.candidates(v, match, &picture); err != nil {
		return nil, err
	}
	r.mu.Lock()
	v.Rand = rand.New(rand.NewPCG(r.rand.Uint64(), r.rand.Uint64()))
	for i := range v.Candidates {
		v.Candidates[i].Turn = r.cold[v.Candidates[i].RankRef]
	}
	r.mu.Unlock()

	w := policy.Weigh(v)
	totals := v.totals(w)
	chosen, err := r.take(ctx, q, v, w, match, totals, version, away, d)
	if err != nil {
		return nil, err
	}
	r.conclude(q, v, w, match, totals, chosen, d)
	return d, nil
}

// match finds out who holds the prompt. For a policy that does not ask it looks up a prompt
// without tokens: that reads no block, and brings who is registered up to date all the same.
func (r *Router) match(ctx context.Context, q *Request, blind bool, d *Decision) (*scorer.Match, error) {
	ask := q.Score
	ask.Strategy, ask.EarlyExit, ask.Match = scorer.LongestPrefix, false, true
	if blind {
		ask = scorer.Request{Model: ask.Model, Strategy: ask.Strategy, Match: true}
	}
	resp, err := r.c.Scorer.Score(ctx, ask)
	if err != nil {
		return nil, err
	}
	if blind {
		d.Tokens, d.Estimated = q.Score.Input.Size()
	} else {
		d.Score, d.Tokens = resp, resp.Tokens
	}
	match := resp.Match
	if match == nil || match.Registry == nil { // the index was away
		match = &scorer.Match{Registry: r.c.Pods.Cached(), BlockSize: resp.BlockSize}
	}
	return match, nil
}

// candidates fills in who may take the request.
func (q *Request) candidates(v *View, match *scorer.Match, picture *loads.Picture) error {
	reg, named := match.Registry, q.Score.Pods
	seen, places, whole := 0, 0, false
	for i := range reg.Pods {
		if p := &reg.Pods[i]; p.Model == q.Score.Model && p.PartOf == nil {
			seen++
			places += max(1, p.Ranks)
			whole = whole || p.Role == "" || p.Role == "both"
		}
	}
	v.Candidates = make([]Candidate, 0, places)
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.Model != q.Score.Model || p.PartOf != nil || named != nil && !slices.Contains(named, p.Name) || !q.suits(p, whole) {
			continue
		}
		for rank := range max(1, p.Ranks) {
			if q.Pinned != nil && q.Pinned.Rank >= 0 && q.Pinned.Rank != rank {
				continue
			}
			c := Candidate{RankRef: store.RankRef{Pod: p.Name, Rank: rank}, Decode: q.Role == "decode", Added: int64(v.Blocks())}
			if slot, ok := reg.Slot(i, rank); ok {
				c.Generation = reg.Generation(slot)
				if slot < len(match.Held) {
					for tier, n := range match.Usable(slot) {
						c.Held[tier] = int(n) * match.BlockSize
					}
				}
			}
			if p.KVTokens > 0 {
				c.CapacityBlocks = p.KVTokens / match.BlockSize
			}
			l := picture.Loads[c.RankRef]
			c.Load, c.Preference = l.In(c.Generation), q.preference(p)
			v.Candidates = append(v.Candidates, c)
		}
	}
	if len(v.Candidates) == 0 {
		return fmt.Errorf("%w: of %d pods of model %.80q none has what is asked%s", ErrNobody, seen, q.Score.Model, q.wishes())
	}
	return nil
}

// suits reports whether a pod may take the request. whole says that the model has pods that
// take requests from beginning to end.
func (q *Request) suits(p *store.Pod, whole bool) bool {
	switch {
	case q.Pinned != nil && q.Pinned.Pod != p.Name,
		q.Role != "" && p.Role != "" && p.Role != "both" && p.Role != q.Role,
		q.Role == "" && whole && p.Role != "" && p.Role != "both",
		q.Score.LoRA != "" && len(p.Adapters) > 0 && !slices.Contains(p.Adapters, q.Score.LoRA):
		return false
	}
	for name, value := range q.Required {
		if v, ok := p.Labels[name]; !ok || v != value {
			return false
		}
	}
	return true
}

// preference adds up the weights of the preferred labels that a pod has.
func (q *Request) preference(p *store.Pod) (sum float64) {
	for label, w := range q.Preferred {
		name, value, _ := strings.Cut(label, "=")
		if v, ok := p.Labels[name]; ok && v == value {
			sum += w
		}
	}
	return sum
}

// wishes says what a request asks of a pod.
func (q *Request) wishes() string {
	var b strings.Builder
	if q.Score.Pods != nil {
		fmt.Fprintf(&b, ", among %d named", len(q.Score.Pods))
	}
	if q.Pinned != nil {
		fmt.Fprintf(&b, ", pinned to %s rank %d", q.Pinned.Pod, q.Pinned.Rank)
	}
	if q.Role != "" {
		fmt.Fprintf(&b, ", role %s", q.Role)
	}
	if q.Score.LoRA != "" {
		fmt.Fprintf(&b, ", adapter %.80s", q.Score.LoRA)
	}
	if len(q.Required) > 0 {
		fmt.Fprintf(&b, ", %d required labels", len(q.Required))
	}
	return b.String()
}

// totals are the costs of all candidates by the picture, NaN where one is at its limits.
func (v *View) totals(w loads.Weights) []float64 {
	out := make([]float64, len(v.Candidates))
	for i := range out {
		if v.Settings.limits(&v.Candidates[i]).Busy(&v.Candidates[i].Load) {
			out[i] = math.NaN()
			continue
		}
		out[i] = v.Total(i, w)
	}
	return out
}

// take chooses one of the candidates, and books it if that is asked and can be. It brings
// totals, and the loads of the candidates that were nominated, up to date.
func (r *Router) take(ctx context.Context, q *Request, v *View, w loads.Weights, match *scorer.Match, totals []float64, version int64, away bool, d *Decision) (chosen int, err error) {
	order := v.Rand.Perm(len(v.Candidates)) // of equal costs any may win
	if q.Reserve && !away {
		who := v.nominate(totals, order)
		call := loads.Call{
			Model: q.Score.Model, ID: q.ID, Lease: time.Duration(v.Settings.LeaseS * float64(time.Second)), Tokens: v.Tokens, Expected: q.Expected,
			BlockSize: v.BlockSize, Keys: match.Keys, Settings: version, Weights: w, Temperature: v.Settings.Temperature, Draw: v.Rand.Float64(),
		}
		if call.ID == "" {
			call.ID = "r" + strconv.FormatUint(v.Rand.Uint64(), 36) + strconv.FormatUint(v.Rand.Uint64(), 36)
		}
		for _, i := range who {
			call.Candidates = append(call.Candidates, v.candidate(i))
		}
		b, err := r.c.Loads.Book(ctx, &call)
		switch {
		case err == nil:
			d.Reservation, d.Again = call.ID, b.Again
			return v.booked(b, who, totals, d)
		case errors.Is(err, loads.ErrBusy):
			return 0, ErrBusy
		case errors.Is(err, loads.ErrFull):
			return 0, fmt.Errorf("%w: %w", ErrBusy, err)
		case !errors.Is(err, loads.ErrUnavailable):
			return 0, err
		}
		away = true
	}
	d.Local = away
	shuffled := make([]float64, len(order))
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

// booked reads what a booking says into the view.
func (v *View) booked(b loads.Booked, who []int, totals []float64, d *Decision) (chosen int, err error) {
	for k := range b.Costs {
		totals[who[k]], v.Candidates[who[k]].Load = b.Costs[k], b.Loads[k]
	}
	v.Now = b.Now
	chosen = slices.IndexFunc(v.Candidates, func(c Candidate) bool { return c.RankRef == b.RankRef })
	if chosen < 0 { // of a call that is repeated, a place that may take no more by now
		v.Candidates = append(v.Candidates, Candidate{RankRef: b.RankRef, Cost: Cost{Factor: 1}})
		chosen = len(v.Candidates) - 1
	}
	d.Again = b.Again
	return chosen, nil
}

// nominate returns up to nominated candidates, in the order of the draw: the cheapest, the
// two with the fewest requests, and the first of the draw.
func (v *View) nominate(totals []float64, order []int) []int {
	if len(order) <= nominated {
		return order
	}
	take := map[int]bool{order[0]: true}
	by := func(n int, cost func(i int) float64) {
		sorted := slices.Clone(order)
		slices.SortStableFunc(sorted, func(a, b int) int { return compareCosts(cost(a), cost(b)) })
		for _, i := range sorted {
			if n > 0 && !take[i] {
				take[i] = true
				n--
			}
		}
	}
	by(2, func(i int) float64 { return float64(v.Candidates[i].Load.Requests) })
	by(nominated-len(take), func(i int) float64 { return totals[i] })
	out := make([]int, 0, nominated)
	for _, i := range order {
		if take[i] {
			out = append(out, i)
		}
	}
	return out
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
	d.RankRef, d.Held = c.RankRef, c.Held
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
	order := make([]int, len(totals))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareCosts(totals[a], totals[b]) })
	for _, i := range order {
		k := &v.Candidates[i]
		if i != chosen && len(d.Fallbacks) < maxFallbacks && !math.IsNaN(totals[i]) {
			d.Fallbacks = append(d.Fallbacks, k.RankRef)
		}
		if q.Explain {
			d.Costs = append(d.Costs, PlaceCost{RankRef: k.RankRef, Total: totals[i], Terms: v.terms(k, w), Load: k.Load, Held: k.Held})
		} else if len(d.Fallbacks) == maxFallbacks {
			break
		}
	}
}

// terms are those of the policy and what the load adds to them.
func (v *View) terms(c *Candidate, w loads.Weights) []Term {
	out := slices.Clone(c.Cost.Terms)
	blocks := float64(c.Load.Blocks + c.Added)
	for _, t := range []Term{
		{"wait_ms", w.Wait * c.Load.Wait(v.Now, v.Settings.Speed)},
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

// state returns what is remembered of a model.
func (r *Router) state(model string) *modelState {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		if len(r.models) >= maxModels {
			clear(r.models)
		}
		m = &modelState{settings: *r.c.Settings, version: -1}
		r.models[model] = m
	}
	return m
}

// picture returns the loads of a model, at most pictureAge old unless they are away, and
// the settings that go with them.
func (r *Router) picture(ctx context.Context, model string, fresh bool) (p loads.Picture, s *Settings, version int64, away bool) {
	m := r.state(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := r.c.Now()
	if fresh || m.read.IsZero() || now.Sub(m.read) >= pictureAge {
		bound, cancel := context.WithTimeout(ctx, pictureWait)
		defer cancel()
		picture, err := r.c.Loads.Loads(bound, model)
		m.failed = err
		m.read = now
		if err == nil {
			m.picture = picture
			m.adopt(r.c.Settings)
		} else if m.picture.Loads == nil {
			m.picture = loads.Picture{Now: now.UnixMicro(), Loads: map[store.RankRef]loads.Load{}}
		}
	}
	settings := m.settings
	return m.picture, &settings, m.picture.Version, m.failed != nil
}

// adopt takes over the settings that a picture has. Those that cannot be read, as a later
// version may have written them, are not taken: what was in force goes on.
func (m *modelState) adopt(base *Settings) {
	if m.version == m.picture.Version {
		return
	}
	m.version = m.picture.Version
	if m.picture.Settings == nil {
		m.settings = *base
		return
	}
	if s, err := base.Merge(m.picture.Settings); err == nil {
		m.settings = s
	}
}

// bookLocally adds a request that could not be booked to the picture that further requests
// are routed by.
func (r *Router) bookLocally(model string, v *View, chosen int) {
	m := r.state(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	c := v.candidate(chosen)
	all := make(map[store.RankRef]loads.Load, len(m.picture.Loads)+1) // earlier callers still read the old map
	for at, l := range m.picture.Loads {
		all[at] = l
	}
	l := all[c.RankRef]
	l.Add(&c, int64(v.Blocks()), m.picture.Now)
	all[c.RankRef] = l
	m.picture.Loads = all
}

// override returns the settings as a request wants them.
func (s *Settings) override(object []byte) (*Settings, error) {
	if object == nil {
		return s, nil
	}
	out, err := s.Merge(object)
	return &out, err
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

// Done reports that a request's prefill has ended, or its first token has come. cached is
// how many of its tokens the engine had cached, negative if that is not known.
func (r *Router) Done(ctx context.Context, model, id string, cached int) (loads.Report, error) {
	m := r.state(model)
	m.mu.Lock()
	shape := m.settings.shape()
	m.mu.Unlock()
	return r.c.Loads.Done(ctx, model, id, loads.Done{Cached: cached, Shape: shape})
}

// Output reports how many tokens a request has put out so far.
func (r *Router) Output(ctx context.Context, model, id string, tokens int) (loads.Report, error) {
	return r.c.Loads.Output(ctx, model, id, tokens)
}

// End reports that a request is over.
func (r *Router) End(ctx context.Context, model, id string) (loads.Report, error) {
	return r.c.Loads.End(ctx, model, id)
}

// Loads returns the loads of a model as they stand now.
func (r *Router) Loads(ctx context.Context, model string) (loads.Picture, error) {
	return r.c.Loads.Loads(ctx, model)
}
