package server

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// prefixesListed is how many prefixes of a model GET /v1/prefixes lists unless it is asked for
// others.
const prefixesListed = 20

// listPrefixes is GET /v1/prefixes. While the index cannot be reached it lists what was counted for
// the models that were seen last, and says so.
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
	reg, away := c.s.cfg.Index.Registry(c.ctx)
	if errors.Is(away, store.ErrUnavailable) {
		reg = c.s.cfg.Index.Cached()
	} else if away != nil {
		return away
	}
	models := servedModels(reg, query.Get("model"))
	if len(models) == 0 && away != nil {
		return away // nothing is known, which is not to say that there is nothing
	}
	out := map[string]*client.ModelPrefixes{}
	for _, model := range models {
		all, err := c.s.cfg.Router.Prefixes(c.ctx, model, limit)
		if err != nil {
			return err
		}
		if away != nil && all.Unheld == "" && !all.Alone { // the list is empty: no lookup has failed
			all.Unheld = scorer.IndexUnavailable
		}
		out[model] = answer.Prefixes(&all)
	}
	return c.replyJSON(http.StatusOK, map[string]any{"models": out})
}
