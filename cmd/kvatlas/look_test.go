package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

// squeezed is a table with one blank between its columns.
func squeezed(text string) string { return regexp.MustCompile(` +`).ReplaceAllString(text, " ") }

// TestLookAtAServer shows the pods, models, loads and prefixes of a server that has some.
func TestLookAtAServer(t *testing.T) {
	t.Parallel()
	r := start(t, "--block-size=4", "--tokenizers="+tokenizers(t))
	for _, name := range []string{"pods", "models", "loads", "prefixes"} {
		if status, stdout, stderr := call(t, "", name, "--server", r.url); status != cli.ExitOK || !strings.HasPrefix(stdout, "no "+name+": ") || stderr != "" {
			t.Errorf("%s of an empty server: ends with %d\n%s%s", name, status, stdout, stderr)
		}
	}
	c := r.client()
	for _, p := range []client.Pod{
		{Name: "10.0.0.1:8000", Model: "m", Engine: "vllm", Ranks: 2, KVTokens: 4096, Events: "tcp://10.0.0.1:5557", LeaseSeconds: 3600},
		{Name: "10.0.0.2:8000", Model: "other", Role: "prefill", Approximate: true},
		{Name: "worker", Model: "m", PartOf: &client.PartOf{Pod: "10.0.0.1:8000", Worker: 0, Workers: 1}},
	} {
		must.OK(t, c.RegisterPod(t.Context(), p))
	}
	must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: "add", Model: "m", Pod: "10.0.0.1:8000", Tokens: []uint32{1, 2, 3, 4}}))(t)
	reserve := client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "m", Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}}, Reserve: true, ID: "r1"}
	must.Get(c.Route(t.Context(), reserve))(t)
	for range 2 { // a prefix is one once several requests have begun so
		must.Get(c.Route(t.Context(), client.RouteRequest{ScoreRequest: reserve.ScoreRequest}))(t)
	}
	usage := 0.25
	must.Get(c.PushLoad(t.Context(), "10.0.0.1:8000", client.EngineReport{Rank: 1, Running: 3, Waiting: 1, KVUsage: &usage}))(t)
	for _, look := range []struct {
		args []string
		want []string // lines, as regular expressions
		not  string
	}{
		{[]string{"pods"}, []string{
			`POD MODEL ENGINE ROLE RANKS KV TOKENS EVENTS LEASE`,
			`10\.0\.0\.1:8000 m vllm - 2 4096 tcp://10\.0\.0\.1:5557 1h0m0s`,
			`10\.0\.0\.2:8000 other - prefill - - approximate until deleted`,
			`worker m - worker 0 of 1 of 10\.0\.0\.1:8000#0 - - - until deleted`,
		}, ""},
		{[]string{"pods", "--model", "other"}, []string{`10\.0\.0\.2:8000 .*`}, "vllm"},
		{[]string{"models"}, []string{`MODEL BLOCK TOKENIZER MEMORY CHATS`, `m 4 - - -`}, ""},
		{[]string{"loads"}, []string{
			`MODEL POD RANK REQUESTS BLOCKS PREFILL TOKENS RUNNING WAITING CACHE USED AGE DELIVERED`,
			`m 10\.0\.0\.1:8000 [01] 1 [0-9]+ [0-9]+ .*`,
			`m 10\.0\.0\.1:8000 1 [01] [0-9]+ [0-9]+ 3 1 25% [0-9.]+s -`,
		}, ""},
		{[]string{"loads", "--model", "other"}, nil, "10.0.0.1"},
		{[]string{"prefixes"}, []string{`MODEL KEY TOKENS REQUESTS SHARE MISSED HOLD SHOULD HOLD`, `m [0-9a-f]{16} 8 (3\.0|2\.9) 100% (3\.0|2\.9) - 10\.0\.0\.1:8000#[01]`}, ""},
	} {
		status, stdout, stderr := call(t, "", append(look.args, "--server", r.url)...)
		if status != cli.ExitOK || stderr != "" || look.not != "" && strings.Contains(stdout, look.not) {
			t.Errorf("%v: ends with %d\n%s%s", look.args, status, stdout, stderr)
		}
		for _, w := range look.want {
			if !regexp.MustCompile(`(?m)^` + w + `$`).MatchString(squeezed(stdout)) {
				t.Errorf("%v:\n%slacks %s", look.args, stdout, w)
			}
		}
	}
	for name, path := range map[string]string{"pods": "/v1/pods", "models": "/v1/models"} {
		_, want := get(t, r.url+path)
		if status, stdout, _ := call(t, "", name, "--json", "--server", r.url); status != cli.ExitOK || strings.TrimSpace(stdout) != strings.TrimSpace(want) {
			t.Errorf("%s --json: ends with %d\n%s\nwant %s", name, status, stdout, want)
		}
	}
	var loads struct{ Models map[string][]client.RankLoad }
	if status, stdout, _ := call(t, "", "loads", "--json", "--server", r.url); status != cli.ExitOK || json.Unmarshal([]byte(stdout), &loads) != nil || len(loads.Models["m"]) != 2 {
		t.Errorf("loads --json: ends with %d\n%s", status, stdout)
	}
}

// TestLookWithAToken takes the token from the environment, and says what is wrong without.
func TestLookWithAToken(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-cannot-be-guessed"
	_, line, _ := call(t, "", "token", "--role=read", "--token="+token, "reader")
	file := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(file, []byte(line), 0o600))
	r := start(t, "--credentials="+file, "--anonymous=none")
	if status, body := get(t, r.url+"/v1/pods"); status != http.StatusUnauthorized {
		t.Fatalf("without a token: %d %s", status, body)
	}
	var out, errs output
	p := &program{&cli.Program{Stdout: &out, Stderr: &errs, Env: []string{"KVATLAS_TOKEN=" + token, "KVATLAS_SERVER=" + r.url}}}
	if status := p.run(t.Context(), []string{"pods"}); status != cli.ExitOK || !strings.HasPrefix(out.String(), "no pods: ") {
		t.Errorf("with the token: ends with %d\n%s%s", status, out.String(), errs.String())
	}
	for args, want := range map[string]string{
		"pods --server " + r.url:                "answers 401",
		"models --server 127.0.0.1:1":           "no server can be reached",
		"loads --server http://h --timeout 0s":  "--timeout is 0s",
		"pods --server ftp://h":                 "--server: ",
		"pods --json --model m --server http:h": "--model is for the table",
		"models x":                              "it takes flags only",
		"pods --moodel x":                       "did you mean --model?",
	} {
		if status, _, stderr := call(t, "", strings.Fields(args)...); status == cli.ExitOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", args, status, stderr, want)
		}
	}
}
