package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// TestLMCacheIsWritten: what a worker of 0.3.1 tells the controller stands in Redis in both
// of LMCache's shapes. Another kvatlas finds it there, and it goes with the worker.
func TestLMCacheIsWritten(t *testing.T) {
	s := redistest.Start(t)
	pull := redistest.FreePort(t)
	const pod = "10.0.0.1:8000"
	r := start(t, "--redis="+s.URL(), "--lmcache-write=both", "--lmcache-lease=6s", fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), "--lmcache-models=m?version=0.3.1", "--lmcache-instances=inst="+pod)
	// The other has a prefix of its own, so that the entries are all that it can find.
	reader := start(t, "--redis="+s.URL(), "--redis-prefix=other", "--lmcache-models=m?version=0.3.1,m?version=fork", "--score-budget=5s")
	other := &served{url: reader.url, log: reader.stderr, c: reader.client()}
	for _, c := range []*client.Client{r.client(), other.c} {
		must.OK(t, c.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
	}
	prompt := tokensFrom(0, 1024)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V031}))(t)
	hashes := h.Append(nil, prompt)

	worker := lmcachetest.Start(t, lmcachetest.Options{Kind: "0.3.1", Instance: "inst", Pull: fmt.Sprintf("127.0.0.1:%d", pull), Port: redistest.FreePort(t)})
	all := make([]any, len(hashes))
	for i := range hashes {
		all[i] = hashes[i].String()
	}
	worker.Do("admit", all...)
	var names []string
	for _, hash := range hashes {
		names = append(names, "m@"+hash.String(), "vllm@m@1@0@"+hash.String())
	}
	slices.Sort(names)
	there := func() []string {
		var out []string
		for _, pattern := range []string{"m@*", "vllm@*"} {
			keys := must.Get(s.Client().Keys(t.Context(), pattern).Result())(t)
			out = append(out, keys...)
		}
		slices.Sort(out)
		return out
	}
	awaitThat(t, "all entries", r.stderr, func() bool { return slices.Equal(there(), names) })
	if v := s.Client().Get(t.Context(), "vllm@m@1@0@"+hashes[0].String()).Val(); v != pod {
		t.Errorf("the string names %q", v)
	}
	if v := s.Client().HGetAll(t.Context(), "m@"+hashes[0].String()).Val(); len(v) != 1 || !strings.HasPrefix(v[pod], "vllm@1@0@1") {
		t.Errorf("the hash has %v", v)
	}
	for _, name := range names {
		if ttl := s.Client().PTTL(t.Context(), name).Val(); ttl <= 0 {
			t.Errorf("%s has no time to live: %v", name, ttl)
		}
	}
	other.tiersOf(t, "what is written is read", prompt, pod, map[string]int{"cpu": 1024})
	own := &served{url: r.url, log: r.stderr, c: r.client()}
	own.tiersOf(t, "and heard", prompt, pod, map[string]int{"cpu": 1024})
	for name, want := range map[string]string{"kvatlas_lmcache_entries": "8", "kvatlas_lmcache_entries_written_total": "8", "kvatlas_lmcache_entries_nameless_total": "0"} {
		if got := own.figure(t, name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}

	worker.Do("evict", all[1])
	other.tiersOf(t, "evicted", prompt, pod, map[string]int{"cpu": 256})
	worker.Do("admit", all[1])
	other.tiersOf(t, "admitted again", prompt, pod, map[string]int{"cpu": 1024})
	worker.Kill()
	awaitThat(t, "the end of a silent worker", r.stderr, func() bool { return len(there()) == 0 })
	other.tiersOf(t, "silent", prompt, pod, map[string]int{})

	if status, _, stderr := call(t, "", "serve", "--hub-offline", "--hub-cache="+t.TempDir(), "--listen=127.0.0.1:0", "--lmcache-write=set", fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", redistest.FreePort(t))); status != cli.ExitFailed || !strings.Contains(stderr, "lmcache-write") {
		t.Errorf("without Redis it ends with %d\n%s", status, stderr)
	}
}
