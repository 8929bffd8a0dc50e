package request

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestAppendPacked holds the decoder against encoding/base64, for tokens and for what a changed
// byte makes of them.
func TestAppendPacked(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		raw := make([]byte, rng.IntN(70))
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		enc := base64.StdEncoding
		if rng.IntN(2) == 0 {
			enc = base64.RawStdEncoding
		}
		text := []byte(enc.EncodeToString(raw))
		if len(text) > 0 && rng.IntN(2) == 0 {
			text[rng.IntN(len(text))] = byte(rng.Uint32())
		}
		if slices.Contains(text, '\n') || slices.Contains(text, '\r') {
			continue // encoding/base64 lets them pass, no string has them
		}
		got, err := appendPacked([]uint32{7}, text)
		want, wrong := base64.StdEncoding.Strict().DecodeString(string(text))
		if len(text)%4 != 0 {
			want, wrong = base64.RawStdEncoding.Strict().DecodeString(string(text))
		}
		if (err == nil) != (wrong == nil && len(want)%4 == 0) {
			t.Fatalf("%q: %v, encoding/base64 %v with %d bytes", text, err, wrong, len(want))
		}
		if err != nil {
			continue
		}
		for i := 0; i < len(want); i += 4 {
			if got[1+i/4] != binary.LittleEndian.Uint32(want[i:]) {
				t.Fatalf("%q: token %d is %d", text, i/4, got[1+i/4])
			}
		}
		if got[0] != 7 || len(got) != 1+len(want)/4 {
			t.Fatalf("%q: %d tokens of %d bytes", text, len(got)-1, len(want))
		}
	}
}
