package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// keysIn is all keys of a Redis in order that are not kvatlas' own.
func keysIn(t *testing.T, s *redistest.Server) (out []string) {
	t.Helper()
	keys := must.Get(s.Client().Keys(t.Context(), "*@*@*").Result())(t)
	slices.Sort(keys)
	return keys
}

// entriesOf reads what a lookup server holds: keys, and the pods that they name.
func entriesOf(t *testing.T, holds []json.RawMessage) (keys []string, owners map[string]int) {
	t.Helper()
	owners = map[string]int{}
	for _, h := range holds {
		var pair [2]string
		must.OK(t, json.Unmarshal(h, &pair))
		keys = append(keys, pair[0])
		owners[pair[1]]++
	}
	slices.Sort(keys)
	return keys, owners
}

// TestLMCacheLookupServers: a score finds what the lookup servers of 0.3.1 and 0.3.6 SET and DEL
// in Redis. Two pods and two tensor-parallel workers are included.
func TestLMCacheLookupServers(t *testing.T) {
	for version, profile := range map[string]string{"0.3.1": "version=0.3.1", "0.3.6": "version=0.3.6&vllm=false&python=3.12"} {
		t.Run(version, func(t *testing.T) {
			const one, two = "10.0.0.1:8000", "10.0.0.2:8000"
			redis := redistest.Start(t)
			r := start(t, "--redis="+redis.URL(), "--score-budget=5s", "--lmcache=set", "--lmcache-models=m?"+profile+"&world_size=1+2")
			s := &served{url: r.url, log: r.stderr, c: r.client()}
			register := func(pod string) {
				t.Helper()
				must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
			}
			register(one)
			register(two)
			prompt := tokensFrom(0, 1024)
			run := func(address string, worker, world int) *lmcachetest.Client {
				return lmcachetest.Start(t, lmcachetest.Options{
					Kind: "lookup-" + version, Model: "m", Worker: worker, World: world, Redis: redis.Addr, Address: address, Prompt: prompt,
				})
			}
			// both are what is matched of the pods, in tokens.
			both := func(what string, first, second int) {
				t.Helper()
				for pod, n := range map[string]int{one: first, two: second} {
					want := map[string]int{"cpu": n}
					if n == 0 {
						want = map[string]int{}
					}
					s.tiersOf(t, what, prompt, pod, want)
				}
			}
			config := lmcache.Config{Version: lmcache.V031}
			if version == "0.3.6" {
				config = lmcache.Config{Version: lmcache.V036, Python: 12}
			}
			names := must.Get(lmcache.Keys(config, lmcache.Target{Model: "m", WorldSize: 1}, prompt))(t)
			slices.Sort(names)

			a := run("10.0.0.1:8200", 0, 1)
			keys, owners := entriesOf(t, a.Do("admit", 0, 1, 2, 3))
			if !slices.Equal(keys, names) || !slices.Equal(keysIn(t, redis), names) || owners["10.0.0.1:8200"] != 4 {
				t.Fatalf("LMCache holds %q of %v; want %q; in Redis are %q", keys, owners, names, keysIn(t, redis))
			}
			both("stored", 1024, 0)
			keys, _ = entriesOf(t, a.Do("evict", 3))
			both("its end evicted", 768, 0)
			if !slices.Equal(keysIn(t, redis), keys) {
				t.Errorf("LMCache holds %q, in Redis are %q", keys, keysIn(t, redis))
			}
			a.Do("evict", 0)
			both("its beginning evicted", 0, 0)
			a.Do("admit", 0)
			both("stored again", 768, 0)

			// A key names one pod, the last to write it; a pod that evicts deletes it for all.
			b := run("10.0.0.2:8200", 0, 1)
			b.Do("admit", 0, 1)
			both("stored by another", 0, 512)
			if _, owners := entriesOf(t, a.Do("holds")); owners["10.0.0.2:8200"] != 2 || owners["10.0.0.1:8200"] != 1 {
				t.Errorf("LMCache itself names %v", owners)
			}
			b.Do("evict", 1)
			both("the other evicts", 0, 256)
			a.Do("admit", 0, 1, 2, 3)
			both("stored again", 1024, 0)

			// A dead process's entries are not taken back; they end with the pod.
			a.Kill()
			must.OK(t, s.c.DeletePod(t.Context(), one))
			both("crashed", 0, 0)
			register(one)
			both("its entries are there still", 1024, 0)
			a = run("10.0.0.1:8200", 0, 1)
			a.Do("evict", 0, 1, 2, 3) // as LMCache's clear does
			both("cleared", 0, 0)
			if keys := keysIn(t, redis); len(keys) != 0 {
				t.Errorf("in Redis are %q", keys)
			}

			// Two workers: what both have is whole.
			first, second := run("10.0.0.2:8200", 0, 2), run("10.0.0.2:8201", 1, 2)
			first.Do("admit", 0, 1, 2, 3)
			both("half of it", 0, 0)
			second.Do("admit", 0, 1, 2, 3)
			both("both halves", 0, 1024)
			second.Do("evict", 2)
			both("one evicts", 0, 512)
		})
	}
}

