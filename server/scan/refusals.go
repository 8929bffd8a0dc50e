package scan

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/server/refusal"
)

// The errors. All of them say the place.

// Syntax is for what is no JSON.
func (s *Scanner) Syntax(want string) *refusal.Error {
	found := "the end of the body"
	if s.pos < len(s.data) {
		found = strconv.QuoteToASCII(string(s.data[s.pos : s.pos+1]))
	}
	return &refusal.Error{
		Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Param: refusal.Clip(string(s.path)),
		Message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + found,
	}
}

// Unexpected is for a value of another kind than the field takes.
func (s *Scanner) Unexpected(want string) *refusal.Error {
	if s.pos == len(s.data) {
		return s.Syntax(want)
	}
	var kind string
	b := s.data[s.pos:]
	switch c := b[0]; {
	case c == '"':
		kind = "a string"
	case c == '{':
		kind = "an object"
	case c == '[':
		kind = "an array"
	case c == '-' || (c >= '0' && c <= '9'):
		kind = "a number"
	case bytes.HasPrefix(b, []byte("true")), bytes.HasPrefix(b, []byte("false")):
		kind = "true or false"
	case bytes.HasPrefix(b, []byte("null")):
		kind = "null"
	default:
		return s.Syntax(want)
	}
	if len(s.path) == 0 {
		return &refusal.Error{Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + kind}
	}
	if kind == "null" && s.path[len(s.path)-1] != ']' {
		kind += " (leave the field out instead)"
	}
	return s.Wrong("takes " + want + ", not " + kind)
}

// Wrong is for a value that the field cannot have.
func (s *Scanner) Wrong(why string) *refusal.Error {
	p := refusal.Clip(string(s.path))
	return refusal.Invalid(p, "%s %s", p, why)
}

// Unknown is for a field that the object does not have; known are those that it can have.
func (s *Scanner) Unknown(name string, known []string) *refusal.Error {
	return &refusal.Error{Status: http.StatusBadRequest, Code: refusal.CodeUnknownField, Param: refusal.Clip(string(s.path)), Message: "there is no such field" + nearest.Clause(name, known)}
}

// WordOf reads a text that must be one of words, and returns which; the error says of another
// what was probably meant.
func (s *Scanner) WordOf(words []string) (int, error) {
	b, err := s.StringBytes("a string")
	if err != nil {
		return 0, err
	}
	for i, w := range words {
		if string(b) == w {
			return i, nil
		}
	}
	return 0, s.NoneOf(string(b), words)
}

// NoneOf is the error for a text that is not one of words.
func (s *Scanner) NoneOf(text string, words []string) *refusal.Error {
	return s.Wrong("is not one of " + strings.Join(words, ", ") + nearest.Clause(text, words))
}

// Refused is for a value that the index does not take, or another package that judges it. The
// text of the error's sentinel is left out.
func (s *Scanner) Refused(err error) *refusal.Error {
	sentinel := err
	for inner := errors.Unwrap(sentinel); inner != nil; inner = errors.Unwrap(sentinel) {
		sentinel = inner
	}
	return refusal.Invalid(refusal.Clip(string(s.path)), "%s", refusal.Plain(err, sentinel))
}

// tooDeep is for a value of which s.pos is more than maxNesting levels deep.
func (s *Scanner) tooDeep() *refusal.Error {
	return &refusal.Error{
		Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Param: refusal.Clip(string(s.path)),
		Message: "nested too deeply at byte " + strconv.Itoa(s.pos) + ", the limit is " + strconv.Itoa(maxNesting) + " levels",
	}
}

// TooMany is for a list of more than limit elements.
func (s *Scanner) TooMany(limit int) *refusal.Error {
	p := string(s.path)
	return refusal.TooLarge(p, "%s has more than %d elements, the limit", p, limit)
}

func (s *Scanner) notUTF8(start int) *refusal.Error {
	b := s.data[start:]
	at := start
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			break
		}
		b, at = b[n:], at+n
	}
	return &refusal.Error{
		Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Param: refusal.Clip(string(s.path)),
		Message: "a string is not UTF-8 at byte " + strconv.Itoa(at),
	}
}
