package main

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// TestLMCacheIsAsked: two replicas have a worker of LMCache 0.5.6 each, and Redis loses a
// part of what they hold, and gets what they do not. A replica that is asked to has its own worker send
// everything again, by LMCache's own full sync, and no other replica's.
func TestLMCacheIsAsked(t *testing.T) {
	s := redistest.Start(t)
	replica := func(more ...string) (r *running, worker *lmcachetest.Client, instance string) {
		t.Helper()
		pull, reply, beat := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
		instance = fmt.Sprint("inst-", pull)
		r = start(t, append(more, "--redis="+s.URL(), "--score-budget=5s", "--lmcache-models=m?version=0.5.6&vllm=false",
			fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), fmt.Sprintf("--lmcache-controller-reply=tcp://127.0.0.1:%d", reply),
			fmt.Sprintf("--lmcache-controller-heartbeat=tcp://127.0.0.1:%d", beat))...)
		must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: instance, Model: "m"}))
		worker = lmcachetest.Start(t, lmcachetest.Options{
			Kind: "0.5.6", Instance: instance, Heartbeat: 1, Port: redistest.FreePort(t), Pull: fmt.Sprintf("127.0.0.1:%d", pull), Reply: fmt.Sprintf("127.0.0.1:%d", reply),
		})
		return r, worker, instance
	}
	one, a, podA := replica("--admin-listen=127.0.0.1:0")
	two, b, podB := replica()

	prompt := tokensFrom(0, 1024)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046}))(t)
	hashes := h.Append(nil, prompt)
	chunks := make([]any, len(hashes))
	for i, hash := range hashes {
		v, _, _ := hash.Int()
		chunks[i] = int64(v)
	}
	scores := &served{url: two.url, log: two.stderr, c: two.client()}
	holds := func(what, pod string, tokens int) {
		t.Helper()
		want := map[string]int{}
		if tokens > 0 {
			want["cpu"] = tokens
		}
		scores.tiersOf(t, what, prompt, pod, want)
	}
	a.Do("admit", chunks[:3]...)
	b.Do("admit", chunks...)
	holds("stored", podA, 768)
	holds("stored", podB, 1024)

	x := must.Get(redis.Open(redis.Config{URL: s.URL(), Timeout: 20 * time.Second}))(t)
	defer func() { _ = x.Close() }()
	damage := func(instance string, kind store.OpKind, chunk int) {
		t.Helper()
		var ops feed.Ops
		ops.Key(kind, store.CPU, hashes[chunk].ChunkKey())
		must.OK(t, x.Apply(t.Context(), store.Batch{Pod: lmcache.WorkerName(instance, "", 0), Model: "m", Ops: ops.List}))
	}
	damage(podA, store.Add, 3)
	holds("more than it holds", podA, 1024)
	damage(podA, store.Remove, 1)
	holds("less than it holds", podA, 256)
	damage(podB, store.Remove, 0)
	holds("nothing of its beginning", podB, 0)

	type answer struct{ Workers, Asked int }
	ask := func(url string, body map[string]any) (got answer, err error) {
		t.Helper()
		c := must.Get(client.New(client.Config{URL: url}))(t)
		defer c.Close()
		err = c.Call(t.Context(), http.MethodPost, "/v1/lmcache/sync", body, &got)
		return got, err
	}
	// asked asks until the worker can be asked, which it can from its first heartbeat on.
	asked := func(url string, body map[string]any) {
		t.Helper()
		awaitThat(t, "a worker that can be asked", two.stderr, func() bool {
			got, err := ask(url, body)
			if err != nil || got.Workers != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			return got.Asked == 1
		})
	}
	asked(one.admin, map[string]any{})
	holds("told again", podA, 768)
	holds("not asked", podB, 0)
	for url, code := range map[string]string{one.url: "not_found", one.admin: "unknown_worker"} {
		_, err := ask(url, map[string]any{"instance": podB})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusNotFound || e.Code != code {
			t.Errorf("%s: %v", url, err)
		}
	}
	asked(two.url, map[string]any{"instance": podB, "worker": 0})
	holds("told again", podB, 1024)
	// They go on as before.
	b.Do("evict", chunks[3])
	holds("evicted", podB, 768)
}
