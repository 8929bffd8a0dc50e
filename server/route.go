package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/store"
)

// routeRequest is the body of POST /v1/route: that of /v1/score with one prompt, and what
// is asked of the pod.
type routeRequest struct {
	scoreRequest

	reserve   bool
	requestID string
	expected  int
	policy    string
	overrides []byte
	session   string
	role      string
	pinned    *store.RankRef
	pinnedPre *store.RankRef
	required  map[string]string
	preferred map[string]float64
}

// sessionHeader names the session of a request whose body has none.
const sessionHeader = "X-Session-Id"

// sessionAnswer is what became of a request's session.
type sessionAnswer struct {
	State route.SessionState `json:"state"`
	Was   *place             `json:"was,omitempty"`
}

// notRouted are the fields of /v1/score that /v1/route does not have.
var notRouted = map[string]bool{"prompts": true, "predicted": true, "strategy": true, "early_exit": true}

var (
	routeFields = makeRouteFields()
	routeNames  = namesOf(routeFields)
)

func makeRouteFields() (fs fields[routeRequest]) {
	for _, f := range scoreFields {
		if !notRouted[f.name] {
			fs = append(fs, field[routeRequest]{f.name, func(s *scanner, q *routeRequest) error { return f.read(s, &q.scoreRequest) }})
		}
	}
	return append(fs,
		field[routeRequest]{"reserve", func(s *scanner, q *routeRequest) error { return s.bool(&q.reserve) }},
		field[routeRequest]{"request_id", func(s *scanner, q *routeRequest) error {
			if err := s.text(&q.requestID); err != nil {
				return err
			}
			return s.refusedBy(loads.CheckID(q.requestID))
		}},
		field[routeRequest]{"expected_output_tokens", func(s *scanner, q *routeRequest) error {
			n, err := s.uint(loads.MaxTokens, "a number of tokens")
			q.expected = int(n)
			return err
		}},
		field[routeRequest]{"policy", func(s *scanner, q *routeRequest) error {
			if err := s.text(&q.policy); err != nil {
				return err
			}
			_, err := route.ParsePolicy(q.policy)
			return s.refusedBy(err)
		}},
		field[routeRequest]{"overrides", func(s *scanner, q *routeRequest) (err error) {
			q.overrides, err = s.raw("an object of settings")
			return err
		}},
		field[routeRequest]{"session", func(s *scanner, q *routeRequest) error {
			if err := s.text(&q.session); err != nil {
				return err
			}
			return s.refusedBy(notes.CheckSession(q.session))
		}},
		field[routeRequest]{"role", func(s *scanner, q *routeRequest) error {
			if err := s.text(&q.role); err != nil {
				return err
			}
			if q.role != "prefill" && q.role != "decode" && q.role != route.RolePair {
				return s.wrong("is none of prefill, decode, pair")
			}
			return nil
		}},
		field[routeRequest]{"pinned", func(s *scanner, q *routeRequest) (err error) { q.pinned, err = s.pinned(); return err }},
		field[routeRequest]{"pinned_prefill", func(s *scanner, q *routeRequest) (err error) { q.pinnedPre, err = s.pinned(); return err }},
		field[routeRequest]{"labels", func(s *scanner, q *routeRequest) error { return s.labels(&q.required) }},
		field[routeRequest]{"prefer", (*scanner).weights},
	)
}

// refusedBy is refused where there is an error.
func (s *scanner) refusedBy(err error) error {
	if err == nil {
		return nil
	}
	return s.refused(err)
}

// pinned reads {"pod": name, "rank": n}.
func (s *scanner) pinned() (*store.RankRef, error) {
	pinned := &store.RankRef{Rank: -1}
	if !s.at('{') {
		return nil, s.unexpected("an object")
	}
	s.path = append(s.path, '.')
	_, err := object(s, fields[store.RankRef]{
		{"pod", func(s *scanner, at *store.RankRef) error { return s.podName(&at.Pod) }},
		{"rank", func(s *scanner, at *store.RankRef) error {
			n, err := s.uint(store.MaxRanks-1, "a rank")
			at.Rank = int(n)
			return err
		}},
	}, pinned)
	if err != nil {
		return nil, err
	}
	s.path = s.path[:len(s.path)-1]
	if pinned.Pod == "" {
		return nil, s.wrong("has no pod")
	}
	return pinned, nil
}

