package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// letters is a tokenizer that makes a token of each byte.
func letters(_ context.Context, r prompt.Request) (prompt.Result, error) {
	if r.Model != "letters" {
		return prompt.Result{}, fmt.Errorf("%w %q", tokenpool.ErrUnknownModel, r.Model)
	}
	res := prompt.Result{Source: prompt.FromTokenizer, Exact: true, Bytes: len(r.Text), Tokens: []uint32{}}
	for _, b := range []byte(r.Text) {
		res.Tokens = append(res.Tokens, uint32(b))
	}
	return res, nil
}

// newServer runs the real API over the index in memory, four tokens a block.
func newServer() (url string, stop func(), err error) {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return "", nil, err
	}
	tokenizer := scorer.TokenizerFunc(letters)
	sc, err := scorer.New(scorer.Config{Index: index, Tokenizer: tokenizer, BlockSize: 4})
	if err != nil {
		return "", nil, err
	}
	router, err := route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(nil), Seed: 1})
	if err != nil {
		return "", nil, err
	}
	api, err := server.New(server.Config{Scorer: sc, Index: index, Tokenizer: tokenizer, Router: router, BlockSize: 4, Version: "v1", Backend: "memory"})
	if err != nil {
		return "", nil, err
	}
	srv := httptest.NewServer(api.Handler())
	api.SetReady(nil)
	return srv.URL, func() { srv.Close(); _ = index.Close() }, nil
}

func dial(t *testing.T) *client.Client {
	t.Helper()
	url, stop, err := newServer()
	must.OK(t, err)
	t.Cleanup(stop)
	c := must.Get(client.New(client.Config{URL: url}))(t)
	t.Cleanup(c.Close)
	return c
}

