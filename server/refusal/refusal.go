// Package refusal is how the HTTP API says no. It has one shape of error, and which
// status and code the errors of the packages below have in it. Errors are plain values.
package refusal

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// Error is a refusal as the client sees it.
type Error struct {
	Status  int
	Code    string // a word that programs compare
	Message string // a sentence that people read
	Param   string // the field that is to blame; empty is null
	Retry   time.Duration
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// AppendJSON appends the one shape that errors have.
func (e *Error) AppendJSON(b []byte) []byte {
	b = append(b, `{"error":{"code":`...)
	b = appendjson.String(b, e.Code)
	b = append(b, `,"message":`...)
	b = appendjson.String(b, e.Message)
	b = append(b, `,"param":`...)
	if e.Param == "" {
		b = append(b, "null"...)
	} else {
		b = appendjson.String(b, e.Param)
	}
	return append(b, "}}\n"...)
}

// SetHeader writes the headers of the refusal: when to ask again, and how to authenticate.
func (e *Error) SetHeader(h http.Header) {
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.Retry+time.Second-1)/time.Second)))
	}
}

// Codes of refusals that this package makes itself.
const (
	CodeInvalidJSON    = "invalid_json"
	CodeInvalidRequest = "invalid_request"
	CodeUnknownField   = "unknown_field"
	CodeTooLarge       = "too_large"
	CodeNotImplemented = "not_implemented"
	CodeOverloaded     = "overloaded"
	codeInvalidDump    = "invalid_dump"
	CodeNoIngest       = "no_ingest"
)

// Invalid is a 400 for one field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Message: fmt.Sprintf(format, args...), Param: param}
}

// TooLarge is a 413 for one field, or for the body when param is empty.
func TooLarge(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Code: CodeTooLarge, Message: fmt.Sprintf(format, args...), Param: param}
}

// statusClientGone is what the log and the metrics show when the client went
// away before its answer; it is never sent. The number is nginx's.
const statusClientGone = 499

