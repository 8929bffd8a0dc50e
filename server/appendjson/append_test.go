package appendjson

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestAppendString holds appendString against encoding/json.
func TestAppendString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		b := String(nil, s)
		var got, want string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q became %q: %v", s, b, err)
		}
		std := must.Get(json.Marshal(s))(t)
		if err := json.Unmarshal(std, &want); err != nil || got != want {
			t.Fatalf("%q became %q, want %q", s, got, want)
		}
	})
}

// BenchmarkString is the encoding of a pod's name.
func BenchmarkString(b *testing.B) {
	var buf []byte
	for b.Loop() {
		buf = String(buf[:0], "vllm-llama-70b-0123:8000")
	}
}
