package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// What an engine was given up for.
var (
	errHeaderTime = errors.New("gateway: the engine has not begun to answer in time")
	errRouteTime  = errors.New("gateway: no pod was chosen in time")
	errFirstTime  = errors.New("gateway: the engine's answer has no first byte in time")
	errIdle       = errors.New("gateway: the engine's answer has paused for too long")
	errStatus     = errors.New("gateway: the engine's answer has a status that HTTP does not have")
)

// attempt is a request at one pod.
type attempt struct {
	x    *exchange
	pod  *pod
	work *work
	over bool
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
	return err != nil && isConnectFailure(err) && !x.client.read.Load()
}

// try sends a request to the place that is chosen, and returns when the first byte of the
// answer's body has come.
func (x *exchange) try(req *http.Request) (_ *http.Response, err error) {
	g := x.g
	a := &attempt{x: x, pod: g.pods.get(x.place.Pod)}
	out := a.begin(req)
	a.pod.running.Add(1)
	x.await(phaseHeader, g.c.Header)
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		return nil, a.fail(err)
	}
	// net/http reads any three digits, but panics when it is to write one below 100.
	if resp.StatusCode < 100 || resp.StatusCode > 999 {
		return nil, a.fail(errors.Join(fmt.Errorf("%w: %.20q", errStatus, resp.Status), resp.Body.Close()))
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.awaitNothing() // what follows is no answer, and its body is both ways
		x.status = resp.StatusCode
		a.pod.running.Add(-1)
		return resp, nil
	}
	x.isStream = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	b := &answer{attempt: a, body: resp.Body, resp: resp, plain: resp.Header.Get("Content-Encoding") == ""}
	if err := b.begin(); err != nil {
		return nil, a.fail(errors.Join(err, b.release()))
	}
	x.await(phaseClient, clientStall)
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

// begin begins the work of the attempt and returns its request. The first one is the proxy's
// own request, which belongs to no other yet; what comes behind it gets copies.
func (a *attempt) begin(req *http.Request) *http.Request {
	x, out := a.x, req
	if len(x.tried) > 0 {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(req.Context()))
		stop := context.AfterFunc(x.ctx, func() { cancel(context.Cause(x.ctx)) })
		a.work = &work{ctx: ctx, cancel: func(why error) { stop(); cancel(why) }, pod: a.pod}
		out = req.WithContext(ctx)
		u := *req.URL
		out.URL, out.Header = &u, req.Header.Clone()
	} else {
		was := x.work.Load()
		a.work = &work{ctx: was.ctx, cancel: was.cancel, pod: a.pod}
	}
	x.work.Store(a.work)
	a.fill(out)
	return out
}

// fill makes a request one to the place that is chosen.
func (a *attempt) fill(out *http.Request) {
	x := a.x
	path := x.from
	u := out.URL
	u.Scheme, u.Host = x.place.url.Scheme, x.place.url.Host
	u.Path, u.RawPath = path.Path, path.RawPath
	if base := strings.TrimSuffix(x.place.url.Path, "/"); base != "" {
		u.Path, u.RawPath = base+u.Path, ""
	}
	out.Host = ""
	if x.place.ranked {
		out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(x.place.Rank))
	} else if len(x.tried) > 0 {
		restore(out.Header, x.header, "X-Data-Parallel-Rank")
	}
	if x.asks { // what is to be taken out must be readable
		out.Header.Set("Accept-Encoding", "identity")
	}
	switch {
	case x.of != apiOther:
		delete(out.Header, "Expect") // the client has been told to go on, and has
		out.ContentLength, out.TransferEncoding = int64(len(x.body)), nil
		body := x.body
		out.GetBody = func() (io.ReadCloser, error) { return newKept(body), nil }
		out.Body = newKept(body)
	case x.streamed:
		out.Body = &x.client
	}
}

// restore makes a header what the client sent.
func restore(h, sent http.Header, name string) {
	if was := sent[name]; was != nil {
		h[name] = was
		return
	}
	delete(h, name)
}

// newKept reads a body that is kept. http.Transport knows this type, and sends header and body
// with one call. Of another body without bytes than NoBody it takes the length for unknown.
func newKept(b []byte) io.ReadCloser {
	if len(b) == 0 {
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(b))
}

// fail ends an attempt without an answer, and returns what it has failed for.
func (a *attempt) fail(err error) error {
	x := a.x
	if wrong := x.client.failed.Load(); wrong != nil { // no fault of the pod
		err = wrong
	} else if x.ctx.Err() == nil {
		if cause := context.Cause(a.work.ctx); cause != nil {
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
	a.x.awaitNothing()
	a.work.cancel(context.Canceled)
	a.pod.running.Add(-1)
}
