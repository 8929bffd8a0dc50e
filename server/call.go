package server

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/bound"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
)

// call is one request on its way, with its buffers. Calls are pooled: nothing
// of one may be kept by what it calls. A call belongs to its request's
// goroutine.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	start time.Time
	ctx   context.Context // ends at the deadline or when the client goes away
	route *apiRoute
	id    string // the request id

	caller access.Caller
	query  url.Values // of a GET of /v1

	// For the log line.
	model, degraded string
	refusal         *refusal.Error
	status, sent    int

	body    []byte       // the request's body
	lingers bool         // the body has not been read, and is not refused by a deadline
	held    atomic.Int64 // how much of inFlightBytes is this call's
	entered bool         // it counts as in flight
	out     []byte       // the response's body
	scan    scan.Scanner
	req     request.Score

	decoder event.Decoder

	// Of a body that is coming or an answer that is going.
	since time.Time
	until time.Time     // when it is cut off whatever room there is; zero is never
	late  bool          // it has been cut off by then
	place *list.Element // among the transfers; nil is not there
	cut   func()        // ends it
}

// keepBytes is the largest buffer that waits for the next request.
const keepBytes = 4 << 20

// serve makes the http.Handler of a route: everything that is common to all.
func (s *Server) serve(e apiRoute) http.HandlerFunc {
	seen := s.metrics.Route(e.method, e.pattern)
	return func(w http.ResponseWriter, r *http.Request) {
		c, _ := s.calls.Get().(*call)
		c.start, c.w, c.r, c.ctx, c.route, c.id = time.Now(), w, r, r.Context(), &e, requestID(r)
		c.lingers = r.ContentLength != 0
		defer func() {
			abort := c.recovered(recover())
			took := time.Since(c.start)
			seen.Observe(c.status, took)
			c.logLine(took)
			c.release()
			if abort {
				panic(http.ErrAbortHandler)
			}
		}()
		var err error
		if c.caller, err = s.cfg.Access.Admit(r, e.role); err == nil {
			err = c.checkSalted()
		}
		if err != nil {
			c.refuse(err)
			return
		}
		if c.lingers && e.duty != reading {
			c.deadline(c.due())
		}
		switch e.duty {
		case probe:
		case stream:
			leave, err := c.stream()
			if err != nil {
				c.refuse(err)
				return
			}
			defer leave()
		case work, reading:
			defer func() {
				if c.entered {
					s.inFlight.Add(-1)
				}
			}()
			if e.duty == work {
				if err := c.enter(); err != nil {
					c.refuse(err)
					return
				}
			}
			var cancel context.CancelFunc
			c.ctx, cancel = bound.WithTimeout(c.ctx, s.cfg.Limits.RequestTimeout)
			defer cancel()
		}
		if err := c.readQuery(); err != nil {
			c.refuse(err)
			return
		}
		if err := e.handle(c); err != nil {
			c.refuse(err)
		}
	}
}

func (s *Server) overloaded(of string) *refusal.Error {
	s.metrics.Overloaded()
	return &refusal.Error{
		Status: http.StatusServiceUnavailable, Code: refusal.CodeOverloaded, Retry: time.Second,
		Message: "the server has as many " + of + " as it takes at once, try again later",
	}
}

// requestID is the client's X-Request-Id if it can stand in a log line and a
// header as it is, else a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); saneID(id) {
		return id
	}
	var b [16]byte
	return string(strconv.AppendUint(b[:0], rand.Uint64()|1<<63, 16))
}

func saneID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// recovered answers a panic with 500. What a panic says can hold anything,
// prompts included, so only runtime errors, which hold none, are logged in
// full. Result abort says that the answer is already begun and must be cut
// off.
func (c *call) recovered(v any) (abort bool) {
	if v == nil {
		return false
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it the same way
		return true
	}
	c.s.metrics.Panicked()
	what := fmt.Sprintf("a %T", v)
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	c.s.cfg.Log.Error().Str("request_id", c.id).Str("route", c.route.pattern).
		Str("panic", what).Bytes("stack", debug.Stack()).Msg("panic")
	abort = c.status != 0
	if !abort {
		c.refuse(errors.New("panic"))
	}
	c.body, c.out, c.req, c.scan = nil, nil, request.Score{}, scan.Scanner{} // the goroutine that panicked may still look at them
	return abort
}

