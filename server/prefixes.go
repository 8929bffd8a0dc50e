package server

import (
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
)

// prefixesListed is how many prefixes of a model GET /v1/prefixes lists unless it is asked for
// others.
const prefixesListed = 20

// listPrefixes is GET /v1/prefixes.
func (c *call) listPrefixes() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	query, limit := c.r.URL.Query(), prefixesListed
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > route.MaxPrefixes {
			return refusal.Invalid("limit", "limit is %.20q, it must be a whole number from 1 to %d", text, route.MaxPrefixes)
		}
		limit = n
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	out := map[string]*answer.ModelPrefixes{}
	for _, model := range servedModels(reg, query.Get("model")) {
		all, err := c.s.cfg.Router.Prefixes(c.ctx, model, limit)
		if err != nil {
			return err
		}
		out[model] = answer.Prefixes(&all)
	}
	return c.replyJSON(http.StatusOK, map[string]any{"models": out})
}
