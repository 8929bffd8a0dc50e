//go:build cgo

package scorer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// BenchmarkChatTurns scores a chat of 20 turns that grows to 60,000 tokens, with
// and without pieces of what was tokenized before. It reports the median time of
// turns 1, 10 and 20, rendering and lookup included, and how many tokens the
// tokenizer made for turn 20. It needs the tokenizers of `make models`.
func BenchmarkChatTurns(b *testing.B) {
	const turns, model = 20, "Qwen/Qwen3-8B"
	for name, bytes := range map[string]int64{"pieces": 0, "full": -1} {
		b.Run(name, func(b *testing.B) {
			dir := must.Get(tokenpool.NewDirectory("../.cache/tokenizers"))(b)
			prefixes := must.Get(prefixcache.NewLRU(prefixcache.Config{}))(b)
			pool := must.Get(tokenpool.New(tokenpool.Config{Origin: dir, Store: prefixes, PieceBytes: bytes}))(b)
			defer func() { _ = pool.Close() }()
			index := must.Get(memory.New(memory.Config{}))(b)
			defer func() { _ = index.Close() }()
			s := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: pool}))(b)
			took := make([][]time.Duration, turns)
			fresh, tokens := uint64(0), 0
			for round := 0; b.Loop(); round++ {
				var messages []json.RawMessage
				say := func(role, text string) {
					m := must.Get(json.Marshal(map[string]string{"role": role, "content": text}))(b)
					messages = append(messages, m)
				}
				say("system", fmt.Sprintf("You are assistant %d of %s.", round, name))
				for turn := range turns {
					say("user", prose(round, 2*turn, 6200))
					all := must.Get(json.Marshal(messages))(b)
					before := pool.Stats().Tokens
					start := time.Now()
					r, err := s.Score(b.Context(), scorer.Request{Model: model, Input: scorer.Chat(prompt.Chat{Messages: all}), Mode: prompt.Sync})
					took[turn] = append(took[turn], time.Since(start))
					if err != nil || !r.Exact {
						b.Fatalf("%+v, %v", r, err)
					}
					for pool.Stats().Running > 0 { // still filling the prefix store
						time.Sleep(10 * time.Microsecond)
					}
					fresh, tokens = pool.Stats().Tokens-before, r.Tokens
					say("assistant", prose(round, 2*turn+1, 6200))
				}
			}
			for _, turn := range []int{1, 10, turns} {
				t := took[turn-1]
				slices.Sort(t)
				b.ReportMetric(float64(t[len(t)/2].Microseconds()), fmt.Sprintf("us/turn%d", turn))
			}
			b.ReportMetric(float64(tokens), "tokens")
			b.ReportMetric(float64(fresh), "made")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// prose is a text of about n bytes, another one for each pair of numbers.
func prose(a, c, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "Item %d.%d.%d: the scheduler asks which replica holds the longest prefix of a prompt, and sends it there.\n", a, c, i)
		if i%6 == 5 {
			fmt.Fprintf(&b, "\n```go\nfor i := range %d {\n\tsum += weights[i] * float64(i)\n}\n```\n", i)
		}
	}
	return b.String()
}
