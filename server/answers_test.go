package server_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// The models of the answers. Blocks have 4 tokens, those of wideModel 16. What downModel and
// staleModel have is in the index, which fails after it has told.
const (
	wideModel   = "wide"
	reuseModel  = "reuse"
	downModel   = "down"
	staleModel  = "stale"
	plainModel  = "plain"
	chunkModel  = "chunks"
	answersFile = "testdata/answers.txt"
)

// onlyRedis has them: values and entries that others write into Redis.
var onlyRedis = []string{plainModel, chunkModel}

// failing is an index that fails for some models, after it has told what it has.
type failing struct{ store.Index }

func (x failing) Lookup(ctx context.Context, queries ...*store.Query) error {
	err := x.Index.Lookup(ctx, queries...)
	for _, q := range queries {
		switch q.Model {
		case blockkey.ModelOf(downModel):
			return errors.New("down")
		case blockkey.ModelOf(staleModel):
			return &store.StaleError{Age: 1500 * time.Millisecond, Cause: errors.New("down")}
		}
	}
	return err
}

// answerWorld fills an index with the blocks that the answers are about.
type answerWorld struct {
	t     *testing.T
	index store.Index
	plain *goredis.Client // nil where the index is in memory
}

func numbers(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func chainOf(size int, lora, salt string, tokens []uint32) []blockkey.Key {
	return blockkey.AppendNative(nil, tokens, size, blockkey.NativeSeed(lora, salt))
}

func (w *answerWorld) register(pods ...store.Pod) {
	w.t.Helper()
	for _, p := range pods {
		must.Get(w.index.Register(w.t.Context(), p))(w.t)
	}
}

func (w *answerWorld) add(model, pod string, rank int, tier store.Tier, keys ...blockkey.Key) {
	w.t.Helper()
	w.tell(store.Batch{Pod: pod, Rank: rank, Model: model, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: keys}}})
}

func (w *answerWorld) tell(b store.Batch) {
	w.t.Helper()
	must.OK(w.t, w.index.Apply(w.t.Context(), b))
}

func (w *answerWorld) do(args ...any) {
	w.t.Helper()
	must.OK(w.t, w.plain.Do(w.t.Context(), args...).Err())
}

