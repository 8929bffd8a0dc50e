package main

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/scorer"
)

// An empty ranking means different things, and says which.
func TestVerdicts(t *testing.T) {
	answer := func(blocks int, exact bool, reason string) *client.ScoreResponse {
		r := &client.ScoreResponse{}
		r.Blocks.Total, r.Blocks.Size, r.Tokens.Exact = blocks, 64, exact
		if reason != "" {
			r.Degraded = &client.Degraded{Reason: reason}
		}
		return r
	}
	held := answer(3, true, "")
	held.Scores = map[string]float64{"p": 3}
	cut := answer(3, true, "")
	cut.Scores, cut.LeftOut = map[string]float64{"p": 3}, 7
	for name, tc := range map[string]struct {
		r       *client.ScoreResponse
		want    []string // parts of the text, in order
		without string   // a part that it must not have
	}{
		"held":           {held, []string{"POD", "p", "3"}, "no pod"},
		"top":            {cut, []string{"POD", "p", "3", "and 7 more pods"}, "no pod"},
		"nobody":         {answer(3, true, ""), []string{"no pod holds the first block"}, "incomplete"},
		"short":          {answer(0, true, ""), []string{"shorter than a block of 64 tokens"}, "no pod"},
		"loading":        {answer(0, false, "tokenization_budget"), []string{"incomplete", "--mode sync"}, "shorter"},
		"async":          {answer(0, false, ""), []string{"only a part of the prompt"}, "shorter"},
		"index gone":     {answer(3, true, "index_unavailable"), []string{"incomplete", "cannot reach its index"}, "no pod holds"},
		"index late":     {answer(3, true, "index_timeout"), []string{"incomplete", "in time"}, "no pod holds"},
		"unknown reason": {answer(3, true, "sun_spots\x1b"), []string{"incomplete", "sun_spots?"}, "\x1b"},
	} {
		var b strings.Builder
		writeScore(&b, "m", tc.r, time.Millisecond, (&scoreCall{}).lateness(nil))
		rest := b.String()
		for _, part := range tc.want {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: %q is missing, or not in order, in\n%s", name, part, b.String())
			}
			rest = after
		}
		if strings.Contains(b.String(), tc.without) {
			t.Errorf("%s: %q is in\n%s", name, tc.without, b.String())
		}
	}
}

// TestScoreSaysWhichPodsAreNotRegistered asks for pods by name, of which some hold nothing.
func TestScoreSaysWhichPodsAreNotRegistered(t *testing.T) {
	const scores = `{"scores":{"a":3,"b":0,"no\u001bpod":0},"matched":{"a":{"blocks":3}},"blocks":{"total":3,"size":64},"tokens":{"total":192,"exact":true}}`
	for name, tc := range map[string]struct {
		pods, want string
		status     int
	}{
		"one":         {`{"pods":[{"name":"a","model":"m"},{"name":"b","model":"m"}]}`, "\nnot registered: no?pod (GET /v1/pods lists the pods that are)\n", http.StatusOK},
		"two":         {`{"pods":[{"name":"a","model":"m"}]}`, "\nnot registered: b, no?pod (", http.StatusOK},
		"none":        {`{"pods":[{"name":"b","model":"m"},{"name":"no\u001bpod","model":"m"}]}`, "", http.StatusOK},
		"unreachable": {`{}`, "", http.StatusServiceUnavailable},
		"no JSON":     {`pods`, "", http.StatusOK},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			body := scores
			if r.URL.Path == "/v1/pods" {
				w.WriteHeader(tc.status)
				body = tc.pods
			}
			_, _ = w.Write([]byte(body))
		}))
		status, stdout, stderr := call(t, "", "score", "--server", s.URL, "--model=m", "--tokens=1", "--pods=a,b,no\x1bpod,b")
		s.Close()
		if status != cli.ExitOK || stderr != "" || !strings.HasPrefix(stdout, "POD") || !strings.Contains(stdout, tc.want) || tc.want == "" && strings.Contains(stdout, "registered") {
			t.Errorf("%s: ends with %d\n%s%s\nwant %q", name, status, stdout, stderr, tc.want)
		}
	}
}

