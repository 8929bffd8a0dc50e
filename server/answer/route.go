// Package answer makes the bodies of answers: of what the scorer, the router and ingest
// have found, as JSON. Its functions are pure, and what is on the path of every request
// is appended by hand.
package answer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/store"
)

// PlaceOf is a rank by the plain name of its pod.
func PlaceOf(at store.RankRef) client.Place {
	return client.Place{Pod: store.PlainName(at.Pod), Rank: at.Rank}
}

// AddressOf is the address of a registration. One beside another has the plain name of its
// pod for an address, which says nothing new to a client.
func AddressOf(pod, address string) string {
	if plain := store.PlainName(pod); plain != pod && plain == address {
		return ""
	}
	return address
}

// Routed is the answer of POST /v1/route.
type Routed struct {
	client.Place
	Address     string            `json:"address,omitempty"`
	Policy      string            `json:"policy"`
	Fallbacks   []client.Place    `json:"fallbacks"`
	Overlap     overlapAnswer     `json:"overlap"`
	Tokens      client.TokenCount `json:"tokens"`
	Reservation string            `json:"reservation,omitempty"`
	Again       bool              `json:"again,omitempty"`
	seldom
}

// seldom is what most answers have nothing of.
type seldom struct {
	Resolved *client.Resolved `json:"resolved,omitempty"`
	Costs    []costAnswer     `json:"costs,omitempty"`
	// Prefill is the place that prefills, of a pair; without it LocalPrefill says why the place does.
	Prefill      *halfAnswer       `json:"prefill,omitempty"`
	LocalPrefill string            `json:"local_prefill,omitempty"`
	Pairs        []client.PairCost `json:"pairs,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	// PullFrom is the place that the prefilling one fetches from, PullPlan what else could be done.
	PullFrom   *client.PullSource   `json:"pull_from,omitempty"`
	KVTransfer *transferParams      `json:"kv_transfer_params,omitempty"`
	PullPlan   *client.PullPlan     `json:"pull_plan,omitempty"`
	Degraded   *client.Degraded     `json:"degraded,omitempty"`
	Session    *client.RouteSession `json:"session,omitempty"`
	returned
}

// isEmpty reports whether there is nothing to append.
func (s *seldom) isEmpty() bool {
	return s.Resolved == nil && s.Costs == nil && s.Prefill == nil && s.LocalPrefill == "" && s.Pairs == nil && s.Headers == nil && s.PullFrom == nil &&
		s.KVTransfer == nil && s.PullPlan == nil && s.Degraded == nil && s.Session == nil && len(s.IDs) == 0 && len(s.Packed) == 0 && s.Body == nil
}

// Append appends the answer and a line end. It is what encoding/json makes of it, in a fraction
// of the time where there is nothing seldom.
func (a *Routed) Append(b []byte) ([]byte, error) {
	b = appendPlace(append(b, '{'), &a.Place)
	if a.Address != "" {
		b = appendjson.String(append(b, `,"address":`...), a.Address)
	}
	b = appendjson.String(append(b, `,"policy":`...), a.Policy)
	b = append(b, `,"fallbacks":[`...)
	for i := range a.Fallbacks {
		b = append(appendjson.Comma(b, i), '{')
		b = append(appendPlace(b, &a.Fallbacks[i]), '}')
	}
	o := &a.Overlap
	b = strconv.AppendInt(append(b, `],"overlap":{"blocks":`...), int64(o.Blocks), 10)
	b = strconv.AppendInt(append(b, `,"tokens":`...), int64(o.Tokens), 10)
	b = strconv.AppendInt(append(b, `,"best_tokens":`...), int64(o.Best), 10)
	b = o.Tiers.append(append(b, `,"tiers":`...))
	if o.Predicted != 0 {
		b = strconv.AppendInt(append(b, `,"predicted_tokens":`...), int64(o.Predicted), 10)
	}
	b = strconv.AppendInt(append(b, `},"tokens":{"total":`...), int64(a.Tokens.Total), 10)
	b = appendjson.String(append(b, `,"source":`...), a.Tokens.Source)
	b = append(strconv.AppendBool(append(b, `,"exact":`...), a.Tokens.Exact), '}')
	if a.Reservation != "" {
		b = appendjson.String(append(b, `,"reservation":`...), a.Reservation)
	}
	if a.Again {
		b = append(b, `,"again":true`...)
	}
	if a.isEmpty() {
		return append(b, "}\n"...), nil
	}
	rest := bytes.NewBuffer(append(b, ','))
	enc := json.NewEncoder(rest)
	enc.SetEscapeHTML(false)
	err := enc.Encode(&a.seldom)
	return slices.Delete(rest.Bytes(), len(b)+1, len(b)+2), err // its brace
}

// appendPlace appends the members of a place.
func appendPlace(b []byte, p *client.Place) []byte {
	b = appendjson.String(append(b, `"pod":`...), p.Pod)
	return strconv.AppendInt(append(b, `,"rank":`...), int64(p.Rank), 10)
}

// overlapAnswer is what the chosen place can reuse.
type overlapAnswer struct {
	Blocks int        `json:"blocks"`
	Tokens int        `json:"tokens"`
	Best   int        `json:"best_tokens"`
	Tiers  tierTokens `json:"tiers"`
	// Predicted is how many of Tokens are only predicted.
	Predicted int `json:"predicted_tokens,omitempty"`
}

// tierTokens are numbers of tokens by tier: an object of those above 0, in the order of names.
type tierTokens [store.NumTiers]int

// tiersByName are the tiers in the order of their names.
var tiersByName = func() (all []store.Tier) {
	for t := range store.NumTiers {
		all = append(all, store.Tier(t))
	}
	slices.SortFunc(all, func(x, y store.Tier) int { return strings.Compare(x.String(), y.String()) })
	return all
}()

func (t *tierTokens) append(b []byte) []byte {
	b = append(b, '{')
	n := 0
	for _, tier := range tiersByName {
		if tokens := t[tier]; tokens > 0 {
			b = strconv.AppendInt(appendjson.Name(b, n, tier.String()), int64(tokens), 10)
			n++
		}
	}
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler.
func (t tierTokens) MarshalJSON() ([]byte, error) { return t.append(nil), nil }

// costAnswer is what a candidate costs; total is null of one that is busy.
type costAnswer struct {
	client.Place
	Total *float64           `json:"total"`
	Terms map[string]float64 `json:"terms"`
	Load  loads.Load         `json:"load"`
	Extra *loads.Extra       `json:"engine_extra,omitempty"`
	Held  tierTokens         `json:"held_tokens"`
	// Predicted is how many of Held are only predicted.
	Predicted int `json:"predicted_tokens,omitempty"`
}

// reasonLoads is why an answer is degraded when the loads cannot be reached.
const reasonLoads = "loads_stale"

// DegradedReason is why the answer is degraded, "" when it is not.
func (a *Routed) DegradedReason() string {
	if a.Degraded == nil {
		return ""
	}
	return a.Degraded.Reason
}

// Route is the answer to a request that was decided.
func Route(q *request.Route, d *route.Decision) *Routed {
	a := &Routed{
		Place: PlaceOf(d.RankRef), Address: AddressOf(d.Pod, d.Address), Policy: d.Policy, Fallbacks: placesOf(d.Fallbacks), Reservation: d.Reservation, Again: d.Again,
		Overlap: overlapAnswer{Tokens: d.Cached(), Best: d.Best, Tiers: d.Held, Predicted: d.Predicted},
		Tokens:  client.TokenCount{Total: d.Tokens, Source: "estimate", Exact: !d.Estimated},
	}
	if d.Score != nil {
		a.Tokens.Source, a.Tokens.Exact = d.Score.Source, d.Score.Exact
		a.Overlap.Blocks = d.Cached() / d.Score.BlockSize
		if d.Score.Degraded != "" {
			a.Degraded = &client.Degraded{Reason: string(d.Score.Degraded)}
		}
	} else if !d.Estimated {
		a.Tokens.Source = "tokens"
	}
	if d.Local {
		a.Degraded = &client.Degraded{Reason: reasonLoads}
	}
	if d.Session != nil {
		a.Session = &client.RouteSession{State: string(d.Session.State)}
		if d.Session.Was != nil {
			was := PlaceOf(*d.Session.Was)
			a.Session.Was = &was
		}
	}
	if d.Score != nil && d.Score.TokenIDs != nil {
		a.returned = returnedOf(&q.Score, d.Score.TokenIDs)
	}
	if q.Resolved {
		a.Resolved = &client.Resolved{Model: q.Model, LoRA: q.LoRA}
	}
	if q.Explain {
		a.Costs = costsOf(d.Costs)
	}
	blockSize := 0
	if d.Score != nil {
		blockSize = d.Score.BlockSize
	}
	a.addPair(d, blockSize)
	a.addPull(d, cmp.Or(d.Reservation, q.ID))
	return a
}
