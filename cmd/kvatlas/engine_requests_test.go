package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
)

// ask posts a body and returns the status and the answer.
func ask(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(url, "application/json", strings.NewReader(body))
	must.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	b := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(b)
}

// TestCaseSmallOnesBesideARealEngine sends the bodies of a chat as clients send them to
// an engine, and has the tokens of the chat alone.
func TestCaseSmallOnesBesideARealEngine(t *testing.T) {
	r := start(t, "--tokenizers="+tokenizers(t), "--request-timeout=5m")
	const chat = `"model":"` + demo.Model + `","messages":[{"role":"user","content":"Hello"}]`
	_, plain := ask(t, r.url+"/v1/tokenize", "{"+chat+"}")
	if !strings.Contains(plain, `"count":11,`) {
		t.Fatalf("the chat alone: %s", plain)
	}
	for _, more := range []string{`"cache_salt":"s"`, `"cache_salt":null`, `"add_special_tokens":false`, `"add_special_tokens":null`, `"lora_path":"a"`} {
		if status, got := ask(t, r.url+"/v1/tokenize", "{"+chat+","+more+"}"); status != http.StatusOK || tokensOf(got) != tokensOf(plain) {
			t.Errorf("with %s: %d %s", more, status, got)
		}
	}
	// Llama's tokenizer begins a text with a token that its template has put, too.
	status, got := ask(t, r.url+"/v1/tokenize", "{"+chat+`,"add_special_tokens":true}`)
	if want := strings.Replace(tokensOf(plain), "[", "[128000,", 1); status != http.StatusOK || tokensOf(got) != want {
		t.Errorf("with special tokens: %d %s, want %s", status, got, want)
	}
	for _, route := range []string{"/v1/chat/completions/render", "/v1/messages/render"} {
		if status, got := ask(t, r.url+route, "{"+chat+`,"cache_salt":"s","add_special_tokens":false}`); status != http.StatusOK || !strings.Contains(got, `"token_ids":`+tokensOf(plain)) {
			t.Errorf("%s: %d %s", route, status, got)
		}
	}
}

// tokensOf is the list of tokens of an answer.
func tokensOf(answer string) string {
	_, rest, _ := strings.Cut(answer, `"tokens":`)
	list, _, _ := strings.Cut(rest, "]")
	return list + "]"
}

// TestModeAsyncIsDegraded has a new text degraded, as with no wait at all.
func TestModeAsyncIsDegraded(t *testing.T) {
	r := start(t, "--tokenizers="+tokenizers(t))
	for _, how := range []string{`"mode":"async"`, `"wait_ms":0`} {
		body := `{"model":"` + demo.Model + `","prompt":"never seen: ` + strings.ReplaceAll(how, `"`, "") + `",` + how + `}`
		status, got := ask(t, r.url+"/v1/score", body)
		if status != http.StatusOK || !strings.Contains(got, `"degraded":{"reason":"tokenization_budget"}`) {
			t.Errorf("%s: %d %s", how, status, got)
		}
	}
}

// TestScoreChatFileIsTheAPI sends files to kvatlas score, and has the server's word about
// them.
func TestScoreChatFileIsTheAPI(t *testing.T) {
	r := start(t, "--tokenizers="+tokenizers(t), "--request-timeout=5m")
	const said = `"messages":[{"role":"user","content":"Hello"}]`
	for _, c := range []struct {
		name, body string
		status     int
		want       string // of the output, or of what is wrong
	}{
		{"a chat", `{"model":"` + demo.Model + `",` + said + `,"stream":true,"rid":null}`, cli.ExitOK, ": 11 tokens ("},
		{"its messages", `[{"role":"user","content":"Hello"}]`, cli.ExitOK, ": 11 tokens ("},
		{"a completion", `{"prompt":"Hello","max_tokens":5}`, cli.ExitOK, ": 2 tokens ("},
		{"token ids", `{"prompt":[1,2,3]}`, cli.ExitOK, ": 3 tokens ("},
		{"a list of prompts", `{"prompt":["Hello","Hello you"]}`, cli.ExitOK, "prompt 1\n"},
		{"messages of Anthropic's", `{"system":"s","max_tokens":5,` + said + `}`, cli.ExitOK, " tokens ("},
		{"responses", `{"input":"Hello"}`, cli.ExitOK, ": 12 tokens ("},
		{"a slip of the pen", `{"tool":[],` + said + `}`, cli.ExitFailed, "answers 400 unknown_field: there is no such field (did you mean tools?) (tool)"},
		{"a wrong value", `{"add_generation_prompt":7,` + said + `}`, cli.ExitFailed, "(add_generation_prompt)"},
		{"what cannot be done", `{"previous_response_id":"x","input":"Hello"}`, cli.ExitFailed, "(previous_response_id)"},
		{"given twice", `{"stream":true,"stream":true,` + said + `}`, cli.ExitFailed, "stream is given twice"},
		{"no prompt", `{"stream":true}`, cli.ExitUsage, "there are no messages in it"},
		{"no JSON", `{"messages":[}`, cli.ExitUsage, "it is no JSON of a request"},
	} {
		status, stdout, stderr := call(t, c.body, "score", "--server", r.url, "--model", demo.Model, "--mode=sync", "--chat-file=-")
		if status != c.status || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%s: ends with %d\n%s%s\nwant %s", c.name, status, stdout, stderr, c.want)
		}
	}
	// A flag goes before what the file says.
	body := `{"model":"nobody/knows","mode":"wait","cache_salt":"x",` + said + `}`
	if status, stdout, stderr := call(t, body, "score", "--server", r.url, "--model", demo.Model, "--mode=sync", "--chat-file=-"); status != cli.ExitOK || !strings.Contains(stdout, ": 11 tokens (") {
		t.Errorf("flags over a file: %d\n%s%s", status, stdout, stderr)
	}
}

