// Package scan reads JSON bodies strictly and fast, field by field, straight into a
// request. Every error is a refusal that names the field and the place. A Scanner belongs
// to one goroutine, and can be used again.
package scan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/server/refusal"
)

// Scanner reads one JSON text (RFC 8259) in one pass, straight into the fields
// of a request. Package encoding/json takes 8 to 15 times as long over a long
// array of tokens, which was most of the time of a request. It looks at every
// byte twice and at every number through reflection.
//
// It takes exactly what encoding/json takes with DisallowUnknownFields, but for
// some faults that it refuses. These are repeated fields, names in another
// case, null, data after the value, invalid UTF-8 and lone surrogates.
// FuzzDecode holds the two against each other. Bodies of engines are read
// otherwise, see Skips.
type Scanner struct {
	data  []byte
	pos   int
	path  []byte // the field being read, for errors
	plain []byte // the last string that had escapes, without them

	// skips, if not nil, are passed over, and null is then like leaving a field out.
	skips  *Skips
	passed passed
}

// Start begins a text, in which skips, if not nil, are passed over.
func (s *Scanner) Start(data []byte, skips *Skips) {
	s.data, s.pos, s.path = data, 0, s.path[:0]
	s.skips, s.passed = skips, passed{}
}

// Release lets go of the text. The scanner keeps room for strings with escapes and for a path,
// of at most keep bytes each.
func (s *Scanner) Release(keep int) {
	plain, path := s.plain[:0], s.path[:0]
	if cap(plain) > keep {
		plain = nil
	}
	if cap(path) > keep { // the name of a field may be as long as a body
		path = nil
	}
	*s = Scanner{plain: plain, path: path}
}

// New is a scanner of a text that a request has at path.
func New(path string, text []byte) *Scanner { return &Scanner{data: text, path: []byte(path)} }

// Field reads one field of T.
type Field[T any] struct {
	Name string
	Read func(*Scanner, *T) error
}

// Fields are what an object may hold, at most 64.
type Fields[T any] []Field[T]

// names are those of the fields.
func (fs Fields[T]) names() (out []string) {
	for i := range fs {
		out = append(out, fs[i].Name)
	}
	return out
}

// Decode reads the text as one object and nothing after it. It returns the set
// of fields that were there, by their place in fs.
func Decode[T any](s *Scanner, fs Fields[T], dst *T) (seen uint64, err error) {
	s.Space()
	if err := EmptyBody(s.data); err != nil {
		return 0, err
	}
	seen, err = object(s, fs, dst)
	if err != nil {
		return 0, err
	}
	s.Space()
	if s.pos < len(s.data) {
		return 0, s.Syntax("end of the body")
	}
	return seen, nil
}

func object[T any](s *Scanner, fs Fields[T], dst *T) (seen uint64, err error) {
	if !s.takeByte('{') {
		return 0, s.Unexpected("an object")
	}
	base := len(s.path)
	s.Space()
	if s.takeByte('}') {
		return 0, nil
	}
	var nulls uint64 // fields that were there and null
	for {
		s.Space()
		name, err := s.StringBytes("a field's name")
		if err != nil {
			return 0, err
		}
		s.path = append(s.path[:base], name...)
		i := 0
		for i < len(fs) && fs[i].Name != string(name) {
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
			return 0, s.Unknown(string(s.path[base:]), fs.names())
		}
		if (seen|nulls)&(1<<i) != 0 {
			return 0, s.Wrong("is given twice")
		}
		s.Space()
		if !s.takeByte(':') {
			return 0, s.Syntax("':'")
		}
		s.Space()
		if s.skips != nil && base == 0 && s.Null() {
			nulls |= 1 << i
		} else {
			seen |= 1 << i
			if err := fs[i].Read(s, dst); err != nil {
				return 0, err
			}
		}
		if done, err := s.next(base); done || err != nil {
			return seen, err
		}
	}
}

// Nested reads an object that is a field's value.
func Nested[T any](s *Scanner, fs Fields[T], dst *T) error {
	if !s.IsAt('{') {
		return s.Unexpected("an object")
	}
	s.path = append(s.path, '.')
	if _, err := object(s, fs, dst); err != nil {
		return err
	}
	s.path = s.path[:len(s.path)-1]
	return nil
}

// next goes from a field's value to the next field, or to the end of the object.
func (s *Scanner) next(base int) (done bool, err error) {
	s.path = s.path[:base]
	s.Space()
	if s.takeByte('}') {
		return true, nil
	}
	if !s.takeByte(',') {
		return false, s.Syntax("',' or '}'")
	}
	return false, nil
}

