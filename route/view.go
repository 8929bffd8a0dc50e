package route

import (
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// Candidate is a (pod, rank) that may take a request, and what is known of it.
type Candidate struct {
	store.RankRef
	// Generation is the rank's present one.
	Generation store.Generation
	// Held is how many tokens of the prompt, from its start, the engine can reuse from each
	// tier. A block that is in several counts in the fastest.
	Held [store.NumTiers]int
	// Predicted is how many of the tokens of Held, in tier gpu, are only predicted.
	Predicted int
	// Load is what runs there: Booked, what is booked, with Extra, what the engine has told
	// that it differs by. Added is how many blocks this request would add.
	Load   loads.Load
	Booked loads.Load
	Extra  loads.Extra
	Added  int64
	// Speed is the speed to reckon with, in units of prefill a millisecond. It is the learnt one,
	// as far as that differs from others' by more than chance, or that of the settings.
	Speed float64
	// Engine is what the engine has told lately, nil for nothing.
	Engine *loads.Engine
	// Decode says that the pod only decodes: others have prefilled the prompt.
	Decode bool
	// CapacityBlocks is how many index blocks its cache has room for, 0 if that is not known.
	CapacityBlocks int
	// Preference is the sum of the weights of preferred labels that the pod has. Above 0
	// makes it cheaper, below dearer.
	Preference float64
	// Turn is when the rank last took a request whose prompt no pod held, as a count of
	// such requests; 0 is never.
	Turn uint64

	// Pull is what it would fetch of the prompt from another rank, because that takes less time
	// than to prefill it; nil is nothing.
	Pull *Source

	// Cost is what a policy says; the zero value before.
	Cost Cost
}

// Cached returns how many tokens of the prompt the candidate holds in any tier.
func (c *Candidate) Cached() int { return total(c.Held) }

// total adds up what is held by tier.
func total(byTier [store.NumTiers]int) (n int) {
	for _, held := range byTier {
		n += held
	}
	return n
}

// Cost is the part of a candidate's cost that no load changes: see loads.Weights.
type Cost struct {
	Base, Floor, Factor float64
	// Without is what Base would be if nothing was fetched.
	Without float64
	// Twin is the value of each unit of prefill that is spared by a running request with the same
	// beginning. The index of loads makes Base less by that.
	Twin float64
	// Terms are what it is made of, for an explanation.
	Terms []Term
}

// Term is a named part of a cost.
type Term struct {
	Name  string
	Value float64
}

// View is what a policy decides by.
type View struct {
	// Tokens is the length of the prompt, BlockSize the index block size.
	Tokens, BlockSize int
	// Prefix is the key of the prompt's first block; ok is false if it has none.
	Prefix    blockkey.Key
	HasPrefix bool
	// Now is the time of the loads, in microseconds of the Unix epoch.
	Now int64
	// Turn counts the requests that this process has routed.
	Turn uint64
	// Settings are those of the model, with what the request overrides.
	Settings *Settings
	// Rand draws random numbers.
	Rand *rand.Rand
	// Part is what the request is weighed for. The cost of a pair is that of its prefill and that
	// of its decode. A policy leaves out of the one what belongs to the other.
	Part Part
	// Explain asks for Terms.
	Explain bool
	// Candidates may take the request; they ascend by pod and rank.
	Candidates []Candidate

	only int // the one of them that must be taken, from 1; 0 is any

	spare *spare // nil outside of a Router
}

// Blocks is how many index blocks the prompt takes, the last of them perhaps in part.
func (v *View) Blocks() int { return (v.Tokens + v.BlockSize - 1) / v.BlockSize }

// set gives candidate i its cost. Terms are taken only when they are asked for.
func (v *View) set(i int, base, floor float64, terms ...Term) {
	c := &v.Candidates[i]
	c.Cost = Cost{Base: base, Floor: floor, Factor: c.factor(), Without: base}
	if v.Explain {
		c.Cost.Terms = slices.Clone(terms) // so that terms that were not asked for take no memory
	}
}

// maxHeld returns the most tokens that a candidate holds.
func (v *View) maxHeld() int {
	most := 0
	for i := range v.Candidates {
		most = max(most, v.Candidates[i].Cached())
	}
	return most
}

// isWarm reports whether a candidate holds at least one block.
func (v *View) isWarm() bool { return v.maxHeld() >= v.BlockSize }

// candidate returns candidate i with its cost at a load of the view.
func (v *View) candidate(i int) loads.Candidate {
	c := &v.Candidates[i]
	cached := min(c.Cached()+c.Pull.tokens(), v.Tokens)
	uncached := v.Tokens - cached
	if c.Decode {
		uncached = 0
	}
	out := loads.Candidate{
		RankRef: c.RankRef, Generation: c.Generation, Uncached: uncached,
		Base: c.Cost.Base, Floor: c.Cost.Floor, Factor: c.Cost.Factor, Speed: v.speedOf(c),
		Limits: v.limits(c), Twin: c.Cost.Twin,
	}
	if !c.Decode {
		out.Work = v.Settings.shape().Units(uncached, cached)
	}
	return out
}

// bookable returns candidate i in the form in which it is booked. The index weighs it by what
// is booked there; what runs besides is part of what no load changes.
func (v *View) bookable(i int, w loads.Weights) loads.Candidate {
	c, out := &v.Candidates[i], v.candidate(i)
	if c.Load == c.Booked {
		return out
	}
	speed := v.speedOf(c)
	out.Base += w.Wait*(c.Load.Wait(v.Now, speed)-c.Booked.Wait(v.Now, speed)) + w.Blocks*float64(c.Load.Blocks-c.Booked.Blocks) +
		w.Requests*float64(c.Load.Requests-c.Booked.Requests)
	out.Floor += w.Prefill*float64(c.Load.Prefill-c.Booked.Prefill) + w.Decode*float64(c.Load.Blocks-c.Booked.Blocks)
	return out
}

// seeBooked sets what is booked at a candidate.
func (v *View) seeBooked(c *Candidate, booked loads.Load) {
	c.Booked, c.Load = booked, booked
	if c.Extra != (loads.Extra{}) {
		c.Load = booked.With(c.Extra, v.Now)
	}
}

// seeEngine sets what the engine of a candidate has told.
func (v *View) seeEngine(c *Candidate, e loads.Engine) {
	if e.Generation < c.Generation {
		return // of a generation that is over
	}
	c.Engine = &e
	if c.CapacityBlocks == 0 {
		c.CapacityBlocks = int(e.KVTokens) / v.BlockSize
	}
	c.Extra = e.Extra(v.Settings.shape(), c.CapacityBlocks)
}

// limits are those of a candidate for what is booked there. What runs besides takes its part of
// them, and an engine that is busy by its own numbers takes nothing.
func (v *View) limits(c *Candidate) loads.Limits {
	m, b := v.Settings.limits(c), &v.Settings.Busy
	less := func(limit *int64, by int64) {
		if *limit > 0 && by != 0 {
			if *limit -= by; *limit <= 0 {
				*limit = -1
			}
		}
	}
	less(&m.Requests, c.Extra.Requests)
	less(&m.Prefill, c.Extra.Prefill)
	less(&m.Blocks, c.Extra.Blocks)
	if e := c.Engine; e != nil && (b.EngineWaiting > 0 && e.Waiting >= b.EngineWaiting || b.EngineKVUsage > 0 && e.KVUsage >= b.EngineKVUsage) {
		m.Requests = -1
	}
	return m
}

// Total returns what candidate i costs at its load in the view.
func (v *View) Total(i int, w loads.Weights) float64 {
	c := &v.Candidates[i]
	k := loads.Candidate{Base: c.Cost.Base, Floor: c.Cost.Floor, Factor: c.Cost.Factor, Speed: v.speedOf(c)}
	return k.Cost(w, &c.Load, c.Added, v.Now)
}
