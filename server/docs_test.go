package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
)

// TestDocumentedExamples runs the shell blocks of docs/http-api.md, in order,
// against one server. A JSON block right behind one is the answer to its last
// line. It needs bash, curl, seq and python3, as the examples do.
func TestDocumentedExamples(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "seq", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	page := must.Get(os.ReadFile("../docs/http-api.md"))(t)
	index := openIndex(t)
	tokenizer := scorer.TokenizerFunc(func(ctx context.Context, r prompt.Request) (prompt.Result, error) {
		r.Model = textModel
		return bytewise(ctx, r)
	})
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: tokenizer}))(t)
	events := must.Get(ingest.New(ingest.Config{Index: index}))(t)
	defer func() { _ = events.Close() }()
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(nil), Seed: 1}))(t)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: tokenizer, Events: events, Router: router}))(t)
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()

	blocks := regexp.MustCompile("(?m)^ *```(sh|json)\n((?:.*\n)*?) *```$")
	lines, answers := 0, 0
	var last string
	end := 0
	for _, m := range blocks.FindAllSubmatchIndex(page, -1) {
		kind, text := string(page[m[2]:m[3]]), string(page[m[4]:m[5]])
		if kind == "json" {
			if strings.TrimSpace(string(page[end:m[0]])) != "" {
				continue
			}
			answers++
			var want, got bytes.Buffer
			if err := json.Compact(&want, []byte(text)); err != nil {
				t.Errorf("%s: %v", text, err)
			}
			if err := json.Compact(&got, []byte(last)); err != nil || got.String() != want.String() {
				t.Errorf("documented %s\nanswered   %s", &want, &got)
			}
			continue
		}
		end = m[1]
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "K=") {
				continue
			}
			lines++
			cmd := exec.CommandContext(t.Context(), "bash", "-c", line) //nolint:gosec // the page is ours
			cmd.Env = append(os.Environ(), "K="+ts.URL)
			out, err := cmd.Output()
			if err != nil || !json.Valid(out) {
				t.Errorf("%s: %q %v", line, out, err)
			}
			last = string(out)
			if refused := strings.Contains(last, `"error"`); refused != strings.Contains(line, "-2]") {
				t.Errorf("%s: %s", line, last)
			}
		}
	}
	if lines < 12 || answers < 3 {
		t.Errorf("only %d lines run and %d answers compared", lines, answers)
	}
}