// refuse answers with an error.
func (c *call) refuse(err error) {
	e := refusal.Of(err)
	if e.Status == http.StatusGatewayTimeout && c.r.Context().Err() != nil {
		e = refusal.Of(context.Canceled)
	}
	c.refusal = e
	if below := !errors.Is(err, e); below && e.Status >= 500 { // it says more than its code
		c.s.cfg.Log.Error().Str("request_id", c.id).Str("route", c.route.pattern).Str("code", e.Code).Err(err).Msg("request failed")
	}
	if c.lingers {
		c.deadline(earlier(c.due(), time.Now().Add(refusedBody)))
	}
	e.SetHeader(c.w.Header())
	c.out = e.AppendJSON(c.out[:0])
	c.reply(e.Status, c.out)
}

// reply writes the whole response. A large one takes of the bytes in flight until its
// client has taken it.
func (c *call) reply(status int, body []byte) {
	if n := len(body) - uncounted; n > 0 && c.status == 0 {
		if err := c.hold(int64(n)); err != nil {
			c.refuse(err)
			return
		}
		// Its number is bounded, since it is in flight.
		_ = c.transfer(math.MaxInt, time.Time{}, c.cutAnswer, func() error { return c.write(status, body) })
		return
	}
	_ = c.write(status, body)
}

// replyOK is reply with what a handler has made in the call's buffer, which it keeps. Its error is nil.
func (c *call) replyOK(body []byte) error {
	c.out = body
	c.reply(http.StatusOK, body)
	return nil
}

// write writes a response. A failed write means that the client has gone; there is no one to report it to.
func (c *call) write(status int, body []byte) error {
	h := c.w.Header()
	if h["Content-Type"] == nil {
		h["Content-Type"] = jsonType
	}
	values := [...]string{c.id, strconv.Itoa(len(body))}
	h["X-Request-Id"], h["Content-Length"] = values[:1:1], values[1:]
	c.status = status
	c.w.WriteHeader(status)
	for {
		part := body[:min(len(body), answerPart)]
		n, err := c.w.Write(part)
		c.sent += n
		body = body[n:]
		if err != nil || len(body) == 0 {
			return err
		}
		c.progress()
	}
}

// answerPart is how much of an answer is written before its client is given more time. It
// is more than what the kernel and net/http may hold back at the least.
const answerPart = 64 << 10

// progress gives a client that has taken a part of its answer as long for the next one. The
// write timeout of the listener is for all of it, and would cut an answer that goes on.
func (c *call) progress() {
	c.s.transfers.mu.Lock()
	defer c.s.transfers.mu.Unlock()
	if c.place != nil { // it has not been cut off
		_ = http.NewResponseController(c.w).SetWriteDeadline(c.patience())
	}
}

var jsonType = []string{"application/json"}

// slowRequest is how long a request takes at the least that has a log line for its time
// alone. Most take less than a millisecond.
const slowRequest = time.Second

// logLevel is the level of the line of a request that took a time. What failed, was slow or
// concerns a whole index has a line in most logs; others by Config.LogEveryRequest.
func (c *call) logLevel(took time.Duration) zerolog.Level {
	switch {
	case c.status >= 400, took >= slowRequest, c.route.duty == stream:
		return zerolog.InfoLevel
	case c.s.cfg.LogEveryRequest && c.route.duty != probe:
		return zerolog.InfoLevel
	}
	return zerolog.DebugLevel
}

