package chat

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

// anyJSON draws a JSON text, with white space and escapes.
func anyJSON(depth int) *rapid.Generator[string] {
	blank := rapid.SampledFrom([]string{"", "", " ", "\n\t "})
	str := rapid.Map(rapid.SampledFrom([]string{`""`, `"a"`, `"\""`, `"\\"`, `"\\\""`, `"{"`, `"]"`, `",:"`, `"\u00e9é"`, `"a b"`}), func(s string) string { return s })
	scalar := rapid.OneOf(str, rapid.SampledFrom([]string{"0", "-1.5e+3", "true", "false", "null"}))
	if depth == 0 {
		return scalar
	}
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 3).Draw(t, "kind")
		if kind < 2 {
			return scalar.Draw(t, "scalar")
		}
		var parts []string
		for range rapid.IntRange(0, 4).Draw(t, "n") {
			v := blank.Draw(t, "b") + anyJSON(depth-1).Draw(t, "v") + blank.Draw(t, "b")
			if kind == 2 {
				v = blank.Draw(t, "b") + str.Draw(t, "k") + blank.Draw(t, "b") + ":" + v
			}
			parts = append(parts, v)
		}
		if kind == 2 {
			return "{" + blank.Draw(t, "b") + strings.Join(parts, ",") + "}"
		}
		return "[" + blank.Draw(t, "b") + strings.Join(parts, ",") + "]"
	})
}

// TestWalk compares the walk over JSON with encoding/json.
func TestWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := json.RawMessage(" " + anyJSON(3).Draw(t, "json") + " ")
		if end := space(raw, skip(raw, space(raw, 0))); end != len(raw) {
			t.Fatalf("skip ends at %d of %q", end, raw)
		}
		if got := find(raw, "a"); first(raw) == '{' && string(got) != string(get(members(raw), "a")) || first(raw) != '{' && got != nil {
			t.Fatalf("find gives %q in %q", got, raw)
		}
		switch first(raw) {
		case '{':
			var want map[string]json.RawMessage
			must.OK(t, json.Unmarshal(raw, &want))
			got := members(raw)
			for _, m := range got {
				if w, ok := want[m.key]; !ok || !bytes.Equal(m.value, bytes.TrimSpace(w)) {
					t.Fatalf("member %q is %q, want %q", m.key, m.value, w)
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%d members, want %d", len(got), len(want))
			}
			if again := encodeObject(got); !json.Valid(again) {
				t.Fatalf("%q became %q", raw, again)
			}
		case '[':
			var want []json.RawMessage
			must.OK(t, json.Unmarshal(raw, &want))
			got := elements(raw)
			if len(got) != len(want) {
				t.Fatalf("%d elements, want %d", len(got), len(want))
			}
			for i := range got {
				if !bytes.Equal(got[i], bytes.TrimSpace(want[i])) {
					t.Fatalf("element %d is %q, want %q", i, got[i], want[i])
				}
			}
		case '"':
			var want string
			must.OK(t, json.Unmarshal(raw, &want))
			if got := text(bytes.TrimSpace(raw)); got != want {
				t.Fatalf("text %q, want %q", got, want)
			}
		}
	})
}

func TestQuote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if got := text(quote(s)); got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
	if got := string(quote("<&>")); got != `"<&>"` {
		t.Errorf("quote escapes: %s", got)
	}
}
