package request

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// Route is the body of POST /v1/route: that of /v1/score with one prompt, and what
// is asked of the pod.
type Route struct {
	Score

	Reserve       bool
	ID            string
	Expected      int
	Policy        string
	Overrides     []byte
	Session       string
	Role          string
	Pinned        *store.RankRef
	PinnedPrefill *store.RankRef
	Required      map[string]string
	Preferred     map[string]float64
}

// notRouted are the fields of /v1/score that /v1/route does not have.
var notRouted = map[string]bool{"prompts": true, "predicted": true, "top": true, "strategy": true, "early_exit": true}

var (
	// RouteFields are the fields of a body of /v1/route.
	RouteFields = makeRouteFields()
	// RouteNames are their names.
	RouteNames = scan.NamesOf(RouteFields)
)

func makeRouteFields() (fs scan.Fields[Route]) {
	for _, f := range ScoreFields {
		if !notRouted[f.Name] {
			fs = append(fs, scan.Field[Route]{Name: f.Name, Read: func(s *scan.Scanner, q *Route) error { return f.Read(s, &q.Score) }})
		}
	}
	return append(fs,
		scan.Field[Route]{Name: "reserve", Read: func(s *scan.Scanner, q *Route) error { return s.Bool(&q.Reserve) }},
		scan.Field[Route]{Name: "request_id", Read: func(s *scan.Scanner, q *Route) error {
			if err := s.Text(&q.ID); err != nil {
				return err
			}
			return s.RefusedBy(loads.CheckID(q.ID))
		}},
		scan.Field[Route]{Name: "expected_output_tokens", Read: func(s *scan.Scanner, q *Route) error {
			n, err := s.Uint(loads.MaxTokens, "a number of tokens")
			q.Expected = int(n)
			return err
		}},
		scan.Field[Route]{Name: "policy", Read: func(s *scan.Scanner, q *Route) error {
			if err := s.Text(&q.Policy); err != nil {
				return err
			}
			_, err := route.ParsePolicy(q.Policy)
			return s.RefusedBy(err)
		}},
		scan.Field[Route]{Name: "overrides", Read: func(s *scan.Scanner, q *Route) (err error) {
			if q.Overrides, err = s.Raw("an object of settings"); err != nil {
				return err
			}
			return CheckSettings("overrides", q.Overrides)
		}},
		scan.Field[Route]{Name: "session", Read: func(s *scan.Scanner, q *Route) error {
			if err := s.Text(&q.Session); err != nil {
				return err
			}
			return s.RefusedBy(notes.CheckSession(q.Session))
		}},
		scan.Field[Route]{Name: "role", Read: func(s *scan.Scanner, q *Route) error {
			if err := s.Text(&q.Role); err != nil {
				return err
			}
			if roles := []string{"prefill", "decode", route.RolePair}; !slices.Contains(roles, q.Role) {
				return s.NoneOf(q.Role, roles)
			}
			return nil
		}},
		scan.Field[Route]{Name: "pinned", Read: func(s *scan.Scanner, q *Route) (err error) { q.Pinned, err = readPinned(s); return err }},
		scan.Field[Route]{Name: "pinned_prefill", Read: func(s *scan.Scanner, q *Route) (err error) { q.PinnedPrefill, err = readPinned(s); return err }},
		scan.Field[Route]{Name: "labels", Read: func(s *scan.Scanner, q *Route) error { return s.Labels(&q.Required) }},
		scan.Field[Route]{Name: "prefer", Read: readWeights},
	)
}

// readPinned reads {"pod": name, "rank": n}.
func readPinned(s *scan.Scanner) (*store.RankRef, error) {
	pinned := &store.RankRef{Rank: -1}
	err := scan.Nested(s, scan.Fields[store.RankRef]{
		{Name: "pod", Read: func(s *scan.Scanner, at *store.RankRef) error { return s.PodName(&at.Pod) }},
		{Name: "rank", Read: func(s *scan.Scanner, at *store.RankRef) error {
			n, err := s.Uint(store.MaxRanks-1, "a rank")
			at.Rank = int(n)
			return err
		}},
	}, pinned)
	if err != nil {
		return nil, err
	}
	if pinned.Pod == "" {
		return nil, s.Wrong("has no pod")
	}
	return pinned, nil
}

// readWeights reads {"name=value": weight}.
func readWeights(s *scan.Scanner, q *Route) error {
	raw, err := s.Raw("an object of weights by label")
	if err != nil {
		return err
	}
	if err := check("prefer", raw, nil); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &q.Preferred); err != nil {
		return s.Wrong("is no object of numbers")
	}
	if len(q.Preferred) > store.MaxLabels {
		return s.TooMany(store.MaxLabels)
	}
	for label := range q.Preferred {
		if !strings.Contains(label, "=") {
			return s.Wrong("has a label that is not of the form name=value")
		}
	}
	return nil
}

// WithPolicy puts the policy of a request into its overrides.
func WithPolicy(overrides []byte, policy string) ([]byte, error) {
	if policy == "" {
		return overrides, nil
	}
	m := map[string]json.RawMessage{}
	if overrides != nil {
		if err := json.Unmarshal(overrides, &m); err != nil {
			return nil, refusal.Invalid("overrides", "overrides is no object of settings")
		}
	}
	if _, both := m["policy"]; both {
		return nil, refusal.Invalid("policy", "policy is given twice: beside overrides and in them")
	}
	m["policy"] = json.RawMessage(strconv.Quote(policy))
	return json.Marshal(m)
}
