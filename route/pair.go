package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

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
	// LocalTokens and LocalShare say when a pod that decodes prefills as well. It does when at most so
	// many tokens, or at most that share of the prompt, are not cached there.
	LocalTokens int     `json:"local_tokens"`
	LocalShare  float64 `json:"local_share"`
	// LocalFallback lets it prefill when no prefill pod can.
	LocalFallback bool `json:"local_fallback"`
}

// DefaultPair are the settings of a model without its own.
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
func (h *Half) Cached() int { return total(h.Held) }

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
	prefill *View // which may prefill: others, then those of decode that may for themselves
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
	v := View{Part: DecodePart}
	t, d, err := r.begin(ctx, q, &v, fresh)
	if err != nil {
		return nil, err
	}
	p := &pairing{r: r, q: q, decode: &v, match: t.match, ms: t.policy.Milliseconds}
	if err := p.places(&t.picture); err != nil {
		return nil, nobody(err, t.unread)
	}
	p.prefill.learnSpeeds()
	p.decode.learnSpeeds()
	r.draw(p.prefill)
	r.draw(p.decode)
	p.prefill.planPulls(t.match, q.Score.Model, &t.picture)
	p.wp, p.wd = t.policy.Weigh(p.prefill), t.policy.Weigh(p.decode)
	p.tp, p.td = p.prefill.totals(p.wp), p.decode.totals(p.wd)
	if err := p.take(ctx, t.version, t.away, d); err != nil {
		return nil, nobody(err, t.unread)
	}
	return d, nil
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

// places fills in the places that may prefill and those that may decode.
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
		return fmt.Errorf("%w: no pod may prefill for one of %d ranks that may decode%s", ErrNobody, n, pinnedTo(p.q.PinnedPrefill))
	}
	p.topo = newTopology(s, p.match.Registry, p.prefill.Candidates, p.decode.Candidates)
	return nil
}

// mergePrefill puts the places that may prefill into the order that policies expect, those of decode that
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
