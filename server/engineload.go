package server

import (
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/route/loads"
)

// engineLoadRequest is the body of POST /v1/pods/{name}/load: what an engine says of a rank.
type engineLoadRequest struct{ loads.Engine }

func countOf(name, what string, at func(*loads.Engine) *int64) field[engineLoadRequest] {
	return field[engineLoadRequest]{name, func(s *scanner, q *engineLoadRequest) error {
		n, err := s.uint(loads.MaxEngineCount, what)
		*at(&q.Engine) = int64(n)
		return err
	}}
}

var engineLoadFields = fields[engineLoadRequest]{
	{"rank", func(s *scanner, q *engineLoadRequest) error {
		if err := s.count(&q.Rank); err != nil {
			return err
		}
		return s.refusedBy((&loads.Engine{Rank: q.Rank}).Validate())
	}},
	countOf("running", "a number of requests", func(e *loads.Engine) *int64 { return &e.Running }),
	countOf("waiting", "a number of requests", func(e *loads.Engine) *int64 { return &e.Waiting }),
	countOf("waiting_tokens", "a number of tokens", func(e *loads.Engine) *int64 { return &e.WaitingTokens }),
	countOf("kv_tokens", "a number of tokens", func(e *loads.Engine) *int64 { return &e.KVTokens }),
	{"kv_usage", func(s *scanner, q *engineLoadRequest) error {
		const want = "a number from 0 to 1"
		if s.pos == len(s.data) || s.data[s.pos] < '0' || s.data[s.pos] > '9' {
			return s.unexpected(want)
		}
		raw, err := s.raw(want)
		if err != nil {
			return err
		}
		q.KVUsage, err = strconv.ParseFloat(string(raw), 64)
		if err != nil || q.KVUsage > 1 {
			return s.wrong("is not " + want)
		}
		return nil
	}},
}

var engineLoadNames = namesOf(engineLoadFields)

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
	if err := f.need("running", "waiting"); err != nil {
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
		return invalid("name", "the pod is part of %s, and has no load of its own", clipText(p.PartOf.Pod))
	case q.Rank >= max(1, p.Ranks):
		return invalid("rank", "rank is %d, the pod has %d", q.Rank, max(1, p.Ranks))
	}
	if slot, ok := reg.Slot(i, q.Rank); ok {
		q.Generation = reg.Generation(slot)
	}
	if err := c.s.cfg.Router.PutEngine(c.ctx, p.Model, name, []loads.Engine{q.Engine}); err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, struct {
		place
		Stale float64 `json:"stale_after_s"`
	}{place{name, q.Rank}, loads.EngineStale.Seconds()})
}

// engineAnswer is what an engine says of its load.
type engineAnswer struct {
	Running       int64    `json:"running"`
	Waiting       int64    `json:"waiting"`
	WaitingTokens *int64   `json:"waiting_tokens,omitempty"`
	KVUsage       *float64 `json:"kv_usage,omitempty"`
	KVTokens      int64    `json:"kv_tokens,omitempty"`
	Gone          int64    `json:"gone,omitempty"`
	Age           float64  `json:"age_s"`
}

func answerOfEngine(e *loads.Engine, now int64) *engineAnswer {
	a := &engineAnswer{Running: e.Running, Waiting: e.Waiting, KVTokens: e.KVTokens, Gone: e.Gone, Age: float64(max(0, now-e.At)/1000) / 1000}
	if e.WaitingTokens >= 0 {
		a.WaitingTokens = &e.WaitingTokens
	}
	if e.KVUsage >= 0 {
		a.KVUsage = &e.KVUsage
	}
	return a
}
