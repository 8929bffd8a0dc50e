package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// text reads a JSON text of a request, one value after another. So it refuses what has too
// many elements at the first that is too much, before there is memory for more. With
// encoding/json an empty object of two bytes becomes a struct of a hundred. As LMCache's
// own coordinator does it skips fields that are not needed, and of a name that stands twice
// takes the last.
type text struct {
	b  []byte // is valid JSON
	at int
}

// fault is what is wrong with a text, in words for its sender.
type fault struct {
	status     int
	place, why string
}

// Error implements error.
func (f *fault) Error() string {
	if f.place == "" {
		return "the body " + f.why
	}
	return f.place + " " + f.why
}

// under says that a fault is in a part of something: name is the part's.
func under(name string, err error) error {
	var f *fault
	if !errors.As(err, &f) {
		f = &fault{status: http.StatusUnprocessableEntity, why: "is refused: " + err.Error()}
	}
	sep := "."
	if f.place == "" || f.place[0] == '[' {
		sep = ""
	}
	return &fault{f.status, name + sep + f.place, f.why}
}

// newText returns a text of what is valid JSON.
func newText(b []byte) (*text, error) {
	if !json.Valid(b) {
		var v json.RawMessage
		err := json.Unmarshal(b, &v) // says where
		return nil, &fault{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("is not JSON: %v", err)}
	}
	return &text{b: b}, nil
}

// next is the first byte of the next value.
func (t *text) next() byte {
	for {
		switch c := t.b[t.at]; c {
		case ' ', '\t', '\n', '\r':
			t.at++
		default:
			return c
		}
	}
}

// take passes over a byte, if it is the next.
func (t *text) take(c byte) bool {
	if t.next() != c {
		return false
	}
	t.at++
	return true
}

// null passes over null, if it is the next value.
func (t *text) null() bool {
	if t.next() != 'n' {
		return false
	}
	t.at += len("null")
	return true
}

// wrong says that the next value is of another kind than it must be.
func (t *text) wrong(want string) error {
	kind := "a number"
	switch t.next() {
	case '{':
		kind = "an object"
	case '[':
		kind = "a list"
	case '"':
		kind = "a text"
	case 't', 'f':
		kind = "true or false"
	case 'n':
		kind = "null"
	}
	return &fault{status: http.StatusUnprocessableEntity, why: "is " + kind + ", it must be " + want}
}

// object calls field for each field of an object that is not null. It reads the value, or
// leaves it, and then it is skipped.
func (t *text) object(field func(name string) error) error {
	if t.next() != '{' {
		return t.wrong("an object")
	}
	t.at++
	if t.take('}') {
		return nil
	}
	for {
		name, err := t.string()
		if err != nil {
			return err
		}
		t.take(':')
		if !t.null() {
			t.next()
			start := t.at
			if err := field(name); err != nil {
				return under(clip(name, 64), err)
			}
			if t.at == start {
				t.skip()
			}
		}
		if !t.take(',') {
			t.take('}')
			return nil
		}
	}
}

// list calls element for each of a list's elements, which are room at most.
func (t *text) list(room int, element func() error) error {
	if t.next() != '[' {
		return t.wrong("a list")
	}
	t.at++
	if t.take(']') {
		return nil
	}
	for i := 0; ; i++ {
		if i == room {
			return &fault{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("has more elements than there is room for: %d", room)}
		}
		t.next()
		if err := element(); err != nil {
			return under("["+strconv.Itoa(i)+"]", err)
		}
		if !t.take(',') {
			t.take(']')
			return nil
		}
	}
}

// string reads a text.
func (t *text) string() (string, error) {
	if t.next() != '"' {
		return "", t.wrong("a text")
	}
	start, plain := t.at, true
	for t.at++; t.b[t.at] != '"'; t.at++ {
		if t.b[t.at] == '\\' {
			t.at++
			plain = false
		}
		plain = plain && t.b[t.at] < 0x80
	}
	t.at++
	if plain {
		return string(t.b[start+1 : t.at-1]), nil
	}
	var s string
	err := json.Unmarshal(t.b[start:t.at], &s)
	return s, err
}

// uint reads a whole number up to most.
func (t *text) uint(most uint64) (uint64, error) {
	want := fmt.Sprintf("a whole number from 0 to %d", most)
	c := t.next()
	if c != '-' && (c < '0' || c > '9') {
		return 0, t.wrong(want)
	}
	start := t.at
	t.skip()
	v, err := strconv.ParseUint(string(t.b[start:t.at]), 10, 64)
	if err != nil || v > most {
		return 0, &fault{status: http.StatusUnprocessableEntity, why: "is " + clip(string(t.b[start:t.at]), 32) + ", it must be " + want}
	}
	return v, nil
}

// bool reads true or false.
func (t *text) bool() (bool, error) {
	c := t.next()
	if c != 't' && c != 'f' {
		return false, t.wrong("true or false")
	}
	t.skip()
	return c == 't', nil
}

// skip passes over a value.
func (t *text) skip() {
	depth := 0
	for ; t.at < len(t.b); t.at++ {
		switch t.b[t.at] {
		case '{', '[':
			depth++
		case '"':
			for t.at++; t.b[t.at] != '"'; t.at++ {
				if t.b[t.at] == '\\' {
					t.at++
				}
			}
			if depth == 0 {
				t.at++
				return
			}
		case '}', ']':
			if depth == 0 {
				return // behind a number or a word
			}
			if depth--; depth == 0 {
				t.at++
				return
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return
			}
		}
	}
}

// set reads a value with read into what to points to.
func set[T any](to *T, read func() (T, error)) error {
	v, err := read()
	if err == nil {
		*to = v
	}
	return err
}

// number reads a whole number up to most.
func number[T ~int | ~uint32 | ~uint64](t *text, to *T, most uint64) error {
	v, err := t.uint(most)
	*to = T(v)
	return err
}

// clip shortens what a client has sent, for an error.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
