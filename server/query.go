package server

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/server/refusal"
)

// queries are what can be asked in the query of a GET, by its pattern. All other GETs of /v1
// take nothing there; what is no part of /v1 does not look at it.
var queries = map[string][]string{
	"/v1/loads":                      {"model", "format"},
	"/v1/prefixes":                   {"model", "limit"},
	"/v1/ingest/{pod}/{rank}/events": {"from", "to"},
	"/v1/ingest/{pod}/{rank}/blocks": {"cursor", "limit"},
	"/v1/dump":                       {"model", "pod", "cursor", "limit"},
}

// readQuery reads the query of a GET of /v1, for the handlers to find.
func (c *call) readQuery() (err error) {
	if c.route.method == http.MethodGet && strings.HasPrefix(c.route.pattern, "/v1/") {
		c.query, err = c.parameters(queries[c.route.pattern])
	}
	return err
}

// parameters reads the query: each of the names once at most, and no other.
func (c *call) parameters(names []string) (url.Values, error) {
	if c.r.URL.RawQuery == "" {
		return nil, nil //nolint:nilnil // what Get and Has take for empty
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, refusal.Invalid("", "the query cannot be read: a %% or ; is not percent-encoded right, or it has too many parameters")
	}
	for name, values := range q {
		switch {
		case !slices.Contains(names, name):
			return nil, c.noParameter(name, names)
		case len(values) > 1:
			return nil, refusal.Invalid(name, "%s is given twice", name)
		case values[0] == "":
			return nil, refusal.Invalid(name, "%s is empty", name)
		}
	}
	return q, nil
}

// noParameter says of an unknown parameter what can be asked instead.
func (c *call) noParameter(name string, names []string) error {
	known := "none"
	if len(names) > 0 {
		known = strings.Join(names, ", ")
	}
	return &refusal.Error{
		Status: http.StatusBadRequest, Code: refusal.CodeUnknownField, Param: refusal.Clip(name),
		Message: "there is no parameter " + strconv.Quote(refusal.Clip(name)) + nearest.Clause(name, names) + ": the query takes " + known,
	}
}

// whole reads a parameter that may be missing.
func whole(q url.Values, name string, def, low, high uint64) (uint64, error) {
	text := q.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, refusal.Invalid(name, "%s is %s, it must be a whole number from %d to %d", name, refusal.Clip(text), low, high)
	}
	return n, nil
}
