package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store/memory"
)

// letters is a tokenizer that makes a token of each byte.
func letters(_ context.Context, r prompt.Request) (prompt.Result, error) {
	res := prompt.Result{Source: prompt.FromTokenizer, Exact: true, Bytes: len(r.Text), Tokens: []uint32{}}
	for _, b := range []byte(r.Text) {
		res.Tokens = append(res.Tokens, uint32(b))
	}
	return res, nil
}

// serve runs the API over an index. In it pod a holds half of text, pod b all of it, and pod c
// serves another model.
func serve(t *testing.T, text string) string {
	t.Helper()
	index := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = index.Close() })
	tokenizer := scorer.TokenizerFunc(letters)
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: tokenizer, BlockSize: 4}))(t)
	api := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: tokenizer, BlockSize: 4}))(t)
	srv := httptest.NewServer(api.Handler())
	t.Cleanup(srv.Close)
	c := must.Get(client.New(client.Config{URL: srv.URL}))(t)
	defer c.Close()
	for pod, n := range map[string]int{"a": len(text) / 2, "b": len(text)} {
		tokens, _ := letters(t.Context(), prompt.Request{Text: text[:n]})
		must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: pod, Tokens: tokens.Tokens}))(t)
	}
	must.OK(t, c.RegisterPod(t.Context(), client.Pod{Name: "c", Model: "another"}))
	return srv.URL
}

func TestRun(t *testing.T) {
	const text = "a prompt of thirty-two letters.."
	var out strings.Builder
	// Pod b holds all of it, 2 + 0 with a long queue; pod a half, 1 + 1: equal, and first by name.
	if err := run(t.Context(), &out, serve(t, text), &Request{"m", text}); err != nil || out.String() != "queues are empty: b\nits queue is long: a\n" {
		t.Errorf("got %q, %v", &out, err)
	}
	out.Reset()
	if err := run(t.Context(), &out, serve(t, text), &Request{"none", text}); !errors.Is(err, ErrNoEndpoint) {
		t.Errorf("got %v", err)
	}
}

// TestWithoutServer schedules by the other scorers when kvatlas is away.
func TestWithoutServer(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	c := must.Get(client.New(client.Config{URL: srv.URL}))(t)
	defer c.Close()
	failed := 0
	s := &Scheduler{
		Scorers: []Weighted{{&KVCacheScorer{Client: c, Budget: 1 << 30}, 2}, {QueueScorer{}, 1}},
		Failed:  func(error) { failed++ },
	}
	got, err := s.Schedule(t.Context(), &Request{Model: "m"}, []Endpoint{{Name: "a", Waiting: 3}, {Name: "b"}})
	if err != nil || got.Name != "b" || failed != 1 {
		t.Errorf("got %+v, %v, %d failures", got, err, failed)
	}
}
