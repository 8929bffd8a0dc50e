package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// What LMCache has written to the Redis of the index counts with no setting but --redis. The
// form, algorithm, seed and chunk size are learnt from it. What another model has filed of
// the same tokens does not count, and nothing that cannot be recomputed does.
func TestLMCacheIsLearnt(t *testing.T) {
	const one, two, named = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8200"
	prompt := tokens(1024)
	for what, c := range map[string]struct {
		config lmcache.Config
		target lmcache.Target
		suffix string // of tensors; else the value is an address
		want   map[string]float64
		named  map[string]float64
		log    string
	}{
		"strings of 0.3.1": {
			lmcache.Config{Version: lmcache.V031}, lmcache.Target{WorldSize: 1}, "",
			map[string]float64{}, map[string]float64{named: 12.8, one: 0}, "version=0.3.2",
		},
		"hashes of the fork, chunks of 64": {
			lmcache.Config{Version: lmcache.VFork, ChunkSize: 64}, lmcache.Target{}, "",
			map[string]float64{}, map[string]float64{named: 12.8, one: 0}, "version=fork&chunk_size=64",
		},
		"strings of 0.3.6 outside of vLLM": {
			lmcache.Config{Version: lmcache.V036, Python: 12}, lmcache.Target{WorldSize: 2}, "",
			map[string]float64{}, map[string]float64{named: 12.8, one: 0}, "version=0.3.9&vllm=false",
		},
		"the remote store of 0.5.6, chunks of 512": {
			lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0", ChunkSize: 512}, lmcache.Target{WorldSize: 2, DType: "bfloat16"}, "metadata",
			map[string]float64{one: 4.8, two: 4.8}, map[string]float64{named: 4.8, one: 4.8}, "algorithm=sha256_cbor&seed=0&chunk_size=512&dtype=bfloat16&world_size=2&remote=redis",
		},
		"the remote store resp of 0.4.1": {
			lmcache.Config{Version: lmcache.V041, Algorithm: lmcache.XXHashCBOR, VLLM: true, Seed: "42"}, lmcache.Target{WorldSize: 1, DType: "half"}, "none",
			map[string]float64{one: 4.8, two: 4.8}, map[string]float64{named: 4.8, one: 4.8}, "algorithm=xxhash_cbor&seed=42&dtype=half&remote=resp",
		},
	} {
		for _, topology := range []string{"standalone", "cluster"} {
			t.Run(what+"/"+topology, func(t *testing.T) {
				t.Parallel()
				var url string
				var plain redis.UniversalClient
				if topology == "cluster" {
					s := redistest.StartCluster(t, 3, false)
					url, plain = s.URL(), s.Client()
				} else {
					s := redistest.Start(t)
					url, plain = s.URL(), s.Client()
				}
				h := must.Get(lmcache.New(c.config))(t)
				file := func(model string, prompt []uint32) {
					for worker := range max(1, c.target.WorldSize) {
						target := c.target
						target.Model, target.WorkerID = model, worker
						keys, err := h.AppendKeys(nil, target, prompt)
						must.OK(t, err)
						for _, key := range keys {
							switch {
							case c.config.Version == lmcache.VFork:
								err = plain.HSet(t.Context(), key, "10.0.0.3", fmt.Sprintf("vllm@1@0@%d.5", time.Now().Unix())).Err()
							case c.suffix == "":
								err = plain.Set(t.Context(), key, named, 0).Err()
							default:
								err = plain.Set(t.Context(), key+strings.TrimSuffix(c.suffix, "none"), "x", 0).Err()
							}
							must.OK(t, err)
						}
					}
				}
				file("m", prompt)
				file("other", prompt)
				r := start(t, "--redis="+url)
				for _, pod := range []string{one, two} {
					for _, model := range []string{"m", "third"} {
						must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: strings.Replace(pod, ":8", ":"+fmt.Sprint(len(model)), 1), Model: model}))
					}
					must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m"}))
				}
				ask := func(model string, prompt []uint32, pods ...string) map[string]float64 {
					t.Helper()
					resp, err := r.client().Score(t.Context(), client.ScoreRequest{Model: model, Tokens: prompt, Pods: pods})
					if err != nil || resp.Degraded != nil {
						t.Fatal(resp, err)
					}
					return resp.Scores
				}
				lmcachetest.WaitFor(t, what, func() bool { return maps.Equal(ask("m", prompt, named, one), c.named) })
				if got := ask("m", prompt, one, two); !maps.Equal(got, c.want) && !(len(c.want) == 0 && got[one]+got[two] == 0) {
					t.Errorf("%v, want %v", got, c.want)
				}
				line := r.await(func() map[string]any { return r.loggedWith("learnt how engines run LMCache") })
				if profile := fmt.Sprint(line["profile"]); line["model"] != "m" || !strings.Contains(profile, c.log) {
					t.Errorf("the log says %v, want %s", line, c.log)
				}
				// Another prompt of the model that is not there, and other models of the same tokens.
				for model, prompt := range map[string][]uint32{"m": tokensFrom(5000, 1024), "third": prompt} {
					for range 3 {
						for pod, score := range ask(model, prompt, named, one) {
							if score != 0 {
								t.Errorf("%s: %s has %v", model, pod, score)
							}
						}
					}
				}
				list := must.Get(json.Marshal(prompt))(t)
				path := filepath.Join(t.TempDir(), "prompt.json")
				must.OK(t, os.WriteFile(path, list, 0o600))
				_, stdout, _ := call(t, "", "doctor", "lmcache", "--redis="+url, "--model=m", "--tokens-file="+path, "--json")
				if !strings.Contains(stdout, "learnt from the entries") || !strings.Contains(strings.ReplaceAll(stdout, `\u0026`, "&"), c.log) {
					t.Errorf("the doctor says\n%s", stdout)
				}
			})
		}
	}
}
