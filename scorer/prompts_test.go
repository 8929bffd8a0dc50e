package scorer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store/memory"
)

// TestRoomForTokens scores prompts at once whose tokens stand in memory that is used again. None
// gets another one's tokens, and those that the caller has do not change.
func TestRoomForTokens(t *testing.T) {
	var used atomic.Int64
	tokenizer := scorer.TokenizerFunc(func(_ context.Context, r prompt.Request) (prompt.Result, error) {
		ids := r.Room[:0]
		if len(r.Text) <= cap(ids) {
			used.Add(1)
		}
		for _, c := range []byte(r.Text) {
			ids = append(ids, uint32(c))
		}
		return prompt.Result{Tokens: ids, Source: prompt.FromPrefixStore, Exact: true, Bytes: len(r.Text)}, nil
	})
	index := must.Get(memory.New(memory.Config{}))(t)
	must.End(t, index.Close)
	s := newScorer(t, scorer.Config{Index: index, Tokenizer: tokenizer})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var kept []*scorer.Response
			for i := range 100 {
				r, err := s.Score(t.Context(), scorer.Request{Model: "m", Input: scorer.Prompt(fmt.Sprintf("%d of %d %0*d", i, g, i, i)), ReturnTokens: true})
				if err != nil {
					t.Error(err)
					return
				}
				kept = append(kept, r)
			}
			for i, r := range kept {
				var want []uint32
				for _, c := range []byte(fmt.Sprintf("%d of %d %0*d", i, g, i, i)) {
					want = append(want, uint32(c))
				}
				if !slices.Equal(r.TokenIDs, want) {
					t.Errorf("prompt %d of %d: %v, want %v", i, g, r.TokenIDs, want)
				}
			}
		})
	}
	wg.Wait()
	if used.Load() == 0 {
		t.Error("no memory was used again")
	}
}

// TestSizeOfChats estimates the tokens of chats of each API, without the media in them.
func TestSizeOfChats(t *testing.T) {
	half, url := strings.Repeat("x", 400), `"data:image/png;base64,`+strings.Repeat("A", 4000)+`"`
	text := []byte(`["` + half + `",` + url + `]`)
	for name, c := range map[string]prompt.Chat{
		"chat":      {Messages: text, Tools: text},
		"messages":  {API: prompt.APIMessages, System: text, Messages: text},
		"responses": {API: prompt.APIResponses, Instructions: half, Input: text},
	} {
		in := scorer.Chat(c)
		if n, estimated := in.Size(); n < 200 || n > 210 || !estimated {
			t.Errorf("%s: %d tokens, estimated %v", name, n, estimated)
		}
	}
}
