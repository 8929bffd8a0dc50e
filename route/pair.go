package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// RolePair is the Role of a request that one pod prefills and another one decodes.
const RolePair = "pair"

// Pair says how the two pods of such a request are chosen.
type Pair struct {
	// RequireSame are labels of which both pods must have the same value. PreferSame are
	// weights of labels: a pair costs exp(-tanh(sum)) times as much, with the sum of those that
	// its pods share.
	RequireSame []string           `json:"require_same"`
	PreferSame  map[string]float64 `json:"prefer_same"`
	// LocalTokens and LocalShare say when a pod that decodes prefills as well: when at most so
	// many tokens, or at most that share of the prompt, are not cached there.
	LocalTokens int     `json:"local_tokens"`
	LocalShare  float64 `json:"local_share"`
	// LocalFallback lets it prefill when no prefill pod can.
	LocalFallback bool `json:"local_fallback"`
}

// DefaultPair are the settings of a model that nobody has set any for.
func DefaultPair() Pair {
	return Pair{RequireSame: []string{}, PreferSame: map[string]float64{}, LocalTokens: 256, LocalShare: 0.1, LocalFallback: true}
}

func (p *Pair) clone() Pair {
	c := *p
	c.RequireSame, c.PreferSame = slices.Clone(p.RequireSame), maps.Clone(p.PreferSame)
	return c
}

func (p *Pair) validate() error {
	if len(p.RequireSame) > store.MaxLabels || len(p.PreferSame) > store.MaxLabels {
		return fmt.Errorf("%w: pair has more labels than a pod can have, %d", ErrSettings, store.MaxLabels)
	}
	for label, w := range p.PreferSame {
		if math.IsNaN(w) || math.Abs(w) > 1e6 {
			return fmt.Errorf("%w: pair.prefer_same: the weight of label %.40q is %v", ErrSettings, label, w)
		}
	}
	return nil
}

// Part is what a View is about.
type Part int

// The parts of a request. Whole is also one that asks for a pod of one role alone.
const (
	Whole Part = iota
	PrefillPart
	DecodePart
)

// Local says why the pod that decodes prefills as well.
type Local string

// The reasons, empty when another pod prefills.
const (
	LocalShort  Local = "short"          // few tokens are not cached there
	LocalHeld   Local = "held"           // it holds most of the prompt
	LocalWhole  Local = "whole"          // it takes whole requests, and costs less than any pair
	LocalNobody Local = "no_prefill_pod" // no prefill pod can take it
)

// Half is the pod that prefills, in the Decision on a pair; the rest is about the one that
// decodes.
type Half struct {
	store.RankRef
	Address   string
	Fallbacks []store.RankRef
	Held      [store.NumTiers]int
	Predicted int
	Costs     []PlaceCost
}

// Cached is how many tokens of the prompt the place can reuse.
func (h *Half) Cached() (n int) {
	for _, held := range h.Held {
		n += held
	}
	return n
}

// PairCost is what two places cost together.
type PairCost struct {
	Prefill, Decode store.RankRef
	// Total is the cost: Terms says what it is made of. It is NaN where one is at its limits.
	Total float64
	Terms []Term
}

// Bounds of the search for a pair.
const (
	// maxListed is how many places of either kind are looked at, of those that may work together.
	// With more the cheapest are.
	maxListed = 128
	// keptPairs is how many of them the nominated places are taken from.
	keptPairs = 64
	// explainedPairs is how many an explanation has.
	explainedPairs = 8
)

// pairing is the choice of a pair.
type pairing struct {
	r       *Router
	q       *Request
	prefill *View // who may prefill: others, then those of decode that may for themselves
	decode  *View
	wp, wd  loads.Weights
	// totals by candidate.
	tp, td []float64
	// own is, by candidate of decode, the same place in prefill; -1 where it may not prefill.
	own []int
	// forced is, by candidate of decode, why it prefills by rule.
	forced []Local
	// helps reports, by candidate of prefill, whether it may prefill for others.
	helps []bool
	// whole reports, by candidate of decode, whether the pod takes whole requests.
	whole []bool
	topo  topology
	ms    bool // costs are milliseconds
	match *scorer.Match
}

