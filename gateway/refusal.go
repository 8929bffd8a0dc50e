package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/route"
)

// StatusGone is the Status of a Served for a client that left before its answer began.
const StatusGone = 499

// refusal is an answer of the gateway itself, and the error that is answered with it.
type refusal struct {
	status              int
	kind, code, message string
	retry               int // seconds; 0 says nothing
}

// Error implements error.
func (r *refusal) Error() string { return "gateway: " + r.message }

// The kinds of refusals, in the words of OpenAI and Anthropic.
const (
	ofRequest  = "invalid_request_error"
	ofOverload = "overloaded_error"
	ofService  = "api_error"
)

// What is refused. Those of a status below 500 are the client's fault, and no engine's.
var (
	errTooLarge    = &refusal{http.StatusRequestEntityTooLarge, ofRequest, "body_too_large", "the body is longer than the gateway takes", 0}
	errMethod      = &refusal{http.StatusMethodNotAllowed, ofRequest, "method_not_allowed", "the gateway opens no tunnels, and speaks HTTP/2 with TLS only", 0}
	errBodyStall   = &refusal{http.StatusRequestTimeout, ofRequest, "body_timeout", "the body did not come in time", 0}
	errBody        = &refusal{http.StatusBadRequest, ofRequest, "invalid_body", "the body ended early, or its transfer encoding is broken", 0}
	errSalt        = &refusal{http.StatusBadRequest, ofRequest, "invalid_body", "the body is no JSON object, or has more than one cache_salt, which your credentials bring", 0}
	errUnsalted    = &refusal{http.StatusForbidden, ofRequest, "forbidden", "your credentials bring a cache salt, and engines take none with this request", 0}
	errOfOthers    = &refusal{http.StatusForbidden, ofRequest, "forbidden", "your credentials bring a cache salt, and this page may show requests of others", 0}
	errOverloaded  = &refusal{http.StatusServiceUnavailable, ofOverload, "overloaded", "the gateway has as many requests as it takes", 1}
	errPodsBusy    = &refusal{http.StatusServiceUnavailable, ofOverload, "pods_busy", "every engine that may take the request is at its limits", 1}
	errNoPods      = &refusal{http.StatusServiceUnavailable, ofService, "no_pod", "no engine is known that serves this; kvatlas pods lists those that are, and the gateway's log says why one is missing", 1}
	errEngineTime  = &refusal{http.StatusGatewayTimeout, ofService, "engine_timeout", "the engine did not answer in time", 0}
	errUnavailable = &refusal{http.StatusBadGateway, ofService, "engine_unavailable", "no engine has answered", 1}
)

// forbidden refuses a field, or a header, that a client with a salt may not use.
func forbidden(name, why string) error {
	return &refusal{http.StatusForbidden, ofRequest, "forbidden", "your credentials bring a cache salt, so leave out " + name + ": " + why, 0}
}

// refusalOf returns the answer that a client gets for an error. What an error of others says stays here.
func refusalOf(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, route.ErrBusy):
		return errPodsBusy
	case errors.Is(err, route.ErrNobody):
		return errNoPods
	case errors.Is(err, errHeaderTime), errors.Is(err, errFirstTime), ok && timeout.Timeout():
		return errEngineTime
	}
	return errUnavailable
}

// refuse answers with an error in OpenAI's form, which its clients raise. A client that has left
// gets none: its connection is cut, since net/http would answer 200 for a handler that returns.
func (x *exchange) refuse(w http.ResponseWriter, err error) {
	// The server ends the request's context when a read of its body fails. The client of a body that
	// was late, or ended early, can still be answered.
	if wrong := x.client.failed.Load(); wrong != nil {
		err = wrong
	} else if x.ctx.Err() != nil || errors.Is(err, context.Canceled) {
		x.status, x.cut = StatusGone, true
		panic(http.ErrAbortHandler)
	}
	r := refusalOf(err)
	x.status = r.status
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if r.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(r.retry))
	}
	if x.place != nil {
		h.Set(headerPod, x.place.Pod)
		h.Set(headerAttempts, strconv.Itoa(len(x.tried)+1))
	}
	if r.status < 500 || x.client.leavesRest() { // what is left of the body is not read
		h.Set("Connection", "close")
	}
	w.WriteHeader(r.status)
	b, _ := json.Marshal(map[string]any{"error": map[string]any{"message": r.message, "type": r.kind, "param": nil, "code": r.code}})
	_, _ = w.Write(append(b, '\n')) // a client that has gone
}
