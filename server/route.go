package server

import (
	"errors"
	"net/http"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// sessionHeader names the session of a request whose body has none.
const sessionHeader = "X-Session-Id"

// routePrompt is POST /v1/route.
func (c *call) routePrompt() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	q := &request.Route{Score: c.req}
	defer func() { c.req = q.Score }() // its room is for the next request
	f, kind, err := readWithPrompt(c, request.RouteFields, request.RouteNames, q, &q.Input, "prompt", "messages", "input", "tokens", "tokens_b64", "block_keys")
	if err != nil {
		return err
	}
	if q.Prompt.List {
		return refusal.Invalid("prompt", "prompt is a list: route one prompt at a time")
	}
	if err := q.Check(f, kind); err != nil {
		return err
	}
	if err := c.keepSalt(&q.Score); err != nil {
		return err
	}
	if q.Overrides, err = request.WithPolicy(q.Overrides, q.Policy); err != nil {
		return err
	}
	if _, err := c.resolve(&q.Input, kind); err != nil {
		return err
	}
	if q.PinnedPrefill != nil && q.Role != route.RolePair {
		return refusal.Invalid("pinned_prefill", "pinned_prefill is of role pair alone")
	}
	if q.Session == "" { // what a proxy may add without a look at the body
		q.Session = c.r.Header.Get(sessionHeader)
		if err := notes.CheckSession(q.Session); err != nil && q.Session != "" {
			return refusal.Invalid("session", "%s: %s", sessionHeader, refusal.Plain(err, notes.ErrInvalid))
		}
	}
	if q.Session != "" && q.Role == route.RolePair {
		return refusal.Invalid("session", "a session goes to one place, not to a pair")
	}
	own := c.scopeID(q)
	d, err := c.s.cfg.Router.Route(c.ctx, route.Request{
		Score: q.With(q.Only(f, kind)), Reserve: q.Reserve, ID: q.ID, Overrides: q.Overrides, Expected: q.Expected,
		Session: c.caller.Scoped(q.Session), Role: q.Role, Pinned: q.Pinned, PinnedPrefill: q.PinnedPrefill, Required: q.Required, Preferred: q.Preferred, Explain: q.Explain,
	})
	if errors.Is(err, route.ErrSettings) {
		return refusal.Invalid("overrides", "%s", refusal.Plain(err, route.ErrSettings))
	}
	if err != nil {
		return q.Blame(kind, err)
	}
	if err := c.gone(); err != nil {
		return err
	}
	a := answer.Route(q, d)
	if a.Reservation != "" && a.Reservation == q.ID {
		a.Reservation = own
	}
	c.degraded = a.DegradedReason()
	out, err := a.Append(c.out[:0])
	if err != nil {
		return err
	}
	return c.replyOK(out)
}

var errNoRouter = &refusal.Error{Status: http.StatusNotImplemented, Code: refusal.CodeNotImplemented, Message: "this server does not route"}

// getRouting is GET /v1/models/{model}/routing.
func (c *call) getRouting() error {
	model, err := c.routedModel()
	if err != nil {
		return err
	}
	s, err := c.s.cfg.Router.Settings(c.ctx, model)
	if err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, s)
}

// putRouting is PUT /v1/models/{model}/routing.
func (c *call) putRouting() error {
	model, err := c.routedModel()
	if err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	if err := scan.EmptyBody(body); err != nil {
		return err
	}
	if err := request.CheckSettings("", body); err != nil {
		return err
	}
	s, err := c.s.cfg.Router.PutSettings(c.ctx, model, body)
	if err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, s)
}

func (c *call) routedModel() (string, error) {
	if c.s.cfg.Router == nil {
		return "", errNoRouter
	}
	model, err := c.pathText("model")
	if err != nil {
		return "", err
	}
	info := store.ModelInfo{Name: model, BlockSize: 1, Scheme: store.SchemeNative}
	if err := info.Validate(); err != nil {
		return "", refusal.Invalid("model", "%v", err)
	}
	c.model = c.s.meaning(c.ctx, model).Model
	return c.model, nil
}
