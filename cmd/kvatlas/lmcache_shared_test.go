package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// sharedWorker is a worker as LMCache 0.5.6 is one: a DEALER for requests, a PUSH for
// operations.
type sharedWorker struct {
	t         *testing.T
	ask, push *lmcachetest.Socket
	instance  string
}

// request asks and returns the answer.
func (w *sharedWorker) request(kind string, more map[string]any) map[string]any {
	w.t.Helper()
	v, _, err := msgp.ReadIntfBytes(w.ask.Ask(w.message(kind, more)))
	m, ok := v.(map[string]any)
	if err != nil || !ok {
		w.t.Fatal(v, err)
	}
	return m
}

func (w *sharedWorker) message(kind string, more map[string]any) []byte {
	w.t.Helper()
	m := map[string]any{"type": kind, "instance_id": w.instance, "worker_id": 0}
	for k, v := range more {
		m[k] = v
	}
	b := must.Get(msgp.AppendIntf(nil, m))(w.t)
	return b
}

func (w *sharedWorker) admit(keys ...uint64) {
	w.t.Helper()
	var ops []any
	for i, key := range keys {
		ops = append(ops, map[string]any{"op_type": "admit", "key": key, "seq_num": i})
	}
	w.push.Send(w.message("BatchedKVOperationMsg", map[string]any{"location": "LocalCPUBackend", "operations": ops}))
}

// peer is where a chunk is, as the worker is told.
func (w *sharedWorker) peer(key uint64) string {
	w.t.Helper()
	r := w.request("BatchedP2PLookupMsg", map[string]any{"hashes": []any{key}})
	return fmt.Sprint(r["layout_info"].([]any)[0].([]any)[3])
}

// TestCaseTwoPodsWithOneInstanceID: two engines have got one lmcache_instance_id, and a
// third has its own. What one of the two holds is never credited to the other, nor are peers
// sent there. Where their connections come from different hosts each counts. The log and the
// doctor name both.
func TestCaseTwoPodsWithOneInstanceID(t *testing.T) {
	const first, second, third = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"
	prompt := tokens(512)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}))(t)
	var chunks []uint64
	for _, hash := range h.Append(nil, prompt) {
		v, _, _ := hash.Int()
		chunks = append(chunks, v)
	}
	other := chunks[0] + 1 // of no prompt
	for _, c := range []struct {
		name                 string
		hosts                [2]string
		peerOfOne, peerOfTwo string
		tokensOfOne          int // that its own chunk is worth
		doctor, log          string
	}{
		{"from one host", [2]string{"127.0.0.1", "127.0.0.1"}, "", "", 0, "used by several processes: llama-cache/0 by 10.0.0.1:9000", "10.0.0.1:9000 (connected from 127.0.0.1:"},
		{"from two hosts", [2]string{"127.0.0.2", "127.0.0.3"}, "10.0.0.1:8200", "10.0.0.2:8200", 256, "used at several addresses: llama-cache/0 at 10.0.0.1 and 10.0.0.2", "10.0.0.1 (connected from 127.0.0.2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			redis := redistest.Start(t)
			pull, reply := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
			profile := "m?version=0.5.6&algorithm=sha256_cbor&seed=0"
			r := start(t, "--redis="+redis.URL(), "--lmcache-models="+profile, "--lmcache-controller-pull=tcp://"+pull, "--lmcache-controller-reply=tcp://"+reply)
			for _, pod := range []string{first, second, third} {
				must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
			}
			worker := func(host, instance, ip string) *sharedWorker {
				w := &sharedWorker{t, lmcachetest.Connect(t, host, reply, "DEALER"), lmcachetest.Connect(t, host, pull, "PUSH"), instance}
				w.request("RegisterMsg", map[string]any{"ip": ip, "port": 9000, "peer_init_url": ip + ":8200"})
				return w
			}
			one, two := worker(c.hosts[0], "llama-cache", "10.0.0.1"), worker(c.hosts[1], "llama-cache", "10.0.0.2")
			three := worker("127.0.0.1", third, "10.0.0.9")
			three.admit(chunks...)
			two.admit(other)
			one.admit(chunks[0])
			s := &served{url: r.url, log: r.stderr, c: r.client()}
			s.tiersOf(t, "its own", prompt, third, map[string]int{"cpu": 512})
			want := map[string]int{}
			if c.tokensOfOne > 0 {
				want["cpu"] = c.tokensOfOne
			}
			s.tiersOf(t, "its own", prompt, first, want)
			s.tiersOf(t, "not its own", prompt, second, map[string]int{})
			// Both of the shared id have been heard by now, or are not to be.
			lmcachetest.WaitFor(t, "the answers to a peer", func() bool { return three.peer(other) == c.peerOfTwo })
			if got := two.peer(chunks[1]); c.tokensOfOne > 0 && got != "10.0.0.9:8200" && got != "" {
				t.Errorf("the third's chunk is at %q", got)
			}
			one.admit(chunks[0])
			two.admit(other)
			lmcachetest.WaitFor(t, "the same after more of each", func() bool { return three.peer(other) == c.peerOfTwo && three.peer(chunks[0]) == c.peerOfOne })
			s.tiersOf(t, "not its own", prompt, second, map[string]int{})

			line := r.await(func() map[string]any {
				return r.logged("several workers of LMCache use one id: give each engine an lmcache_instance_id of its own; those behind one address do not count")
			})
			if by := fmt.Sprint(line["used_by"]); !strings.Contains(by, c.log) || !strings.Contains(by, "10.0.0.2") {
				t.Errorf("the log says %v", line)
			}
			found := ""
			for end := time.Now().Add(patience); time.Now().Before(end) && !strings.Contains(found, c.doctor); {
				_, stdout, _ := call(t, "", "doctor", "lmcache", "--redis="+redis.URL(), "--profile="+profile, "--json")
				found = stdout
			}
			if !strings.Contains(found, c.doctor) || !strings.Contains(found, "10.0.0.2") || !json.Valid([]byte(found)) {
				t.Errorf("the doctor says %s", found)
			}
		})
	}
}

