package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Error is a refusal by the server (or, without Code, by a proxy before it).
type Error struct {
	// Status is the HTTP status: 4xx is the caller's fault, 5xx the server's.
	Status int
	// Code is a word to compare, such as "unknown_model"; empty when the answer
	// was not one of kvatlas.
	Code string
	// Message is a sentence for people.
	Message string
	// Param is the field of the request that is to blame; may be empty.
	Param string
	// RequestID is the id of the request in the server's log; may be empty.
	RequestID string
	// RetryAfter is how long the server asks to wait before another try; 0 when
	// it does not say.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client: the server answers %d", e.Status)
	if e.Code != "" {
		b.WriteString(" " + e.Code)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.Param != "" {
		b.WriteString(" (" + e.Param + ")")
	}
	return b.String()
}

// Temporary says that the same request may well succeed later.
func (e *Error) Temporary() bool {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// maxExcerpt is how much of a strange answer an Error quotes, in bytes.
const maxExcerpt = 200

func errorOf(resp *http.Response, text []byte) *Error {
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id")}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	var body struct {
		Error struct {
			Code, Message string
			Param         *string
		}
	}
	if err := json.Unmarshal(text, &body); err == nil && body.Error.Code != "" {
		e.Code, e.Message = body.Error.Code, body.Error.Message
		if body.Error.Param != nil {
			e.Param = *body.Error.Param
		}
		return e
	}
	e.Message = cmp.Or(excerpt(string(text)), http.StatusText(resp.StatusCode))
	return e
}

// excerpt makes one short line of a foreign text.
func excerpt(s string) string {
	if len(s) > maxExcerpt {
		s = s[:maxExcerpt]
		for !utf8.ValidString(s) && len(s) > maxExcerpt-utf8.UTFMax {
			s = s[:len(s)-1]
		}
		s += "..."
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