// routePair is one try of Route for a pair.
func (r *Router) routePair(ctx context.Context, q *Request, fresh bool) (*Decision, error) {
	picture, base, version, away := r.picture(ctx, q.Score.Model, fresh)
	settings, err := base.override(q.Overrides)
	if err != nil {
		return nil, err
	}
	policy, err := ParsePolicy(settings.Policy)
	if err != nil {
		return nil, err
	}
	d := &Decision{Policy: policy.Name}
	v := View{Settings: settings, Explain: q.Explain, Now: picture.Now, Turn: r.turn.Add(1) - 1, Part: DecodePart}
	match, err := r.match(ctx, q, policy.Blind && !q.Score.ReturnTokens, d)
	if err != nil {
		return nil, err
	}
	v.prompt(d.size(&q.Score), match)
	p := &pairing{r: r, q: q, decode: &v, match: match, ms: policy.Milliseconds}
	if err := p.places(&picture); err != nil {
		return nil, err
	}
	p.prefill.learnSpeeds()
	p.decode.learnSpeeds()
	r.draw(p.prefill)
	r.draw(p.decode)
	p.prefill.planPulls(match, q.Score.Model, &picture)
	p.wp, p.wd = policy.Weigh(p.prefill), policy.Weigh(p.decode)
	p.tp, p.td = p.prefill.totals(p.wp), p.decode.totals(p.wd)
	if err := p.take(ctx, version, away, d); err != nil {
		return nil, err
	}
	return d, nil
}

// prompt tells the view of the prompt.
func (v *View) prompt(tokens int, match *scorer.Match) {
	v.Tokens, v.BlockSize = tokens, match.BlockSize
	if len(match.Keys) > 0 {
		v.Prefix, v.HasPrefix = match.Keys[0], true
	}
}

// draw gives a view its random numbers and what is remembered of its candidates.
func (r *Router) draw(v *View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.seed(r.rand.Uint64(), r.rand.Uint64())
	if len(r.cold) == 0 {
		return
	}
	for i := range v.Candidates {
		v.Candidates[i].Turn = r.cold[v.Candidates[i].RankRef]
	}
}

// places fills in who may prefill and who may decode.
func (p *pairing) places(picture *loads.Picture) error {
	ask := *p.q
	ask.Role = "decode"
	if err := ask.candidates(p.decode, p.match, picture); err != nil {
		return err
	}
	prefill := *p.decode
	prefill.Part, prefill.Candidates = PrefillPart, nil
	p.prefill = &prefill
	ask.Role, ask.Pinned = "prefill", p.q.PinnedPrefill
	if err := ask.candidates(p.prefill, p.match, picture); err != nil && !errors.Is(err, ErrNobody) {
		return err
	}
	at := make(map[store.RankRef]int, len(prefill.Candidates))
	for i := range prefill.Candidates {
		at[prefill.Candidates[i].RankRef] = i
	}
	n, s := len(p.decode.Candidates), &p.decode.Settings.Pair
	p.own, p.forced, p.whole = make([]int, n), make([]Local, n), make([]bool, n)
	var alone []int
	for i := range p.decode.Candidates {
		c := &p.decode.Candidates[i]
		own, whole := at[c.RankRef]
		p.own[i], p.whole[i] = -1, whole
		if whole {
			p.own[i] = own
		}
		if p.q.PinnedPrefill == nil {
			p.forced[i] = s.local(p.decode.Tokens, c.Cached())
		}
		if !whole && p.q.PinnedPrefill == nil && (p.forced[i] != "" || s.LocalFallback) {
			alone = append(alone, i)
		}
	}
	p.mergePrefill(alone)
	if len(p.prefill.Candidates) == 0 {
		return fmt.Errorf("%w: nobody may prefill for one of %d ranks that may decode", ErrNobody, n)
	}
	p.topo = newTopology(s, p.match.Registry, p.prefill.Candidates, p.decode.Candidates)
	return nil
}

// mergePrefill puts who may prefill into the order that policies expect, those of decode that
// may for themselves with the others. Both are in it.
func (p *pairing) mergePrefill(alone []int) {
	others := p.prefill.Candidates
	at := make([]int, len(others)) // where each stands now
	merged := make([]Candidate, 0, len(others)+len(alone))
	p.helps = make([]bool, 0, cap(merged))
	n := 0
	for i := range others {
		for ; n < len(alone) && before(&p.decode.Candidates[alone[n]], &others[i]); n++ {
			merged = p.mergeOwn(merged, alone[n])
		}
		at[i] = len(merged)
		merged, p.helps = append(merged, others[i]), append(p.helps, true)
	}
	for ; n < len(alone); n++ {
		merged = p.mergeOwn(merged, alone[n])
	}
	p.prefill.Candidates = merged
	for k := range p.own {
		if p.whole[k] {
			p.own[k] = at[p.own[k]]
		}
	}
}

