package main

import (
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestSharedPieces has two servers tokenize the same chat, the second of which
// takes from Redis what the first has made.
func TestSharedPieces(t *testing.T) {
	redis := redistest.Start(t)
	dir := tokenizers(t)
	serve := func() *running {
		return start(t, "--redis="+redis.URL(), "--tokenizers="+dir, "--piece-secret=a secret of all servers", "--tokenizer-budget=25s", "--request-timeout=5m")
	}
	fleet := regexp.MustCompile(`(?m)^kvatlas_tokenizer_tokens_fleet_total (\d+)$`)
	reused := func(r *running) string {
		t.Helper()
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(r.url + "/metrics")
		must.OK(t, err)
		defer resp.Body.Close()
		text := must.Get(io.ReadAll(resp.Body))(t)
		m := fleet.FindSubmatch(text)
		if m == nil {
			t.Fatalf("no such metric:\n%s", text)
		}
		return string(m[1])
	}
	text := strings.Repeat("The quick brown fox\njumps over the lazy dog.\n", 200)
	tokenize := func(r *running) *client.TokenizeResponse {
		t.Helper()
		toks := must.Get(r.client().Tokenize(t.Context(), client.TokenizeRequest{Model: demo.Model, Prompt: text}))(t)
		return toks
	}
	a := tokenize(serve())
	b := serve()
	eventually.NoError(t, "pieces beside the keys of the index", func() error {
		keys, err := redis.Client().Keys(t.Context(), "*{t*}").Result()
		if err == nil && len(keys) == 0 {
			err = errors.New("there are none")
		}
		return err
	})
	if got := tokenize(b); got.Count != a.Count || !got.Exact || reused(b) == "0" {
		t.Errorf("%d tokens, want %d; %s of them from the other server", got.Count, a.Count, reused(b))
	}
}
