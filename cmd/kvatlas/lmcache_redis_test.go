package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// LMCache writes to another Redis than the index's, single or cluster. Its entries and its
// remote tier count, for pods that are registered and pods that a request names. When that
// Redis stands still, what the index has counts on.
func TestLMCacheInAnotherRedis(t *testing.T) {
	const (
		first  = "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"
		second = "dbae33ee1bee4f1e12ac7a0dd1197e46648b8d9d9d908577a53fd38741bcf119"
		named  = "10.0.0.3:8000"
	)
	index, indexes := redistest.Start(t), redistest.StartCluster(t, 3, false)
	others := redistest.StartCluster(t, 3, false)
	prompt := make([]uint32, 512)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	for name, c := range map[string]struct {
		index string
		other *redistest.Server // nil is the cluster
	}{
		"single, single":   {index.URL(), redistest.Start(t)},
		"single, cluster":  {index.URL(), nil},
		"cluster, single":  {indexes.URL(), redistest.Start(t)},
		"cluster, cluster": {indexes.URL(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			url, entries := others.URL(), redis.UniversalClient(others.Client())
			if c.other != nil {
				url, entries = c.other.URL(), c.other.Client()
			}
			for _, args := range [][]any{
				{"SET", "vllm@demo@1@0@" + first, "10.0.0.1:8200"},
				{"SET", "vllm@demo@1@0@" + second, "10.0.0.1:8200"},
				{"HSET", "demo@" + first, "10.0.0.3", "vllm@1@0@1795815737.64"},
				{"SET", "demo@1@0@2b763dd00afa89c8@bfloat16metadata", "x"},
			} {
				must.OK(t, entries.Do(t.Context(), args...).Err())
			}
			r := start(t, "--redis="+c.index, "--lmcache-redis="+url, "--lmcache-max-age=0s", "--redis-prefix="+strings.ReplaceAll(name, ", ", "-"), "--score-budget=2s",
				"--lmcache-models=demo?version=0.3.1,demo?version=fork,demo?version=0.5.6&vllm=false&python=3.12&dtype=bfloat16&remote=redis")
			for _, pod := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
				must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: pod, Model: "demo"}))
			}
			ask := func(pods ...string) map[string]float64 {
				t.Helper()
				resp, err := r.client().Score(t.Context(), client.ScoreRequest{Model: "demo", Tokens: prompt, Pods: pods})
				if err != nil || resp.Degraded != nil {
					t.Fatal(resp, err)
				}
				return resp.Scores
			}
			want := func(what string, pods []string, want map[string]float64) {
				t.Helper()
				if got := ask(pods...); !maps.Equal(got, want) {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			// 8 blocks of 64: two chunks in CPU memory, one in the shared tier.
			want("all", nil, map[string]float64{"10.0.0.1:8000": 6.4, "10.0.0.2:8000": 1.2})
			want("named", []string{"10.0.0.1:8000", named}, map[string]float64{"10.0.0.1:8000": 6.4, named: 3.2})
			if c.other == nil {
				return
			}
			c.other.Freeze()
			for range 3 {
				want("the other Redis stands still", []string{"10.0.0.2:8000"}, map[string]float64{"10.0.0.2:8000": 0})
			}
			line := r.await(func() map[string]any { return r.loggedWith("the Redis of LMCache's entries") })
			if line["level"] != "warn" {
				t.Errorf("the log says %v", line)
			}
			c.other.Thaw()
			lmcachetest.WaitFor(t, "the other Redis again", func() bool { return ask()["10.0.0.1:8000"] == 6.4 })
		})
	}
}

// loggedWith is the first log line whose message begins so.
func (r *running) loggedWith(begin string) map[string]any {
	for line := range strings.Lines(r.stderr.String()) {
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) == nil && strings.HasPrefix(fmt.Sprint(v["message"]), begin) {
			return v
		}
	}
	return nil
}
