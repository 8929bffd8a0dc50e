package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/store"
)

// scanner reads one JSON text (RFC 8259) in one pass, straight into the fields
// of a request. encoding/json takes 8 to 15 times as long over a long array of
// tokens, since it looks at every byte twice and at every number through
// reflection; that was most of the time of a request.
//
// It takes exactly what encoding/json takes with DisallowUnknownFields, less
// what that lets pass: repeated fields, names in another case, null, data
// after the value, invalid UTF-8 and lone surrogates. FuzzDecode holds the two
// against each other. Bodies of engines are read otherwise, see engine.
type scanner struct {
	data  []byte
	pos   int
	path  []byte // the field being read, for errors
	plain []byte // the last string that had escapes, without them

	// engine says that the body may be one that a client sends an engine: null is like
	// leaving a field out, and fields of engines are passed over; see enginefields.go.
	engine bool
	passed passed
}

// start begins a text.
func (s *scanner) start(data []byte) {
	s.data, s.pos, s.path = data, 0, s.path[:0]
	s.engine, s.passed = false, passed{}
}

// field reads one field of T.
type field[T any] struct {
	name string
	read func(*scanner, *T) error
}

// fields are what an object may hold, at most 64.
type fields[T any] []field[T]

// decode reads the text as one object and nothing after it. It returns the set
// of fields that were there, by their place in fs.
func decode[T any](s *scanner, fs fields[T], dst *T) (seen uint64, err error) {
	s.space()
	if err := emptyBody(s.data); err != nil {
		return 0, err
	}
	seen, err = object(s, fs, dst)
	if err != nil {
		return 0, err
	}
	s.space()
	if s.pos < len(s.data) {
		return 0, s.syntax("end of the body")
	}
	return seen, nil
}

func object[T any](s *scanner, fs fields[T], dst *T) (seen uint64, err error) {
	if !s.take('{') {
		return 0, s.unexpected("an object")
	}
	base := len(s.path)
	s.space()
	if s.take('}') {
		return 0, nil
	}
	var nulls uint64 // fields that were there and null
	for {
		s.space()
		name, err := s.string("a field's name")
		if err != nil {
			return 0, err
		}
		s.path = append(s.path[:base], name...)
		i := 0
		for i < len(fs) && fs[i].name != string(name) {
			i++
		}
		if i == len(fs) {
			passed := false
			if base == 0 {
				passed, err = s.pass(name)
			}
			switch {
			case err != nil:
				return 0, err
			case passed:
				if done, err := s.next(base); done || err != nil {
					return seen, err
				}
				continue
			}
			return 0, &apiError{status: http.StatusBadRequest, code: codeUnknownField, param: clipText(string(s.path)), message: "there is no such field"}
		}
		if (seen|nulls)&(1<<i) != 0 {
			return 0, s.wrong("is given twice")
		}
		s.space()
		if !s.take(':') {
			return 0, s.syntax("':'")
		}
		s.space()
		if s.engine && base == 0 && s.null() {
			nulls |= 1 << i
		} else {
			seen |= 1 << i
			if err := fs[i].read(s, dst); err != nil {
				return 0, err
			}
		}
		if done, err := s.next(base); done || err != nil {
			return seen, err
		}
	}
}

// next goes from a field's value to the next field, or to the end of the object.
func (s *scanner) next(base int) (done bool, err error) {
	s.path = s.path[:base]
	s.space()
	if s.take('}') {
		return true, nil
	}
	if !s.take(',') {
		return false, s.syntax("',' or '}'")
	}
	return false, nil
}

// members reads an object of any fields; read reads the value of one.
func (s *scanner) members(read func(name string) error) error {
	if !s.take('{') {
		return s.unexpected("an object")
	}
	base := len(s.path)
	s.space()
	if s.take('}') {
		return nil
	}
	for {
		s.space()
		name, err := s.string("a field's name")
		if err != nil {
			return err
		}
		s.path = append(append(s.path[:base], '.'), name...)
		s.space()
		if !s.take(':') {
			return s.syntax("':'")
		}
		s.space()
		if err := read(string(s.path[base+1:])); err != nil {
			return err
		}
		s.path = s.path[:base]
		s.space()
		if s.take('}') {
			return nil
		}
		if !s.take(',') {
			return s.syntax("',' or '}'")
		}
	}
}

// array reads the elements of an array, at most limit.
func (s *scanner) array(what string, limit int, element func() error) error {
	if !s.take('[') {
		return s.unexpected(what)
	}
	s.space()
	if s.take(']') {
		return nil
	}
	base := len(s.path)
	for n := 0; ; n++ {
		if n == limit {
			return s.tooMany(limit)
		}
		s.space()
		s.element(n)
		if err := element(); err != nil {
			return err
		}
		s.path = s.path[:base]
		s.space()
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.syntax("',' or ']'")
		}
	}
}

// text reads a string into memory of its own.
func (s *scanner) text(dst *string) error {
	b, err := s.string("a string")
	if err == nil {
		*dst = string(b)
	}
	return err
}