// fill puts everything in.
func (w *answerWorld) fill() {
	w.t.Helper()
	for _, m := range []store.ModelInfo{{Name: wideModel, BlockSize: 16, Scheme: store.SchemeNative}, {Name: "m", BlockSize: 4, Scheme: store.SchemeNative}} {
		must.Get(w.index.EnsureModel(w.t.Context(), m))(w.t)
	}
	// Tiers, ranks, gaps, ties, an adapter and a salt.
	for _, model := range []string{"m", downModel, staleModel} {
		c := chainOf(4, "", "", numbers(1, 48))
		p := func(name string) string { return model + "-" + name }
		w.register(store.Pod{Name: p("idle"), Model: model}, store.Pod{Name: p("ranks"), Model: model, Ranks: 3}, store.Pod{Name: p("gone"), Model: model})
		w.add(model, p("all"), 0, store.GPU, c...)
		w.add(model, p("cold"), 0, store.CPU, c[:8]...)
		w.add(model, p("cold"), 0, store.Disk, c...)
		w.add(model, p("cold"), 0, store.GPU, c[1], c[2])
		w.add(model, p("gap"), 0, store.GPU, c[0], c[1], c[4], c[5], c[6])
		w.add(model, p("tail"), 0, store.GPU, c[9:]...)
		w.add(model, p("ranks"), 0, store.GPU, c[:2]...)
		w.add(model, p("ranks"), 1, store.CPU, c[:5]...)
		w.add(model, p("ranks"), 2, store.Shared, c[:9]...)
		w.add(model, p("twin"), 0, store.GPU, c...)
		w.add(model, p("gone"), 0, store.GPU, c...)
		w.add(model, p("lora"), 0, store.GPU, chainOf(4, "adapter", "", numbers(1, 24))...)
		w.add(model, p("salt"), 0, store.CPU, chainOf(4, "", "salt", numbers(1, 24))...)
		w.add(model, p("both"), 0, store.GPU, chainOf(4, "adapter", "salt", numbers(1, 24))...)
	}
	w.add(wideModel, "w1", 0, store.GPU, chainOf(16, "", "", numbers(1, 48))...)
	w.add(wideModel, "w2", 0, store.CPU, chainOf(16, "", "", numbers(1, 20))...)

	// Engines with larger blocks, with windows, with states.
	c := chainOf(4, "", "", numbers(1, 48))
	add := func(pod string, reuse store.Reuse, tier store.Tier, keys ...blockkey.Key) {
		w.tell(store.Batch{Pod: pod, Model: reuseModel, Reuse: reuse, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: keys}}})
	}
	w.register(store.Pod{Name: "r-blocks", Model: reuseModel, BlockSize: 16})
	w.add(reuseModel, "r-blocks", 0, store.GPU, c[:7]...)
	add("r-window", store.Reuse{Block: 8, Window: 16}, store.GPU, c[:10]...)
	add("r-window", store.Reuse{Block: 8, Window: 16}, store.GPU.Window(), c[2:6]...)
	add("r-window", store.Reuse{Block: 8, Window: 16}, store.CPU, c[8:]...)
	add("r-states", store.Reuse{Block: 16, Window: 16}, store.GPU, c...)
	add("r-states", store.Reuse{Block: 16, Window: 16}, store.GPU.Window(), c[4:8]...)
	add("r-small", store.Reuse{Block: 2}, store.GPU, c[:5]...)
	w.add(reuseModel, "r-plain", 0, store.GPU, c[:3]...)

	// Texts and chats: bytewise's tokens.
	text := []uint32{1}
	for _, b := range []byte("The quick brown fox jumps over the lazy dog") {
		text = append(text, uint32(b))
	}
	w.add(textModel, "t1", 0, store.GPU, chainOf(4, "", "", text)...)
	w.add(textModel, "t2", 0, store.CPU, chainOf(4, "", "", text[:20])...)
	var chat []uint32
	for _, b := range []byte("<user>Hello, who are you?<assistant>") {
		chat = append(chat, uint32(b))
	}
	w.add(textModel, "t3", 0, store.GPU, chainOf(4, "", "", chat)...)
	w.add(textModel, "t4", 1, store.GPU, chainOf(4, "", "", chat[:13])...)

	if w.plain != nil {
		w.fillRedis()
	}
}

// chunkProfiles are two releases of LMCache that hash otherwise, and one whose tensors are in Redis.
var chunkProfiles = []lmcache.Profile{
	{Config: lmcache.Config{Version: lmcache.V031, ChunkSize: 8}},
	{Config: lmcache.Config{Version: lmcache.VFork, ChunkSize: 12}},
	{Config: lmcache.Config{Version: lmcache.V046, Python: 12, ChunkSize: 8}, DType: "bfloat16", Remote: lmcache.RemoteRESP},
}

// fillRedis puts in what others write: values with addresses, LMCache's entries and tensors.
func (w *answerWorld) fillRedis() {
	w.t.Helper()
	const one, two, three = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
	w.register(store.Pod{Name: one, Model: plainModel})
	for i, k := range chainOf(4, "", "", numbers(1, 48)) {
		name, _, err := keyspace.BlockName(redis.DefaultPrefix, k.In(blockkey.ModelOf(plainModel)))
		must.OK(w.t, err)
		switch {
		case i < 3:
			w.do("SET", name, one+","+two)
		case i < 6:
			w.do("SET", name, ","+two)
		case i == 7:
			w.do("SET", name, "17,x y") // neither ids nor texts
		case i > 8:
			w.do("SET", name, one)
		}
	}

	tokens := numbers(1, 48)
	keys := func(p lmcache.Profile, n int) []string {
		names := must.Get(lmcache.Keys(p.Config, lmcache.Target{Model: chunkModel, WorldSize: 1, DType: p.DType}, tokens[:n]))(w.t)
		return names
	}
	chunks := func(p lmcache.Profile) (keys []blockkey.Key) {
		h := must.Get(lmcache.New(p.Config))(w.t)
		for _, hash := range h.Append(nil, tokens) {
			keys = append(keys, hash.ChunkKey())
		}
		return keys
	}
	for n := range 4 {
		w.register(store.Pod{Name: fmt.Sprintf("10.0.1.%d:8000", n), Model: chunkModel, Ranks: 2})
	}
	for _, name := range keys(chunkProfiles[0], 24) {
		w.do("SET", name, "10.0.1.0:8200")
	}
	for _, name := range keys(chunkProfiles[1], 36) {
		w.do("HSET", name, "10.0.1.1", "vllm@1@0@1795815737.6425018", three, "vllm@1@0@1795815738")
	}
	for _, name := range keys(chunkProfiles[2], 16) {
		w.do("SET", name, "tensors")
	}
	for i := range 2 {
		name := lmcache.WorkerName("10.0.1.2:8000", "", i)
		w.register(store.Pod{Name: name, Model: chunkModel, PartOf: &store.PartOf{Pod: "10.0.1.2:8000", Rank: 1, Worker: i, Workers: 2}})
		w.add(chunkModel, name, 0, []store.Tier{store.CPU, store.Disk}[i], chunks(chunkProfiles[2])[:5-i]...)
	}
	w.add(chunkModel, "10.0.1.3:8000", 0, store.CPU, chunks(chunkProfiles[0])...)
	w.add(chunkModel, "10.0.1.0:8000", 0, store.GPU, chainOf(4, "", "", tokens)[:4]...)
	w.add(chunkModel, "10.0.1.2:8000", 0, store.GPU, chainOf(4, "", "", tokens)[:1]...)
	w.add(chunkModel, "10.0.1.1:8000", 0, store.GPU, chainOf(4, "adapter", "", tokens)...)
}

