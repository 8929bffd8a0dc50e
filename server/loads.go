package server

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/telemetry"
)

// loadAnswer is a load of GET /v1/loads.
type loadAnswer struct {
	client.Place
	loads.Load
	Engine *client.EngineLoad `json:"engine,omitempty"`
	Truth  *client.Truth      `json:"truth,omitempty"`
}

// listLoads is GET /v1/loads.
func (c *call) listLoads() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	format := c.query.Get("format")
	if format != "" && format != "json" && format != "prometheus" {
		return refusal.Invalid("format", "format is not one of json, prometheus")
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	out := map[string][]loadAnswer{}
	var ranks []telemetry.RankLoad
	for _, model := range servedModels(reg, c.query.Get("model")) {
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
				a.Truth = &client.Truth{Requests: t.Requests, PredictedTokens: t.Predicted, DeliveredTokens: t.Delivered, Lies: t.Lies()}
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
	c.w.Header().Set("Content-Type", telemetry.LoadsType)
	return c.replyOK(buf.Bytes())
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

// engineLoadRequest is the body of POST /v1/pods/{name}/load: what an engine says of a rank.
type engineLoadRequest struct{ loads.Engine }

func countOf(name, what string, at func(*loads.Engine) *int64) scan.Field[engineLoadRequest] {
	return scan.Field[engineLoadRequest]{Name: name, Read: func(s *scan.Scanner, q *engineLoadRequest) error {
		n, err := s.Uint(loads.MaxEngineCount, what)
		*at(&q.Engine) = int64(n)
		return err
	}}
}

var engineLoadFields = scan.Fields[engineLoadRequest]{
	{Name: "rank", Read: func(s *scan.Scanner, q *engineLoadRequest) error {
		if err := s.Count(&q.Rank); err != nil {
			return err
		}
		return s.RefusedBy((&loads.Engine{Rank: q.Rank}).Validate())
	}},
	countOf("running", "a number of requests", func(e *loads.Engine) *int64 { return &e.Running }),
	countOf("waiting", "a number of requests", func(e *loads.Engine) *int64 { return &e.Waiting }),
	countOf("waiting_tokens", "a number of tokens", func(e *loads.Engine) *int64 { return &e.WaitingTokens }),
	countOf("kv_tokens", "a number of tokens", func(e *loads.Engine) *int64 { return &e.KVTokens }),
	{Name: "kv_usage", Read: func(s *scan.Scanner, q *engineLoadRequest) error {
		const want = "a number from 0 to 1"
		if !s.AtDigit() {
			return s.Unexpected(want)
		}
		raw, err := s.Raw(want)
		if err != nil {
			return err
		}
		q.KVUsage, err = strconv.ParseFloat(string(raw), 64)
		if err != nil || q.KVUsage > 1 {
			return s.Wrong("is not " + want)
		}
		return nil
	}},
}

var engineLoadNames = scan.NamesOf(engineLoadFields)

// pushLoad is POST /v1/pods/{name}/load.
func (c *call) pushLoad() error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	name, err := c.pathName("name")
	if err != nil {
		return err
	}
	q := engineLoadRequest{loads.Engine{WaitingTokens: -1, KVUsage: -1}}
	f, err := read(c, engineLoadFields, engineLoadNames, &q)
	if err != nil {
		return err
	}
	if err := f.Need("running", "waiting"); err != nil {
		return err
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	i, known := reg.PodIndex(name)
	if !known {
		return unknownPod("name", name)
	}
	p := &reg.Pods[i]
	c.model = p.Model
	switch {
	case p.PartOf != nil:
		return refusal.Invalid("name", "the pod is part of %s, and has no load of its own", refusal.Clip(p.PartOf.Pod))
	case q.Rank >= max(1, p.Ranks):
		return refusal.Invalid("rank", "rank is %d, the pod has %d", q.Rank, max(1, p.Ranks))
	}
	if slot, ok := reg.Slot(i, q.Rank); ok {
		q.Generation = reg.Generation(slot)
	}
	if err := c.s.cfg.Router.PutEngine(c.ctx, p.Model, name, []loads.Engine{q.Engine}); err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, struct {
		client.Place
		Stale float64 `json:"stale_after_s"`
	}{answer.PlaceOf(store.RankRef{Pod: name, Rank: q.Rank}), loads.EngineStale.Seconds()})
}

// answerOfEngine is what an engine says of its load.
func answerOfEngine(e *loads.Engine, now int64) *client.EngineLoad {
	a := &client.EngineLoad{Running: e.Running, Waiting: e.Waiting, KVTokens: e.KVTokens, Gone: e.Gone, AgeS: float64(max(0, now-e.At)/1000) / 1000}
	if e.WaitingTokens >= 0 {
		a.WaitingTokens = &e.WaitingTokens
	}
	if e.KVUsage >= 0 {
		a.KVUsage = &e.KVUsage
	}
	return a
}