func TestWholeAPI(t *testing.T) {
	c := dial(t)
	ctx := t.Context()
	if h, err := c.Health(ctx); err != nil || *h != (client.Health{Version: "v1", Backend: "memory"}) {
		t.Fatalf("got %+v, %v", h, err)
	}
	must.OK(t, c.Ready(ctx))

	pod := client.Pod{
		Name: "10.0.0.1:8000", Model: "letters", Address: "http://a", Role: "both", Ranks: 2, Engine: "vllm",
		Events: "tcp://a:1", Replay: "tcp://a:11", BlockSize: 4, Labels: map[string]string{"zone": "z"}, LeaseSeconds: 90.5,
	}
	must.OK(t, c.RegisterPod(ctx, pod))
	got, err := c.Pod(ctx, pod.Name)
	if err != nil || fmt.Sprint(*got) != fmt.Sprint(pod) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, pod)
	}

	toks, err := c.Tokenize(ctx, client.TokenizeRequest{Model: "letters", Prompt: "abcdefghij"})
	if err != nil || toks.Count != 10 || !toks.Exact || toks.Tokens[9] != 'j' || toks.Source != "tokenizer" {
		t.Fatalf("got %+v, %v", toks, err)
	}
	rank := 1
	for _, r := range []client.BlocksRequest{
		{Op: client.OpAdd, Pod: pod.Name, Rank: &rank, Tokens: toks.Tokens},
		{Op: client.OpAdd, Pod: "b/c", Tier: "cpu", Tokens: toks.Tokens[:4]},
		{Op: client.OpAdd, Pod: "b/c", LoRA: "l", CacheSalt: "s", Tokens: toks.Tokens},
	} {
		r.Model = "letters"
		if n, err := c.Blocks(ctx, r); err != nil || n != len(r.Tokens)/4 {
			t.Fatalf("%+v: %d blocks, %v", r, n, err)
		}
	}
	pods, err := c.Pods(ctx)
	if err != nil || len(pods) != 2 || pods[1].Name != "b/c" {
		t.Errorf("got %+v, %v", pods, err)
	}

	resp := must.Get(c.Score(ctx, client.ScoreRequest{Model: "letters", Prompt: "abcdefghijkl", Pods: []string{"b/c", "none", pod.Name}, Explain: true, Mode: "sync"}))(t)
	if resp.Best != pod.Name || fmt.Sprint(resp.Scores) != "map[10.0.0.1:8000:2 b/c:0.8 none:0]" ||
		!slices.Equal(resp.Ranking(), []string{pod.Name, "b/c", "none"}) ||
		matched(resp) != "10.0.0.1:8000 2 8 8 map[gpu:2] map[1:2], b/c 1 4 4 map[cpu:1] map[0:1]" ||
		resp.Blocks != (client.BlockCount{Total: 3, Size: 4}) || resp.Tokens != (client.TokenCount{Total: 12, Source: "tokenizer", Exact: true}) ||
		resp.Degraded != nil || resp.Frequencies != nil {
		t.Errorf("got %+v", resp)
	}
	ex := resp.Explain
	if len(ex.Blocks) != 3 || len(ex.BlockKeys) != 3 || ex.Blocks[0].Key != ex.BlockKeys[0] || len(ex.StagesUS) != 4 ||
		fmt.Sprint(ex.Blocks[0].Holders) != "[{10.0.0.1:8000 1 gpu } {b/c 0 cpu }]" || len(ex.Blocks[2].Holders) != 0 {
		t.Errorf("got %+v", ex)
	}

	// The same prompt in its other forms.
	for name, r := range map[string]client.ScoreRequest{
		"tokens": {Tokens: append(slices.Clone(toks.Tokens), 'k', 'l')},
		"keys":   {BlockKeys: ex.BlockKeys},
	} {
		r.Model = "letters"
		if got, err := c.Score(ctx, r); err != nil || got.Scores[pod.Name] != 2 || got.Blocks.Total != 3 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	many, err := c.ScorePrompts(ctx, client.ScoreRequest{Model: "letters", Strategy: "coverage"}, []string{"abcd", "", "xbcd"})
	if err != nil || len(many) != 3 || many[0].Best != pod.Name || many[1].Blocks.Total != 0 || many[2].Best != "" {
		t.Errorf("got %+v, %v", many, err)
	}
	if got, err := c.Score(ctx, client.ScoreRequest{Model: "letters", Prompt: "abcdefgh", LoRA: "l", CacheSalt: "s"}); err != nil || got.Best != "b/c" {
		t.Errorf("got %+v, %v", got, err)
	}

	must.Get(c.Blocks(ctx, client.BlocksRequest{Op: client.OpRemove, Model: "letters", Pod: pod.Name, Rank: &rank, BlockKeys: ex.BlockKeys[1:2]}))(t)
	must.Get(c.Blocks(ctx, client.BlocksRequest{Op: client.OpClear, Model: "letters", Pod: "b/c"}))(t)
	if got, err := c.Score(ctx, client.ScoreRequest{Model: "letters", Prompt: "abcdefgh"}); err != nil || fmt.Sprint(got.Scores) != "map[10.0.0.1:8000:1]" {
		t.Errorf("after remove and clear: got %+v, %v", got, err)
	}
	if err := c.DeletePod(ctx, "b/c"); err != nil {
		t.Error(err)
	}
	var e *client.Error
	if err := c.DeletePod(ctx, "b/c"); !errors.As(err, &e) || e.Status != 404 || e.Code != "unknown_pod" || e.RequestID == "" {
		t.Errorf("got %v", err)
	}
	if _, err := c.Score(ctx, client.ScoreRequest{Model: "x", Prompt: "abcd"}); !errors.As(err, &e) || e.Status != 404 || e.Code != "unknown_model" || e.Param != "model" {
		t.Errorf("got %v", err)
	}
	if _, err := c.Score(ctx, client.ScoreRequest{Model: "letters", BlockKeys: []string{"xyz"}}); !errors.As(err, &e) || e.Status != 400 || !strings.HasPrefix(e.Param, "block_keys") {
		t.Errorf("got %v", err)
	}
}

// matched writes what each pod of an answer holds.
func matched(r *client.ScoreResponse) string {
	var pods []string
	for _, pod := range slices.Sorted(maps.Keys(r.Matched)) {
		m := r.Matched[pod]
		pods = append(pods, fmt.Sprint(pod, " ", m.Blocks, m.Tokens, *m.Reusable, " ", m.Tiers, " ", m.Ranks))
	}
	return strings.Join(pods, ", ")
}
