package scorer_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/replica"
)

func firstTokens(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

func blockKeys(size int, tokens []uint32) []blockkey.Key {
	c := blockkey.Chain{BlockSize: size, Seed: blockkey.NativeSeed("", "")}
	return c.Append(nil, tokens)
}

func registerPods(t testing.TB, x store.Index, pods ...store.Pod) {
	t.Helper()
	for _, p := range pods {
		must.Get(x.Register(t.Context(), p))(t)
	}
}

func change(t testing.TB, x store.Index, kind store.OpKind, model, pod string, tier store.Tier, keys ...blockkey.Key) {
	t.Helper()
	must.OK(t, x.Apply(t.Context(), store.Batch{Pod: pod, Model: model, Ops: []store.Op{{Kind: kind, Tier: tier, Keys: keys}}}))
}

func memoryIndex(t testing.TB) *memory.Index {
	t.Helper()
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func want(t *testing.T, r *scorer.Response, want string) {
	t.Helper()
	if got := written(r); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestChunksThatDoNotCount: what a chunk's hash does not know is never claimed.
func TestChunksThatDoNotCount(t *testing.T) {
	x := memoryIndex(t)
	p := profile(256, false)
	tokens := firstTokens(1024)
	change(t, x, store.Add, "m", "a", store.CPU, chunkKeys(t, p, tokens)...)
	s := newScorer(t, scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, p)})
	image := func(start, end int) []blockkey.Object {
		return []blockkey.Object{{Hash: 7, Ranges: []blockkey.Range{{Start: start, End: end}}}}
	}
	for _, c := range []struct {
		name string
		r    scorer.Request
		want string
	}{
		{"tokens", scorer.Request{Input: scorer.Tokens(tokens)}, "a 12.8 16 [0 16 0 0]"},
		{"LoRA", scorer.Request{Input: scorer.Tokens(tokens), LoRA: "l"}, ""},
		{"salt", scorer.Request{Input: scorer.Tokens(tokens), Salt: "s"}, ""},
		{"block keys", scorer.Request{Input: scorer.BlockKeys(blockKeys(64, tokens))}, ""},
		{"an image in the third chunk", scorer.Request{Input: scorer.Tokens(tokens), Objects: image(600, 700)}, "a 6.4 8 [0 8 0 0]"},
		{"an image at the start", scorer.Request{Input: scorer.Tokens(tokens), Objects: image(0, 1)}, ""},
		{"an image without a token", scorer.Request{Input: scorer.Tokens(tokens), Objects: image(0, 0)}, "a 12.8 16 [0 16 0 0]"},
		{"a prompt that ends in a chunk", scorer.Request{Input: scorer.Tokens(tokens[:700])}, "a 6.4 8 [0 8 0 0]"},
		{"a prompt shorter than a block", scorer.Request{Input: scorer.Tokens(tokens[:63])}, ""},
		{"no prompt", scorer.Request{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.r.Model = "m"
			want(t, score(t, s, c.r), c.want)
		})
	}
	t.Run("another model", func(t *testing.T) {
		want(t, score(t, s, scorer.Request{Model: "n", Input: scorer.Tokens(tokens)}), "")
	})
	t.Run("without settings", func(t *testing.T) {
		want(t, score(t, newScorer(t, scorer.Config{Index: x}), scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}), "")
	})
	t.Run("a tail", func(t *testing.T) {
		p := profile(256, true)
		change(t, x, store.Add, "m", "b", store.Disk, chunkKeys(t, p, tokens[:700])...)
		s := newScorer(t, scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, p)})
		want(t, score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens[:700])}), "a 6.4 8 [0 8 0 0]; b 5 10 [0 0 10 0]")
		// A tail that ends where an image begins says nothing of the block with both.
		change(t, x, store.Add, "m", "c", store.Disk, chunkKeys(t, p, tokens[:600])...)
		want(t, score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), Objects: image(600, 700)}),
			"a 6.4 8 [0 8 0 0]; b 4 8 [0 0 8 0]; c 4.5 9 [0 0 9 0]")
		must.Get(x.Retire(t.Context(), "c"))(t)
		// The tail of 188 tokens is no part of a chunk of 256.
		want(t, score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}), "a 12.8 16 [0 16 0 0]; b 4 8 [0 0 8 0]")
	})
}

