package jsonpack

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// TestAppend has each text packed behind what is there already, and read by another library,
// which takes what fits in 7 bits for an int64.
func TestAppend(t *testing.T) {
	for text, want := range map[string]any{
		`null`:                       nil,
		` true `:                     true,
		`false`:                      false,
		`0`:                          int64(0),
		`-0`:                         int64(0),
		`127`:                        int64(127),
		`18446744073709551615`:       uint64(math.MaxUint64),
		`18446744073709551616`:       float64(1 << 64),
		`-9223372036854775808`:       int64(math.MinInt64),
		`-9223372036854775809`:       -float64(1 << 63),
		`1.5e3`:                      1500.0,
		`1e0`:                        1.0, // a float, as it is written
		`"a\u00e9\ud83d\ude00\n/"`:   "aé😀\n/",
		"\"\xff\"":                   "\ufffd",
		`""`:                         "",
		`[]`:                         []any{},
		"[1 ,\t[2],\r\n{}]":          []any{int64(1), []any{int64(2)}, map[string]any{}},
		`{"a":{"b":[null]},"a\t":1}`: map[string]any{"a": map[string]any{"b": []any{nil}}, "a\t": int64(1)},
	} {
		packed, err := Append([]byte("before"), []byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := unpack(t, bytes.TrimPrefix(packed, []byte("before"))); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is packed as %#v, want %#v", text, got, want)
		}
	}
}

// TestAppendRefuses has texts that are no JSON refused, with the byte at which that shows.
func TestAppendRefuses(t *testing.T) {
	for text, at := range map[string]int{
		``: 0, `nul`: 0, `1 2`: 2, `01`: 2, `-`: 1, `1.`: 2, `1e+`: 3, `.5`: 0, `1e999`: 5, `+1`: 0,
		`[1,]`: 3, `[1 2]`: 3, `[`: 1, `[1}`: 2, `{"a":1,}`: 7, `{"a"}`: 4, `{a:1}`: 1, `{"a":}`: 5,
		`"a`: 2, `"\`: 3, `"\x"`: 0, "\"a\nb\"": 2, "\xef\xbb\xbf1": 0,
	} {
		got, err := Append([]byte("before"), []byte(text))
		if want := "at byte " + strconv.Itoa(at); !errors.Is(err, ErrJSON) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want an error %s", text, err, want)
		}
		if string(got) != "before" {
			t.Errorf("%q: an error leaves %q behind", text, got)
		}
	}
}

// TestMaxDepth has lists packed up to the limit, and none below it.
func TestMaxDepth(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if _, err := Append(nil, nested(MaxDepth+1)); err != nil {
		t.Errorf("%d levels below the first: %v", MaxDepth, err)
	}
	for _, depth := range []int{MaxDepth + 2, 1 << 20} {
		if _, err := Append(nil, nested(depth)); !errors.Is(err, ErrJSON) {
			t.Errorf("%d lists in each other: %v", depth, err)
		}
	}
}

// FuzzAppend holds Append against encoding/json: it takes what that takes, but for deeper texts, and a
// reader of MessagePack finds in it what encoding/json finds in the text.
func FuzzAppend(f *testing.F) {
	for _, s := range []string{
		`[{"type":"BlockStored","block_hashes":[18446744073709551615,-1],"medium":null,"x":1.25e-3}]`, `"\ud800"`, `{"":{"":[]}}`, `1e999`, ` [ ] `, "\"\x80\\u0000\"",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		packed, err := Append(nil, text)
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want any
		wrong := d.Decode(&want)
		if _, more := d.Token(); wrong == nil && more != io.EOF {
			wrong = errors.New("more behind its end")
		}
		if err != nil {
			if wrong == nil && depth(want) <= MaxDepth && !vast(want) {
				t.Fatalf("%q is refused: %v", text, err)
			}
			return
		}
		if wrong != nil {
			t.Fatalf("%q is packed, and encoding/json says: %v", text, wrong)
		}
		if len(packed) > 5*len(text)+5 {
			t.Fatalf("%q takes %d bytes", text, len(packed))
		}
		if got := unpack(t, packed); !same(got, want) {
			t.Fatalf("%q is packed as %#v, want %#v", text, got, want)
		}
	})
}

// unpack reads a value of MessagePack, which has to be all there is.
func unpack(t *testing.T, packed []byte) any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(packed)
	if err != nil || len(rest) > 0 {
		t.Fatalf("%x: %d bytes are left, %v", packed, len(rest), err)
	}
	return v
}

// same reports whether a value of MessagePack is what encoding/json has read. Of names that an
// object has twice both take the last.
func same(got, want any) bool {
	switch want := want.(type) {
	case json.Number:
		switch got := got.(type) {
		case uint64:
			n, err := strconv.ParseUint(want.String(), 10, 64)
			return err == nil && got == n
		case int64:
			n, err := strconv.ParseInt(want.String(), 10, 64)
			return err == nil && got == n
		case float64:
			_, err := strconv.ParseInt(want.String(), 10, 64)
			_, uerr := strconv.ParseUint(want.String(), 10, 64)
			f, ferr := want.Float64()
			return err != nil && uerr != nil && ferr == nil && got == f
		}
		return false
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return false
		}
		for i := range list {
			if !same(list[i], want[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok || len(object) != len(want) {
			return false
		}
		for name := range object {
			if v, is := want[name]; !is || !same(object[name], v) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}

// depth is how many levels a value has below its first.
func depth(v any) (n int) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			n = max(n, 1+depth(x))
		}
	case map[string]any:
		for _, x := range v {
			n = max(n, 1+depth(x))
		}
	}
	return n
}

// vast reports whether a number in a value is beyond a float.
func vast(v any) bool {
	switch v := v.(type) {
	case json.Number:
		_, err := v.Float64()
		return err != nil
	case []any:
		for _, x := range v {
			if vast(x) {
				return true
			}
		}
	case map[string]any:
		for _, x := range v {
			if vast(x) {
				return true
			}
		}
	}
	return false
}
