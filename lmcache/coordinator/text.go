package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

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
	f, ok := errors.AsType[*fault](err)
	if !ok {
		f = &fault{status: http.StatusUnprocessableEntity, why: "is refused: " + err.Error()}
	}
	sep := "."
	if f.place == "" || f.place[0] == '[' {
		sep = ""
	}
	return &fault{f.status, name + sep + f.place, f.why}
}

// parse returns the value that a body is. It is read one part after another. So what has too
// many elements is refused at the first that is too much, before there is memory for more.
// With encoding/json an empty object of two bytes becomes a struct of a hundred. As LMCache's
// own coordinator does it leaves out fields that are not needed, and of a name that stands
// twice takes the last. Nothing that is read keeps the body.
func parse(b []byte) (gjson.Result, error) {
	if !json.Valid(b) {
		var v json.RawMessage
		err := json.Unmarshal(b, &v) // says where
		return gjson.Result{}, &fault{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("is not JSON: %v", err)}
	}
	return gjson.Parse(unsafe.String(unsafe.SliceData(b), len(b))), nil // it is never written to
}

// wrong says that a value is of another kind than it must be.
func wrong(v gjson.Result, want string) error {
	kind := map[gjson.Type]string{gjson.Null: "null", gjson.False: "true or false", gjson.True: "true or false", gjson.Number: "a number", gjson.String: "a text"}[v.Type]
	switch {
	case v.IsObject():
		kind = "an object"
	case v.IsArray():
		kind = "a list"
	}
	return &fault{status: http.StatusUnprocessableEntity, why: "is " + kind + ", it must be " + want}
}

// readObject calls field for each field of an object that is not null.
func readObject(v gjson.Result, field func(name string, v gjson.Result) error) (err error) {
	if !v.IsObject() {
		return wrong(v, "an object")
	}
	v.ForEach(func(name, v gjson.Result) bool {
		if v.Type == gjson.Null {
			return true
		}
		of := strings.ToValidUTF8(name.Str, "\ufffd")
		if err = field(of, v); err != nil {
			err = under(clip(of, 64), err)
		}
		return err == nil
	})
	return err
}

// readList calls element for each of a list's elements, which are room at most.
func readList(v gjson.Result, room int, element func(v gjson.Result) error) (err error) {
	if !v.IsArray() {
		return wrong(v, "a list")
	}
	i := 0
	v.ForEach(func(_, v gjson.Result) bool {
		if i == room {
			err = &fault{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("has more elements than there is room for: %d", room)}
		} else if err = element(v); err != nil {
			err = under("["+strconv.Itoa(i)+"]", err)
		}
		i++
		return err == nil
	})
	return err
}

// readText reads a text.
func readText(v gjson.Result, to *string) error {
	if v.Type != gjson.String {
		return wrong(v, "a text")
	}
	*to = strings.Clone(strings.ToValidUTF8(v.Str, "\ufffd"))
	return nil
}

// readNumber reads a whole number up to most.
func readNumber[T ~int | ~uint32 | ~uint64](v gjson.Result, to *T, most uint64) error {
	want := fmt.Sprintf("a whole number from 0 to %d", most)
	if v.Type != gjson.Number {
		return wrong(v, want)
	}
	n, err := strconv.ParseUint(v.Raw, 10, 64)
	if err != nil || n > most {
		return &fault{status: http.StatusUnprocessableEntity, why: "is " + clip(v.Raw, 32) + ", it must be " + want}
	}
	*to = T(n)
	return nil
}

// readBool reads true or false.
func readBool(v gjson.Result, to *bool) error {
	*to = v.Bool()
	if !v.IsBool() {
		return wrong(v, "true or false")
	}
	return nil
}

// clip shortens what a client has sent, for an error.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
