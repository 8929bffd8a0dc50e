package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// errDraining ends streams when the server drains.
var errDraining = errors.New("the server is shutting down")

// stream begins a dump, a restore or a reset. Such a call may take as long as it
// goes on, until the client leaves or the server drains.
func (c *call) stream() (leave func(), err error) {
	s := c.s
	if s.streams.Add(1) > int64(s.cfg.Limits.MaxStreams) {
		s.streams.Add(-1)
		return nil, s.overloaded("dumps, restores and resets")
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	stop := context.AfterFunc(s.life, func() { cancel(errDraining) })
	c.ctx = ctx
	return func() {
		stop()
		cancel(nil)
		s.streams.Add(-1)
	}, nil
}

// ended puts the reason in the place of the bare end of a context.
func (c *call) ended(err error) error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(c.ctx), errDraining) {
		return &refusal.Error{Status: http.StatusServiceUnavailable, Code: "closing", Message: errDraining.Error() + ", try another", Retry: time.Second}
	}
	return err
}

// allow gives the client time to take what is written next. The package net/http
// watches for the client's leave by a read. A deadline of that read would end the
// call, so it has none.
func (c *call) allow() {
	r := http.NewResponseController(c.w)
	// Recorders in tests have no deadlines, which is all that the errors can say.
	_ = r.SetReadDeadline(time.Time{})
	_ = r.SetWriteDeadline(c.patience())
}

func (c *call) patience() time.Time { return time.Now().Add(c.s.cfg.Limits.StreamStall) }

// ndjson is the type of a dump.
const ndjson = "application/x-ndjson"

// dump is GET /v1/dump.
func (c *call) dump() error {
	pages, err := whole(c.query, "limit", 0, 1, 1<<31-1)
	if err != nil {
		return err
	}
	if c.lingers { // net/http would read it before the first page, and allow has no end for that
		return refusal.Invalid("", "a dump takes no body")
	}
	o := snapshot.Options{Model: c.query.Get("model"), Pod: c.query.Get("pod"), After: c.query.Get("cursor"), Pages: int(pages), Patience: c.s.cfg.Limits.StreamStall / 2}
	if c.s.cfg.Shared != nil {
		o.Logs = c.s.cfg.Shared.LogOffsets
	}
	if err := c.known(o.Model, o.Pod); err != nil {
		return err
	}
	if c.r.Method == http.MethodHead {
		c.beginDump()
		return nil
	}
	w := &dumpWriter{c: c}
	if _, err = snapshot.Dump(c.ctx, w, c.s.cfg.Index, o); err != nil {
		err = c.ended(err)
	}
	if err == nil || c.status == 0 {
		return err
	}
	// The status has gone out: the last line says why there is no more.
	c.refusal = refusal.Of(err)
	if w.failed != nil {
		c.refusal = refusal.Of(context.Canceled)
	} else {
		c.s.cfg.Log.Error().Str("request_id", c.id).Str("route", c.route.pattern).Str("code", c.refusal.Code).Err(err).Msg("dump ended early")
		_, _ = w.Write(c.refusal.AppendJSON(c.out[:0])) // a failed write means that the client has gone
	}
	return nil
}

// known refuses a model that is neither indexed nor served, and a pod that is not
// registered.
func (c *call) known(model, pod string) error {
	if model == "" && pod == "" {
		return nil
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return c.ended(err)
	}
	if pod != "" {
		if _, known := reg.PodIndex(pod); !known {
			return unknownPod("pod", pod)
		}
	}
	if _, known := reg.Models[model]; model == "" || known {
		return nil
	}
	if slices.ContainsFunc(reg.Pods, func(p store.Pod) bool { return p.Model == model }) {
		return nil
	}
	return &refusal.Error{Status: http.StatusNotFound, Code: "unknown_model", Param: "model", Message: "nothing is indexed of " + refusal.Clip(model)}
}

