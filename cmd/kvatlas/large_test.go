package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
)

// TestLargePrompt sends a prompt of 10 MB to two servers. One does not allow it. The other
// does, and answers within its budget that there is more.
func TestLargePrompt(t *testing.T) {
	prompt := strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 10<<20/45)
	dir := tokenizers(t)
	_, err := start(t, "--tokenizers="+dir).client().Score(t.Context(), client.ScoreRequest{Model: demo.Model, Prompt: prompt})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("not allowed: %v", err)
	}
	c := start(t, "--tokenizers="+dir, "--max-prompt-bytes=16MiB", "--max-body-bytes=32MiB", "--preload="+demo.Model, "--request-timeout=5m").client()
	res, err := c.Score(t.Context(), client.ScoreRequest{Model: demo.Model, Prompt: prompt, Wait: time.Millisecond})
	if err != nil || res.Degraded == nil || res.Degraded.Reason != "tokenization_budget" || res.Tokens.Exact {
		t.Fatalf("a budget of 1 ms: %+v, %v", res, err)
	}
	// It has gone on behind, and the tokens are all there.
	all, err := c.Tokenize(t.Context(), client.TokenizeRequest{Model: demo.Model, Prompt: prompt})
	if err != nil || !all.Exact || all.Count != 1+10*(len(prompt)/45) {
		t.Errorf("%d tokens, exact %v, %v", all.Count, all.Exact, err)
	}
}
