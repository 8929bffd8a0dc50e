package loads

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// MaxOptions is how many options, and how many last resorts, one PairCall can have.
const MaxOptions = 256

// PairCall books a request that one place prefills and another, or the same, decodes.
type PairCall struct {
	// Call is the request. Its Candidates may decode, and its Weights are theirs.
	Call
	// Prefill are the places that may prefill, at most MaxCandidates, and PrefillWeights are theirs.
	Prefill        []Candidate
	PrefillWeights Weights
	// Options are the pairs that may work together. Of equal costs the first one wins.
	Options []Option
	// Resorts are the options of which one is taken when each of Options has a place at its
	// limits.
	Resorts []Option
}

// Option is a place that prefills and one that decodes. It costs
//
//	Factor x (cost of the prefill + cost of the decode + Extra)
//
// and cannot be taken when one of them is at its limits. Where both are the same place, that
// does all of the request.
type Option struct {
	// Prefill and Decode are indexes of PairCall.Prefill and of its Candidates.
	Prefill, Decode int
	Extra, Factor   float64
}

// BookedPair is what became of a PairCall.
type BookedPair struct {
	// Booked is the place that decodes, with the costs and the loads of the call's Candidates.
	Booked
	// Prefill is the place that prefills. PrefillCosts and PrefillLoads are those of the call's Prefill, the
	// latter if it wants loads.
	Prefill      store.RankRef
	PrefillCosts []float64
	PrefillLoads []Load
	// Totals are the costs of the call's Options or, if Resorted, of its Resorts; NaN where
	// one cannot be taken.
	Totals   []float64
	Resorted bool
}

// Validate returns ErrInvalid, with the field and the reason, for a call that cannot be made.
func (c *PairCall) Validate() error {
	if err := c.Call.Validate(); err != nil {
		return err
	}
	prefill := c.Call
	prefill.Candidates, prefill.Weights = c.Prefill, c.PrefillWeights
	if err := prefill.Validate(); err != nil {
		return err
	}
	if len(c.Options) > MaxOptions || len(c.Resorts) > MaxOptions {
		return fmt.Errorf("%w: %d and %d options, it can be %d", ErrInvalid, len(c.Options), len(c.Resorts), MaxOptions)
	}
	for _, list := range [][]Option{c.Options, c.Resorts} {
		for _, o := range list {
			if o.Prefill < 0 || o.Prefill >= len(c.Prefill) || o.Decode < 0 || o.Decode >= len(c.Candidates) {
				return fmt.Errorf("%w: option %+v is of none of %d and %d places", ErrInvalid, o, len(c.Prefill), len(c.Candidates))
			}
			if !isFinite(o.Extra) || !isFinite(o.Factor) {
				return fmt.Errorf("%w: option %+v", ErrInvalid, o)
			}
		}
	}
	return nil
}

// Choose takes one of the options by the costs of their places. It returns the costs of those
// that it chose among, and the index of the one that is taken, -1 for none.
func (c *PairCall) Choose(prefill, decode []float64) (totals []float64, resorted bool, chosen int) {
	totals, chosen = c.choose(c.Options, prefill, decode)
	if chosen < 0 && len(c.Resorts) > 0 {
		totals, chosen = c.choose(c.Resorts, prefill, decode)
		return totals, true, chosen
	}
	return totals, false, chosen
}

func (c *PairCall) choose(options []Option, prefill, decode []float64) ([]float64, int) {
	totals := make([]float64, len(options))
	for i, o := range options {
		totals[i] = o.Factor * (prefill[o.Prefill] + decode[o.Decode] + o.Extra)
	}
	return totals, Pick(totals, c.Temperature, c.Draw)
}

// Option returns the one that Choose has taken.
func (c *PairCall) Option(resorted bool, chosen int) Option {
	if resorted {
		return c.Resorts[chosen]
	}
	return c.Options[chosen]
}

// BookPair implements Store.
func (m *Memory) BookPair(_ context.Context, c *PairCall) (BookedPair, error) {
	if err := c.Validate(); err != nil {
		return BookedPair{}, err
	}
	b, now := m.book(c.Model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.mustAgree()
	old, err := b.open(&c.Call, now)
	if err != nil {
		return BookedPair{}, err
	}
	if old != nil {
		return BookedPair{Booked: Booked{RankRef: old.RankRef, Again: true, Now: now}, Prefill: old.prefills().RankRef}, nil
	}
	marks, tail := c.Marked()
	out := BookedPair{Booked: Booked{Now: now}}
	out.Costs, out.Loads = b.costs(&c.Call, c.Candidates, c.Weights, marks, tail, now)
	out.PrefillCosts, out.PrefillLoads = b.costs(&c.Call, c.Prefill, c.PrefillWeights, marks, tail, now)
	var chosen int
	out.Totals, out.Resorted, chosen = c.Choose(out.PrefillCosts, out.Costs)
	if chosen < 0 {
		return out, ErrBusy
	}
	o := c.Option(out.Resorted, chosen)
	prefills, decodes := &c.Prefill[o.Prefill], c.Candidates[o.Decode]
	out.RankRef, out.Prefill = decodes.RankRef, prefills.RankRef
	decodes.Uncached, decodes.Work, decodes.Twin = 0, 0, 0
	if out.RankRef == out.Prefill {
		decodes.Uncached, decodes.Work, decodes.Twin = prefills.Uncached, prefills.Work, prefills.Twin
	}
	r := b.reserve(&c.Call, &decodes, marks, tail, now)
	if out.RankRef != out.Prefill {
		at, work := b.addRequest(&c.Call, prefills, marks, tail, now)
		r.prefill, r.work, r.pair = int64(prefills.Uncached), work, &at
	}
	return out, nil
}

// costs are those of candidates now, NaN where one is busy, and their loads if the call wants them.
func (b *book) costs(call *Call, cs []Candidate, w Weights, marks []blockkey.Key, tail, now int64) (costs []float64, loads []Load) {
	costs = make([]float64, len(cs))
	if call.WantLoads {
		loads = make([]Load, len(cs))
	}
	for i := range cs {
		cost, l := b.cost(call, &cs[i], w, marks, tail, now)
		if costs[i] = cost; loads != nil {
			loads[i] = l
		}
	}
	return costs, loads
}