func (c *call) beginDump() {
	h := c.w.Header()
	h.Set("Content-Type", ndjson)
	h.Set("X-Request-Id", c.id)
	h.Set("Cache-Control", "no-store")
	c.status = http.StatusOK
	c.w.WriteHeader(c.status)
}

// dumpWriter sends pages. The status goes out with the first.
type dumpWriter struct {
	c      *call
	failed error // the client takes no more
}

// Write implements io.Writer.
func (w *dumpWriter) Write(b []byte) (int, error) {
	c := w.c
	c.allow()
	if c.status == 0 {
		c.beginDump()
	}
	n, err := c.w.Write(b)
	c.sent += n
	if err == nil {
		err = http.NewResponseController(c.w).Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	w.failed = err
	return n, err
}

// restore is POST /v1/restore.
func (c *call) restore() error {
	q, err := c.parameters([]string{"mode"})
	if err != nil {
		return err
	}
	mode := snapshot.Merge
	if text := q.Get("mode"); text != "" {
		if mode, err = snapshot.ParseMode(text); err != nil {
			return refusal.Invalid("mode", "mode is not one of merge, replace")
		}
	}
	if err := c.plainBody(); err != nil {
		return err
	}
	body := &restoreBody{c: c}
	report, err := snapshot.Restore(c.ctx, body, c.s.cfg.Index, mode)
	c.allow()
	if err == nil {
		return c.replyJSON(http.StatusOK, report)
	}
	if body.failed != nil {
		err = body.failed
	}
	e := *refusal.Of(c.ended(err))
	if report.Blocks > 0 {
		e.Message += fmt.Sprintf(" (%d blocks of the pages before stay loaded)", report.Blocks)
	}
	if e.Status >= 500 {
		return fmt.Errorf("%w: %w", &e, err) // the log has the rest
	}
	return &e
}

// restoreBody is a body that has no limit but the client's patience.
type restoreBody struct {
	c      *call
	failed error
}

// Read implements io.Reader.
func (r *restoreBody) Read(b []byte) (int, error) {
	c := r.c
	if err := c.ctx.Err(); err != nil {
		r.failed = c.ended(err)
		return 0, err
	}
	c.deadline(c.patience())
	n, err := c.r.Body.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.failed = &refusal.Error{Status: http.StatusRequestTimeout, Code: "body_timeout", Message: "the next part of the body did not arrive in time"}
		case c.r.Context().Err() != nil:
			r.failed = context.Canceled
		default:
			r.failed = &refusal.Error{Status: http.StatusBadRequest, Code: "invalid_body", Message: "the body ended early or its transfer encoding is broken"}
		}
	}
	return n, err
}

// resetRequest is the body of POST /v1/reset.
type resetRequest struct {
	model, pod string
	all        bool
}

var resetFields = scan.Fields[resetRequest]{
	{Name: "model", Read: func(s *scan.Scanner, q *resetRequest) error {
		var in request.Input
		err := request.ReadModel(s, &in)
		q.model = in.Model
		return err
	}},
	{Name: "pod", Read: func(s *scan.Scanner, q *resetRequest) error { return s.PodName(&q.pod) }},
	{Name: "all", Read: func(s *scan.Scanner, q *resetRequest) error {
		if err := s.Bool(&q.all); err != nil {
			return err
		}
		if !q.all {
			return s.Wrong("is false, leave it out")
		}
		return nil
	}},
}

var resetNames = scan.NamesOf(resetFields)

// reset is POST /v1/reset.
func (c *call) reset() error {
	var q resetRequest
	f, err := read(c, resetFields, resetNames, &q)
	if err != nil {
		return err
	}
	if _, err := f.One("model", "pod", "all"); err != nil {
		return err
	}
	c.model = q.model
	if err := c.known(q.model, q.pod); err != nil {
		return err
	}
	done, err := snapshot.Reset(c.ctx, c.s.cfg.Index, snapshot.Target{Model: q.model, Pod: q.pod, All: q.all})
	if err != nil {
		return c.ended(err)
	}
	c.allow()
	return c.replyJSON(http.StatusOK, done)
}
