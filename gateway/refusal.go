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

// refusal is an answer of the gateway itself.
type refusal struct {
	status     int
	kind, code string
	message    string
	retry      int // seconds; 0 says nothing
}

// refusalOf returns the answer that a client gets for an error. What the error itself says stays here.
func refusalOf(err error) refusal {
	if e, ok := errors.AsType[*fieldError](err); ok {
		return refusal{http.StatusForbidden, "invalid_request_error", "forbidden", "your credentials bring a cache salt, so leave out " + e.name + ": " + e.why, 0}
	}
	switch {
	case errors.Is(err, errTooLarge), isTooLarge(err):
		return refusal{http.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large", "the body is longer than the gateway takes", 0}
	case errors.Is(err, errMethod):
		return refusal{http.StatusMethodNotAllowed, "invalid_request_error", "method_not_allowed", "the gateway opens no tunnels, and speaks HTTP/2 with TLS only", 0}
	case errors.Is(err, errBodyStall):
		return refusal{http.StatusRequestTimeout, "invalid_request_error", "body_timeout", "the body did not come in time", 0}
	case errors.Is(err, errBody):
		return refusal{http.StatusBadRequest, "invalid_request_error", "invalid_body", "the body ended early, or its transfer encoding is broken", 0}
	case errors.Is(err, errSalt):
		return refusal{http.StatusBadRequest, "invalid_request_error", "invalid_body", "the body is no JSON object, or has more than one cache_salt, which your credentials bring", 0}
	case errors.Is(err, errUnsalted):
		return refusal{http.StatusForbidden, "invalid_request_error", "forbidden", "your credentials bring a cache salt, and engines take none with this request", 0}
	case errors.Is(err, errOfOthers):
		return refusal{http.StatusForbidden, "invalid_request_error", "forbidden", "your credentials bring a cache salt, and this page may show requests of others", 0}
	case errors.Is(err, errOverloaded):
		return refusal{http.StatusServiceUnavailable, "overloaded_error", "overloaded", "the gateway has as many requests as it takes", 1}
	case errors.Is(err, route.ErrBusy):
		return refusal{http.StatusServiceUnavailable, "overloaded_error", "pods_busy", "every engine that may take the request is at its limits", 1}
	case errors.Is(err, errNoPods), errors.Is(err, route.ErrNobody):
		return refusal{http.StatusServiceUnavailable, "api_error", "no_pod", "no engine is known that serves this; kvatlas pods lists those that are, and the gateway's log says why one is missing", 1}
	case errors.Is(err, errHeaderTime), errors.Is(err, errFirstTime), isTimeout(err):
		return refusal{http.StatusGatewayTimeout, "api_error", "engine_timeout", "the engine did not answer in time", 0}
	}
	return refusal{http.StatusBadGateway, "api_error", "engine_unavailable", "no engine has answered", 1}
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// refuse answers with an error in OpenAI's form, which its clients raise. A client that has left
// gets none: its connection is cut, since net/http would answer 200 for a handler that returns.
func (x *exchange) refuse(w http.ResponseWriter, err error) {
	// The server ends the request's context when a read of its body fails. The client whose body
	// did not come in time can still be answered.
	if !errors.Is(err, errBodyStall) && (x.ctx.Err() != nil || errors.Is(err, context.Canceled)) {
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
	if r.status < 500 { // what is left of the body is not read
		h.Set("Connection", "close")
	}
	w.WriteHeader(r.status)
	b, _ := json.Marshal(map[string]any{"error": map[string]any{"message": r.message, "type": r.kind, "param": nil, "code": r.code}})
	_, _ = w.Write(append(b, '\n')) // a client that has gone
}