// weights reads {"name=value": weight}.
func (s *scanner) weights(q *routeRequest) error {
	raw, err := s.raw("an object of weights by label")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &q.preferred); err != nil {
		return s.wrong("is no object of numbers")
	}
	if len(q.preferred) > store.MaxLabels {
		return s.tooMany(store.MaxLabels)
	}
	for label := range q.preferred {
		if !strings.Contains(label, "=") {
			return s.wrong("has a label that is not of the form name=value")
		}
	}
	return nil
}

// routePrompt is POST /v1/route.
func (c *call) routePrompt() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	q := &routeRequest{}
	f, kind, err := readWithPrompt(c, routeFields, routeNames, q, &q.input, "prompt", "messages", "input", "tokens", "tokens_b64", "block_keys")
	if err != nil {
		return err
	}
	if q.prompt.list {
		return invalid("prompt", "prompt is a list: route one prompt at a time")
	}
	if err := q.check(f, kind); err != nil {
		return err
	}
	if q.overrides, err = withPolicy(q.overrides, q.policy); err != nil {
		return err
	}
	if _, err := c.resolve(&q.input, kind); err != nil {
		return err
	}
	if q.pinnedPre != nil && q.role != route.RolePair {
		return invalid("pinned_prefill", "pinned_prefill is of role pair alone")
	}
	if q.session == "" { // what a proxy may add without a look at the body
		q.session = c.r.Header.Get(sessionHeader)
		if err := notes.CheckSession(q.session); err != nil && q.session != "" {
			return invalid("session", "%s: %s", sessionHeader, plain(err, notes.ErrInvalid))
		}
	}
	if q.session != "" && q.role == route.RolePair {
		return invalid("session", "a session goes to one place, not to a pair")
	}
	d, err := c.s.cfg.Router.Route(c.ctx, route.Request{
		Score: q.with(q.only(f, kind)), Reserve: q.reserve, ID: q.requestID, Overrides: q.overrides, Expected: q.expected,
		Session: q.session, Role: q.role, Pinned: q.pinned, PinnedPrefill: q.pinnedPre, Required: q.required, Preferred: q.preferred, Explain: q.explain,
	})
	if errors.Is(err, route.ErrSettings) {
		return invalid("overrides", "%s", plain(err, route.ErrSettings))
	}
	if err != nil {
		return q.blame(kind, err)
	}
	if err := c.gone(); err != nil {
		return err
	}
	answer := q.answer(d)
	if d.Score != nil && d.Score.TokenIDs != nil {
		answer.returned = q.returned(d.Score.TokenIDs)
	}
	c.degraded = answer.degradedReason()
	return c.replyJSON(http.StatusOK, answer)
}

// withPolicy puts the policy of a request into its overrides.
func withPolicy(overrides []byte, policy string) ([]byte, error) {
	if policy == "" {
		return overrides, nil
	}
	m := map[string]json.RawMessage{}
	if overrides != nil {
		if err := json.Unmarshal(overrides, &m); err != nil {
			return nil, invalid("overrides", "overrides is no object of settings")
		}
	}
	if _, both := m["policy"]; both {
		return nil, invalid("policy", "policy is given twice: beside overrides and in them")
	}
	m["policy"] = json.RawMessage(strconv.Quote(policy))
	return json.Marshal(m)
}

// place is a pod and a rank of an answer.
type place struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
}