// mapping gives errors of the packages below their status and code. Where the message is
// empty, the client gets the error's own text. A fixed one keeps addresses and paths inside,
// and the error goes to the log.
var mapping = []struct {
	is      error
	status  int
	code    string
	param   string
	message string
	retry   time.Duration
}{
	{is: access.ErrUnauthorized, status: 401, code: "unauthorized"},
	{is: access.ErrForbidden, status: 403, code: "forbidden"},
	{is: scorer.ErrRequest, status: 400, code: CodeInvalidRequest},
	{is: scorer.ErrCut, status: 400, code: CodeInvalidRequest, param: "truncate_prompt_tokens"},
	{is: scorer.ErrNoTokenizer, status: 501, code: "no_tokenizer", param: "prompt", message: "this server has no tokenizers: send tokens, tokens_b64 or block_keys"},
	{is: tokenpool.ErrUnsupported, status: 501, code: "tokenizer_unsupported", param: "model"},
	{is: tokenpool.ErrUnknownModel, status: 404, code: "unknown_model", param: "model", message: "there is no tokenizer for this model: send tokens, or put it at DIR/<org>/<model>/tokenizer.json of the server's --tokenizers DIR; a path is no name, engines that serve one take --served-model-name"},
	{is: tokenpool.ErrInvalidText, status: 400, code: "invalid_text", param: "prompt"},
	{is: tokenpool.ErrInvalidTokens, status: 400, code: "invalid_tokens", param: "tokens"},
	{is: tokenpool.ErrMedia, status: 400, code: CodeInvalidRequest, param: "mm_items"},
	{is: tokenpool.ErrTooLong, status: 413, code: CodeTooLarge, param: "prompt"},
	{is: tokenpool.ErrBusy, status: 503, code: "tokenizer_busy", message: "the tokenizer's queue is full, try again later", retry: time.Second},
	{is: tokenpool.ErrPinned, status: 502, code: "tokenizer_changed", param: "model", message: "the files of this model's tokenizer are not the ones that are pinned (tokenizer-pins); the server's log says what differs", retry: 5 * time.Second},
	{is: tokenpool.ErrBroken, status: 422, code: "tokenizer_broken", param: "model"},
	{is: tokenpool.ErrLoad, status: 502, code: "tokenizer_unavailable", param: "model", message: "the tokenizer of this model could not be fetched or read now; the server's log says why. Correct the model's name, put its files into MODEL/ below the server's --tokenizers DIR, or let the server reach the hub", retry: 5 * time.Second},
	{is: tokenpool.ErrTokenizer, status: 500, code: "tokenizer_failed", param: "prompt", message: "the tokenizer failed on this text"},
	{is: chat.ErrFiles, status: 500, code: "chat_template_invalid", param: "model", message: "the files of this model's chat template are malformed; the server's log says how"},
	{is: chat.ErrCompile, status: 500, code: "chat_template_invalid", param: "model", message: "this model's chat template does not compile; the server's log says why"},
	{is: tokenpool.ErrClosed, status: 503, code: "closing", message: "the server is shutting down", retry: time.Second},
	{is: snapshot.ErrCorrupt, status: 400, code: codeInvalidDump},
	{is: snapshot.ErrCut, status: 400, code: codeInvalidDump},
	{is: snapshot.ErrVersion, status: 400, code: codeInvalidDump},
	{is: route.ErrUnread, status: 503, code: "index_unavailable", message: "the index cannot be reached, and of the pods known before it went none has what is asked: try again later", retry: time.Second},
	{is: route.ErrNobody, status: 404, code: "no_pod"},
	{is: route.ErrBusy, status: 503, code: "pods_busy", message: "every pod that may take the request is at its limits, try again later", retry: time.Second},
	{is: route.ErrSettings, status: 400, code: CodeInvalidRequest},
	{is: route.ErrRequest, status: 400, code: CodeInvalidRequest},
	{is: loads.ErrReadOnly, status: 503, code: "loads_unavailable", message: "this server may not change loads in Redis: its user there may only read", retry: 5 * time.Second},
	{is: loads.ErrNoMemory, status: 503, code: "loads_unavailable", message: "the loads' server has no memory left: nothing new is taken in until it has (maxmemory)", retry: time.Second},
	{is: loads.ErrUnavailable, status: 503, code: "loads_unavailable", message: "loads and settings cannot be reached, try again later", retry: time.Second},
	{is: loads.ErrInvalid, status: 400, code: CodeInvalidRequest},
	{is: ingest.ErrReading, status: 409, code: "rank_is_read", param: "pod", message: "the events of this rank are read from its engine by this server, so they cannot be pushed too"},
	{is: ingest.ErrOtherModel, status: 409, code: "model_conflict", param: "model"},
	{is: ingest.ErrNotRead, status: 404, code: "rank_not_read", param: "rank", message: "this server does not read the rank: another replica does, or none"},
	{is: ingest.ErrRange, status: 400, code: "invalid_range", param: "to"},
	{is: ingest.ErrTooNew, status: 416, code: "range_too_new", param: "from"},
	{is: ingest.ErrTooOld, status: 416, code: "range_too_old", param: "from"},
	{is: ingest.ErrClosed, status: 503, code: "closing", message: "the server is shutting down", retry: time.Second},
	{is: store.ErrUnknownPod, status: 404, code: "unknown_pod", param: "pod", message: "the pod is not registered any more"},
	{is: store.ErrNoRank, status: 400, code: CodeInvalidRequest, param: "rank"},
	{is: store.ErrInvalid, status: 400, code: CodeInvalidRequest},
	{is: store.ErrCursor, status: 400, code: "invalid_cursor", param: "cursor"},
	{is: store.ErrModelConflict, status: 409, code: "model_conflict", param: "model"},
	{is: store.ErrFenced, status: 503, code: "index_unavailable", message: "another server has written for this rank meanwhile, send this again", retry: time.Second},
	{is: store.ErrEnded, status: 503, code: "index_unavailable", message: "the blocks of this rank have been cleared meanwhile, send this again", retry: time.Second},
	{is: store.ErrFull, status: 507, code: "index_full", message: "the index has no room for another pod or model"},
	{is: store.ErrNoMemory, status: 507, code: "index_full", message: "the index's server has no memory left: nothing new is taken in until it has (maxmemory)", retry: time.Second},
	{is: store.ErrRefused, status: 503, code: "index_unavailable", message: "the index's server refuses this: it may only be read, asks for another user, or has something else under a name of the index; the log says which", retry: 5 * time.Second},
	{is: store.ErrUnavailable, status: 503, code: "index_unavailable", message: "the index cannot be reached, try again later", retry: time.Second},
	{is: store.ErrClosed, status: 503, code: "closing", message: "the server is shutting down", retry: time.Second},
	{is: context.DeadlineExceeded, status: 504, code: "timeout", message: "the request took longer than the server allows"},
	{is: context.Canceled, status: statusClientGone, code: "client_gone", message: "the client closed the connection"},
}

// NoTokenizer is scorer.ErrNoTokenizer for the field that needs one.
func NoTokenizer(param string) error {
	e := *Of(scorer.ErrNoTokenizer)
	e.Param = param
	return &e
}

// Of turns any error into what the client sees.
func Of(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*access.LimitError](err); ok {
		return &Error{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: "this caller asks too often (rate-limit)", Retry: e.Wait}
	}
	for i := range mapping {
		m := &mapping[i]
		if !errors.Is(err, m.is) {
			continue
		}
		e := &Error{Status: m.status, Code: m.code, Message: m.message, Param: m.param, Retry: m.retry}
		if in, ok := errors.AsType[*scorer.InputError](err); ok {
			err = in.Err
			if e.Param == "prompt" {
				e.Param = "prompts[" + strconv.Itoa(in.Index) + "]"
			}
		}
		if e.Message == "" {
			e.Message = Plain(err, m.is)
		}
		return e
	}
	return &Error{Status: http.StatusInternalServerError, Code: "internal", Message: "an internal error; the server's log has it under this request's id"}
}

// Plain is the error's text without the sentinel's, which the code stands for.
func Plain(err, sentinel error) string {
	text := strings.Replace(err.Error(), sentinel.Error()+": ", "", 1)
	if text == sentinel.Error() {
		_, text, _ = strings.Cut(text, ": ")
	}
	return text
}

// Clip keeps what a client sent readable in an error.
func Clip(t string) string {
	const most = 64
	if len(t) <= most {
		return t
	}
	n := most
	for n > 0 && !utf8.RuneStart(t[n]) {
		n--
	}
	return t[:n] + "..."
}
