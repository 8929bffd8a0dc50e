package server

import (
	"bytes"
	"maps"
	"net/http"
	"slices"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/telemetry"
)

// loadAnswer is a load of GET /v1/loads.
type loadAnswer struct {
	answer.Place
	loads.Load
	Engine *engineAnswer `json:"engine,omitempty"`
	Truth  *truthAnswer  `json:"truth,omitempty"`
}

// truthAnswer is what requests on a rank were promised and given.
type truthAnswer struct {
	Requests  int64 `json:"requests"`
	Predicted int64 `json:"predicted_tokens"`
	Delivered int64 `json:"delivered_tokens"`
	Lies      bool  `json:"lies"`
}

// listLoads is GET /v1/loads.
func (c *call) listLoads() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	query := c.r.URL.Query()
	format := query.Get("format")
	if format != "" && format != "json" && format != "prometheus" {
		return refusal.Invalid("format", "format is none of json, prometheus")
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	out := map[string][]loadAnswer{}
	var ranks []telemetry.RankLoad
	for _, model := range servedModels(reg, query.Get("model")) {
		picture, err := c.s.cfg.Router.Loads(c.ctx, model)
		if err != nil {
			return err
		}
		truths, err := c.s.cfg.Router.Truths(c.ctx, model)
		if err != nil {
			return err
		}
		list := liveLoads(reg, model, &picture)
		ranks = append(ranks, list...)
		out[model] = []loadAnswer{}
		for i := range list {
			a := loadAnswer{Place: answer.PlaceOf(list[i].RankRef), Load: list[i].Load}
			if e := list[i].Engine; e != nil {
				a.Engine = answerOfEngine(e, list[i].Now)
			}
			if t, told := truths[list[i].RankRef]; told && t.Generation == generationOf(reg, list[i].RankRef) {
				a.Truth = &truthAnswer{t.Requests, t.Predicted, t.Delivered, t.Lies()}
			}
			out[model] = append(out[model], a)
		}
	}
	if format != "prometheus" {
		return c.replyJSON(http.StatusOK, map[string]any{"models": out})
	}
	buf := bytes.NewBuffer(c.out[:0])
	if err := telemetry.WriteLoads(buf, ranks); err != nil {
		return err
	}
	c.out = buf.Bytes()
	c.w.Header().Set("Content-Type", telemetry.LoadsType)
	c.reply(http.StatusOK, c.out)
	return nil
}

// servedModels are the models that pods serve, sorted, or only one of them.
func servedModels(reg *store.Registry, only string) []string {
	models := map[string]bool{}
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf == nil && p.Model != "" && (only == "" || p.Model == only) {
			models[p.Model] = true
		}
	}
	return slices.Sorted(maps.Keys(models))
}

// generationOf is a rank's present generation, 0 where it has none.
func generationOf(reg *store.Registry, at store.RankRef) store.Generation {
	if p, ok := reg.PodIndex(at.Pod); ok {
		if slot, ok := reg.Slot(p, at.Rank); ok {
			return reg.Generation(slot)
		}
	}
	return 0
}

// liveLoads are the loads of the ranks that are registered, by pod and rank. What an ended
// generation of a rank had counts no more.
func liveLoads(reg *store.Registry, model string, picture *loads.Picture) (out []telemetry.RankLoad) {
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.Model != model || p.PartOf != nil {
			continue
		}
		for rank := range max(1, p.Ranks) {
			r := telemetry.RankLoad{RankRef: store.RankRef{Pod: p.Name, Rank: rank}, Model: model, Now: picture.Now}
			r.Load = picture.Loads[r.RankRef]
			gen := store.Generation(0)
			if slot, ok := reg.Slot(i, rank); ok {
				gen = reg.Generation(slot)
			}
			if r.Load.IsVoid(gen) {
				r.Load = r.Load.In(gen)
				r.Load.Generation = gen
			}
			if e, told := picture.Engines[r.RankRef]; told && e.Generation >= gen {
				r.Engine = &e
			}
			out = append(out, r)
		}
	}
	return out
}
