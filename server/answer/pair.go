package answer

import (
	"math"
	"net/url"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// halfAnswer is the place that prefills, in the answer on a pair.
type halfAnswer struct {
	client.Place
	Address   string         `json:"address,omitempty"`
	Fallbacks []client.Place `json:"fallbacks"`
	Overlap   overlapAnswer  `json:"overlap"`
	Costs     []costAnswer   `json:"costs,omitempty"`
}

// headerPrefill gives llm-d's sidecars the pod that prefills.
const headerPrefill = "x-prefiller-host-port"

// addPair reports a pair in an answer.
func (a *Routed) addPair(d *route.Decision, blockSize int) {
	a.LocalPrefill = string(d.Prefills)
	for _, c := range d.Pairs {
		a.Pairs = append(a.Pairs, client.PairCost{Prefill: PlaceOf(c.Prefill), Decode: PlaceOf(c.Decode), Total: numberOf(c.Total), Terms: termsOf(c.Terms)})
	}
	h := d.Prefill
	if h == nil {
		return
	}
	a.Prefill = &halfAnswer{
		Place: PlaceOf(h.RankRef), Address: AddressOf(h.Pod, h.Address), Fallbacks: placesOf(h.Fallbacks), Costs: costsOf(h.Costs),
		Overlap: overlapAnswer{Blocks: h.Cached() / max(1, blockSize), Tokens: h.Cached(), Best: d.Best, Tiers: h.Held, Predicted: h.Predicted},
	}
	a.addHeader(headerPrefill, hostPort(h.Pod, h.Address))
}

// addHeader adds a header that the request is to be sent with.
func (a *Routed) addHeader(name, value string) {
	if a.Headers == nil {
		a.Headers = map[string]string{}
	}
	a.Headers[name] = value
}

// hostPort is where a pod serves, without a scheme.
func hostPort(pod, address string) string {
	if address == "" {
		return store.PlainName(pod)
	}
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return address
}

func placesOf(all []store.RankRef) []client.Place {
	out := make([]client.Place, 0, len(all))
	for _, at := range all {
		out = append(out, PlaceOf(at))
	}
	return out
}

func costsOf(all []route.PlaceCost) (out []costAnswer) {
	for _, c := range all {
		k := costAnswer{Place: PlaceOf(c.RankRef), Total: numberOf(c.Total), Terms: termsOf(c.Terms), Load: c.Load, Held: c.Held, Predicted: c.Predicted}
		if c.Extra != (loads.Extra{}) {
			k.Extra = &c.Extra
		}
		out = append(out, k)
	}
	return out
}

// numberOf is a cost as JSON has it: null of what cannot be taken.
func numberOf(cost float64) *float64 {
	if math.IsNaN(cost) {
		return nil
	}
	return &cost
}

func termsOf(terms []route.Term) map[string]float64 {
	m := map[string]float64{}
	for _, t := range terms {
		m[t.Name] = t.Value
	}
	return m
}