// TestTwoWorkers: a rank of two tensor-parallel workers has a chunk when both have it,
// and workers are never among the pods.
func TestTwoWorkers(t *testing.T) {
	x := memoryIndex(t)
	p := profile(256, false)
	tokens := firstTokens(1024)
	chunks := chunkKeys(t, p, tokens)
	workers := func(instance, pod string) (names [2]string) {
		for i := range 2 {
			names[i] = instance + "/lmcache/" + strconv.Itoa(i)
			registerPods(t, x, store.Pod{Name: names[i], Model: "m", PartOf: &store.PartOf{Pod: pod, Worker: i, Workers: 2}})
		}
		return names
	}
	registerPods(t, x, store.Pod{Name: "a", Model: "m"}, store.Pod{Name: "b", Model: "m"})
	a, b, b2 := workers("ia", "a"), workers("ib", "b"), workers("ib2", "b")
	for _, w := range a {
		change(t, x, store.Add, "m", w, store.CPU, chunks...)
	}
	change(t, x, store.Add, "m", b[0], store.CPU, chunks...)
	change(t, x, store.Add, "m", b2[1], store.CPU, chunks...) // of another instance
	s := newScorer(t, scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, p)})
	ask := func() *scorer.Response {
		return score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)})
	}
	want(t, ask(), "a 12.8 16 [0 16 0 0]")

	change(t, x, store.Remove, "m", a[1], store.CPU, chunks[2])
	want(t, ask(), "a 6.4 8 [0 8 0 0]")
	// It has the chunk on disk still: so has the rank, as slow as its slowest worker.
	change(t, x, store.Add, "m", a[1], store.Disk, chunks[2])
	want(t, ask(), "a 11.6 16 [0 12 4 0]")
	// With blocks in the engine besides, the better tier counts.
	change(t, x, store.Add, "m", "a", store.GPU, blockKeys(64, tokens)[:9]...)
	want(t, ask(), "a 13.7 16 [9 4 3 0]")

	change(t, x, store.Add, "m", b[1], store.CPU, chunks[0])
	want(t, ask(), "a 13.7 16 [9 4 3 0]; b 3.2 4 [0 4 0 0]")

	// A worker that holds blocks of the index's own is no pod for it.
	change(t, x, store.Add, "m", b[0], store.GPU, blockKeys(64, tokens)...)
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), Pods: []string{"b", b[0], "nobody"}, Explain: true})
	want(t, r, "b 3.2 4 [0 4 0 0]; nobody 0 0 [0 0 0 0]")
	for i, block := range r.Explanation.Blocks {
		for _, h := range block.Holders {
			if h.Pod != "a" && h.Pod != "b" {
				t.Errorf("block %d: %+v", i, h)
			}
		}
	}

	// The pod of a worker is gone, and what it holds with it.
	must.Get(x.Retire(t.Context(), "b"))(t)
	want(t, ask(), "a 13.7 16 [9 4 3 0]")
	// So is a worker of the other.
	must.Get(x.Retire(t.Context(), a[0]))(t)
	want(t, ask(), "a 9 9 [9 0 0 0]")
}

// TestTwoVersions: versions that hash alike are asked for once.
func TestTwoVersions(t *testing.T) {
	x := newPlainIndex(t)
	fork, upstream := profile(256, false), profile(256, false)
	fork.Version = lmcache.VFork
	tokens := firstTokens(1024)
	x.add("m", "a", 0, store.CPU, chunkKeys(t, upstream, tokens)...)
	s := newScorer(t, scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, fork, upstream)})
	want(t, score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}), "a 12.8 16 [0 16 0 0]")
	if x.read != 4+16 {
		t.Errorf("%d blocks read, want 4 chunks and 16 blocks", x.read)
	}
}

// TestEarlyExitWithChunks: the walk ends where one candidate is left, whichever way
// the others are known.
func TestEarlyExitWithChunks(t *testing.T) {
	x := memoryIndex(t)
	p := profile(256, false)
	tokens := firstTokens(2048)
	change(t, x, store.Add, "m", "a", store.CPU, chunkKeys(t, p, tokens)[:2]...)
	change(t, x, store.Add, "m", "b", store.GPU, blockKeys(64, tokens)[:20]...)
	s := newScorer(t, scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, p)})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), EarlyExit: true})
	want(t, r, "a 6.4 8 [0 8 0 0]; b 9 9 [9 0 0 0]")
}

// recorded are commands that LMCache sent to Redis.
type recorded struct {
	Fork   []string            `json:"fork"`
	V031   []string            `json:"0.3.1"`
	Remote map[string][]string `json:"remote"`
}

func readRecorded(t *testing.T) (r recorded) {
	t.Helper()
	text := must.Get(os.ReadFile("testdata/lmcache_redis.json"))(t)
	must.OK(t, json.Unmarshal(text, &r))
	return r
}

