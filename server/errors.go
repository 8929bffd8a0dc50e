package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// apiError is a refusal as the client sees it.
type apiError struct {
	status  int
	code    string // a word that programs compare
	message string // a sentence that people read
	param   string // the field that is to blame; empty is null
	retry   time.Duration
}

// Error implements error.
func (e *apiError) Error() string { return e.message }

// appendJSON appends the one shape that errors have.
func (e *apiError) appendJSON(b []byte) []byte {
	b = append(b, `{"error":{"code":`...)
	b = appendString(b, e.code)
	b = append(b, `,"message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, e.param)
	}
	return append(b, "}}\n"...)
}

// Codes of refusals that this package makes itself.
const (
	codeInvalidJSON    = "invalid_json"
	codeInvalidRequest = "invalid_request"
	codeUnknownField   = "unknown_field"
	codeTooLarge       = "too_large"
	codeNotImplemented = "not_implemented"
	codeOverloaded     = "overloaded"
	codeInvalidDump    = "invalid_dump"
	codeNoIngest       = "no_ingest"
)

// invalid is a 400 for one field.
func invalid(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, code: codeInvalidRequest, message: fmt.Sprintf(format, args...), param: param}
}

// tooLarge is a 413 for one field, or for the body when param is empty.
func tooLarge(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusRequestEntityTooLarge, code: codeTooLarge, message: fmt.Sprintf(format, args...), param: param}
}

// statusClientGone is what the log and the metrics show when the client went
// away before its answer; nobody receives it. The number is nginx's.
const statusClientGone = 499

// mapping says how an error of the packages below is told to a client. An
// empty message tells the error's own; a fixed one keeps what is inside
// (addresses, paths) inside, and the error goes to the log.
var mapping = []struct {
	is      error
	status  int
	code    string
	param   string
	message string
	retry   time.Duration
}{
	{is: scorer.ErrRequest, status: 400, code: codeInvalidRequest},
	{is: scorer.ErrCut, status: 400, code: codeInvalidRequest, param: "truncate_prompt_tokens"},
	{is: scorer.ErrNoTokenizer, status: 501, code: "no_tokenizer", param: "prompt", message: "this server has no tokenizers: send tokens, tokens_b64 or block_keys"},
	{is: tokenpool.ErrUnsupported, status: 501, code: "tokenizer_unsupported", param: "model"},
	{is: tokenpool.ErrUnknownModel, status: 404, code: "unknown_model", param: "model", message: "there is no tokenizer for this model: send tokens, or put it at DIR/<org>/<model>/tokenizer.json of the server's --tokenizers DIR"},
	{is: tokenpool.ErrInvalidText, status: 400, code: "invalid_text", param: "prompt"},
	{is: tokenpool.ErrInvalidTokens, status: 400, code: "invalid_tokens", param: "tokens"},
	{is: tokenpool.ErrMedia, status: 400, code: codeInvalidRequest, param: "mm_items"},
	{is: tokenpool.ErrTooLong, status: 413, code: codeTooLarge, param: "prompt"},
	{is: tokenpool.ErrBusy, status: 503, code: "tokenizer_busy", message: "the tokenizer's queue is full, try again later", retry: time.Second},
	{is: tokenpool.ErrPinned, status: 502, code: "tokenizer_changed", param: "model", message: "the files of this model's tokenizer are not the ones that are pinned (tokenizer-pins); the server's log says what differs", retry: 5 * time.Second},
	{is: tokenpool.ErrBroken, status: 422, code: "tokenizer_broken", param: "model"},
	{is: tokenpool.ErrLoad, status: 502, code: "tokenizer_unavailable", param: "model", message: "the tokenizer of this model could not be fetched or read now; the server's log says why", retry: 5 * time.Second},
	{is: tokenpool.ErrTokenizer, status: 500, code: "tokenizer_failed", param: "prompt", message: "the tokenizer failed on this text"},
	{is: chat.ErrFiles, status: 500, code: "chat_template_invalid", param: "model", message: "the files of this model's chat template are malformed; the server's log says how"},
	{is: chat.ErrCompile, status: 500, code: "chat_template_invalid", param: "model", message: "this model's chat template does not compile; the server's log says why"},
	{is: tokenpool.ErrClosed, status: 503, code: "closing", message: "the server is shutting down", retry: time.Second},
	{is: snapshot.ErrCorrupt, status: 400, code: codeInvalidDump},
	{is: snapshot.ErrCut, status: 400, code: codeInvalidDump},
	{is: snapshot.ErrVersion, status: 400, code: codeInvalidDump},
	{is: route.ErrNobody, status: 404, code: "no_pod"},
	{is: route.ErrBusy, status: 503, code: "pods_busy", message: "every pod that may take the request is at its limits, try again later", retry: time.Second},
	{is: route.ErrSettings, status: 400, code: codeInvalidRequest},
	{is: route.ErrRequest, status: 400, code: codeInvalidRequest},
	{is: loads.ErrReadOnly, status: 503, code: "loads_unavailable", message: "this server may not change loads in Redis: its user there may only read", retry: 5 * time.Second},
	{is: loads.ErrUnavailable, status: 503, code: "loads_unavailable", message: "loads and settings cannot be reached, try again later", retry: time.Second},
	{is: loads.ErrInvalid, status: 400, code: codeInvalidRequest},
	{is: ingest.ErrReading, status: 409, code: "rank_is_read", param: "pod", message: "the events of this rank are read from its engine by this server, so they cannot be pushed too"},
	{is: ingest.ErrOtherModel, status: 409, code: "model_conflict", param: "model"},
	{is: ingest.ErrNotRead, status: 404, code: "rank_not_read", param: "rank", message: "this server does not read the rank: another replica does, or nobody"},
	{is: ingest.ErrRange, status: 400, code: "invalid_range", param: "to"},
	{is: ingest.ErrTooNew, status: 416, code: "range_too_new", param: "from"},
	{is: ingest.ErrTooOld, status: 416, code: "range_too_old", param: "from"},
	{is: ingest.ErrNoPages, status: 501, code: codeNotImplemented, message: "the index of this server cannot be paged through"},
	{is: ingest.ErrClosed, status: 503, code: "closing", message: "the server is shutting down", retry: time.Second},
	{is: store.ErrUnknownPod, status: 404, code: "unknown_pod", param: "pod", message: "the pod is not registered any more"},
	{is: store.ErrNoRank, status: 400, code: codeInvalidRequest, param: "rank"},
	{is: store.ErrInvalid, status: 400, code: codeInvalidRequest},
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

// noTokenizer is scorer.ErrNoTokenizer for the field that needs one.
func noTokenizer(param string) error {
	e := *asAPIError(scorer.ErrNoTokenizer)
	e.param = param
	return &e
}

// asAPIError turns any error into what the client sees.
func asAPIError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	for i := range mapping {
		m := &mapping[i]
		if !errors.Is(err, m.is) {
			continue
		}
		e := &apiError{status: m.status, code: m.code, message: m.message, param: m.param, retry: m.retry}
		if in, ok := errors.AsType[*scorer.InputError](err); ok {
			err = in.Err
			if e.param == "prompt" {
				e.param = "prompts[" + strconv.Itoa(in.Index) + "]"
			}
		}
		if e.message == "" {
			e.message = plain(err, m.is)
		}
		return e
	}
	return &apiError{status: http.StatusInternalServerError, code: "internal", message: "an internal error; the server's log has it under this request's id"}
}

// plain is the error's text without the sentinel's, which the code stands for.
func plain(err, sentinel error) string {
	text := strings.Replace(err.Error(), sentinel.Error()+": ", "", 1)
	if text == sentinel.Error() {
		_, text, _ = strings.Cut(text, ": ")
	}
	return text
}
