package scorer_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
)

// TestTruncation cuts the tokens of a text, around which the tokenizer puts 101, 102 and
// 103.
func TestTruncation(t *testing.T) {
	var whole prompt.Result
	tok := scorer.TokenizerFunc(func(_ context.Context, r prompt.Request) (prompt.Result, error) {
		res := whole
		if r.Text == "" && r.Chat == nil {
			res.Tokens = nil
		}
		if r.AddsSpecialTokens() {
			res.Tokens = slices.Concat([]uint32{101, 102}, res.Tokens, []uint32{103})
		}
		return res, nil
	})
	all := prompt.Result{Tokens: []uint32{1, 2, 3, 4, 5}, Exact: true}
	part := prompt.Result{Tokens: all.Tokens}
	media := prompt.Result{Tokens: all.Tokens, Exact: true, Media: []prompt.PlacedMedium{{}}}
	plain, special := prompt.Request{Text: "x", NoSpecialTokens: true}, prompt.Request{Text: "x"}
	for _, c := range []struct {
		name    string
		cut     scorer.Truncation
		whole   prompt.Result
		ask     prompt.Request
		want    []uint32
		refused bool
	}{
		{"not asked for", scorer.Truncation{}, media, special, []uint32{101, 102, 1, 2, 3, 4, 5, 103}, false},
		{"short enough", scorer.Truncation{Keep: 5}, media, plain, all.Tokens, false},
		{"the beginning goes", scorer.Truncation{Keep: 2}, all, plain, []uint32{4, 5}, false},
		{"special tokens stay", scorer.Truncation{Keep: 5}, all, special, []uint32{101, 102, 4, 5, 103}, false},
		{"and nothing else", scorer.Truncation{Keep: 3}, all, special, []uint32{101, 102, 103}, false},
		{"there is no room for them", scorer.Truncation{Keep: 2}, all, special, nil, true},
		{"of a chat", scorer.Truncation{Keep: 2}, all, prompt.Request{Chat: &prompt.Chat{}}, []uint32{4, 5}, false},
		{"left", scorer.Truncation{Keep: 2, Side: scorer.CutLeft}, all, special, []uint32{5, 103}, false},
		{"right", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, all, special, []uint32{101, 102}, false},
		{"right of a part", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, part, plain, []uint32{1, 2}, false},
		{"right of a shorter part", scorer.Truncation{Keep: 7, Side: scorer.CutRight}, part, plain, all.Tokens, false},
		{"left of a part", scorer.Truncation{Keep: 7, Side: scorer.CutLeft}, part, plain, nil, false},
		{"media are in the way", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, media, plain, nil, true},
	} {
		whole = c.whole
		got, err := c.cut.Tokenized(t.Context(), tok, c.ask)
		if errors.Is(err, scorer.ErrCut) != c.refused || err == nil && !slices.Equal(got.Tokens, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, got.Tokens, err, c.want)
		}
	}
}
