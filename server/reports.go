package server

import (
	"strconv"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// reportRequest is the body of the reports on a request.
type reportRequest struct {
	model  string
	cached int
	tokens int
}

func reportFields(more ...scan.Field[reportRequest]) scan.Fields[reportRequest] {
	return append(scan.Fields[reportRequest]{{Name: "model", Read: func(s *scan.Scanner, q *reportRequest) error { return s.Text(&q.model) }}}, more...)
}

var (
	cachedField = scan.Field[reportRequest]{Name: "cached_tokens", Read: func(s *scan.Scanner, q *reportRequest) error {
		n, err := s.Uint(loads.MaxTokens, "a number of tokens")
		q.cached = int(n)
		return err
	}}
	doneFields   = reportFields(cachedField)
	outputFields = reportFields(scan.Field[reportRequest]{Name: "tokens", Read: func(s *scan.Scanner, q *reportRequest) error {
		n, err := s.Uint(loads.MaxTokens, "a number of tokens")
		q.tokens = int(n)
		return err
	}})
	endFields = reportFields(cachedField)
)

// appendReport appends what became of a report.
func appendReport(b []byte, r *loads.Report) []byte {
	b = strconv.AppendBool(append(b, `{"known":`...), r.Known)
	if r.Pod != "" {
		b = appendjson.String(append(b, `,"pod":`...), store.PlainName(r.Pod))
	}
	b = strconv.AppendInt(append(b, `,"rank":`...), int64(r.Rank), 10)
	b = strconv.AppendBool(append(b, `,"first":`...), r.First)
	b = strconv.AppendInt(append(b, `,"predicted_tokens":`...), int64(r.Predicted), 10)
	return append(b, "}\n"...)
}

// requestDone is POST /v1/requests/{id}/done.
func (c *call) requestDone() error {
	return c.report(doneFields, func(q *reportRequest, id string) (loads.Report, error) {
		return c.s.cfg.Router.Done(c.ctx, q.model, id, q.cached)
	})
}

// requestOutput is POST /v1/requests/{id}/output.
func (c *call) requestOutput() error {
	return c.report(outputFields, func(q *reportRequest, id string) (loads.Report, error) {
		return c.s.cfg.Router.Output(c.ctx, q.model, id, q.tokens)
	}, "tokens")
}

// requestEnd is POST /v1/requests/{id}/end.
func (c *call) requestEnd() error {
	return c.report(endFields, func(q *reportRequest, id string) (loads.Report, error) {
		return c.s.cfg.Router.Settle(c.ctx, q.model, id, nil, q.cached)
	})
}

// report reads a report and answers it. Of a request that is not known the answer is 200
// too. The report has come late, or twice, or the lease was over, and none of it needs
// care.
func (c *call) report(fs scan.Fields[reportRequest], tell func(q *reportRequest, id string) (loads.Report, error), need ...string) error {
	if c.s.cfg.Router == nil {
		return errNoRouter
	}
	id, err := c.pathText("id")
	if err != nil {
		return err
	}
	if err := loads.CheckID(id); err != nil {
		return refusal.Invalid("id", "%s", refusal.Plain(err, loads.ErrInvalid))
	}
	q := &reportRequest{cached: -1}
	f, err := read(c, fs, scan.NamesOf(fs), q)
	if err != nil {
		return err
	}
	if err := f.Need(append(need, "model")...); err != nil {
		return err
	}
	q.model = c.s.meaning(c.ctx, q.model).Model
	c.model = q.model
	r, err := tell(q, c.caller.Scoped(id))
	if err != nil {
		return err
	}
	return c.replyOK(appendReport(c.out[:0], &r))
}
