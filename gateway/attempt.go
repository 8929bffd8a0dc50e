package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// What an engine was given up for.
var (
	errHeaderTime = errors.New("gateway: the engine has not begun to answer in time")
	errFirstTime  = errors.New("gateway: the engine's answer has no first byte in time")
	errIdle       = errors.New("gateway: the engine's answer has paused for too long")
)

// attempt is a request at one pod.
type attempt struct {
	x      *exchange
	pod    *pod
	cancel context.CancelCauseFunc
	ctx    context.Context
	timer  *time.Timer
	phase  atomic.Pointer[error] // what it is given up for when the timer ends
	over   bool
}

// clock has the attempt be given up for a reason after a time.
func (a *attempt) clock(why *error, after time.Duration) {
	a.phase.Store(why)
	a.timer.Reset(after)
}

// RoundTrip implements http.RoundTripper for the ReverseProxy: it sends a request to one pod
// after the other, until one answers.
func (g *Gateway) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req)
	for {
		resp, err := x.try(req)
		why := err
		if err == nil {
			if !refuses(resp.StatusCode) {
				return resp, nil
			}
			why = errors.New("gateway: the engine answers with status " + strconv.Itoa(resp.StatusCode))
		}
		if !x.mayRepeat(err) || !x.chooseNext(why) {
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
}

// refuses reports whether a status says that an engine has not worked on a request.
func refuses(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable
}

// mayRepeat reports whether a request without an answer may be sent once more. One that is
// understood only computes; of all others nothing must have been sent.
func (x *exchange) mayRepeat(err error) bool {
	if x.ctx.Err() != nil {
		return false
	}
	if x.of != apiOther {
		return true
	}
	return err != nil && isConnectFailure(err) && (x.streamed == nil || !x.streamed.read.Load())
}

// try sends a request to the place that is chosen, and returns when the first byte of the
// answer's body has come.
func (x *exchange) try(req *http.Request) (_ *http.Response, err error) {
	g := x.g
	a := &attempt{x: x, pod: g.pods.get(x.place.Pod)}
	a.ctx, a.cancel = context.WithCancelCause(req.Context())
	a.phase.Store(&errHeaderTime)
	a.timer = time.AfterFunc(g.c.Header, func() { a.cancel(*a.phase.Load()) })
	a.pod.running.Add(1)
	a.pod.wait(a)
	defer a.pod.waitNoMore(a)
	resp, err := g.transport.RoundTrip(a.request(req))
	if err != nil {
		return nil, a.fail(err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		a.timer.Stop() // what follows is no answer, and its body is both ways
		x.status = resp.StatusCode
		a.pod.running.Add(-1)
		return resp, nil
	}
	x.isStream = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	b := &answer{attempt: a, body: resp.Body, resp: resp, plain: resp.Header.Get("Content-Encoding") == ""}
	if err := b.begin(); err != nil {
		return nil, a.fail(errors.Join(err, b.release()))
	}
	a.clock(&errIdle, g.c.Idle)
	resp.Body = b
	x.status = resp.StatusCode
	if refuses(resp.StatusCode) {
		g.pods.failed(a.pod, errors.New("status "+strconv.Itoa(resp.StatusCode)))
		return resp, nil
	}
	a.pod.answered(g.c.Now())
	x.firstByte()
	x.dropBody()
	return resp, nil
}

// request is the request of the attempt, which shares what it does not change.
func (a *attempt) request(req *http.Request) *http.Request {
	x := a.x
	out := req.WithContext(a.ctx)
	u := *req.URL
	u.Scheme, u.Host = x.place.url.Scheme, x.place.url.Host
	if base := strings.TrimSuffix(x.place.url.Path, "/"); base != "" {
		u.Path, u.RawPath = base+u.Path, ""
	}
	out.URL, out.Host = &u, ""
	if x.place.ranked || x.asks {
		out.Header = req.Header.Clone()
		if x.place.ranked {
			out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(x.place.Rank))
		}
		if x.asks { // what is to be taken out must be readable
			out.Header.Set("Accept-Encoding", "identity")
		}
	}
	switch {
	case x.of != apiOther:
		body := x.body
		out.ContentLength, out.TransferEncoding = int64(len(body)), nil
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		out.Body, _ = out.GetBody()
	case x.streamed != nil:
		out.Body = x.streamed
	}
	return out
}

// fail ends an attempt without an answer, and returns what it has failed for.
func (a *attempt) fail(err error) error {
	x := a.x
	if x.ctx.Err() == nil {
		if cause := context.Cause(a.ctx); cause != nil {
			err = cause
		}
		if !errors.Is(err, errEjected) {
			x.g.pods.failed(a.pod, err)
		}
	}
	a.end()
	return err
}

// end ends an attempt: its connection is given back, or cut where an answer is still coming.
func (a *attempt) end() {
	if a.over {
		return
	}
	a.over = true
	a.timer.Stop()
	a.cancel(context.Canceled)
	a.pod.running.Add(-1)
}
