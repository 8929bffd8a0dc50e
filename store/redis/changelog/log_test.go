package changelog

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/store/redis/blocks"
)

// TestParseEntry reads what was never written.
func TestParseEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "fields") {
			field := rapid.OneOf(rapid.SampledFrom([]string{"n", "e", "=", "=1", "=1,2", "=x"}), rapid.String()).Draw(t, "field")
			values[field] = rapid.OneOf(
				rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "text") }),
				rapid.Custom(func(t *rapid.T) any { return fmt.Sprint(rapid.Uint64().Draw(t, "number")) }),
				rapid.Custom(func(t *rapid.T) any {
					return string(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "names"))
				}),
			).Draw(t, "value")
		}
		garbled := 0
		e, err := parseEntry(values, blocks.AllPartitions, func() { garbled++ })
		if err != nil {
			return
		}
		if n, ok := entryNumber(values); !ok || n != e.n {
			t.Fatalf("%q has the number %d", values, e.n)
		}
		for _, c := range e.changes {
			for i, id := range c.holders {
				if id == 0 || i > 0 && id <= c.holders[i-1] {
					t.Fatalf("%q has the holders %v", values, c.holders)
				}
			}
		}
	})
}

func TestLater(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"2-0", "1-9", true}, {"1-9", "2-0", false}, {"10-0", "9-0", true}, {"5-2", "5-1", true}, {"5-1", "5-1", false},
		{"x", "1-0", false}, {"1-0", "", false}, {"18446744073709551615-1", "0-0", true},
	} {
		if later(c.a, c.b) != c.want {
			t.Errorf("%q after %q: %v", c.a, c.b, !c.want)
		}
	}
}
