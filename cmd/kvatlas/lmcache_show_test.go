package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// TestLMCacheInOneScore has all ways at once. They are an engine's GPU events, and what
// LMCache's fork once sent to Redis. They are a worker of 0.5.6 that talks to the
// controller, and tensors that all pods can fetch. One score has them all in one round
// trip.
func TestLMCacheInOneScore(t *testing.T) {
	const (
		model    = "m" // in requests; the engines call it otherwise
		recorded = "meta-llama/Llama-3.1-8B-Instruct"
		one, two = "10.0.0.1:8000", "10.0.0.2:8000"
	)
	redis := redistest.Start(t)
	v := newVLLMTopic(t)
	pull, reply, beat := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
	r := start(t, "--redis="+redis.URL(), "--score-budget=5s", "--lmcache-lease=6s", "--lmcache-max-age=0s",
		fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), fmt.Sprintf("--lmcache-controller-reply=tcp://127.0.0.1:%d", reply),
		fmt.Sprintf("--lmcache-controller-heartbeat=tcp://127.0.0.1:%d", beat), "--lmcache-instances=two="+two,
		"--pods="+one+"?model=m&events="+v.events+"&replay="+v.replay,
		"--lmcache-models=m?version=fork&name="+recorded+",m?version=0.5.6&vllm=false&name="+recorded+"&dtype=bfloat16&remote=resp")
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: two, Model: model}))
	prompt := tokensFrom(0, 1024)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046}))(t)
	hashes := h.Append(nil, prompt)
	chunks := make([]any, len(hashes))
	for i, hash := range hashes {
		v, _, _ := hash.Int()
		chunks[i] = int64(v)
	}

	// The fork's commands, as they were recorded: four chunks, and the last one's end.
	plain := redis.Client()
	data := must.Get(os.ReadFile("../../scorer/testdata/lmcache_redis.json"))(t)
	var record struct{ Fork []string }
	if err := json.Unmarshal(data, &record); err != nil || len(record.Fork) < 5 {
		t.Fatal(len(record.Fork), err)
	}
	conn := plain.Conn()
	defer func() { _ = conn.Close() }()
	for _, line := range record.Fork {
		var args []any
		for _, word := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(line, -1) {
			args = append(args, word[1])
		}
		if err := conn.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	s.tiersOf(t, "the fork's entries", prompt, one, map[string]int{"cpu": 768})

	// The engine's own blocks, of half the prompt.
	gpu := make([]int64, 32)
	for i := range gpu {
		gpu[i] = int64(i + 1)
	}
	v.publish(stored(gpu, nil, prompt[:512], 16, text("GPU")))
	s.tiersOf(t, "GPU", prompt, one, map[string]int{"gpu": 512, "cpu": 256})

	// A worker of another pod, and the tensors of all.
	worker := lmcachetest.Start(t, lmcachetest.Options{
		Kind: "0.5.6", Instance: "two", Heartbeat: 1, Port: redistest.FreePort(t), Pull: fmt.Sprintf("127.0.0.1:%d", pull), Reply: fmt.Sprintf("127.0.0.1:%d", reply),
	})
	worker.Do("admit", chunks[:2]...)
	s.tiersOf(t, "the worker", prompt, two, map[string]int{"cpu": 512})
	for _, hash := range hashes {
		must.OK(t, plain.Set(t.Context(), recorded+"@1@0@"+hash.String()+"@bfloat16", "tensors", 0).Err())
	}
	s.tiersOf(t, "all of it", prompt, one, map[string]int{"gpu": 512, "cpu": 256, "shared": 256})
	s.tiersOf(t, "all of it", prompt, two, map[string]int{"cpu": 512, "shared": 512})
	resp := must.Get(s.c.Score(t.Context(), client.ScoreRequest{Model: model, Tokens: prompt}))(t)
	// In blocks of 64: 8 + 4*0.8 + 4*0.3, and 8*0.8 + 8*0.3.
	if resp.Best != one || fmt.Sprintf("%.1f %.1f", resp.Scores[one], resp.Scores[two]) != "12.4 8.8" {
		t.Errorf("%+v", resp)
	}

	worker.Do("evict", chunks[0])
	s.tiersOf(t, "evicted, and in the shared store still", prompt, two, map[string]int{"cpu": 256, "shared": 768})
	worker.Kill()
	s.tiersOf(t, "crashed", prompt, two, map[string]int{"shared": 1024})
	v.publish(removedFrom(gpu[16:], "GPU"))
	s.tiersOf(t, "the GPU's end", prompt, one, map[string]int{"gpu": 256, "cpu": 512, "shared": 256})
}

// TestLMCacheRoundTrips: what LMCache holds is asked for in the round trip of the blocks.
// There is one for each window of a prompt that is held, as without LMCache. By default
// windows are of 64 and 256 blocks and then larger, and take a rest along that is no longer.
func TestLMCacheRoundTrips(t *testing.T) {
	const pod = "10.0.0.1:8000"
	redis := redistest.Start(t)
	// Only scores: nothing else calls Redis by the index's own count.
	r := start(t, "--redis="+redis.URL(), "--roles=score", "--score-budget=5s", "--lmcache-models=m?version=fork,m?version=0.3.1,m?version=0.5.6&vllm=false&dtype=half&remote=redis")
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
	trips := func() (n int) {
		must.Get(fmt.Sscan(s.figure(t, "kvatlas_index_round_trips_total"), &n))(t)
		return n
	}
	// Blocks are of 64 tokens. The pod has the first in its GPU and the rest in LMCache, of which
	// the last quarter is in the remote store alone.
	for i, c := range []struct{ blocks, gpu, windows int }{{16, 4, 1}, {128, 64, 1}, {200, 100, 2}, {640, 200, 3}} {
		prompt := tokensFrom(uint32(100_000*i), 64*c.blocks)
		must.Get(s.c.Blocks(t.Context(), client.BlocksRequest{Op: "add", Model: "m", Pod: pod, Tokens: prompt[:64*c.gpu]}))(t)
		names := must.Get(lmcache.Keys(lmcache.Config{Version: lmcache.V031}, lmcache.Target{Model: "m", WorldSize: 1}, prompt))(t)
		tensors := must.Get(lmcache.Keys(lmcache.Config{Version: lmcache.V046}, lmcache.Target{Model: "m", WorldSize: 1, DType: "half"}, prompt))(t)
		last := len(names) * 3 / 4
		pipe := redis.Client().Pipeline()
		for _, name := range names[c.gpu/4 : last] {
			pipe.Set(t.Context(), name, "10.0.0.1", 0)
		}
		for _, name := range tensors[last:] {
			pipe.Set(t.Context(), name+"metadata", "x", 0)
		}
		must.Get(pipe.Exec(t.Context()))(t)
		want := map[string]int{"gpu": 64 * c.gpu, "cpu": 256*last - 64*c.gpu, "shared": 64*c.blocks - 256*last}
		what := fmt.Sprintf("%d blocks", c.blocks)
		s.tiersOf(t, what, prompt, pod, want)
		// A sweep may come in between, or a try that is late; in no try would there be
		// fewer than the windows.
		least := 1 << 20
		for range 5 {
			before := trips()
			s.tiersOf(t, what, prompt, pod, want)
			least = min(least, trips()-before)
		}
		if least != c.windows {
			t.Errorf("a score of %s takes %d round trips, want %d", what, least, c.windows)
		}
	}
}
