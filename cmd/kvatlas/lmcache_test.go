package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestLMCache is the worked example of docs/lmcache.md: what LMCache has filed in Redis
// itself counts in the scores of kvatlas serve, as its settings say.
func TestLMCache(t *testing.T) {
	s := redistest.Start(t)
	const (
		first  = "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"
		second = "dbae33ee1bee4f1e12ac7a0dd1197e46648b8d9d9d908577a53fd38741bcf119"
	)
	plain := s.Client()
	for _, args := range [][]any{
		{"SET", "vllm@demo@1@0@" + first, "10.0.0.1:8200"},
		{"SET", "vllm@demo@1@0@" + second, "10.0.0.1:8200"},
		{"HSET", "demo@" + first, "10.0.0.2", "vllm@1@0@1795815737.64"},
		{"SET", "demo@1@0@2b763dd00afa89c8@bfloat16metadata", "x"},
	} {
		must.OK(t, plain.Do(t.Context(), args...).Err())
	}
	file := filepath.Join(t.TempDir(), "kvatlas.yaml")
	text := "lmcache-max-age: 0s\nlmcache-models:\n  - demo?version=0.3.1\n  - demo?version=fork\n  - demo?version=0.5.6&vllm=false&python=3.12&dtype=bfloat16&remote=redis\n"
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	prompt := make([]uint32, 1024)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	for _, c := range []struct {
		args []string
		want map[string]float64
		tier map[string]int // of the first pod
	}{
		{[]string{"--config=" + file}, map[string]float64{"10.0.0.1:8000": 6.4, "10.0.0.2:8000": 3.2, "10.0.0.3:8000": 1.2}, map[string]int{"cpu": 8}},
		{[]string{"--config=" + file, "--lmcache=set"}, map[string]float64{"10.0.0.1:8000": 6.4, "10.0.0.2:8000": 1.2, "10.0.0.3:8000": 1.2}, map[string]int{"cpu": 8}},
		{[]string{"--config=" + file, "--lmcache=hset", "--lmcache-max-age=1s"}, map[string]float64{"10.0.0.1:8000": 1.2, "10.0.0.2:8000": 1.2, "10.0.0.3:8000": 1.2}, map[string]int{"shared": 4}},
		{[]string{"--config=" + file, "--lmcache=off"}, nil, nil},
		{nil, nil, nil},
	} {
		r := start(t, append(c.args, "--redis="+s.URL())...)
		cl := r.client()
		for _, pod := range []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"} {
			must.OK(t, cl.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "demo"}))
		}
		resp := must.Get(cl.Score(t.Context(), client.ScoreRequest{Model: "demo", Tokens: prompt}))(t)
		if !maps.Equal(resp.Scores, c.want) || !maps.Equal(resp.Matched["10.0.0.1:8000"].Tiers, c.tier) {
			t.Errorf("%q: %+v, %+v; want %v, %v", c.args, resp.Scores, resp.Matched, c.want, c.tier)
		}
		if status := r.end(); status != cli.ExitOK {
			t.Errorf("ends with %d\n%s", status, r.stderr)
		}
	}
}