var quoted = regexp.MustCompile(`"([^"]*)"`)

// replay sends commands as they were recorded, on one connection.
func replay(t *testing.T, client *goredis.Client, commands []string, without string) {
	t.Helper()
	conn := client.Conn()
	defer conn.Close()
	for _, line := range commands {
		var args []any
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			args = append(args, m[1])
		}
		if args[0] == without {
			continue
		}
		if err := conn.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

const recordedModel = "meta-llama/Llama-3.1-8B-Instruct"

func openRedis(t testing.TB, url string) *redis.Index {
	t.Helper()
	x := must.Get(redis.Open(redis.Config{URL: url, NoSweep: true, Entries: true}))(t)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func readers(t *testing.T, mode lmcache.Mode, profiles ...lmcache.Profile) *chunks.Source {
	t.Helper()
	r := must.Get(lmcache.NewReader(recordedModel, mode, profiles...))(t)
	return &chunks.Source{Readers: map[string]*lmcache.Reader{recordedModel: r}}
}

// askOnce scores the recorded prompt and wants it to cost one round trip.
func askOnce(t *testing.T, x *redis.Index, lm *chunks.Source, r scorer.Request) *scorer.Response {
	t.Helper()
	if _, err := x.Registry(t.Context()); err != nil { // so that the lookup has none to load
		t.Fatal(err)
	}
	s := newScorer(t, scorer.Config{Index: x, Chunks: lm, Budget: 30 * time.Second})
	r.Model, r.Input = recordedModel, scorer.Tokens(firstTokens(1024))
	before := x.Stats().RoundTrips
	resp := score(t, s, r)
	if resp.Degraded != "" {
		t.Fatalf("degraded: %s", resp.Degraded)
	}
	if trips := x.Stats().RoundTrips - before; trips != 1 {
		t.Errorf("%d round trips, want 1", trips)
	}
	return resp
}

func TestRecordedEntries(t *testing.T) {
	rec := readRecorded(t)
	for _, c := range []struct {
		name     string
		mode     lmcache.Mode
		profiles []lmcache.Profile
		fork     bool
		v031     bool
		all      bool // nothing is evicted
		want     string
	}{
		{"fork", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.VFork}}}, true, false, false, "10.0.0.1:8000 9.6 12 [0 12 0 0]"},
		{"fork, all", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.VFork}}}, true, false, true, "10.0.0.1:8000 12.8 16 [0 16 0 0]"},
		{"0.3.1", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V031}}}, false, true, false, "10.0.0.1:8000 9.6 12 [0 12 0 0]"},
		{"0.3.1, all", lmcache.SetEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V031}}}, false, true, true, "10.0.0.1:8000 12.8 16 [0 16 0 0]"},
		{"both in one keyspace", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V031}}, {Config: lmcache.Config{Version: lmcache.VFork}}}, true, true, false, "10.0.0.1:8000 9.6 12 [0 12 0 0]"},
		{"strings when hashes are asked for", lmcache.HSetEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V031}}}, false, true, true, ""},
		{"hashes when strings are asked for", lmcache.SetEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.VFork}}}, true, false, true, ""},
		{"another chunk size", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.VFork, ChunkSize: 128}}}, true, false, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			x := openRedis(t, server.URL())
			registerPods(t, x, store.Pod{Name: "10.0.0.1:8000", Model: recordedModel}, store.Pod{Name: "10.0.0.2:8000", Model: recordedModel})
			without := ""
			if c.all {
				without = "HDEL"
				if c.v031 {
					without = "DEL"
				}
			}
			if c.fork {
				replay(t, server.Client(), rec.Fork, without)
			}
			if c.v031 {
				replay(t, server.Client(), rec.V031, without)
			}
			want(t, askOnce(t, x, readers(t, c.mode, c.profiles...), scorer.Request{}), c.want)
		})
	}
}