// TestScoreJSONHasTheStatus ends alike with --json and without.
func TestScoreJSONHasTheStatus(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]int{"index_unavailable": cli.ExitFailed, "index_timeout": cli.ExitFailed, "index_stale": cli.ExitOK, "tokenization_budget": cli.ExitOK} {
		const one = `{"scores":{},"best":null,"matched":{},"blocks":{"total":1,"size":4},"tokens":{"total":4,"source":"tokens","exact":true},"degraded":{"reason":"`
		for name, answer := range map[string]string{"one": one + reason + `"}}`, "several": `{"results":[` + one + `multimodal"}},` + one + reason + `"}}]}`} {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(answer))
			}))
			for _, flags := range [][]string{nil, {"--json"}} {
				status, stdout, stderr := call(t, "", append([]string{"score", "--server", s.URL, "--model=m", "--tokens=1,2,3,4"}, flags...)...)
				if status != want || stdout == "" {
					t.Errorf("%s of %s, %v: ends with %d, want %d\n%s%s", reason, name, flags, status, want, stdout, stderr)
				}
			}
			s.Close()
		}
	}
}

// TestEveryCommandHasHelp asks each command for its help in every way.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range everyCommand(t) {
		words := strings.Fields(c)
		for _, args := range [][]string{append(words, "--help"), append(words, "-h"), append([]string{"help"}, words...)} {
			status, stdout, stderr := call(t, "", args...)
			if status != cli.ExitOK || !strings.Contains(stdout, "kvatlas "+c) || stderr != "" {
				t.Errorf("%v: ends with %d\n%.300s%s", args, status, stdout, stderr)
			}
		}
	}
	if _, stdout, _ := call(t, "", "changelog", "--help"); strings.Contains(stdout, "-server") {
		t.Errorf("changelog is of Redis alone:\n%s", stdout)
	}
}

// TestFailedPreloadIsTold is not ready, and says of which model, until its tokenizer is
// there.
func TestFailedPreloadIsTold(t *testing.T) {
	t.Parallel() // it waits for seconds that no setting shortens
	dir := t.TempDir()
	r := start(t, "--tokenizers="+dir, "--preload=some/model")
	eventually.NoError(t, "told", func() error {
		if status, body := get(t, r.url+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "preload: no tokenizer of some/model (there is none)") {
			return fmt.Errorf("/readyz is %d %s", status, body)
		}
		return nil
	})
	if _, err := r.client().Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens(4)}); err != nil {
		t.Errorf("tokens are not scored: %v", err)
	}
	file := must.Get(os.ReadFile(filepath.Join(tokenizers(t), demo.Model, "tokenizer.json")))(t)
	must.OK(t, os.MkdirAll(filepath.Join(dir, "some", "model"), 0o777))
	// In one step, so that no half of it is read.
	must.OK(t, os.WriteFile(filepath.Join(dir, "new"), file, 0o666))
	must.OK(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "some", "model", "tokenizer.json")))
	eventually.NoError(t, "ready", func() error { return r.client().Ready(t.Context()) })
}
