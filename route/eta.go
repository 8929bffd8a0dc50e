package route

import (
	"github.com/kvatlas/kvatlas/route/loads"
)

// eta takes the candidate that would begin to answer first, in milliseconds, with what is
// prefilled weighed higher than the wait, since prefill that is done twice is time that the
// fleet loses:
//
//	cost = wait + (1 + beta) x prefill + requests x request_ms
//
// wait is the work that is booked and not done over the rank's learnt speed. prefill is that
// of the tokens that the rank does not hold; a token in a slower tier counts for the share
// that its tier's weight leaves. beta is 2 + 4 x (mean wait / mean prefill): the more
// requests wait, the more a hit is worth. It is fixed where the settings say so.
//
// Of a candidate that fetches part of the prompt, prefill is that of the rest, and the time of
// the fetch is added. beta goes by prefills without fetches.
//
// In a pair the prefill costs the wait and the prefill, the decode what the requests add: an
// engine decodes before it prefills what waits.
func eta(v *View) loads.Weights {
	s := v.Settings
	if v.Part == DecodePart {
		for i := range v.Candidates {
			v.set(i, 0, 0)
		}
		return loads.Weights{Requests: s.RequestMS}
	}
	shape := s.shape()
	var wait, prefill float64
	own := v.floats(len(v.Candidates))
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if !c.Decode {
			own[i] = c.prefill(v, shape, 0)
		}
		wait += c.Load.Wait(v.Now, s.Speed)
		prefill += own[i]
	}
	beta := 2.0
	if prefill > 0 {
		beta += 4 * wait / prefill
	}
	if s.Beta != nil {
		beta = *s.Beta
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if c.Pull == nil {
			v.set(i, (1+beta)*own[i], 0, Term{"prefill_ms", own[i]}, Term{"beta", beta}, Term{"weighed_prefill_ms", (1 + beta) * own[i]})
			continue
		}
		rest := c.prefill(v, shape, c.Pull.Tokens)
		v.set(i, (1+beta)*rest+c.Pull.MS, 0, Term{"prefill_ms", rest}, Term{"beta", beta}, Term{"weighed_prefill_ms", (1 + beta) * rest},
			Term{"pull_ms", c.Pull.MS}, Term{"recompute_ms", own[i]})
		c.Cost.Without = (1 + beta) * own[i]
	}
	if v.Part == PrefillPart {
		return loads.Weights{Wait: 1}
	}
	return loads.Weights{Wait: 1, Requests: s.RequestMS}
}

// prefill returns how many milliseconds the candidate takes for what it does not hold when it
// has fetched so many tokens.
func (c *Candidate) prefill(v *View, shape loads.Shape, fetched int) float64 {
	speed := c.Load.Speed
	if speed <= 0 {
		speed = v.Settings.Speed
	}
	cached := min(c.Cached()+fetched, v.Tokens)
	work := float64(shape.Units(v.Tokens-cached, cached))
	for tier, held := range c.Held {
		work += float64(held) * (1 - v.Settings.TierWeights[tier])
	}
	return shape.Overhead + work/speed
}