// TestRemoteStore: tensors in a store that all pods read count for all of the model's.
func TestRemoteStore(t *testing.T) {
	rec := readRecorded(t)
	builtin := lmcache.Config{Version: lmcache.V046, Python: 12}
	for _, c := range []struct {
		name string
		p    lmcache.Profile
		want string
	}{
		{"redis", lmcache.Profile{Config: builtin, DType: "bfloat16", Remote: lmcache.RemoteRedis}, "a 8.4 16 [3 3 0 10]; b 4.8 16 [0 0 0 16]"},
		{"resp", lmcache.Profile{Config: builtin, DType: "bfloat16", Remote: lmcache.RemoteRESP}, "a 8.4 16 [3 3 0 10]; b 4.8 16 [0 0 0 16]"},
		{"resp", lmcache.Profile{Config: lmcache.Config{Version: lmcache.V046, MP: true}, Remote: lmcache.RemoteRESP}, "a 8.4 16 [3 3 0 10]; b 4.8 16 [0 0 0 16]"},
		{"resp", lmcache.Profile{Config: builtin, DType: "bfloat16", Remote: lmcache.RemoteRESP, WorldSizes: []int{2}}, "a 5.4 6 [3 3 0 0]"},
		{"resp", lmcache.Profile{Config: builtin, DType: "half", Remote: lmcache.RemoteRESP}, "a 5.4 6 [3 3 0 0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			x := openRedis(t, server.URL())
			registerPods(t, x, store.Pod{Name: "a", Model: recordedModel}, store.Pod{Name: "b", Model: recordedModel, Ranks: 2}, store.Pod{Name: "c", Model: "other"})
			tensors := make([]byte, 2048)
			for _, name := range rec.Remote[c.name] {
				must.OK(t, server.Client().Set(t.Context(), name, tensors, 0).Err())
			}
			blocks := blockKeys(64, firstTokens(1024))
			change(t, x, store.Add, recordedModel, "a", store.GPU, blocks[:3]...)
			change(t, x, store.Add, recordedModel, "a", store.CPU, blocks[:6]...)
			want(t, askOnce(t, x, readers(t, lmcache.AutoEntries, c.p), scorer.Request{}), c.want)
		})
	}
}

// TestMixed scores blocks of engines, chunks under chunk keys, entries of LMCache and a
// shared store at once. It does so on a server and a cluster, in one round trip.
func TestMixed(t *testing.T) {
	rec := readRecorded(t)
	for name, url := range map[string]string{
		"server": redistest.Start(t).URL(), "cluster": redistest.StartCluster(t, 3, false).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			x := openRedis(t, url)
			var client goredis.UniversalClient
			if name == "server" {
				client = goredis.NewClient(&goredis.Options{Addr: url[len("redis://"):]})
			} else {
				client = clusterClient(t, url)
			}
			defer client.Close()
			ctx := t.Context()
			tokens := firstTokens(1024)
			fork := lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork}}
			now := lmcache.Profile{Config: lmcache.Config{Version: lmcache.V046, Python: 12}, DType: "bfloat16", Remote: lmcache.RemoteRESP}
			registerPods(t, x, store.Pod{Name: "10.0.0.1:8000", Model: recordedModel}, store.Pod{Name: "10.0.0.2:8000", Model: recordedModel},
				store.Pod{Name: "10.0.0.3:8000", Model: recordedModel})
			for i := range 2 {
				pod := "10.0.0.2:8000/lmcache/" + strconv.Itoa(i)
				registerPods(t, x, store.Pod{Name: pod, Model: recordedModel, PartOf: &store.PartOf{Pod: "10.0.0.2:8000", Worker: i, Workers: 2}})
				change(t, x, store.Add, recordedModel, pod, store.Disk, chunkKeys(t, now, tokens)[:3-i]...)
			}
			change(t, x, store.Add, recordedModel, "10.0.0.1:8000", store.GPU, blockKeys(64, tokens)[:2]...)
			for _, key := range []string{"8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08", "dbae33ee1bee4f1e12ac7a0dd1197e46648b8d9d9d908577a53fd38741bcf119"} {
				must.OK(t, client.HSet(ctx, recordedModel+"@"+key, "10.0.0.1", "vllm@1@0@1795815737.6425018").Err())
			}
			for _, key := range rec.Remote["resp"] {
				must.OK(t, client.Set(ctx, key, make([]byte, 64), 0).Err())
			}
			r := askOnce(t, x, readers(t, lmcache.AutoEntries, fork, now), scorer.Request{})
			want(t, r, "10.0.0.1:8000 9.2 16 [2 6 0 8]; 10.0.0.2:8000 6.4 16 [0 0 8 8]; 10.0.0.3:8000 4.8 16 [0 0 0 16]")
			r = askOnce(t, x, readers(t, lmcache.AutoEntries, fork, now), scorer.Request{Explain: true, Pods: []string{"10.0.0.1:8000"}})
			want(t, r, "10.0.0.1:8000 9.2 16 [2 6 0 8]")
			if got := r.Explanation.Blocks[0].Holders; len(got) != 6 {
				t.Errorf("holders of block 0: %+v", got)
			}
		})
	}
}

