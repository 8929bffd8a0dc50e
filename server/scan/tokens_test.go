package scan

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
)

// FuzzTokens holds arrays of tokens against encoding/json: both take the same, and read the
// same of it.
func FuzzTokens(f *testing.F) {
	for _, text := range []string{
		"[]", "[ ]", "[1]", "[1,2,3]", "[1, 22,333 ,4444,\n55555]", "[1234567,12345678,4294967295]", "[4294967296]", "[12345678901234567890]",
		"[01]", "[1,02,3,4,5,6,7]", "[0,0,0,0,0,0,0,0]", "[1,,2,3,4,5,6,7,8]", "[1,2,3,4,5,6,7,]", "[1.0,2,3,4,5]", "[1e2,3,4,5,6]", "[-1,2,3,4,5,6]",
		"[1,2,3,4,5,6", "[1,2,3,4,5,6,", "[1,  2,   3,4,5,6,7]", "[1,2]3,4,5,6,7]", "[\"1\",2,3,4,5]", "[null,1,2,3,4]", "[1\u00a02,3,4,5]", "[1,2,3,4\xff\xff,5]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.HasPrefix(text, "[") {
			tokensLikeJSON(t, text)
		}
	})
}

func tokensLikeJSON(t *testing.T, text string) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	var want []*uint32
	wrong := dec.Decode(&want) != nil || slices.Contains(want, nil)
	s := New("tokens", []byte(text))
	got, err := s.Tokens(make([]uint32, 1, 1+len(text)%7), math.MaxInt)
	if (err != nil) != wrong {
		t.Fatalf("%q: error %v, encoding/json refuses it: %v", text, err, wrong)
	}
	if wrong {
		return
	}
	if len(got) != len(want)+1 || s.pos != int(dec.InputOffset()) {
		t.Fatalf("%q: %d tokens up to %d, want %d up to %d", text, len(got)-1, s.pos, len(want), dec.InputOffset())
	}
	for i, v := range want {
		if got[i+1] != *v {
			t.Fatalf("%q: token %d is %d, want %d", text, i, got[i+1], *v)
		}
	}
}

// TestTokens reads random arrays, with digits of any number and space in many places.
func TestTokens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	between := []string{",", ", ", " ,", ",\n", ",\t ", ",  "}
	for range 2000 {
		var b strings.Builder
		b.WriteByte('[')
		for i := range rng.IntN(40) {
			if i > 0 {
				b.WriteString(between[rng.IntN(1+rng.IntN(len(between)))])
			}
			fmt.Fprint(&b, rng.Uint32()>>rng.IntN(32))
		}
		b.WriteByte(']')
		if rng.IntN(2) == 0 {
			b.WriteString(`,"field":[1,2,3]}`)
		}
		tokensLikeJSON(t, b.String())
	}
}

// TestTokensLimit refuses one token too many, wherever the limit lies.
func TestTokensLimit(t *testing.T) {
	text := "[" + strings.Repeat("7,", 99) + "7]"
	for limit := range 102 {
		s := New("tokens", []byte(text))
		got, err := s.Tokens(nil, limit)
		if (err == nil) != (limit >= 100) || len(got) != min(limit, 100) {
			t.Fatalf("limit %d: %d tokens, %v", limit, len(got), err)
		}
	}
}

func BenchmarkTokens(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, comma := range []string{",", ", "} {
		words := make([]string, 128<<10)
		for i := range words {
			words[i] = fmt.Sprint(rng.Uint32N(128_000))
		}
		text := []byte("[" + strings.Join(words, comma) + "]")
		b.Run(fmt.Sprintf("%q", comma), func(b *testing.B) {
			dst := make([]uint32, 0, len(words))
			before := cputime.Process()
			for b.Loop() {
				must.Get(New("tokens", text).Tokens(dst, len(words)))(b)
			}
			b.ReportMetric(float64((cputime.Process()-before).Nanoseconds())/float64(b.N)/float64(len(words)), "cpu-ns/token")
		})
	}
}
