package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestScoreCommand(t *testing.T) {
	// A machine that is busy takes its time to load a tokenizer.
	r := start(t, "--tokenizers="+tokenizers(t), "--request-timeout=5m")
	const model = "meta-llama/Meta-Llama-3-8B-Instruct"
	prompt := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 60) // 602 tokens
	c := r.client()
	toks := must.Get(c.Tokenize(t.Context(), client.TokenizeRequest{Model: model, Prompt: prompt}))(t)
	for pod, q := range map[string]client.BlocksRequest{
		"a:1": {Tokens: toks.Tokens},
		"b:1": {Tokens: toks.Tokens[:130], Tier: "cpu"},
	} {
		q.Op, q.Model, q.Pod = client.OpAdd, model, pod
		must.Get(c.Blocks(t.Context(), q))(t)
	}
	file := filepath.Join(t.TempDir(), "prompt")
	must.OK(t, os.WriteFile(file, []byte(prompt), 0o666))
	numbers := must.Get(json.Marshal(toks.Tokens))(t)
	list := strings.Trim(string(numbers), "[]")

	score := func(stdin string, args ...string) string {
		t.Helper()
		status, stdout, stderr := call(t, stdin, append([]string{"score", "--server", r.url, "--model", model, "--mode=sync"}, args...)...)
		if status != cli.ExitOK || stderr != "" {
			t.Fatalf("%.80q: ends with %d\n%s", args, status, stderr)
		}
		return stdout
	}
	const table = "POD  SCORE  BLOCKS  TOKENS  TIERS\na:1  9      9       576     gpu 9\nb:1  1.6    2       128     cpu 2\n"
	for name, got := range map[string]string{
		"argument":   score("", prompt),
		"flag":       score("", "--prompt", prompt),
		"file":       score("", "--prompt-file", file),
		"stdin":      score(prompt, "--prompt-file=-"),
		"tokens":     score("", "--tokens", list),
		"behind":     score("", prompt, "--strategy=longest_prefix"),
		"double dot": score("", "--", prompt),
	} {
		if !strings.HasPrefix(got, table) || !strings.Contains(got, ": 602 tokens (") || !strings.Contains(got, "9 blocks of 64") {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, table)
		}
	}

	got := score("", "--explain", prompt)
	for _, want := range []string{"1-2 ", "a:1, b:1 (cpu)\n", "3-9 ", "server: tokenize "} {
		if !strings.Contains(got, want) {
			t.Errorf("the explanation lacks %q:\n%s", want, got)
		}
	}
	if got := score("", "--pods=b:1,c:1", prompt); !strings.Contains(got, "b:1  1.6 ") || !strings.Contains(got, "c:1  0 ") || strings.Contains(got, "a:1") {
		t.Errorf("with pods:\n%s", got)
	}
	if got := score("", "--cache-salt=x", prompt); !strings.HasPrefix(got, "no pod holds the first block") {
		t.Errorf("with a salt:\n%s", got)
	}
	if got := score("", "Hello"); !strings.Contains(got, "shorter than a block") {
		t.Errorf("a short prompt:\n%s", got)
	}

	// A chat scores as the text that its template makes of it.
	chat := filepath.Join(t.TempDir(), "chat.json")
	messages := `[{"role":"system","content":"` + prompt + `"},{"role":"user","content":"Hello"}]`
	must.OK(t, os.WriteFile(chat, []byte(`{"model":"m","temperature":0.1,"messages":`+messages+`}`), 0o666))
	rendered := "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n" + strings.TrimSpace(prompt) +
		"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
	text := must.Get(c.Tokenize(t.Context(), client.TokenizeRequest{Model: model, Prompt: rendered, AddSpecialTokens: new(bool)}))(t)
	must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: model, Pod: "chat:1", Tokens: text.Tokens}))(t)
	for name, got := range map[string]string{
		"chat":     score("", "--chat-file", chat),
		"messages": score(messages, "--chat-file=-"),
		"text":     score("", "--no-special-tokens", rendered),
	} {
		if !strings.Contains(got, "chat:1  9      9       576     gpu 9\n") {
			t.Errorf("%s:\n%s", name, got)
		}
	}

	// --json is the server's answer, byte for byte.
	body := `{"model":"` + model + `","tokens":[` + list + `]}`
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(r.url+"/v1/score", "application/json", strings.NewReader(body))
	must.OK(t, err)
	want := new(strings.Builder)
	_, err = io.Copy(want, resp.Body)
	_ = resp.Body.Close()
	must.OK(t, err)
	if got := score("", "--json", "--tokens="+list); got != want.String() {
		t.Errorf("--json gives\n%s\nwant\n%s", got, want)
	}

	// The keys of an explanation score as the prompt does.
	var explained client.ScoreResponse
	must.OK(t, json.Unmarshal([]byte(score("", "--json", "--explain", prompt)), &explained))
	keys := strings.Join(explained.Explain.BlockKeys, ",")
	if got := score("", "--block-keys="+keys); !strings.HasPrefix(got, table) {
		t.Errorf("by block keys:\n%s", got)
	}
}