// Members reads an object of any fields, at most limit; read reads the value of one.
func (s *Scanner) Members(what string, limit int, read func(name string) error) error {
	if !s.takeByte('{') {
		return s.Unexpected(what)
	}
	base := len(s.path)
	s.Space()
	if s.takeByte('}') {
		return nil
	}
	for n := 0; ; n++ {
		if n == limit {
			return s.TooMany(limit)
		}
		s.Space()
		name, err := s.StringBytes("a field's name")
		if err != nil {
			return err
		}
		s.path = s.path[:base]
		if base > 0 {
			s.path = append(s.path, '.')
		}
		at := len(s.path)
		s.path = append(s.path, name...)
		s.Space()
		if !s.takeByte(':') {
			return s.Syntax("':'")
		}
		s.Space()
		if err := read(string(s.path[at:])); err != nil {
			return err
		}
		s.path = s.path[:base]
		s.Space()
		if s.takeByte('}') {
			return nil
		}
		if !s.takeByte(',') {
			return s.Syntax("',' or '}'")
		}
	}
}

// Array reads the elements of an array, at most limit.
func (s *Scanner) Array(what string, limit int, element func() error) error {
	if !s.takeByte('[') {
		return s.Unexpected(what)
	}
	s.Space()
	if s.takeByte(']') {
		return nil
	}
	base := len(s.path)
	for n := 0; ; n++ {
		if n == limit {
			return s.TooMany(limit)
		}
		s.Space()
		s.element(n)
		if err := element(); err != nil {
			return err
		}
		s.path = s.path[:base]
		s.Space()
		if s.takeByte(']') {
			return nil
		}
		if !s.takeByte(',') {
			return s.Syntax("',' or ']'")
		}
	}
}

// Text reads a string into memory of its own.
func (s *Scanner) Text(dst *string) error {
	b, err := s.StringBytes("a string")
	if err == nil {
		*dst = string(b)
	}
	return err
}

// Bool reads true or false.
func (s *Scanner) Bool(dst *bool) error {
	switch b := s.data[s.pos:]; {
	case bytes.HasPrefix(b, []byte("true")):
		*dst, s.pos = true, s.pos+4
	case bytes.HasPrefix(b, []byte("false")):
		*dst, s.pos = false, s.pos+5
	default:
		return s.Unexpected("true or false")
	}
	return nil
}

// Null reads null, if that is what is next.
func (s *Scanner) Null() bool {
	b, ok := bytes.CutPrefix(s.data[s.pos:], []byte("null"))
	if ok {
		s.pos = len(s.data) - len(b)
	}
	return ok
}

// Uint reads a whole number from 0 to limit; what says in words what it is.
func (s *Scanner) Uint(limit uint64, what string) (uint64, error) {
	start := s.pos
	raw, err := s.Raw(what)
	if err != nil {
		return 0, err
	}
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		s.pos = start
		return 0, s.Unexpected(what)
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || v > limit {
		return 0, s.Wrong("is " + refusal.Clip(string(raw)) + ", it must be a whole number from 0 to " + strconv.FormatUint(limit, 10))
	}
	return v, nil
}

// maxNesting is how deep a value may be nested: encoding/json takes no more.
const maxNesting = 10_000

// ErrTooDeep says that a value is nested deeper than maxNesting.
var ErrTooDeep = errors.New("server: nested too deeply")

// Raw reads any value without looking into it, and checks that it is JSON.
func (s *Scanner) Raw(what string) ([]byte, error) {
	start, depth := s.pos, 0
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case '"':
			if _, err := s.StringBytes(what); err != nil {
				return nil, err
			}
		case '{', '[':
			if depth++; depth > maxNesting {
				return nil, fmt.Errorf("%w: %w", ErrTooDeep, s.tooDeep())
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

func (s *Scanner) checked(start int, what string) ([]byte, error) {
	b := s.data[start:s.pos]
	if !json.Valid(b) {
		s.pos = start
		return nil, s.Syntax(what)
	}
	return b, nil
}

// IsSpace reports whether a byte is white space of JSON.
func IsSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// Space moves on over white space.
func (s *Scanner) Space() {
	for s.pos < len(s.data) && IsSpace(s.data[s.pos]) {
		s.pos++
	}
}

// takeByte moves on over c, if that is next.
func (s *Scanner) takeByte(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// IsAt reports whether c is next.
func (s *Scanner) IsAt(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// Peek returns the next byte, 0 at the end.
func (s *Scanner) Peek() byte {
	if s.pos == len(s.data) {
		return 0
	}
	return s.data[s.pos]
}

// AtDigit reports whether a number follows that is not below 0.
func (s *Scanner) AtDigit() bool { return s.Peek() >= '0' && s.Peek() <= '9' }

// EmptyBody refuses a body without any value.
func EmptyBody(body []byte) error {
	const wanted = ", it must be a JSON object"
	switch {
	case len(body) == 0:
		return &refusal.Error{Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Message: "the body is empty" + wanted}
	case len(bytes.TrimLeft(body, " \t\r\n")) == 0:
		return &refusal.Error{Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Message: "the body has nothing but white space" + wanted}
	}
	return nil
}
