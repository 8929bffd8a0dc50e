package route

import (
	"encoding/json"
	"math"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Pull says what a pod may fetch of a prompt from another one, and how long that takes. It is
// off while BlockBytes or Bandwidth is 0.
type Pull struct {
	// BlockBytes is the size of an index block's KV, of all layers and all tensor-parallel
	// ranks.
	BlockBytes int64 `json:"block_bytes"`
	// Bandwidth is how many bytes a second go from pod to pod, OverheadMS what a fetch takes
	// besides, in milliseconds.
	Bandwidth  float64 `json:"bandwidth"`
	OverheadMS float64 `json:"overhead_ms"`
	// Tiers are those that can be fetched from.
	Tiers Tiers `json:"tiers"`
	// Port is where engines serve what others fetch: rank 0, the others behind it.
	Port int `json:"port"`
}

// DefaultPull are the settings of a model without its own: off. The port is that
// of vLLM's tier for it.
func DefaultPull() Pull { return Pull{Tiers: Tiers{store.GPU: true, store.CPU: true}, Port: 5710} }

// isOn reports whether anything can be fetched.
func (p *Pull) isOn() bool { return p.BlockBytes > 0 && p.Bandwidth > 0 }

// ms returns how many milliseconds the fetch of so many tokens takes, 0 while it is off.
func (p *Pull) ms(tokens, blockSize int) float64 {
	if !p.isOn() || tokens <= 0 {
		return 0
	}
	return p.OverheadMS + math.Ceil(float64(tokens)/float64(blockSize))*float64(p.BlockBytes)/p.Bandwidth*1000
}

// Tiers is a set of tiers.
type Tiers [store.NumTiers]bool

// MarshalJSON writes the tiers' names.
func (t Tiers) MarshalJSON() ([]byte, error) {
	names := []string{}
	for tier, in := range t {
		if in {
			names = append(names, store.Tier(tier).String())
		}
	}
	return json.Marshal(names)
}

// UnmarshalJSON reads the tiers' names.
func (t *Tiers) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*t = Tiers{}
	for _, name := range names {
		tier, err := store.ParseTier(name)
		if err != nil {
			return err
		}
		t[tier] = true
	}
	return nil
}

// Source is a rank that part of a prompt is fetched from.
type Source struct {
	store.RankRef
	// Address is where its pod serves, when its name is not that. Port is where it serves what
	// others fetch.
	Address string
	Port    int
	// Tokens is how many are fetched: those that it holds behind what the place itself does.
	Tokens int
	// MS is how many milliseconds that takes.
	MS float64
}

// tokens returns how many are fetched.
func (s *Source) tokens() int {
	if s == nil {
		return 0
	}
	return s.Tokens
}

// kin are pods that can fetch from each other: of one engine and one size of blocks.
type kin struct {
	engine    string
	blockSize int
}

// holder is a rank that could be fetched from.
type holder struct {
	Source
	held     int
	requests int64
}

// planPulls finds out for each candidate whether it is quicker to fetch what another rank
// holds than to prefill it. More tokens take the same time each to fetch, and ever more to prefill, so only
// the largest holder comes into question. Of several it takes the one with the fewest requests, then one
// that is drawn. A rank that holds part of it in a tier that cannot be fetched from does not, since nothing
// says which part.
func (v *View) planPulls(match *scorer.Match, model string, picture *loads.Picture) {
	if !v.Settings.Pull.isOn() || match.Registry == nil {
		return
	}
	best := v.holders(match, model, picture)
	shape := v.Settings.shape()
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if c.Decode {
			continue
		}
		p, ok := match.Registry.PodIndex(c.Pod)
		if !ok {
			continue
		}
		c.Pull = c.plan(v, shape, best[kinOf(&match.Registry.Pods[p])])
	}
}

func kinOf(p *store.Pod) kin { return kin{p.Engine, p.BlockSize} }

// plan returns what the candidate fetches from a holder, nil where it is quicker to prefill.
func (c *Candidate) plan(v *View, shape loads.Shape, from *holder) *Source {
	if from == nil || from.RankRef == c.RankRef || from.held <= c.Cached() {
		return nil
	}
	s := from.Source
	s.Tokens = from.held - c.Cached()
	s.MS = v.Settings.Pull.ms(s.Tokens, v.BlockSize)
	if s.MS >= c.prefill(v, shape, 0)-c.prefill(v, shape, s.Tokens) {
		return nil
	}
	return &s
}

// holders returns by kin the rank to fetch from.
func (v *View) holders(match *scorer.Match, model string, picture *loads.Picture) map[kin]*holder {
	best, equals := map[kin]*holder{}, map[kin]int{}
	for i := range match.Registry.Pods {
		p := &match.Registry.Pods[i]
		if p.Model != model || p.PartOf != nil {
			continue
		}
		for rank := range max(1, p.Ranks) {
			slot, ok := match.Registry.Slot(i, rank)
			if !ok || slot >= len(match.Held) {
				continue
			}
			at := store.RankRef{Pod: p.Name, Rank: rank}
			l := picture.Loads[at]
			l = l.In(match.Registry.Generation(slot))
			h := holder{Source: Source{RankRef: at, Address: p.Address, Port: v.Settings.Pull.Port + rank}, requests: l.Requests}
			told := match.Usable(slot)
			told[store.GPU] -= int32(match.UsablePredicted(slot)) // what is only predicted may not be there yet
			if h.held = v.Settings.Pull.fetchable(told) * match.BlockSize; h.held == 0 {
				continue
			}
			k := kinOf(p)
			switch old := best[k]; {
			case old == nil || h.held > old.held || h.held == old.held && h.requests < old.requests:
				best[k], equals[k] = &h, 1
			case h.held == old.held && h.requests == old.requests:
				if equals[k]++; v.Rand.IntN(equals[k]) == 0 {
					best[k] = &h
				}
			}
		}
	}
	return best
}

// fetchable returns how many blocks can be fetched from the holder of these.
func (p *Pull) fetchable(held scorer.TierCounts) int {
	for tier, n := range held {
		if n > 0 && !p.Tiers[tier] {
			return 0
		}
	}
	return held.Total()
}

// Way is a place that the request could go to, and its cost there.
type Way struct {
	store.RankRef
	Total float64
	// From is what is fetched, nil is nothing.
	From *Source
}

// Ways are the cheapest places of each kind; one is nil where there is none.
type Ways struct {
	// Wait is to go to a rank that holds at least as much as could be fetched. Recompute is to prefill
	// elsewhere, and Pull to fetch elsewhere.
	Wait, Recompute, Pull *Way
}

// ways returns what each way costs, nil where there is nothing to fetch.
func (v *View) ways(totals []float64) *Ways {
	most := 0
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if c.Pull != nil {
			most = max(most, c.Cached()+c.Pull.Tokens)
		}
	}
	if most == 0 {
		return nil
	}
	out := &Ways{}
	put := func(at **Way, w Way) {
		if !math.IsNaN(w.Total) && (*at == nil || w.Total < (*at).Total) {
			*at = &w
		}
	}
	for i := range v.Candidates[:len(totals)] {
		c := &v.Candidates[i]
		if c.Pull == nil && c.Cached() >= most {
			put(&out.Wait, Way{RankRef: c.RankRef, Total: totals[i]})
			continue
		}
		put(&out.Recompute, Way{RankRef: c.RankRef, Total: totals[i] + c.Cost.Factor*(c.Cost.Without-c.Cost.Base)})
		if c.Pull != nil {
			put(&out.Pull, Way{RankRef: c.RankRef, Total: totals[i], From: c.Pull})
		}
	}
	return out
}