// mergeOwn adds candidate k of decode as one that prefills for itself.
func (p *pairing) mergeOwn(merged []Candidate, k int) []Candidate {
	c := p.decode.Candidates[k]
	c.Decode = false
	p.own[k] = len(merged)
	p.helps = append(p.helps, false)
	return append(merged, c)
}

// before reports whether a candidate stands before another one.
func before(a, b *Candidate) bool {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank)) < 0
}

// local returns why a pod that holds so many tokens of a prompt prefills the rest itself.
func (p *Pair) local(tokens, cached int) Local {
	switch uncached := tokens - min(cached, tokens); {
	case uncached <= p.LocalTokens:
		return LocalShort
	case float64(uncached) <= p.LocalShare*float64(tokens):
		return LocalHeld
	}
	return ""
}

// option returns what candidates i of prefill and k of decode cost together besides their own
// costs, and whether they may. A pod that decodes alone prefills only by rule, or as a resort.
func (p *pairing) option(i, k int) (extra, factor float64, ok bool) {
	if p.own[k] == i {
		return 0, 1, p.forced[k] != "" || p.whole[k]
	}
	if p.forced[k] != "" || !p.helps[i] {
		return 0, 0, false
	}
	if factor, ok = p.topo.factor(i, k); !ok {
		return 0, 0, false
	}
	return p.transfer(k), factor, true
}

// transfer returns how many milliseconds it takes to send candidate k of decode what it does
// not hold, 0 where costs are no times.
func (p *pairing) transfer(k int) float64 {
	if !p.ms {
		return 0
	}
	return p.decode.Settings.Pull.ms(p.decode.Tokens-p.decode.Candidates[k].Cached(), p.decode.BlockSize)
}

// pairOf is an option with its cost by the picture.
type pairOf struct {
	loads.Option
	total float64
}