// logLine writes the request's line.
func (c *call) logLine(took time.Duration) {
	level := c.logLevel(took)
	log := &c.s.cfg.Log
	if level < log.GetLevel() || level < zerolog.GlobalLevel() {
		return // WithLevel does not look at it
	}
	e := log.WithLevel(level)
	if e == nil {
		return
	}
	e.Str("request_id", c.id).Str("method", clip(c.r.Method, 16)).Str("route", c.route.pattern).
		Int("status", c.status).Int("bytes", c.sent).Dur("took", took)
	if c.model != "" {
		e.Str("model", c.model)
	}
	if c.degraded != "" {
		e.Str("degraded", c.degraded)
	}
	if c.caller.Name != "" {
		e.Str("caller", c.caller.Name)
	}
	if c.refusal != nil {
		e.Str("code", c.refusal.Code)
	}
	e.Msg("request")
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// release gives the call back for the next request.
func (c *call) release() {
	c.s.inFlightBytes.Add(-c.held.Swap(0))
	body, out, req := c.body, c.out, c.req
	if cap(body) > keepBytes {
		body = nil
	}
	if cap(out) > keepBytes {
		out = nil
	}
	req.Reset()
	c.scan.Release(keepBytes)
	*c = call{s: c.s, body: body[:0], out: out[:0], req: req, scan: c.scan, decoder: c.decoder}
	c.s.calls.Put(c)
}

// refusedBody is how long the body of a refused request may take to come. net/http reads up to 256 KiB
// of it before it sends the refusal, for clients that read nothing before they have sent all. Such a
// connection goes on. Where the body is late the refusal goes out, and the connection ends.
const refusedBody = 2 * time.Second

// earlier returns the earlier one of two times.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// due is when the request must have ended.
func (c *call) due() time.Time { return c.start.Add(c.s.cfg.Limits.RequestTimeout) }

// deadline cuts off a client that lingers with its body, also after a refusal:
// net/http reads on for a while before it sends one. Recorders in tests have no
// deadlines, which is all that the error can say.
func (c *call) deadline(t time.Time) {
	_ = http.NewResponseController(c.w).SetReadDeadline(t)
}

// plainBody refuses a body that would have to be decoded.
func (c *call) plainBody() error {
	for _, enc := range c.r.Header["Content-Encoding"] {
		if enc != "identity" {
			return &refusal.Error{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Message: "the body must be sent without Content-Encoding"}
		}
	}
	return nil
}

// readBody reads the whole body into the call's buffer. From then on the request is in
// flight.
func (c *call) readBody() ([]byte, error) {
	if err := c.plainBody(); err != nil {
		return nil, err
	}
	if limit := c.s.cfg.Limits.MaxBodyBytes; c.r.ContentLength > limit {
		return nil, refusal.TooLarge("", "the body has %d bytes, the limit is %d", c.r.ContentLength, limit)
	}
	err := c.transferBody()
	if err == nil {
		err = c.enter()
	}
	if err == nil {
		err = c.holdBody(len(c.body))
	}
	return c.body, err
}

// bodyInTurn reads the whole body, and waits for a turn to work on it. The turn is to be given back.
func (c *call) bodyInTurn() (body []byte, giveBack func(), err error) {
	if body, err = c.readBody(); err != nil {
		return nil, nil, err
	}
	giveBack, err = c.takeTurn(len(body))
	return body, giveBack, err
}

// transferBody receives the body as one of the transfers.
func (c *call) transferBody() error {
	err := c.transfer(arrivals*c.s.cfg.Limits.MaxInFlight, c.due(), c.cutBody, c.receive)
	switch {
	case err == nil:
		c.lingers = false
	case errors.Is(err, errCutOff):
		c.lingers = false
		return bodyTimeout("the body came so slowly that it was cut off for others")
	case errors.Is(err, errLate):
		c.lingers = false
		return bodyTimeout("the body did not arrive in time")
	}
	return err
}

func bodyTimeout(message string) *refusal.Error {
	return &refusal.Error{Status: http.StatusRequestTimeout, Code: "body_timeout", Message: message}
}

// receive reads the body to its end.
func (c *call) receive() error {
	limit := c.s.cfg.Limits.MaxBodyBytes
	// The declared length is believed up to a megabyte; after that room is made
	// as bytes arrive.
	buf := c.body[:0]
	if want := int(min(max(c.r.ContentLength, 4095), 1<<20)) + 1; cap(buf) < want {
		buf = make([]byte, 0, want)
	}
	for {
		if len(buf) == cap(buf) {
			more := min(2*cap(buf), int(limit)+1)
			if whole := int(c.r.ContentLength) + 1; whole > len(buf) {
				more = min(more, whole)
			}
			next := make([]byte, len(buf), more)
			copy(next, buf)
			buf = next
		}
		n, err := c.r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		c.body = buf
		if int64(len(buf)) > limit {
			return refusal.TooLarge("", "the body has more than %d bytes, the limit", limit)
		}
		if more := int64(len(buf)) - uncounted - c.held.Load(); more > 0 {
			if err := c.hold(more); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded): // net/http has then ended the context, too
			return errLate
		// A client that has shut its side of the connection may still read, and
		// net/http ends the context for it as well.
		case c.r.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF):
			return context.Canceled
		default:
			return &refusal.Error{Status: http.StatusBadRequest, Code: "invalid_body", Message: "the body ended early or its transfer encoding is broken"}
		}
	}
}
