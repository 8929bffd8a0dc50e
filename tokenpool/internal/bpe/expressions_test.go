package bpe

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// withExpressions is a tokenizer.json with other expressions in place of its own.
func withExpressions(t *testing.T, data []byte, expressions ...string) []byte {
	t.Helper()
	o := must.Get(tokenfile.ReadObject(data))(t)
	type m = map[string]any
	var stages []any
	for _, e := range expressions {
		stages = append(stages, m{"type": "Split", "pattern": m{"Regex": e}, "behavior": "Isolated", "invert": false})
	}
	stages = append(stages, m{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})
	text := must.Get(json.Marshal(m{"type": "Sequence", "pretokenizers": stages}))(t)
	o.Set("pre_tokenizer", text)
	return o.AppendJSON(nil)
}

// TestExpressions compares random texts for every expression, also of models whose files
// are not at hand: with the vocabulary of Qwen 3, 100 KB each.
func TestExpressions(t *testing.T) {
	data, err := os.ReadFile("../../../.cache/tokenizers/Qwen/Qwen3-8B/tokenizer.json")
	if err != nil {
		t.Skip("no tokenizers: run make models")
	}
	all := map[string][]string{"deepseek": deepSeekPatterns}
	for e := range patterns {
		all[e] = []string{e}
	}
	for name, expressions := range all {
		b := load(t, name, withExpressions(t, data, expressions...))
		c := b.fast.NewCorpus(uint64(os.Getpid()), b.ref.decode)
		for done := 0; done < 100<<10; {
			text := c.Text(1 + c.rnd.IntN(400))
			done += len(text)
			if d := b.differ(text); d != "" {
				t.Fatalf("seed %d: %s", os.Getpid(), d)
			}
		}
	}
}