// search returns the cheapest options by the picture, and whether anybody may work with
// anybody. Of places with the same labels the cheapest do, since what labels add is the same
// for all of them.
func (p *pairing) search() (best []pairOf, found bool) {
	add := func(i, k int) {
		extra, factor, ok := p.option(i, k)
		if !ok {
			return
		}
		found = true
		total := factor * (p.tp[i] + p.td[k] + extra)
		if math.IsNaN(total) || len(best) == keptPairs && total >= best[len(best)-1].total {
			return
		}
		if len(best) == keptPairs {
			best = best[:keptPairs-1]
		}
		at, _ := slices.BinarySearchFunc(best, total, func(o pairOf, t float64) int {
			if o.total <= t {
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, pairOf{loads.Option{Prefill: i, Decode: k, Extra: extra, Factor: factor}, total})
	}
	decodes := p.shortlists(p.decode, p.topo.decode, func(k int) float64 {
		return p.td[k] + p.transfer(k)
	}, func(k int) bool { return p.forced[k] == "" })
	prefills := p.shortlists(p.prefill, p.topo.prefill, func(i int) float64 { return p.tp[i] }, func(i int) bool { return p.helps[i] })
	for _, k := range p.decode.Rand.Perm(len(p.td)) {
		if p.own[k] >= 0 {
			add(p.own[k], k)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(decodes)) {
		for _, k := range decodes[domain] {
			for _, i := range prefills[domain] {
				if i != p.own[k] {
					add(i, k)
				}
			}
		}
	}
	return best, found
}

// shortlists returns the candidates to look at by the domain that they are in, the cheapest
// first, in a drawn order where costs are equal.
func (p *pairing) shortlists(v *View, labels []domain, cost func(int) float64, wanted func(int) bool) map[int][]int {
	order := v.Rand.Perm(len(labels))
	costs := make([]float64, len(labels))
	for i := range costs {
		costs[i] = cost(i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareCosts(costs[a], costs[b]) })
	out, alike := map[int][]int{}, map[int]int{}
	for _, i := range order {
		l := &labels[i]
		if l.number == 0 || !wanted(i) || alike[l.class] == nominated || len(out[l.number]) == maxListed {
			continue
		}
		alike[l.class]++
		out[l.number] = append(out[l.number], i)
	}
	return out
}

// call returns the booking of the pair, among at most nominated places of either part and the
// same again of those that prefill for themselves, with the indexes of its candidates.
func (p *pairing) call(version int64) (c *loads.PairCall, is, ks []int, err error) {
	best, found := p.search()
	inI, inK := map[int]int{}, map[int]int{}
	useK := func(k int) {
		if _, ok := inK[k]; !ok {
			inK[k], ks = len(ks), append(ks, k)
		}
	}
	useI := func(i int) {
		if _, ok := inI[i]; !ok {
			inI[i], is = len(is), append(is, i)
		}
	}
	for _, o := range best {
		_, hasI := inI[o.Prefill]
		_, hasK := inK[o.Decode]
		if (hasI || len(is) < nominated) && (hasK || len(ks) < nominated) {
			useI(o.Prefill)
			useK(o.Decode)
		}
	}
	for _, k := range p.leastBusy() { // whom the picture may know too late
		if len(ks) < nominated && p.own[k] >= 0 {
			useK(k)
		}
	}
	if len(ks) == 0 {
		if found {
			return nil, nil, nil, ErrBusy
		}
		return nil, nil, nil, fmt.Errorf("%w: none of %d ranks that prefill has the labels in common with one of %d that decode", ErrNobody, len(p.tp), len(p.td))
	}
	for _, k := range ks {
		if p.own[k] >= 0 {
			useI(p.own[k])
		}
	}
	v := p.decode
	c = &loads.PairCall{
		Call: loads.Call{
			Model: p.q.Score.Model, ID: p.q.ID, Lease: v.Settings.lease(), Tokens: v.Tokens, Expected: p.q.Expected,
			BlockSize: v.BlockSize, Keys: p.match.Keys, Settings: version, Quadratic: p.decode.Settings.Quadratic, Weights: p.wd, Temperature: v.Settings.Temperature, Draw: v.Rand.Float64(),
		},
		PrefillWeights: p.wp,
	}
	if c.ID == "" {
		c.ID = "r" + strconv.FormatUint(v.Rand.Uint64(), 36) + strconv.FormatUint(v.Rand.Uint64(), 36)
	}
	for _, i := range is {
		c.Prefill = append(c.Prefill, p.prefill.bookable(i, p.wp))
	}
	for _, k := range ks {
		c.Candidates = append(c.Candidates, v.bookable(k, p.wd))
		for _, i := range is {
			extra, factor, ok := p.option(i, k)
			o := loads.Option{Prefill: inI[i], Decode: inK[k], Extra: extra, Factor: factor}
			switch {
			case ok:
				c.Options = append(c.Options, o)
			case p.own[k] == i && v.Settings.Pair.LocalFallback:
				o.Factor = 1
				c.Resorts = append(c.Resorts, o)
			}
		}
	}
	// Of equal costs the first is taken: the pair that is preferred more.
	slices.SortStableFunc(c.Options, func(a, b loads.Option) int { return cmp.Compare(a.Factor, b.Factor) })
	return c, is, ks, nil
}

// leastBusy returns the candidates of decode with the fewest requests first.
func (p *pairing) leastBusy() []int {
	order := p.decode.Rand.Perm(len(p.td))
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(p.decode.Candidates[a].Load.Requests, p.decode.Candidates[b].Load.Requests)
	})
	return order[:min(2, len(order))]
}

// take chooses the pair, books it if that is asked and can be, and writes the decision.
func (p *pairing) take(ctx context.Context, version int64, away bool, d *Decision) error {
	c, is, ks, err := p.call(version)
	if err != nil {
		return err
	}
	var b loads.BookedPair
	if p.q.Reserve && !away {
		b, err = p.r.c.Loads.BookPair(ctx, c)
		switch {
		case err == nil:
			d.Reservation, d.Again = c.ID, b.Again
			p.booked(&b, is, ks)
			if err := p.conclude(c, &b, is, ks, d); err != nil {
				return err
			}
			p.predict(ctx, d)
			return nil
		case errors.Is(err, loads.ErrBusy):
			return ErrBusy
		case errors.Is(err, loads.ErrFull):
			return fmt.Errorf("%w: %w", ErrBusy, err)
		case !errors.Is(err, loads.ErrUnavailable):
			return err
		}
		p.r.tellAway(p.q.Score.Model, err)
		away = true
	}
	d.Local = away
	prefill, decode := pickOf(p.tp, is), pickOf(p.td, ks)
	totals, resorted, chosen := c.Choose(prefill, decode)
	if chosen < 0 {
		return ErrBusy
	}
	b = loads.BookedPair{Totals: totals, Resorted: resorted}
	o := c.Option(resorted, chosen)
	i, k := is[o.Prefill], ks[o.Decode]
	b.Prefill, b.RankRef = p.prefill.Candidates[i].RankRef, p.decode.Candidates[k].RankRef
	if p.q.Reserve {
		p.r.bookLocally(p.q.Score.Model, p.prefill, i)
		if b.Prefill != b.RankRef {
			p.r.bookLocally(p.q.Score.Model, p.decode, k)
		}
	}
	return p.conclude(c, &b, is, ks, d)
}

func pickOf(all []float64, at []int) []float64 {
	out := make([]float64, len(at))
	for n, i := range at {
		out[n] = all[i]
	}
	return out
}

// booked reads what a booking says into the views.
func (p *pairing) booked(b *loads.BookedPair, is, ks []int) {
	p.prefill.Now, p.decode.Now = b.Now, b.Now
	for n := range b.PrefillCosts {
		p.tp[is[n]] = b.PrefillCosts[n]
		p.prefill.seeBooked(&p.prefill.Candidates[is[n]], b.PrefillLoads[n])
	}
	for n := range b.Costs {
		p.td[ks[n]] = b.Costs[n]
		p.decode.seeBooked(&p.decode.Candidates[ks[n]], b.Loads[n])
	}
}

// conclude writes the decision.
func (p *pairing) conclude(c *loads.PairCall, b *loads.BookedPair, is, ks []int, d *Decision) error {
	k, i := p.decode.find(b.RankRef), p.prefill.find(b.Prefill)
	p.r.conclude(p.q, p.decode, p.wd, p.match, p.td, k, d)
	if b.Prefill == b.RankRef {
		d.Pull = p.prefill.Candidates[i].Pull
		switch {
		case k < len(p.forced) && p.forced[k] != "":
			d.Prefills = p.forced[k]
		case k < len(p.whole) && p.whole[k] && !b.Resorted:
			d.Prefills = LocalWhole
		default:
			d.Prefills = LocalNobody
		}
	} else {
		var half Decision
		p.r.conclude(p.q, p.prefill, p.wp, p.match, p.tp, i, &half)
		d.Prefill = &Half{RankRef: b.Prefill, Address: half.Address, Held: half.Held, Predicted: half.Predicted, Costs: half.Costs}
		d.Best = max(d.Best, half.Best)
		d.Pull = half.Pull
		for _, at := range half.Fallbacks {
			if n := p.prefill.find(at); n < len(p.helps) && p.helps[n] && p.topo.near(n, k) {
				d.Prefill.Fallbacks = append(d.Prefill.Fallbacks, at)
			}
		}
	}
	if p.q.Explain {
		d.Pairs = p.explain(c, b, is, ks)
	}
	return nil
}

// predict writes that both places will hold the prompt: what one has prefilled goes to the
// other.
func (p *pairing) predict(ctx context.Context, d *Decision) {
	p.r.predict(ctx, p.decode, p.match, p.q.Score.Model, &p.decode.Candidates[p.decode.find(d.RankRef)], d)
	if d.Prefill != nil {
		p.r.predict(ctx, p.prefill, p.match, p.q.Score.Model, &p.prefill.Candidates[p.prefill.find(d.Prefill.RankRef)], d)
	}
}

// find returns the index of a place. One that a repeated call has found, and that may take no
// more by now, is added.
func (v *View) find(at store.RankRef) int {
	i := slices.IndexFunc(v.Candidates, func(c Candidate) bool { return c.RankRef == at })
	if i < 0 {
		v.Candidates = append(v.Candidates, Candidate{RankRef: at, Cost: Cost{Factor: 1}})
		i = len(v.Candidates) - 1
	}
	return i
}

// explain returns the cheapest of the pairs that were chosen among.
func (p *pairing) explain(c *loads.PairCall, b *loads.BookedPair, is, ks []int) []PairCost {
	options := c.Options
	if b.Resorted {
		options = c.Resorts
	}
	out := make([]PairCost, 0, len(options))
	for n, o := range options[:min(len(options), len(b.Totals))] {
		i, k := is[o.Prefill], ks[o.Decode]
		cost := PairCost{Prefill: p.prefill.Candidates[i].RankRef, Decode: p.decode.Candidates[k].RankRef, Total: b.Totals[n]}
		if !math.IsNaN(cost.Total) {
			cost.Terms = []Term{{"prefill", p.tp[i]}, {"decode", p.td[k]}}
			if o.Extra != 0 {
				cost.Terms = append(cost.Terms, Term{"transfer_ms", o.Extra})
			}
			if o.Factor != 1 {
				cost.Terms = append(cost.Terms, Term{"same_labels_factor", o.Factor})
			}
		}
		out = append(out, cost)
	}
	slices.SortStableFunc(out, func(a, b PairCost) int { return compareCosts(a.Total, b.Total) })
	return out[:min(len(out), explainedPairs)]
}

// topology says which places are near each other.
type topology struct {
	prefill, decode []domain // by candidate
	weights         []float64
	factors         map[uint64]float64 // by the preferred labels that two share
}

// domain is where a candidate is.
type domain struct {
	// number is of the values of the labels that must be the same; 0 is of a pod that lacks one.
	// class is that of all labels that count.
	number, class int
	// values are numbers of the values of preferred labels, 0 without one.
	values []int
}

func newTopology(s *Pair, reg *store.Registry, prefill, decode []Candidate) topology {
	t := topology{factors: map[uint64]float64{0: 1}}
	labels := slices.Sorted(maps.Keys(s.PreferSame))
	for _, l := range labels {
		t.weights = append(t.weights, s.PreferSame[l])
	}
	numbers := map[string]int{}
	number := func(key []byte) int {
		n := numbers[string(key)]
		if n == 0 {
			n = len(numbers) + 1
			numbers[string(key)] = n
		}
		return n
	}
	var key []byte
	read := func(cs []Candidate) []domain {
		out := make([]domain, len(cs))
		for i := range cs {
			d := &out[i]
			var of map[string]string
			if n, ok := reg.PodIndex(cs[i].Pod); ok {
				of = reg.Pods[n].Labels
			}
			key, whole := append(key[:0], 'd'), true
			for _, l := range s.RequireSame {
				value, ok := of[l]
				key, whole = strconv.AppendQuote(key, value), whole && ok
			}
			if whole {
				d.number = number(key)
			}
			class := strconv.AppendInt([]byte{'c'}, int64(d.number), 10)
			if len(labels) > 0 {
				d.values = make([]int, len(labels))
			}
			for j, l := range labels {
				if value, ok := of[l]; ok {
					d.values[j] = number(strconv.AppendQuote(strconv.AppendInt(append(key[:0], 'v'), int64(j), 10), value))
				}
				class = strconv.AppendInt(append(class, ' '), int64(d.values[j]), 10)
			}
			d.class = number(class)
		}
		return out
	}
	t.prefill, t.decode = read(prefill), read(decode)
	return t
}

// near reports whether places may work together.
func (t *topology) near(i, k int) bool {
	if i >= len(t.prefill) || k >= len(t.decode) {
		return false
	}
	_, ok := t.factor(i, k)
	return ok
}

// factor returns what the cost of candidates i of prefill and k of decode is multiplied by,
// and whether they may work together.
func (t *topology) factor(i, k int) (float64, bool) {
	a, b := &t.prefill[i], &t.decode[k]
	if a.number == 0 || a.number != b.number {
		return 0, false
	}
	shared := uint64(0) // a pod has at most 64 labels
	for j, v := range a.values {
		if v != 0 && v == b.values[j] {
			shared |= 1 << j
		}
	}
	f, ok := t.factors[shared]
	if !ok {
		sum := 0.0
		for j, w := range t.weights {
			if shared&(1<<j) != 0 {
				sum += w
			}
		}
		f = math.Exp(-math.Tanh(sum))
		t.factors[shared] = f
	}
	return f, true
}