// Two of LMCache's own workers, of 0.5.6, with one id: nothing of either counts, until one of them ends and
// the other reports its content.
func TestLMCacheWorkersWithOneID(t *testing.T) {
	pull, reply, beat := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
	r := start(t, "--redis="+redistest.Start(t).URL(), "--lmcache-lease=6s", "--lmcache-models=m?version=0.5.6&vllm=false",
		fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), fmt.Sprintf("--lmcache-controller-reply=tcp://127.0.0.1:%d", reply),
		fmt.Sprintf("--lmcache-controller-heartbeat=tcp://127.0.0.1:%d", beat))
	must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: "inst", Model: "m"}))
	prompt := tokens(1024)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046}))(t)
	var chunks []any
	for _, hash := range h.Append(nil, prompt) {
		v, _, _ := hash.Int()
		chunks = append(chunks, int64(v))
	}
	worker := func() *lmcachetest.Client {
		return lmcachetest.Start(t, lmcachetest.Options{
			Kind: "0.5.6", Instance: "inst", World: 1, Heartbeat: 1, Port: redistest.FreePort(t), Pull: fmt.Sprintf("127.0.0.1:%d", pull), Reply: fmt.Sprintf("127.0.0.1:%d", reply),
		})
	}
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	one := worker()
	one.Do("admit", chunks...)
	s.tiersOf(t, "one alone", prompt, "inst", map[string]int{"cpu": 1024})
	two := worker()
	s.tiersOf(t, "two of them", prompt, "inst", map[string]int{})
	two.Do("admit", chunks[0])
	one.Do("evict", chunks[3])
	s.tiersOf(t, "two that speak", prompt, "inst", map[string]int{})
	one.Kill()
	s.tiersOf(t, "the one that is left", prompt, "inst", map[string]int{"cpu": 256})
}
