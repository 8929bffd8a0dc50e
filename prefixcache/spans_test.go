package prefixcache

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/must"
)

// readSpans reads what real tokenizers gave, see testdata/README.md.
func readSpans(t *testing.T) (texts []tokenized) {
	t.Helper()
	data := must.Get(os.ReadFile("testdata/spans.jsonl"))(t)
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		var x struct {
			Tokenizer, Text string
			Tokens          []uint32
			Ends            []int
		}
		must.OK(t, json.Unmarshal(sc.Bytes(), &x))
		texts = append(texts, tokenized{x.Tokenizer, x.Text, x.Tokens, x.Ends})
	}
	if len(texts) < 100 {
		t.Fatalf("only %d texts", len(texts))
	}
	return texts
}

// TestRealTokenizers puts what real tokenizers gave, and asks for every prefix
// of every text, gone on with something else.
func TestRealTokenizers(t *testing.T) {
	texts := readSpans(t)
	each(t, func(t *testing.T, kind string) {
		s, m := small(t, kind, 64<<20)
		// The other way round, so that a long text is there before its prefixes.
		for _, x := range slices.Backward(texts) {
			err := s.Put(x.scope, x.text, x.tokens, x.ends)
			if x.text != "" && len(x.tokens) == 0 {
				if err == nil {
					t.Errorf("%s: %q without tokens was kept", x.scope, x.text)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %q: %v", x.scope, x.text, err)
			}
			m.texts = append(m.texts, x)
		}
		for _, x := range m.texts {
			if got := s.Find(nil, x.scope, x.text); !got.Whole || !slices.Equal(got.Tokens, x.tokens) {
				t.Errorf("%s: %q: %v, want %v", x.scope, x.text, got, x.tokens)
			}
			for n := range len(x.text) {
				for _, other := range []string{"", "\x01", "\U0010fffe"} {
					q := x.text[:n] + other
					got, want := s.Find(nil, x.scope, q), m.find(x.scope, q)
					if got.Bytes != want.Bytes || got.Whole != want.Whole || !slices.Equal(got.Tokens, want.Tokens) {
						t.Errorf("%s: Find(%q)\n got %v\nwant %v", x.scope, q, got, want)
					}
				}
			}
		}
	})
}

// TestNoHalfCharacter says that the tokens of one character are given together
// or not at all, with real tokens of emoji and rare ideographs.
func TestNoHalfCharacter(t *testing.T) {
	split := 0
	for _, x := range readSpans(t) {
		each(t, func(t *testing.T, kind string) {
			// At every place in relation to the edges of chunks.
			for pad := range smallChunk {
				s, _ := small(t, kind, 1<<20)
				text := strings.Repeat("-", pad) + x.text
				var tokens []uint32
				var ends []int
				for i := range pad {
					tokens, ends = append(tokens, 0), append(ends, i+1)
				}
				for i, end := range x.ends {
					if end > 0 {
						tokens, ends = append(tokens, x.tokens[i]), append(ends, pad+end)
					}
				}
				if len(tokens) == 0 {
					continue
				}
				must.OK(t, s.Put("m", text, tokens, ends))
				for n := range len(text) {
					got := len(s.Find(nil, "m", text[:n]+"\x01").Tokens)
					if got > 0 && got < len(ends) && ends[got] == ends[got-1] {
						t.Fatalf("%s: %q: match of %d bytes cuts between tokens that end at %d", x.scope, text, n, ends[got])
					}
					if !utf8.RuneStart(text[n]) {
						split++
					}
				}
			}
		})
	}
	if split == 0 {
		t.Error("no cut inside a character was tried")
	}
}
