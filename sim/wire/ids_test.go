package wire_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// vLLM returns the token ids of prompt and answer on request. They are beside the choices
// of a chat, in those of a completion, and in a stream token by token.
func TestTokenIDs(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}})
		for _, chat := range []bool{false, true} {
			path, body, prompt := "/v1/completions", fields{"prompt": []int{7, 8, 9}, "max_tokens": 6}, []any{"choices", 0, "prompt_token_ids"}
			if chat {
				path, body, prompt = "/v1/chat/completions", fields{"messages": []fields{{"role": "user", "content": "x"}}, "max_tokens": 6}, []any{"prompt_token_ids"}
			}
			if r := ask(t, p, http.MethodPost, path, body); at(r, prompt...) != nil || at(r, "choices", 0, "token_ids") != nil {
				t.Errorf("%v: %v, and nobody asked", kind, r)
			}
			body["return_token_ids"] = true
			whole := ask(t, p, http.MethodPost, path, body)
			said, _ := at(whole, "choices", 0, "token_ids").([]any)
			asked, _ := at(whole, prompt...).([]any)
			body["stream"] = true
			var streamed, first []any
			for _, part := range events(t, p, path, body) {
				ids, _ := at(part, "choices", 0, "token_ids").([]any)
				streamed = append(streamed, ids...)
				if ids, ok := at(part, prompt...).([]any); ok {
					first = append(first, ids...)
				}
			}
			if kind != engine.VLLM {
				if said != nil || asked != nil || streamed != nil || first != nil {
					t.Errorf("%v has no token ids: %v", kind, whole)
				}
				continue
			}
			// With the tokenizer of bytes the text is the tokens.
			text := fmt.Sprint(at(whole, "choices", 0, "text"))
			if chat {
				text = fmt.Sprint(at(whole, "choices", 0, "message", "content"))
			}
			var want []any
			for i := range len(text) {
				want = append(want, float64(text[i]))
			}
			wantAsked := []any{7., 8., 9.}
			if chat {
				wantAsked = nil
				for _, b := range []byte("<|user|>\nx\n<|assistant|>\n") {
					wantAsked = append(wantAsked, float64(b))
				}
			}
			if len(said) != 6 || !slices.Equal(said, want) || !slices.Equal(streamed, want) {
				t.Errorf("%s: %v and in a stream %v, said was %q", path, said, streamed, text)
			}
			if !slices.Equal(asked, wantAsked) || !slices.Equal(first, wantAsked) {
				t.Errorf("%s: the prompt was %v and in a stream %v, want %v", path, asked, first, wantAsked)
			}
		}
	}
}

// The control page says how many messages each rank has sent.
func TestPublishedMessages(t *testing.T) {
	f := must.Get(wire.StartFleet([]wire.Config{{Name: "a", Model: model, Listen: "127.0.0.1:0", Events: redistest.FreeEndpoint(t, 1), Engine: engine.Config{Blocks: 100, Timing: noTime}}}))(t)
	must.End(t, f.Close)
	for _, tokens := range []int{16, 48} {
		before := f.State()[0].Ranks[0].Published
		ask(t, f.Pods()[0], http.MethodPost, "/v1/completions", fields{"prompt": make([]int, tokens), "max_tokens": 1})
		want := must.Get(f.Pods()[0].Published(0))(t)
		if got := f.State()[0].Ranks[0].Published; got != want || got <= before {
			t.Errorf("%d messages, it has sent %d, before the request %d", got, want, before)
		}
	}
}