// routeAnswer is the answer of POST /v1/route.
type routeAnswer struct {
	place
	Address     string        `json:"address,omitempty"`
	Policy      string        `json:"policy"`
	Fallbacks   []place       `json:"fallbacks"`
	Overlap     overlapAnswer `json:"overlap"`
	Tokens      routedTokens  `json:"tokens"`
	Reservation string        `json:"reservation,omitempty"`
	Again       bool          `json:"again,omitempty"`
	Resolved    *resolved     `json:"resolved,omitempty"`
	Costs       []costAnswer  `json:"costs,omitempty"`
	// Prefill is who prefills, of a pair; without it LocalPrefill says why the place does.
	Prefill      *halfAnswer       `json:"prefill,omitempty"`
	LocalPrefill string            `json:"local_prefill,omitempty"`
	Pairs        []pairAnswer      `json:"pairs,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	// PullFrom is whom the place that prefills fetches from, PullPlan what else could be done.
	PullFrom   *pullAnswer     `json:"pull_from,omitempty"`
	KVTransfer *transferParams `json:"kv_transfer_params,omitempty"`
	PullPlan   *planAnswer     `json:"pull_plan,omitempty"`
	Degraded   *degraded       `json:"degraded,omitempty"`
	Session    *sessionAnswer  `json:"session,omitempty"`
	returned
}

// overlapAnswer is what the chosen place can reuse.
type overlapAnswer struct {
	Blocks int            `json:"blocks"`
	Tokens int            `json:"tokens"`
	Best   int            `json:"best_tokens"`
	Tiers  map[string]int `json:"tiers"`
	// Predicted is how many of Tokens are only predicted.
	Predicted int `json:"predicted_tokens,omitempty"`
}

type routedTokens struct {
	Total  int    `json:"total"`
	Source string `json:"source"`
	Exact  bool   `json:"exact"`
}

type resolved struct {
	Model string `json:"model"`
	LoRA  string `json:"lora,omitempty"`
}

type degraded struct {
	Reason string `json:"reason"`
}

// costAnswer is what a candidate costs; total is null of one that is busy.
type costAnswer struct {
	place
	Total *float64           `json:"total"`
	Terms map[string]float64 `json:"terms"`
	Load  loads.Load         `json:"load"`
	Extra *loads.Extra       `json:"engine_extra,omitempty"`
	Held  map[string]int     `json:"held_tokens"`
	// Predicted is how many of Held are only predicted.
	Predicted int `json:"predicted_tokens,omitempty"`
}

// reasonLoads is why an answer is degraded when the loads cannot be reached.
const reasonLoads = "loads_stale"

func (a *routeAnswer) degradedReason() string {
	if a.Degraded == nil {
		return ""
	}
	return a.Degraded.Reason
}

func (q *routeRequest) answer(d *route.Decision) *routeAnswer {
	a := &routeAnswer{
		place: place(d.RankRef), Address: d.Address, Policy: d.Policy, Fallbacks: placesOf(d.Fallbacks), Reservation: d.Reservation, Again: d.Again,
		Overlap: overlapAnswer{Tokens: d.Cached(), Best: d.Best, Tiers: tierTokens(d.Held), Predicted: d.Predicted},
		Tokens:  routedTokens{Total: d.Tokens, Source: "estimate", Exact: !d.Estimated},
	}
	if d.Score != nil {
		a.Tokens.Source, a.Tokens.Exact = d.Score.Source, d.Score.Exact
		a.Overlap.Blocks = d.Cached() / d.Score.BlockSize
		if d.Score.Degraded != "" {
			a.Degraded = &degraded{string(d.Score.Degraded)}
		}
	} else if !d.Estimated {
		a.Tokens.Source = "tokens"
	}
	if d.Local {
		a.Degraded = &degraded{reasonLoads}
	}
	if d.Session != nil {
		a.Session = &sessionAnswer{State: d.Session.State, Was: (*place)(d.Session.Was)}
	}
	if q.resolved {
		a.Resolved = &resolved{q.model, q.lora}
	}
	if q.explain {
		a.Costs = costsOf(d.Costs)
	}
	blockSize := 0
	if d.Score != nil {
		blockSize = d.Score.BlockSize
	}
	a.addPair(d, blockSize)
	a.addPull(d, cmp.Or(d.Reservation, q.requestID))
	return a
}

func tierTokens(held [store.NumTiers]int) map[string]int {
	m := map[string]int{}
	for t, n := range held {
		if n > 0 {
			m[store.Tier(t).String()] = n
		}
	}
	return m
}

var errNoRouter = &apiError{status: http.StatusNotImplemented, code: codeNotImplemented, message: "this server does not route"}
