package main

import (
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
)

// policyName is what the model's settings call the policy of this program.
const policyName = "skeleton"

func init() { route.Register(route.Policy{Name: policyName, Weigh: weigh}) }

// weigh is a cost function of one's own, in tokens. A prefill costs what the worker does not
// hold of the prompt and what is booked before it; a decode costs the KV in use.
//
// What is the same at any load is in Base. What changes with it is in the weights, so that the
// index of loads can weigh again in the step in which it books.
func weigh(v *route.View) loads.Weights {
	for i := range v.Candidates {
		c := &v.Candidates[i]
		c.Cost = route.Cost{Factor: 1}
		if v.Part == route.DecodePart {
			continue
		}
		uncached := float64(v.Tokens - min(c.Cached(), v.Tokens))
		c.Cost.Base = uncached
		if v.Explain {
			c.Cost.Terms = []route.Term{{Name: "uncached_tokens", Value: uncached}}
		}
	}
	if v.Part == route.DecodePart {
		return loads.Weights{Blocks: float64(v.BlockSize)}
	}
	return loads.Weights{Prefill: 1}
}
