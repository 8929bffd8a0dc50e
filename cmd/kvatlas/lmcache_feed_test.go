package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// LMCache's own workers, two of a tensor-parallel pod and one of another, and a server of MP
// mode. What they hold counts in scores, in tokens, with the weights of its tiers.
func TestLMCacheIsHeard(t *testing.T) {
	pull, reply, beat, mp := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
	r := start(t, "--redis="+redistest.Start(t).URL(), "--score-budget=5s", "--lmcache-lease=6s", "--lmcache-instances=two=pod-two,one=pod-one",
		fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), fmt.Sprintf("--lmcache-controller-reply=tcp://127.0.0.1:%d", reply),
		fmt.Sprintf("--lmcache-controller-heartbeat=tcp://127.0.0.1:%d", beat), fmt.Sprintf("--lmcache-coordinator-listen=127.0.0.1:%d", mp),
		"--lmcache-models=m?version=0.5.6&vllm=false,m?version=0.5.6&mp=true")
	c := r.client()
	for _, p := range []string{"pod-two", "pod-one", "mp"} {
		must.OK(t, c.RegisterPod(t.Context(), client.Pod{Name: p, Model: "m"}))
	}
	prompt := tokens(1024)
	ints := func(config lmcache.Config) (keys []any) {
		h := must.Get(lmcache.New(config))(t)
		for _, hash := range h.Append(nil, prompt) {
			switch v, negative, ok := hash.Int(); {
			case !ok:
				keys = append(keys, hash.String())
			case negative:
				keys = append(keys, int64(v))
			default:
				keys = append(keys, v)
			}
		}
		return keys
	}
	chunks := ints(lmcache.Config{Version: lmcache.V046})
	mpChunks := ints(lmcache.Config{Version: lmcache.V046, MP: true})
	if len(chunks) != 4 || len(mpChunks) != 4 {
		t.Fatalf("%d and %d chunks of 1024 tokens", len(chunks), len(mpChunks))
	}
	scores := func(want string) {
		t.Helper()
		eventually.NoError(t, "scores", func() error {
			resp := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: prompt}))(t)
			// In chunks of 256 tokens; an index block has 64.
			list := make([]string, 0, 3)
			for _, p := range []string{"pod-two", "pod-one", "mp"} {
				list = append(list, fmt.Sprintf("%.1f", resp.Scores[p]/4))
			}
			if got := strings.Join(list, " "); got != want {
				return fmt.Errorf("they are %s, want %s\n%s", got, want, r.stderr)
			}
			return nil
		})
	}
	worker := func(instance string, n, world int) *lmcachetest.Client {
		return lmcachetest.Start(t, lmcachetest.Options{
			Kind: "0.5.6", Instance: instance, Worker: n, World: world, Heartbeat: 1, Port: redistest.FreePort(t),
			Pull: fmt.Sprintf("127.0.0.1:%d", pull), Reply: fmt.Sprintf("127.0.0.1:%d", reply),
		})
	}
	a, b, one := worker("two", 0, 2), worker("two", 1, 2), worker("one", 0, 1)
	server := lmcachetest.Start(t, lmcachetest.Options{
		Kind: "mp-0.5.6", Instance: "mp", Model: "m", Heartbeat: 1, Port: redistest.FreePort(t), Coordinator: fmt.Sprintf("http://127.0.0.1:%d", mp), Incarnation: 1,
	})
	a.Do("admit", chunks...)
	b.Do("admit", chunks...)
	one.Do("admit", chunks[:2]...)
	server.Do("admit", mpChunks[:1]...)
	server.Do("share", mpChunks[:3]...)
	scores("3.2 1.6 1.4") // 4 and 2 chunks in CPU memory; one there and two in the shared level
	// One of two tensor-parallel workers evicts the third chunk.
	b.Do("evict", chunks[2])
	scores("1.6 1.6 1.4")
	// One dies without a word.
	one.Kill()
	scores("1.6 0.0 1.4")
	b.Do("admit", chunks[2])
	a.Do("lose", chunks[1]) // a full sync tells
	a.Do("evict", chunks[3])
	scores("0.8 0.0 1.4")
	if status, body := get(t, r.url+"/metrics"); status != http.StatusOK || !strings.Contains(body, "kvatlas_lmcache_syncs_total") || !strings.Contains(body, "kvatlas_lmcache_mp_stored_total 4") {
		t.Errorf("metrics: %d\n%s", status, body)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
}

// Sockets that cannot be bound end the program with a reason.
func TestLMCachePortIsTaken(t *testing.T) {
	r := start(t)
	taken := strings.TrimPrefix(r.url, "http://")
	for _, flag := range []string{"--lmcache-controller-pull=tcp://" + taken, "--lmcache-coordinator-listen=" + taken} {
		status, _, stderr := call(t, "", "serve", "--hub-offline", "--hub-cache="+t.TempDir(), "--listen=127.0.0.1:0", flag)
		if status != cli.ExitFailed || !strings.Contains(stderr, taken) {
			t.Errorf("%s: ends with %d\n%s", flag, status, stderr)
		}
	}
}
