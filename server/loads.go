package server

import (
	"net/http"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// loadAnswer is a load of GET /v1/loads.
type loadAnswer struct {
	place
	loads.Load
}

// listLoads is GET /v1/loads.
func (c *call) listLoads() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	only := c.r.URL.Query().Get("model")
	out := map[string][]loadAnswer{}
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil || p.Model == "" || only != "" && p.Model != only {
			continue
		}
		out[p.Model] = nil
	}
	for model := range out {
		picture, err := c.s.cfg.Router.Loads(c.ctx, model)
		if err != nil {
			return err
		}
		out[model] = liveLoads(reg, model, &picture)
	}
	return c.replyJSON(http.StatusOK, map[string]any{"models": out})
}

// liveLoads are the loads of the ranks that are registered, by pod and rank. What an ended
// generation of a rank had counts no more.
func liveLoads(reg *store.Registry, model string, picture *loads.Picture) []loadAnswer {
	out := []loadAnswer{}
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.Model != model || p.PartOf != nil {
			continue
		}
		for rank := range max(1, p.Ranks) {
			at := store.RankRef{Pod: p.Name, Rank: rank}
			l := picture.Loads[at]
			if slot, ok := reg.Slot(i, rank); ok && l.IsVoid(reg.Generation(slot)) {
				l = l.In(reg.Generation(slot))
				l.Generation = reg.Generation(slot)
			}
			out = append(out, loadAnswer{place(at), l})
		}
	}
	return out
}