// TestLMCacheRemoteStores: LMCache's native client puts tensors into Redis, as the remote
// store of an engine or the second level of MP mode. They are every pod's in tier shared,
// until they are deleted.
func TestLMCacheRemoteStores(t *testing.T) {
	for _, c := range []struct {
		kind, profile string
		config        lmcache.Config
		dtype         string
	}{
		{"resp-0.5.6", "version=0.5.6&vllm=false&dtype=bfloat16", lmcache.Config{Version: lmcache.V046}, "bfloat16"},
		{"mp-resp-0.5.6", "version=0.5.6&mp=true", lmcache.Config{Version: lmcache.V046, MP: true}, ""},
	} {
		t.Run(c.kind, func(t *testing.T) {
			redis := redistest.Start(t)
			r := start(t, "--redis="+redis.URL(), "--score-budget=5s", "--lmcache-models=m?"+c.profile+"&remote=resp")
			s := &served{url: r.url, log: r.stderr, c: r.client()}
			pods := []string{"10.0.0.1:8000", "10.0.0.2:8000"}
			for _, pod := range pods {
				must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
			}
			prompt := tokensFrom(0, 1024)
			names := must.Get(lmcache.Keys(c.config, lmcache.Target{Model: "m", WorldSize: 1, DType: c.dtype}, prompt))(t)
			run := func() *lmcachetest.Client {
				return lmcachetest.Start(t, lmcachetest.Options{Kind: c.kind, Model: "m", Redis: redis.Addr, Prompt: prompt})
			}
			a := run()
			// held is which chunks LMCache and Redis have; a score has those before the first
			// that is missing.
			held := func(what string, holds []json.RawMessage, numbers ...int) {
				t.Helper()
				want, shared := make([]string, 0, len(numbers)), map[string]int{}
				for i, n := range numbers {
					want = append(want, names[n])
					if n == i {
						shared["shared"] += 256
					}
				}
				slices.Sort(want)
				var got []string
				for _, h := range holds {
					var name string
					must.OK(t, json.Unmarshal(h, &name))
					got = append(got, name)
				}
				slices.Sort(got)
				if !slices.Equal(got, want) || !slices.Equal(keysIn(t, redis), want) {
					t.Fatalf("%s: LMCache finds %q, in Redis are %q; want %q", what, got, keysIn(t, redis), want)
				}
				for _, pod := range pods {
					s.tiersOf(t, what, prompt, pod, shared)
				}
			}
			// remove is MP mode's own eviction; a remote store's is Redis'.
			remove := func(number int) []json.RawMessage {
				if c.config.MP {
					return a.Do("evict", number)
				}
				must.OK(t, redis.Client().Del(t.Context(), names[number]).Err())
				return a.Do("holds")
			}
			held("nothing", a.Do("holds"))
			held("the first two", a.Do("admit", 0, 1), 0, 1)
			held("all", a.Do("admit", 2, 3), 0, 1, 2, 3)
			held("a hole", remove(1), 0, 2, 3)
			held("the beginning is gone", remove(0), 2, 3)
			held("stored again", a.Do("admit", 0, 1), 0, 1, 2, 3)
			a.Kill()
			a = run()
			held("another process finds them", a.Do("holds"), 0, 1, 2, 3)
			for _, name := range names {
				if v, err := redis.Client().Get(t.Context(), name).Result(); err != nil || len(v) != 2048 {
					t.Errorf("%s has %d bytes, %v", name, len(v), err)
				}
			}
			var holds []json.RawMessage
			for number := range names {
				holds = remove(number)
			}
			held("cleared", holds)
		})
	}
}

