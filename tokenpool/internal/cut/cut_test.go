package cut

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// fileWith is a tokenizer.json with what decides about cuts.
func fileWith(t *testing.T, edit func(map[string]any)) []byte {
	t.Helper()
	file := map[string]any{
		"added_tokens": []any{map[string]any{"content": "<|a|>"}, map[string]any{"content": "<|end|>"}},
		"normalizer":   map[string]any{"type": "NFC"},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "behavior": "Isolated", "pattern": map[string]any{"Regex": tokenfile.SplitLlama3}},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		}},
		"model": map[string]any{"type": "BPE"},
	}
	if edit != nil {
		edit(file)
	}
	data := must.Get(json.Marshal(file))(t)
	return data
}

// TestCutter cuts one text with many tokenizers.
func TestCutter(t *testing.T) {
	const text = "x\ny<|a|>z <|a|><|end|>\n\n1\n é\r\nb <tool> w"
	added := func(tokens ...map[string]any) func(map[string]any) {
		return func(f map[string]any) { f["added_tokens"] = tokens }
	}
	pre := func(stages ...any) func(map[string]any) {
		return func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": stages}
		}
	}
	split := func(regex string) map[string]any {
		return map[string]any{"type": "Split", "behavior": "Isolated", "pattern": map[string]any{"Regex": regex}}
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
	type m = map[string]any
	tokens := []string{"<|a|>z <|", "<|a|><|end|>", "<|end|>\n"}
	lines := []string{"y<|a|>z ", "1\n é", "b <tool>"}
	both := slices.Concat(tokens, lines)
	for _, c := range []struct {
		name string
		edit func(map[string]any)
		want []string // what stands behind each cut
	}{
		{"all", nil, both},
		{"no normalizer", func(f m) { delete(f, "normalizer") }, both},
		{"digits split before", pre(split(`\p{N}{1,3}`), split(tokenfile.SplitDeepSeek), level), both},
		{"gpt-oss", pre(split(tokenfile.SplitO200k), level), both},
		{"another normalizer", func(f m) { f["normalizer"] = m{"type": "NFKC"} }, tokens},
		{"another expression", pre(split(`\s+|\S+`), level), tokens},
		{"a known one, last but two", pre(split(tokenfile.SplitLlama3), split(`\p{N}{1,3}`), level), tokens},
		{"GPT-2", pre(split(tokenfile.SplitLlama3), m{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}), tokens},
		{"a space before", pre(split(tokenfile.SplitLlama3), m{"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}), tokens},
		{"no pre-tokenizer", func(f m) { delete(f, "pre_tokenizer") }, tokens},
		{"Unigram", func(f m) { f["model"] = m{"type": "Unigram"} }, tokens},
		{"dropout", func(f m) { f["model"] = m{"type": "BPE", "dropout": 0.1} }, nil},
		{"no JSON", func(f m) { f["added_tokens"] = 1 }, nil},
		{"no added tokens", added(), lines},
		{"normalized", added(m{"content": "<|a|>", "normalized": true}), lines},
		{"to the left", added(m{"content": "<|a|>", "lstrip": true}), nil},
		{"to the right", added(m{"content": "<|a|>", "rstrip": true}), slices.Concat(tokens[:2], lines)},
		{"a single word", added(m{"content": "<|a|>", "single_word": true}), lines},
		{"a word", added(m{"content": "y"}), lines},
		{"begins as it ends", added(m{"content": "<|a|>z <"}), lines},
		{"a line feed in it", added(m{"content": "<|end|>\n"}), nil},
		{"twice", added(m{"content": "<|a|>"}, m{"content": "<|a|>"}), lines},
		{"one in it", added(m{"content": "<|a|>"}, m{"content": "a"}), slices.Concat(tokens[:2], lines)},
		{"a longer one", added(m{"content": "<|a|>"}, m{"content": "<|a|>z"}), lines},
		{"one that ends with its beginning", added(m{"content": "<|end|>"}, m{"content": "z <|"}), lines},
		{"one that begins with its end", added(m{"content": "<|a|>"}, m{"content": "|>z"}), lines},
		{"overlaps itself", added(m{"content": "<|a|><"}), lines},
	} {
		cuts := New(fileWith(t, c.edit), false)
		var want, got []int
		for _, w := range c.want {
			for i := range text {
				if i > 0 && len(text[i:]) >= len(w) && text[i:i+len(w)] == w {
					want = append(want, i)
				}
			}
		}
		slices.Sort(want)
		for i := 1; i < len(text); i++ {
			if n := cuts.Next(text, i); n == i {
				got = append(got, i)
			} else if n < i || n < len(text) && cuts.Next(text, n) != n {
				t.Errorf("%s: next from %d is %d", c.name, i, n)
			}
		}
		if !slices.Equal(got, want) || len(want) != len(c.want) {
			t.Errorf("%s: cuts at %v, want %v", c.name, got, want)
		}
		if cuts.Any() != (len(got) > 0) {
			t.Errorf("%s: any says %v", c.name, cuts.Any())
		}
		if n := cuts.Next(text, len(text)); n != len(text) {
			t.Errorf("%s: next from the end is %d", c.name, n)
		}
	}
}

// TestCutBetweenWords cuts a long line, which has no other places.
func TestCutBetweenWords(t *testing.T) {
	type m = map[string]any
	long := func(tokens ...m) *Cutter {
		return New(fileWith(t, func(f m) { f["added_tokens"] = tokens }), false)
	}
	const text = "ab, c d  e,f 'g' 1,2 é,3\u00a04 5"
	for _, c := range []struct {
		cuts *Cutter
		want []int
	}{
		{long(), []int{2, 5, 7, 10, 12, 18, 20, 28}},
		{long(m{"content": "<a b>"}), nil},
		{long(m{"content": "<a,b>"}), nil},
		{long(m{"content": "<end", "rstrip": true}), nil},
		{long(m{"content": "<end>", "rstrip": true}), []int{2, 5, 7, 10, 12, 18, 20, 28}},
	} {
		c.cuts.WordsAfter = 0
		var got []int
		for at := c.cuts.Next(text, 1); at < len(text); at = c.cuts.Next(text, at+1) {
			got = append(got, at)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("cuts at %v, want %v", got, c.want)
		}
	}
	// A line feed within wordsAfter goes before words; behind it, words go before.
	cuts := long()
	words := strings.Repeat("word ", 2*wordsAfter/5)
	if at := cuts.Next(words[:wordsAfter]+"\na", 10); at != wordsAfter+1 {
		t.Errorf("cut at %d, not at the line feed", at)
	}
	if at := cuts.Next(words+"\na", 10); at < wordsAfter+10 || at > wordsAfter+15 {
		t.Errorf("cut at %d, not between words", at)
	}
	if at := cuts.Next(words, 10); at < wordsAfter+10 || at > wordsAfter+15 {
		t.Errorf("cut at %d without a line feed", at)
	}
}