// TestScoreSaysWhatIsLate asks for a text and for a chat that are not tokenized in time. A script must
// not take that for a prompt that no pod holds, unless it has asked not to wait.
func TestScoreSaysWhatIsLate(t *testing.T) {
	const late = `{"scores":{},"blocks":{"total":0,"size":64},"tokens":{"total":0,"source":"none","exact":false},"degraded":{"reason":"tokenization_budget"}}`
	for name, tc := range map[string]struct {
		models string // the answer of GET /v1/models
		pods   string // that of GET /v1/pods; empty lists none
		chat   bool
		want   string
	}{
		"indexed":        {`{"models":[{"name":"m"}]}`, "", false, "the model's tokenizer is not loaded yet: ask again, or with --mode sync, which waits for it, or says why there is none"},
		"another loaded": {`{"models":[],"tokenizers":[{"model":"other"}]}`, `{"pods":[{"name":"p","model":"m"}]}`, true, "the model's tokenizer is not loaded yet: "},
		"alias":          {`{"models":[]}`, `{"pods":[{"name":"p","model":"org/m","aliases":["m"]}]}`, false, "the model's tokenizer is not loaded yet: "},
		"loaded":         {`{"models":[],"tokenizers":[{"model":"other"},{"model":"m"}]}`, "", false, "the tokenizer is loaded, and the prompt was not tokenized in time: ask again"},
		"chat":           {`{"models":[],"tokenizers":[{"model":"m"}]}`, "", true, "the tokenizer is loaded, and the chat was not rendered and tokenized in time (the model's chat template is compiled at its first use): "},
		"no list":        {`{}`, "", false, "the prompt was not tokenized in time: ask again, or with --mode sync, which waits\n"},
		"no JSON":        {`models`, "", true, "the prompt was not tokenized in time: ask again"},
		"nothing": {`{"models":[]}`, "", false, "the server does not know this model: no pod is registered for it, and the server still looks for its tokenizer: ask again, or with --mode sync, " +
			"which waits for that, and says why there is none\n--model is \"m\"; the server has no model yet\n"},
		"others": {`{"models":[{"name":"m2"}],"tokenizers":[{"model":"t"}]}`, `{"pods":[{"name":"p","model":"org/m"}]}`, false, "the server does not know this model: no pod is registered for it, and the server still looks for its tokenizer: ask again, or with --mode sync, " +
			"which waits for that, and says why there is none\n--model is \"m\"; the server has m2, org/m, t\n"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			body := late
			switch r.URL.Path {
			case "/v1/models":
				body = tc.models
			case "/v1/pods":
				body = cmp.Or(tc.pods, `{"pods":[]}`)
			}
			_, _ = w.Write([]byte(body))
		}))
		args := []string{"score", "--server", s.URL, "--model=m", "hello"}
		if tc.chat {
			args[4] = "--chat-file=-"
		}
		status, stdout, stderr := call(t, `[{"role":"user","content":"hi"}]`, args...)
		if status, _, _ := call(t, `[{"role":"user","content":"hi"}]`, append(args, "--mode=async")...); status != cli.ExitOK {
			t.Errorf("%s, without a wait: ends with %d", name, status)
		}
		s.Close()
		if status != cli.ExitFailed || stderr != "" || !strings.HasPrefix(stdout, "this answer is incomplete, its scores are lower bounds: "+tc.want) {
			t.Errorf("%s: ends with %d\n%s%s\nwant %q", name, status, stdout, stderr, tc.want)
		}
	}
}

// TestEveryDegradationHasWords: none of the reasons of an incomplete answer is a bare word.
func TestEveryDegradationHasWords(t *testing.T) {
	for _, reason := range []scorer.Degradation{
		scorer.IndexUnavailable, scorer.IndexTimeout, scorer.IndexStale, scorer.TokenizationBudget, scorer.TokenizationBusy, scorer.Multimodal,
	} {
		if lines := verdicts(&client.ScoreResponse{Degraded: &client.Degraded{Reason: string(reason)}}, "too late"); !strings.Contains(lines[0], " ") || strings.HasSuffix(lines[0], ": "+string(reason)) {
			t.Errorf("%s: %q", reason, lines)
		}
	}
}