// bool reads true or false.
func (s *scanner) bool(dst *bool) error {
	switch b := s.data[s.pos:]; {
	case bytes.HasPrefix(b, []byte("true")):
		*dst, s.pos = true, s.pos+4
	case bytes.HasPrefix(b, []byte("false")):
		*dst, s.pos = false, s.pos+5
	default:
		return s.unexpected("true or false")
	}
	return nil
}

// null reads null, if that is what is next.
func (s *scanner) null() bool {
	b, ok := bytes.CutPrefix(s.data[s.pos:], []byte("null"))
	if ok {
		s.pos = len(s.data) - len(b)
	}
	return ok
}

// uint reads a whole number from 0 to limit; what says in words what it is.
func (s *scanner) uint(limit uint64, what string) (uint64, error) {
	start := s.pos
	raw, err := s.raw(what)
	if err != nil {
		return 0, err
	}
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		s.pos = start
		return 0, s.unexpected(what)
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || v > limit {
		return 0, s.wrong("is " + clipText(string(raw)) + ", it must be a whole number from 0 to " + strconv.FormatUint(limit, 10))
	}
	return v, nil
}

// maxNesting is how deep a value may be nested: encoding/json takes no more.
const maxNesting = 10_000

// errTooDeep says that a value is nested deeper than maxNesting.
var errTooDeep = errors.New("server: nested too deeply")

// raw reads any value without looking into it, and checks that it is JSON.
func (s *scanner) raw(what string) ([]byte, error) {
	start, depth := s.pos, 0
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case '"':
			if _, err := s.string(what); err != nil {
				return nil, err
			}
		case '{', '[':
			if depth++; depth > maxNesting {
				return nil, fmt.Errorf("%w: %w", errTooDeep, s.tooDeep())
			}
			s.pos++
		case '}', ']':
			if depth == 0 {
				return s.checked(start, what)
			}
			depth--
			s.pos++
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return s.checked(start, what)
			}
			s.pos++
		default:
			s.pos++
			continue
		}
		if depth == 0 {
			break
		}
	}
	return s.checked(start, what)
}

func (s *scanner) checked(start int, what string) ([]byte, error) {
	b := s.data[start:s.pos]
	if !json.Valid(b) {
		s.pos = start
		return nil, s.syntax(what)
	}
	return b, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func (s *scanner) space() {
	for s.pos < len(s.data) && isSpace(s.data[s.pos]) {
		s.pos++
	}
}

func (s *scanner) take(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// emptyBody refuses a body without any value.
func emptyBody(body []byte) error {
	const wanted = ", it must be a JSON object"
	switch {
	case len(body) == 0:
		return &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "the body is empty" + wanted}
	case len(bytes.TrimLeft(body, " \t\r\n")) == 0:
		return &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "the body has nothing but white space" + wanted}
	}
	return nil
}

// The errors. All of them say the place.

// syntax is for what is no JSON.
func (s *scanner) syntax(want string) *apiError {
	found := "the end of the body"
	if s.pos < len(s.data) {
		found = strconv.QuoteToASCII(string(s.data[s.pos : s.pos+1]))
	}
	return &apiError{
		status: http.StatusBadRequest, code: codeInvalidJSON, param: clipText(string(s.path)),
		message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + found,
	}
}

// unexpected is for a value of another kind than the field takes.
func (s *scanner) unexpected(want string) *apiError {
	if s.pos == len(s.data) {
		return s.syntax(want)
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
		return s.syntax(want)
	}
	if len(s.path) == 0 {
		return &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + kind}
	}
	if kind == "null" && s.path[len(s.path)-1] != ']' {
		kind += " (leave the field out instead)"
	}
	return s.wrong("takes " + want + ", not " + kind)
}

// wrong is for a value that the field cannot have.
func (s *scanner) wrong(why string) *apiError {
	p := clipText(string(s.path))
	return invalid(p, "%s %s", p, why)
}

// refused is for a value that the index does not take.
func (s *scanner) refused(err error) *apiError {
	return invalid(clipText(string(s.path)), "%s", plain(err, store.ErrInvalid))
}

// tooDeep is for a value of which s.pos is more than maxNesting levels deep.
func (s *scanner) tooDeep() *apiError {
	return &apiError{
		status: http.StatusBadRequest, code: codeInvalidJSON, param: clipText(string(s.path)),
		message: "nested too deeply at byte " + strconv.Itoa(s.pos) + ", the limit is " + strconv.Itoa(maxNesting) + " levels",
	}
}

func (s *scanner) tooMany(limit int) *apiError {
	p := string(s.path)
	return tooLarge(p, "%s has more than %d elements, the limit", p, limit)
}

func (s *scanner) notUTF8(start int) *apiError {
	b := s.data[start:]
	at := start
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			break
		}
		b, at = b[n:], at+n
	}
	return &apiError{
		status: http.StatusBadRequest, code: codeInvalidJSON, param: clipText(string(s.path)),
		message: "a string is not UTF-8 at byte " + strconv.Itoa(at),
	}
}

// clipText keeps what a client sent readable in an error.
func clipText(t string) string {
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