func TestScoreErrors(t *testing.T) {
	t.Parallel()
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/error/") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"code":"unknown_model","message":"no \u001b[31m such model","param":"model"}}`))
			return
		}
		_, _ = w.Write([]byte("hello"))
	}))
	defer strange.Close()
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"no model", []string{"x"}, 2, "--model is missing"},
		{"no prompt", []string{"--model=m"}, 2, "no prompt: give it as an argument"},
		{"words", []string{"--model=m", "a", "b"}, 2, "2 arguments: put the prompt in quotes"},
		{"two forms", []string{"--model=m", "a", "--tokens=1"}, 2, "more than one prompt"},
		{"argument and flag", []string{"--model=m", "a", "--prompt=a"}, 2, "more than one prompt"},
		{"token", []string{"--model=m", "--tokens=1,-2"}, 2, `--tokens: number 2, "-2", is no token id`},
		{"large token", []string{"--model=m", "--tokens=4294967296"}, 2, "is no token id"},
		{"no file", []string{"--model=m", "--prompt-file=/nowhere"}, 2, "--prompt-file: open /nowhere"},
		{"no JSON", []string{"--model=m", "--chat-file=/dev/null"}, 2, "--chat-file: it is no JSON of a request: unexpected end"},
		{"unknown flag", []string{"--promt-file=m"}, 2, "--promt-file: no such flag (did you mean --prompt-file?)"},
		{"timeout", []string{"--model=m", "--timeout=0s", "x"}, 2, "--timeout is 0s"},
		{"wait", []string{"--model=m", "--wait=-1s", "x"}, 2, "--wait is -1s"},
		{"server", []string{"--model=m", "--server=ftp://nowhere", "x"}, 2, `--server: `},
		{"nobody listens", []string{"--model=m", "--server=http://127.0.0.1:1", "x"}, 1, "no server can be reached at http://127.0.0.1:1: connect: connection refused\nStart one with kvatlas serve"},
		{"a stranger", []string{"--model=m", "--server=" + strange.URL, "x"}, 1, "not an answer of kvatlas"},
		{"refused", []string{"--model=m", "--server=" + strange.URL + "/error", "x"}, 1, "answers 404 unknown_model: no ?[31m such model (model)"},
		{"not UTF-8", []string{"--model=m", "--server=" + strange.URL, "a\xff"}, 1, "text is not UTF-8: prompt at byte 1"},
	} {
		status, stdout, stderr := call(t, "", append([]string{"score"}, tc.args...)...)
		if status != tc.status || !strings.Contains(stderr, tc.want) || stdout != "" {
			t.Errorf("%s: ends with %d, want %d\nstdout %s\nstderr %s\nwant   %s", tc.name, status, tc.status, stdout, stderr, tc.want)
		}
	}
	known := start(t, "--hub-offline", "--tokenizers="+t.TempDir())
	for _, c := range []struct{ model, want string }{
		{"org/first", "\n--model is \"org/first\"; the server has no model yet\n"},
		{"org/secnd", "\n--model is \"org/secnd\" (did you mean org/second?); the server has org/second\n"},
		{"org/second", "\n--model is \"org/second\", which the server has: its tokenizer alone is missing\n"},
	} {
		status, _, stderr := call(t, "", "score", "--server", known.url, "--model", c.model, "--mode=sync", "x")
		if status != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", c.model, status, stderr, c.want)
		}
		must.OK(t, known.client().RegisterPod(t.Context(), client.Pod{Name: "a:1", Model: "org/second"}))
	}
	if status, stdout, _ := call(t, "", "score", "--help"); status != 0 || !strings.Contains(stdout, "--prompt-file FILE") || !strings.Contains(stdout, "$KVATLAS_SERVER") {
		t.Errorf("--help ends with %d\n%s", status, stdout)
	}
}

func TestServerFromEnvironment(t *testing.T) {
	var out, errs output
	p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Env: []string{"A=b", "KVATLAS_SERVER=http://127.0.0.1:1/x"}}}
	if status := p.run(t.Context(), []string{"score", "--model=m", "p"}); status != cli.ExitFailed || !strings.Contains(errs.String(), "http://127.0.0.1:1/x") {
		t.Errorf("ends with %d\n%s", status, errs.String())
	}
}
