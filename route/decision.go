package route

import (
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Decision says where a request goes.
type Decision struct {
	// RankRef is the pod and the rank. Address is where the pod serves, when its name is not
	// that.
	store.RankRef
	Address string
	// Fallbacks are where to go if it fails, best first.
	Fallbacks []store.RankRef
	// Policy is the policy that decided.
	Policy string
	// Held is how many tokens of the prompt the place can reuse, by tier. Best is the most
	// that any place can, of those that may take the request.
	// Predicted is how many of the tokens of Held are only predicted, in tier gpu.
	Held      [store.NumTiers]int
	Predicted int
	Best      int
	// Prefill is the pod that prefills, of a pair; nil when the pod of the decision does all.
	// Prefills says then why.
	Prefill  *Half
	Prefills Local
	// Pull is what the place that prefills fetches, and from which place; nil means nothing. Ways are
	// what could be done instead, if costs were asked for, are times, and fetches are possible.
	Pull *Source
	Ways *Ways
	// Session is what became of the request's session; nil if it has none.
	Session *Session
	// Predicts is how many blocks the place is predicted to hold, since the request is booked
	// there, beside those that its events have reported.
	Predicts int
	// Costs are those of all candidates, cheapest first, if they were asked for.
	Costs []PlaceCost
	// Pairs are the cheapest of the pairs that were chosen among, if costs were asked for.
	Pairs []PairCost
	// Reservation is the ID that the request was booked under; empty if it was not. Again says
	// that it had been booked before.
	Reservation string
	Again       bool
	// Lease is how long the reservation lives without a sign of its client. It is not set of
	// a pair.
	Lease time.Duration
	// Local says that loads could not be reached: the choice was made by the last picture of
	// them, and nothing was booked.
	Local bool
	// Score is what the scorer found, with the first of its Pods; nil if the policy needed none.
	Score *scorer.Response
	// Tokens is the length of the prompt, an estimate if Estimated.
	Tokens    int
	Estimated bool
}

// size returns how many tokens to reckon with. It estimates a text that was not tokenized in time.
// Otherwise only the known beginning of it, often nothing, would be booked.
func (d *Decision) size(s *scorer.Request) int {
	if d.Score == nil || d.Score.Exact {
		return d.Tokens
	}
	n, _ := s.Input.Size()
	if keep := s.Truncation.Keep; keep > 0 {
		n = min(n, keep)
	}
	return max(d.Tokens, n)
}

// Cached is how many tokens of the prompt the place can reuse.
func (d *Decision) Cached() int { return total(d.Held) }

// PlaceCost is what a candidate costs.
type PlaceCost struct {
	store.RankRef
	// Total is the cost. It is NaN of one that is at its limits.
	Total float64
	// Terms are what it is made of: those of the policy, then what the load adds.
	Terms []Term
	// Load is what is booked there, Extra what its engine runs besides, and Held what it can
	// reuse, in tokens by tier.
	Load  loads.Load
	Extra loads.Extra
	Held  [store.NumTiers]int
	// Predicted is how many of the tokens of Held are only predicted.
	Predicted int
}
