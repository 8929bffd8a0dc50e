package server

import (
	"errors"
	"net/http"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/answer"
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
	limit, err := whole(c.query, "limit", prefixesListed, 1, route.MaxPrefixes)
	if err != nil {
		return err
	}
	reg, away := c.s.cfg.Index.Registry(c.ctx)
	if errors.Is(away, store.ErrUnavailable) {
		reg = c.s.cfg.Index.Cached()
	} else if away != nil {
		return away
	}
	models := servedModels(reg, c.query.Get("model"))
	if len(models) == 0 && away != nil {
		return away // nothing is known, which is not to say that there is nothing
	}
	out := map[string]*client.ModelPrefixes{}
	for _, model := range models {
		all, err := c.s.cfg.Router.Prefixes(c.ctx, model, int(limit))
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