func clusterClient(t *testing.T, url string) goredis.UniversalClient {
	t.Helper()
	addrs := regexp.MustCompile(`[0-9.]+:[0-9]+`).FindAllString(url, -1)
	return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addrs})
}

// TestMemoryHasNoEntries: an index that cannot know them says so, and the answer is
// degraded, not wrong.
func TestMemoryHasNoEntries(t *testing.T) {
	x := memoryIndex(t)
	tokens := firstTokens(1024)
	change(t, x, store.Add, recordedModel, "a", store.GPU, blockKeys(64, tokens)...)
	var failed error
	s := newScorer(t, scorer.Config{
		Index: x, Chunks: readers(t, lmcache.AutoEntries, lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork}}),
		Observer: scorer.Observer{IndexFailed: func(err error) { failed = err }},
	})
	for range 2 {
		r := score(t, s, scorer.Request{Model: recordedModel, Input: scorer.Tokens(tokens), Explain: true})
		if r.Degraded != scorer.IndexUnavailable || len(r.Pods) != 0 || failed == nil {
			t.Errorf("%+v, %v", r, failed)
		}
	}
}

// TestReplicaAndEntries: a replica answers for chunk keys from memory, and asks Redis
// for what it has no copy of.
func TestReplicaAndEntries(t *testing.T) {
	server := redistest.Start(t)
	in := openRedis(t, server.URL())
	x := must.Get(replica.New(replica.Config{Index: in}))(t)
	t.Cleanup(func() { _ = x.Close() })
	fork := lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork}}
	tokens := firstTokens(1024)
	registerPods(t, x, store.Pod{Name: "10.0.0.1:8000", Model: recordedModel}, store.Pod{Name: "b", Model: recordedModel})
	change(t, x, store.Add, recordedModel, "b", store.CPU, chunkKeys(t, fork, tokens)...)
	replay(t, server.Client(), readRecorded(t).Fork, "")
	ask := func(mode lmcache.Mode) (string, uint64) {
		s := newScorer(t, scorer.Config{Index: x, Chunks: readers(t, mode, fork), Budget: 30 * time.Second})
		before := x.Status().Lookups[replica.Redis]
		r := score(t, s, scorer.Request{Model: recordedModel, Input: scorer.Tokens(tokens)})
		return written(r), x.Status().Lookups[replica.Redis] - before
	}
	eventually.True(t, "an answer of the replica from memory", func() bool {
		got, redis := ask(lmcache.NoEntries)
		return got == "b 12.8 16 [0 16 0 0]" && redis == 0
	})
	if got, redis := ask(lmcache.AutoEntries); got != "10.0.0.1:8000 9.6 12 [0 12 0 0]; b 12.8 16 [0 16 0 0]" || redis != 1 {
		t.Errorf("%s, %d lookups of Redis", got, redis)
	}
}

// BenchmarkScoreWithLMCache is BenchmarkScore of a model with settings of LMCache. It has an empty index in
// memory, and one where a pod of two workers holds all chunks.
func BenchmarkScoreWithLMCache(b *testing.B) {
	for _, c := range []struct {
		name string
		p    []lmcache.Profile
	}{
		{"none", nil},
		{"sha256 hex", []lmcache.Profile{profile(256, false)}},
		{"builtin", []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V046, Python: 12}}}},
		{"sha256_cbor", []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}}}},
		{"blake3", []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V046, MP: true}}}},
	} {
		tokens := firstTokens(16384)
		for _, held := range []bool{false, true} {
			if held && c.p == nil {
				continue
			}
			b.Run(c.name+map[bool]string{false: "/miss", true: "/hit"}[held], func(b *testing.B) {
				x := memoryIndex(b)
				registerPods(b, x, store.Pod{Name: "a", Model: "m"})
				for i := range 2 {
					name := lmcache.WorkerName("i", "", i)
					registerPods(b, x, store.Pod{Name: name, Model: "m", PartOf: &store.PartOf{Pod: "a", Worker: i, Workers: 2}})
					if held {
						change(b, x, store.Add, "m", name, store.CPU, chunkKeys(b, c.p[0], tokens)...)
					}
				}
				cfg := scorer.Config{Index: x}
				if c.p != nil {
					cfg.Chunks = reader(b, lmcache.NoEntries, c.p...)
				}
				s := newScorer(b, cfg)
				req := scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}
				b.ReportAllocs()
				for b.Loop() {
					must.Get(s.Score(b.Context(), req))(b)
				}
			})
		}
	}
}