// TestLMCacheEngine: the whole LMCacheEngine of 0.5.6. What it has in CPU memory it tells the
// controller, and what it puts into its remote store is found there. Its KV events come as
// vLLM would publish them.
func TestLMCacheEngine(t *testing.T) {
	const (
		one, two = "10.0.0.1:8000", "10.0.0.2:8000" // two has the KV events
		chunk    = 256
	)
	redis := redistest.Start(t)
	v := newVLLMTopic(t)
	pull, reply, beat := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
	r := start(t, "--redis="+redis.URL(), "--score-budget=5s", "--lmcache-lease=6s", "--lmcache-instances=engine="+one,
		fmt.Sprintf("--lmcache-controller-pull=tcp://127.0.0.1:%d", pull), fmt.Sprintf("--lmcache-controller-reply=tcp://127.0.0.1:%d", reply),
		fmt.Sprintf("--lmcache-controller-heartbeat=tcp://127.0.0.1:%d", beat), "--pods="+two+"?model=m&events="+v.events+"&replay="+v.replay,
		"--lmcache-models=m?version=0.5.6&vllm=false&dtype=bfloat16&remote=redis")
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: one, Model: "m"}))
	run := func() *lmcachetest.Client {
		return lmcachetest.Start(t, lmcachetest.Options{
			Kind: "engine-0.5.6", Instance: "engine", Model: "m", Redis: redis.Addr, Heartbeat: 1, Port: redistest.FreePort(t),
			Pull: fmt.Sprintf("127.0.0.1:%d", pull), Reply: fmt.Sprintf("127.0.0.1:%d", reply),
		})
	}
	// Prompts of 4, 3 and 2 chunks.
	rows := [][2]int{{0, 4 * chunk}, {5000, 3 * chunk}, {9000, 2 * chunk}}
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046}))(t)
	// equal looks at all prompts. In CPU memory is what the engine holds, in the remote store
	// what is in Redis, and a chunk in both is the nearer one's.
	equal := func(what string, holds []json.RawMessage, chunks int) {
		t.Helper()
		held := map[string]bool{}
		for _, k := range holds {
			var v int64
			must.OK(t, json.Unmarshal(k, &v))
			held[lmcache.IntHash(v).String()] = true
		}
		if len(held) != chunks {
			t.Fatalf("%s: the engine holds %s, want %d chunks", what, holds, chunks)
		}
		for _, row := range rows {
			prompt := tokensFrom(uint32(row[0]), row[1])
			want := map[string]int{}
			for _, hash := range h.Append(nil, prompt) {
				n := must.Get(redis.Client().Exists(t.Context(), "m@1@0@"+hash.String()+"@bfloat16metadata").Result())(t)
				tier := "cpu"
				if !held[hash.String()] {
					tier = "shared"
					if n == 0 {
						break
					}
				}
				want[tier] += chunk
			}
			s.tiersOf(t, fmt.Sprintf("%s, %d tokens", what, row[1]), prompt, one, want)
		}
	}
	remote := func(want int) {
		t.Helper()
		awaitThat(t, "the remote store", r.stderr, func() bool {
			keys, err := redis.Client().Keys(t.Context(), "m@*metadata").Result()
			return err == nil && len(keys) == want
		})
	}

	e := run()
	equal("nothing", e.Do("holds"), 0)
	e.Do("admit", rows[0][0], rows[0][1])
	e.Do("admit", rows[1][0], rows[1][1])
	remote(7)
	equal("stored", e.Do("holds"), 7)

	// The events, as they are: one token too many each.
	events := e.Do("events")
	if len(events) != 7 {
		t.Fatalf("%d events", len(events))
	}
	for _, text := range events {
		var told lmcacheEvent
		must.OK(t, json.Unmarshal(text, &told))
		v.publish(told.bytes(msgp.AppendString(nil, told.Medium)))
	}
	// They are nearer than the remote store, which all pods have.
	s.tiersOf(t, "KV events", tokensFrom(0, 4*chunk), two, map[string]int{"cpu": 4 * chunk})
	s.tiersOf(t, "KV events", tokensFrom(5000, 3*chunk), two, map[string]int{"cpu": 3 * chunk})

	// What the remote store has still is there when the memory's is evicted.
	equal("evicted", e.Do("evict", rows[0][0], rows[0][1]), 3)
	e.Do("admit", rows[2][0], rows[2][1])
	remote(9)
	equal("stored", e.Do("holds"), 5)

	// Messages that are lost: the next one shows the hole, and a full sync tells.
	synced := s.figure(t, "kvatlas_lmcache_syncs_total")
	e.Do("lose", rows[1][0], rows[1][1])
	e.Do("evict", rows[2][0], chunk)
	equal("after a loss", e.Do("holds"), 1)
	awaitThat(t, "a full sync", r.stderr, func() bool { return s.figure(t, "kvatlas_lmcache_syncs_total") != synced })

	// Redis evicts of the remote store.
	names, err := redis.Client().Keys(t.Context(), "m@1@0@*").Result()
	if err != nil || len(names) != 18 {
		t.Fatalf("%q, %v", names, err)
	}
	must.OK(t, redis.Client().Del(t.Context(), names...).Err())
	equal("no remote store", e.Do("holds"), 1)
	e.Do("admit", rows[0][0], rows[0][1])
	remote(4)
	equal("stored again", e.Do("holds"), 5)
	equal("cleared", e.Do("clear"), 0)
	e.Do("admit", rows[1][0], rows[1][1])
	remote(7)
	equal("and stored", e.Do("holds"), 3)
	e.Kill()
	equal("crashed", nil, 0)
	e = run()
	e.Do("admit", rows[2][0], rows[2][1])
	remote(9)
	equal("another process", e.Do("holds"), 2)
}