// ask is the body of one request.
type ask = map[string]any

// with is a with more fields.
func with(a ask, more ...any) ask {
	out := ask{}
	for k, v := range a {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i].(string)] = more[i+1]
	}
	return out
}

// answerRequests are the bodies that are asked, in order: answers tell how often blocks were
// asked for before.
func answerRequests() (all []ask) {
	put := func(as ...ask) { all = append(all, as...) }
	hex := func(keys []blockkey.Key) (out []string) {
		for _, k := range keys {
			out = append(out, k.String())
		}
		return out
	}
	packed := func(tokens []uint32) string {
		var b []byte
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	strategies := scorer.Strategies()
	// Each strategy with each way of asking for more or less, for each kind of world.
	for _, model := range []string{"m", wideModel, reuseModel, downModel, staleModel, plainModel, chunkModel, "nobody's"} {
		body := ask{"model": model, "tokens": numbers(1, 48)}
		for _, s := range strategies {
			put(with(body, "strategy", s), with(body, "strategy", s, "explain", true))
			for _, n := range []int{0, 3, 4, 33, 34, 47} {
				put(with(body, "strategy", s, "tokens", numbers(1, n)))
			}
		}
		put(with(body, "early_exit", true), with(body, "early_exit", true, "explain", true))
	}
	// Candidates.
	for _, s := range strategies {
		for _, pods := range [][]string{{}, {"m-idle"}, {"m-cold", "m-idle", "nobody", "m-cold"}, {"m-ranks", "m-gone"}, {"m-tail"}} {
			put(ask{"model": "m", "tokens": numbers(1, 48), "strategy": s, "pods": pods})
		}
		for _, pods := range [][]string{{"10.0.0.2:8000"}, {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}} {
			put(ask{"model": plainModel, "tokens": numbers(1, 48), "strategy": s, "pods": pods, "explain": s == "coverage"})
		}
		for _, pods := range [][]string{{"10.0.0.3:8000", "10.0.1.2:8000"}, {"10.0.1.2:8000/lmcache/0", "10.0.1.1:8000"}} {
			put(ask{"model": chunkModel, "tokens": numbers(1, 48), "strategy": s, "pods": pods, "explain": s == "coverage"})
		}
	}
	// Adapters and salts, other forms of the prompt, other prompts.
	for _, model := range []string{"m", chunkModel} {
		body := ask{"model": model, "tokens": numbers(1, 30)}
		put(with(body, "lora", "adapter"), with(body, "cache_salt", "salt"), with(body, "lora", "adapter", "cache_salt", "salt"), with(body, "lora", "nobody's"))
		keys := hex(chainOf(4, "", "", numbers(1, 40)))
		put(ask{"model": model, "block_keys": keys}, ask{"model": model, "block_keys": keys, "explain": true, "strategy": "coverage"}, ask{"model": model, "block_keys": []string{}},
			ask{"model": model, "block_keys": keys[:5], "early_exit": true}, ask{"model": model, "block_keys": hex(chainOf(4, "adapter", "", numbers(1, 40)))})
		put(ask{"model": model, "tokens_b64": packed(numbers(1, 40))}, ask{"model": model, "prompt": numbers(1, 21)},
			ask{"model": model, "prompt": [][]uint32{numbers(1, 21), numbers(5, 9), numbers(1, 48)}, "strategy": "coverage"})
		put(ask{"model": model, "tokens": numbers(2, 40)}, ask{"model": model, "tokens": append(numbers(1, 10), 77, 78, 79, 80)})
		for _, keep := range []int{1, 5, 40} {
			put(ask{"model": model, "tokens": numbers(1, 45), "truncate_prompt_tokens": keep},
				ask{"model": model, "tokens": numbers(1, 45), "truncate_prompt_tokens": keep, "truncation_side": "right"})
		}
		put(ask{"model": model, "tokens": numbers(1, 48), "features": ask{"mm_hashes": ask{"image": []string{strings.Repeat("ab", 32)}}, "mm_placeholders": ask{"image": []ask{{"offset": 18, "length": 9}}}}, "explain": true})
	}
	// Texts and chats.
	const text = "The quick brown fox jumps over the lazy dog"
	chat := []ask{{"role": "user", "content": "Hello, who are you?"}}
	for _, s := range strategies {
		put(ask{"model": textModel, "prompt": text, "strategy": s}, ask{"model": textModel, "messages": chat, "strategy": s, "explain": true})
	}
	for _, mode := range []string{"wait", "async", "sync"} {
		put(ask{"model": textModel, "prompt": text, "mode": mode}, ask{"model": textModel, "messages": chat, "mode": mode},
			ask{"model": textModel, "prompt": "slow " + text, "mode": mode}, ask{"model": textModel, "prompt": "busy " + text, "mode": mode},
			ask{"model": textModel, "prompts": []string{text, "The quick", "slow", ""}, "mode": mode, "explain": mode == "sync"})
	}
	put(
		ask{"model": textModel, "prompts": []string{}},
		ask{"model": textModel, "prompt": []string{text, "x"}, "strategy": "coverage", "pods": []string{"t2", "x"}},
		ask{"model": textModel, "prompt": text, "add_special_tokens": false},
		ask{"model": textModel, "prompt": text, "wait_ms": 0},
		ask{"model": textModel, "prompt": text, "truncate_prompt_tokens": 12},
		ask{"model": textModel, "prompt": text, "truncate_prompt_tokens": 12, "truncation_side": "right"},
		ask{"model": textModel, "prompt": text, "truncate_prompt_tokens": 12, "truncation_side": "left"},
		ask{"model": textModel, "prompt": "slow " + text, "truncate_prompt_tokens": 12},
		ask{"model": textModel, "messages": append(slices.Clone(chat), ask{"role": "assistant", "content": "I am"}), "continue_final_message": true},
		ask{"model": textModel, "messages": chat, "add_generation_prompt": false, "lora": "x"},
		ask{"model": textModel, "messages": chat, "tools": []ask{{"type": "function", "function": ask{"name": "f"}}}},
		ask{"model": textModel, "messages": []ask{{"role": "user", "content": []ask{{"type": "image_url", "image_url": ask{"url": "http://x/a.png"}}, {"type": "text", "text": "What is it?"}}}}},
		ask{"model": textModel, "input": "Hello, who are you?"},
		ask{"model": textModel, "system": "Be brief.", "messages": chat},
	)
	// What is refused.
	body := ask{"model": "m", "tokens": numbers(1, 5)}
	put(
		ask{"model": "m"},
		ask{"tokens": numbers(1, 5)},
		with(body, "prompt", "x"),
		with(body, "model", ""),
		with(body, "strategy", "best"),
		with(body, "early_exit", true, "strategy", "coverage"),
		with(body, "pods", []string{""}),
		with(body, "mode", "sync", "wait_ms", 5),
		with(body, "nonsense", 1),
		with(body, "truncate_prompt_tokens", 0),
		ask{"model": "m", "tokens": []int{1, -2}},
		ask{"model": "m", "block_keys": []string{"xyz"}},
		ask{"model": "m", "block_keys": []string{"00000000000000a1"}, "lora": "x"},
		ask{"model": "m", "block_keys": []string{"00000000000000a1"}, "truncate_prompt_tokens": 3},
		ask{"model": "m", "tokens_b64": "AQ"},
		ask{"model": "unknown", "prompt": "x"},
		ask{"model": textModel, "prompt": "a\u0000b"},
		ask{"model": textModel, "prompt": "broken"},
		ask{"model": textModel, "prompts": []string{"fine", "broken"}},
		ask{"model": textModel, "prompt": strings.Repeat("x", 1<<16+1)},
		ask{"model": textModel, "messages": []ask{{"role": "nobody", "content": "x"}}},
		ask{"model": textModel, "prompt": text, "truncate_prompt_tokens": 0},
	)
	// What is asked when a pod has gone.
	for _, s := range strategies {
		put(ask{"model": "m", "tokens": numbers(1, 48), "strategy": s, "explain": true})
	}
	put(ask{"model": "m", "tokens": numbers(1, 48), "pods": []string{"m-gone", "m-tail"}})
	return all
}

// leavers are how many requests at the end are asked when a pod has gone.
const leavers = 4

// runAnswers asks a server over the index and returns requests and answers as the file has
// them. only says which models are asked for.
func runAnswers(t *testing.T, w *answerWorld, asked func(model any) bool) string {
	t.Helper()
	w.fill()
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	usage := must.Get(scorer.NewUsage(time.Hour, 1<<16))(t)
	reader := must.Get(lmcache.NewReader(chunkModel, lmcache.AutoEntries, chunkProfiles...))(t)
	sc := must.Get(scorer.New(scorer.Config{
		Index: failing{w.index}, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 4, Budget: time.Minute, Usage: usage, Now: now,
		Chunks: &chunks.Source{Readers: map[string]*lmcache.Reader{chunkModel: reader}},
	}))(t)
	s := newServer(t, w.index, func(c *server.Config) { c.Scorer = sc })
	var out strings.Builder
	all := answerRequests()
	leave := len(all) - leavers
	for i, a := range all {
		if i == leave {
			// Before it, no life has ended: addresses count at once then.
			must.Get(w.index.Retire(t.Context(), "m-gone"))(t)
		}
		if !asked(a["model"]) {
			continue
		}
		body := must.Get(json.Marshal(a))(t)
		r := s.do(http.MethodPost, "/v1/score", strings.NewReader(string(body)))
		answer := stages.ReplaceAllString(strings.TrimSuffix(r.Body.String(), "\n"), "$1}")
		if len(body) > 1000 {
			body = fmt.Appendf(body[:100], "... %d bytes", len(body))
		}
		fmt.Fprintf(&out, "%s\n%s %s\n\n", body, strconv.Itoa(r.Code), answer)
	}
	return out.String()
}

// TestScoreAnswers holds the answers to some hundred requests over all strategies, inputs and
// kinds of what an index has against the file, byte for byte.
func TestScoreAnswers(t *testing.T) {
	rs := redistest.Start(t)
	index := must.Get(redis.Open(redis.Config{URL: rs.URL(), Timeout: time.Minute, NoSweep: true, Entries: true}))(t)
	must.End(t, index.Close)
	got := runAnswers(t, &answerWorld{t: t, index: index, plain: rs.Client()}, func(any) bool { return true })
	if *rewrite {
		if err := os.WriteFile(answersFile, []byte(got), 0o644); err != nil { //nolint:gosec // test data is for all to read
			t.Fatal(err)
		}
		return
	}
	if want := readAnswers(t); got != want {
		t.Errorf("answers differ from %s (see -rewrite):\n%s", answersFile, diff(want, got))
	}
}

// TestScoreAnswersMemory holds an index in memory against the same file, where it can know
// what was written.
func TestScoreAnswersMemory(t *testing.T) {
	asked := func(model any) bool { return model == nil || !slices.Contains(onlyRedis, model.(string)) }
	var want strings.Builder
	for entry := range strings.SplitAfterSeq(readAnswers(t), "\n\n") {
		request, _, _ := strings.Cut(entry, "\n")
		if !slices.ContainsFunc(onlyRedis, func(m string) bool { return strings.Contains(request, `"model":"`+m+`"`) }) {
			want.WriteString(entry)
		}
	}
	if got := runAnswers(t, &answerWorld{t: t, index: openIndex(t)}, asked); got != want.String() {
		t.Errorf("memory answers otherwise than Redis:\n%s", diff(want.String(), got))
	}
}

func readAnswers(t *testing.T) string {
	t.Helper()
	text := must.Get(os.ReadFile(answersFile))(t)
	return string(text)
}
