package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// simBodies are requests with texts and chats, without a model.
func simBodies() map[string]map[string]any {
	says := func(role string, content any) map[string]any { return map[string]any{"role": role, "content": content} }
	long := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 12)
	chat := []any{says("system", "You are terse. "+long), says("user", "Wie groß ist 猫? 🐈"), says("assistant", " Small. "), says("user", "And a lion?")}
	tool := map[string]any{"type": "function", "function": map[string]any{
		"name": "weather", "parameters": map[string]any{"type": "object", "properties": map[string]any{"place": map[string]any{"type": "string"}}},
	}}
	return map[string]map[string]any{
		"a text":                      {"prompt": long},
		"a text as it is":             {"prompt": long, "add_special_tokens": false},
		"special tokens in a text":    {"prompt": "<|begin_of_text|>" + long + "<|eot_id|> naïve\r\n\t"},
		"a chat":                      {"messages": chat},
		"a chat in parts":             {"messages": []any{says("user", []any{map[string]any{"type": "text", "text": long}, map[string]any{"type": "text", "text": "more"}})}},
		"a chat with a special token": {"messages": chat, "add_special_tokens": true},
		"a chat to be continued":      {"messages": append(slices.Clone(chat[:3:3]), says("assistant", long)), "continue_final_message": true},
		"a chat with tools":           {"messages": chat, "tools": []any{tool}},
		"another template": {
			"messages": chat, "tools": []any{tool},
			"chat_template": "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }} {{ mood }}\n{% endfor %}", "chat_template_kwargs": map[string]any{"mood": "calm"},
		},
	}
}

// TestSimTokenizer asks engines with a model's tokenizer for texts and chats: their tokens
// are the server's, and what it predicts of them is reused.
func TestSimTokenizer(t *testing.T) {
	dir := tokenizers(t)
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		ports := [3]int{redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)}
		pods, _ := startSim(t, "--engine="+engine, "--model="+demo.Model, "--tokenizers="+dir, "--blocks=4000", "--speed=1000",
			fmt.Sprintf("--port=%d", ports[0]), fmt.Sprintf("--events-port=%d", ports[1]), fmt.Sprintf("--replay-port=%d", ports[2]))
		name := fmt.Sprintf("127.0.0.1:%d", ports[0])
		r := start(t, "--pods="+pods, "--block-size=16", "--tokenizers="+dir, "--tokenizer-budget=1m", "--request-timeout=5m")
		c := r.client()
		for what, body := range simBodies() {
			body := maps.Clone(body)
			body["model"] = demo.Model
			var tokens struct{ Tokens []uint32 }
			post(t, r.url+"/v1/tokenize", body, &tokens)
			if engine != "trtllm" {
				var own struct{ Tokens []uint32 }
				post(t, "http://"+name+"/tokenize", body, &own)
				if !slices.Equal(own.Tokens, tokens.Tokens) {
					t.Errorf("%s, %s: its tokens are %v, the server's %v", engine, what, own.Tokens, tokens.Tokens)
				}
				var text struct{ Prompt, Text string }
				post(t, "http://"+name+"/detokenize", map[string]any{"tokens": own.Tokens, "skip_special_tokens": false}, &text)
				if s, ok := body["prompt"].(string); ok && !strings.HasSuffix(text.Prompt+text.Text, s) {
					t.Errorf("%s, %s: the text of its tokens is %q", engine, what, text)
				}
			}
			path := "/v1/completions"
			if body["messages"] != nil {
				path = "/v1/chat/completions"
			}
			asked := must.Get(json.Marshal(body))(t)
			body["max_tokens"] = 5
			var answer simAnswer
			post(t, "http://"+name+path, body, &answer)
			if answer.Usage.Prompt != len(tokens.Tokens) || answer.Usage.Completion != 5 {
				t.Errorf("%s, %s: %+v, the server has %d tokens", engine, what, answer.Usage, len(tokens.Tokens))
			}
			if said := answer.said(); said == "" || strings.Contains(said, "<|") {
				t.Errorf("%s, %s: it says %q", engine, what, said)
			}
			whole := len(tokens.Tokens) / 16
			r.await(func() map[string]any {
				s := must.Get(c.Score(t.Context(), client.ScoreRequest{Body: asked, Mode: "sync"}))(t)
				if s.Scores[name] == float64(whole) && s.Blocks.Total == whole {
					return map[string]any{}
				}
				return nil
			})
			post(t, "http://"+name+path, body, &answer)
			if want := (len(tokens.Tokens) - 1) / 16 * 16; answer.Usage.Details.Cached != want {
				t.Errorf("%s, %s: %d tokens were reused, %d were to be", engine, what, answer.Usage.Details.Cached, want)
			}
		}
	}
}

// simAnswer is what is read of a completion's or a chat completion's answer.
type simAnswer struct {
	Choices []struct {
		Text    string
		Message struct{ Content string }
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func (a *simAnswer) said() string {
	if len(a.Choices) != 1 {
		return ""
	}
	return a.Choices[0].Text + a.Choices[0].Message.Content
}

// What cannot be tokenized is refused, and a model without a tokenizer is told at the start.
func TestSimTokenizerErrors(t *testing.T) {
	for _, x := range []struct{ args, says string }{
		{"--tokenizers=/nowhere", "/nowhere"},
		{"--tokenizers=" + t.TempDir(), "no tokenizer for model"},
	} {
		status, _, errs := call(t, "", "sim", "--model=org/model", x.args)
		if status != cli.ExitFailed || !strings.Contains(errs, x.says) {
			t.Errorf("kvatlas sim %s: %d %s", x.args, status, errs)
		}
	}
	port := redistest.FreePort(t)
	_, _ = startSim(t, "--model="+demo.Model, "--tokenizers="+tokenizers(t), fmt.Sprintf("--port=%d", port),
		fmt.Sprintf("--events-port=%d", redistest.FreePort(t)), fmt.Sprintf("--replay-port=%d", redistest.FreePort(t)))
	picture := []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/png;base64,"}}}}}
	for path, body := range map[string]map[string]any{
		"/v1/completions": {"prompt": "a\x00b"}, "/v1/chat/completions": {"messages": picture},
		"/tokenize": {"messages": []any{map[string]any{"role": "user", "content": "x"}}, "chat_template": "{{ raise_exception('no') }}"},
	} {
		b := must.Get(json.Marshal(body))(t)
		if status, said := ask(t, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), string(b)); status != 400 {
			t.Errorf("%s: %d %s", path, status, said)
		}
	}
}
