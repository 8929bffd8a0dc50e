package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestFuzzedRequests sends random requests to three servers: one over an index in memory,
// and two over one Redis, in turn. Half of the requests are well formed and touch pods that
// a plain map models: each score must be the map's. The others are broken in all ways that
// mutate knows and touch pods of their own. None may end in a status that blames the server,
// memory and Redis must answer alike, and each refusal has the one shape of errors.
//
// KVATLAS_TEST_REQUESTS is how many, 4,000 by default; KVATLAS_TEST_SEED repeats a run.
func TestFuzzedRequests(t *testing.T) {
	total, seed := fuzzNumber(t, "KVATLAS_TEST_REQUESTS", 4_000), fuzzNumber(t, "KVATLAS_TEST_SEED", int(time.Now().UnixNano()&math.MaxInt32))
	t.Logf("KVATLAS_TEST_SEED=%d", seed)
	redis := redistest.Start(t)
	// On a busy machine a first chat takes its time; what is cut off is not what is tried here.
	args := []string{"--block-size=4", "--request-timeout=5m", "--tokenizers=" + tokenizers(t)}
	memory := start(t, args...)
	var shared [2]*running
	for i := range shared {
		shared[i] = start(t, append([]string{"--redis=" + redis.URL()}, args...)...)
	}
	f := &fuzzer{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 1)), held: heldModel{}}
	for n := range total {
		r, want := f.next()
		to := n % 2
		if strings.HasPrefix(r.path, "/v1/events") {
			to = 0 // what is known of blocks that are pushed without seq is one replica's
		}
		m, s := f.send(memory.url, r), f.send(shared[to].url, r)
		if t.Failed() {
			t.Fatalf("request %d: %s", n, r)
		}
		if m != s && (m.status != s.status || !m.late() && !s.late()) {
			t.Fatalf("request %d: %s\nmemory %v\nredis  %v", n, r, m, s)
		}
		if want != nil {
			f.checkScores(n, r, m.body, want)
		}
	}
	t.Logf("%d requests, %d refusals by two servers; %d scores compared with the model, %d of them not 0", total, f.refused, f.scores, f.matched)
	if f.matched*10 < f.scores || f.refused*10 < total {
		t.Error("the requests are not of both kinds")
	}
}

func fuzzNumber(t *testing.T, variable string, otherwise int) int {
	s := os.Getenv(variable)
	if s == "" {
		return otherwise
	}
	n := must.Get(strconv.Atoi(s))(t)
	return n
}

// heldModel is what each holder has: pod, rank and tier to prefixes, each named by its scope and
// the tokens up to its end.
type heldModel map[fuzzHolder]map[string]bool

type fuzzHolder struct {
	pod  string
	rank int
	tier string
}

var (
	fuzzTiers   = []string{"gpu", "cpu", "disk", "shared"}
	fuzzWeights = map[string]float64{"gpu": 1, "cpu": 0.8, "disk": 0.5, "shared": 0.3}
)

// fuzzRequest is one request.
type fuzzRequest struct {
	method, path string
	header       http.Header
	body         []byte
}

func (r fuzzRequest) String() string {
	return fmt.Sprintf("%s %s %v %.2000q", r.method, r.path, r.header, r.body)
}

type fuzzAnswer struct {
	status int
	body   string
}

// late reports whether the answer depends on how fast a text was tokenized.
func (a fuzzAnswer) late() bool { return strings.Contains(a.body, `"exact":false`) }

type fuzzer struct {
	t                        *testing.T
	rng                      *rand.Rand
	held                     heldModel
	refused, scores, matched int
}

// next is the next request. want has the scores that it must be given, if it is one for scores.
func (f *fuzzer) next() (r fuzzRequest, want map[string]float64) {
	if f.rng.IntN(2) == 0 {
		return f.hostile(), nil
	}
	if f.rng.IntN(3) == 0 {
		return f.score()
	}
	return f.write(), nil
}

func (f *fuzzer) pick(words ...string) string { return words[f.rng.IntN(len(words))] }

// pod is one of the pods that are modelled, and its model.
func (f *fuzzer) pod() (pod, model string) {
	i := f.rng.IntN(4)
	return fmt.Sprintf("u%d:1", i), fmt.Sprintf("um%d", i%2)
}

// tokens is a walk down a narrow tree, so that prefixes are shared.
func (f *fuzzer) tokens() []int {
	out := make([]int, f.rng.IntN(40))
	for i := range out {
		if out[i] = 1; i%4 == 0 && f.rng.IntN(4) == 0 {
			out[i] = 2
		}
	}
	return out
}

// prefixes names the full blocks of tokens.
func prefixes(model, lora, salt string, tokens []int) (names []string) {
	for n := 4; n <= len(tokens); n += 4 {
		names = append(names, fmt.Sprint(model, "\x00", lora, "\x00", salt, tokens[:n]))
	}
	return names
}

// write changes what a modelled pod holds.
func (f *fuzzer) write() fuzzRequest {
	pod, model := f.pod()
	tier, rank, op := fuzzTiers[f.rng.IntN(4)], f.rng.IntN(2), f.pick("add", "add", "add", "remove", "remove", "clear", "delete")
	body := map[string]any{"op": op, "model": model, "pod": pod}
	of := func(h fuzzHolder, anyRank, anyTier bool) bool {
		return h.pod == pod && (anyRank || h.rank == rank) && (anyTier || h.tier == tier)
	}
	anyRank, anyTier := false, false
	if op != "add" {
		anyTier = f.rng.IntN(2) == 0
		anyRank = op == "clear" && f.rng.IntN(2) == 0
	}
	if !anyTier {
		body["tier"] = tier
	}
	if !anyRank {
		body["rank"] = rank
	}
	if op == "delete" {
		for h := range f.held {
			if h.pod == pod {
				delete(f.held, h)
			}
		}
		return fuzzRequest{method: "DELETE", path: "/v1/pods/" + strings.ReplaceAll(pod, ":", "%3A")}
	}
	if op == "clear" {
		for h := range f.held {
			if of(h, anyRank, anyTier) {
				delete(f.held, h)
			}
		}
		return f.post("/v1/blocks", body)
	}
	lora, salt, tokens := f.pick("", "", "l"), f.pick("", "", "s"), f.tokens()
	if lora != "" {
		body["lora"] = lora
	}
	if salt != "" {
		body["cache_salt"] = salt
	}
	body["tokens"] = tokens
	names := prefixes(model, lora, salt, tokens)
	if op == "add" {
		h := fuzzHolder{pod, rank, tier}
		if f.held[h] == nil {
			f.held[h] = map[string]bool{}
		}
		for _, n := range names {
			f.held[h][n] = true
		}
		return f.post("/v1/blocks", body)
	}
	for h, have := range f.held {
		if of(h, false, anyTier) {
			for _, n := range names {
				delete(have, n)
			}
		}
	}
	return f.post("/v1/blocks", body)
}

// score asks for the scores of a chain.
func (f *fuzzer) score() (fuzzRequest, map[string]float64) {
	_, model := f.pod()
	lora, salt, tokens := f.pick("", "", "l"), f.pick("", "", "s"), f.tokens()
	body := map[string]any{"model": model, "tokens": tokens, "lora": lora, "cache_salt": salt}
	names := prefixes(model, lora, salt, tokens)
	want := map[string]float64{}
	for i := range 4 {
		pod := fmt.Sprintf("u%d:1", i)
		for rank := range 2 {
			sum := 0.0
			for _, n := range names {
				best := 0.0
				for _, tier := range fuzzTiers {
					if f.held[fuzzHolder{pod, rank, tier}][n] {
						best = max(best, fuzzWeights[tier])
					}
				}
				if best == 0 {
					break
				}
				sum += best
			}
			if sum > want[pod] {
				want[pod] = sum
			}
		}
	}
	return f.post("/v1/score", body), want
}

func (f *fuzzer) post(path string, body any) fuzzRequest {
	text := must.Get(json.Marshal(body))(f.t)
	return fuzzRequest{method: "POST", path: path, body: text}
}

// checkScores holds an answer against the model's scores.
func (f *fuzzer) checkScores(n int, r fuzzRequest, body string, want map[string]float64) {
	var got struct{ Scores map[string]float64 }
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		f.t.Fatalf("request %d: %s\n%s", n, r, body)
	}
	f.scores++
	same := len(got.Scores) == len(want)
	for pod, score := range want {
		same = same && math.Abs(got.Scores[pod]-score) < 1e-9
	}
	if !same {
		f.t.Fatalf("request %d: %s\ngives %s\nbut pods hold %v", n, r, body, want)
	}
	if len(want) > 0 {
		f.matched++
	}
}

// send sends a request and checks what all answers must be.
func (f *fuzzer) send(url string, r fuzzRequest) fuzzAnswer {
	req := must.Get(http.NewRequestWithContext(f.t.Context(), r.method, url+r.path, bytes.NewReader(r.body)))(f.t)
	if r.header != nil {
		req.Header = r.header
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatalf("%s: %v", r, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("%s: %v", r, err)
	}
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented {
		f.t.Errorf("status %d: %s", resp.StatusCode, body)
	}
	if resp.StatusCode >= 400 {
		f.refused++
		var refusal struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(body, &refusal); err != nil || refusal.Error.Code == "" || refusal.Error.Message == "" {
			f.t.Errorf("status %d without the shape of an error: %s", resp.StatusCode, body)
		}
	}
	return fuzzAnswer{resp.StatusCode, ownWords.ReplaceAllString(string(body), `"$1":""`)}
}

// ownWords is what two servers may answer otherwise: the ids of requests, times, and whether
// a text was in their own prefix store.
var ownWords = regexp.MustCompile(`"(request_id|stages_us|created|source)":("[^"]*"|\{[^}]*\}|\d+)`)

// valid are requests to be broken. Their names are of pods and models that are not modelled.
var valid = []struct{ path, body string }{
	{"/v1/score", `{"model":"zm","tokens":[1,2,3,4,5,6,7,8],"pods":["zp","zq"],"strategy":"coverage","explain":true}`},
	{"/v1/score", `{"model":"zm","tokens_b64":"AQAAAAIAAAADAAAABAAAAA==","lora":"l","cache_salt":"s","early_exit":true}`},
	{"/v1/score", `{"model":"zm","block_keys":["0123456789abcdef","fedcba9876543210"]}`},
	{"/v1/score", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","prompt":"The quick brown fox","mode":"sync","add_special_tokens":false}`},
	{"/v1/score", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","prompts":["a","b"],"mode":"sync"}`},
	{"/v1/score", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","mode":"sync","messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":[{"type":"text","text":"x"}],"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"temperature":0.5,"stream":true}`},
	{"/v1/score", `{"model":"zm","tokens":[1,2,3,4,5,6,7,8],"features":{"mm_hashes":{"image":["id"]},"mm_placeholders":{"image":[{"offset":2,"length":3}]}}}`},
	{"/v1/blocks", `{"op":"add","model":"zm","pod":"zp","rank":1,"tier":"cpu","tokens":[1,2,3,4,5,6,7,8],"lora":"l"}`},
	{"/v1/blocks", `{"op":"remove","model":"zm","pod":"zp","block_keys":["0123456789abcdef"]}`},
	{"/v1/blocks", `{"op":"clear","model":"zm","pod":"zp","rank":0,"tier":"gpu"}`},
	{"/v1/pods", `{"name":"zp","model":"zm","address":"10.0.0.1:80","role":"both","ranks":2,"engine":"vllm","block_size":16,"labels":{"a":"b"}}`},
	{"/v1/events", `{"pod":"ze","model":"zm","rank":0,"engine":"vllm","events":[{"type":"BlockStored","block_hashes":[1,2],"parent_block_hash":null,"token_ids":[1,2,3,4,5,6,7,8],"block_size":4,"medium":"GPU"},{"type":"BlockRemoved","block_hashes":[2],"medium":"GPU"},{"type":"AllBlocksCleared"}]}`},
	{"/v1/events", `[{"pod":"ze","model":"zm","engine":"trtllm","events":[{"event_id":0,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":1,"tokens":[{"token_id":1,"token_extra_id":0}],"cache_level":0}]},"window_size":4096}]}]`},
	{"/v1/tokenize", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","prompt":"Hello there"}`},
	{"/tokenize", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","messages":[{"role":"user","content":"Hello"}],"add_generation_prompt":true}`},
	{"/detokenize", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","tokens":[9906,1070]}`},
	{"/v1/completions/render", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","prompt":"Hello","max_tokens":5}`},
	{"/v1/chat/completions/render", `{"model":"meta-llama/Meta-Llama-3-8B-Instruct","messages":[{"role":"user","content":"Hello"}]}`},
}

// hostile is a valid request that was broken, or passed the wrong way.
func (f *fuzzer) hostile() fuzzRequest {
	v := valid[f.rng.IntN(len(valid))]
	var tree any
	must.OK(f.t, json.Unmarshal([]byte(v.body), &tree))
	for range f.rng.IntN(4) {
		tree = f.mutate(tree)
	}
	r := f.post(v.path, tree)
	switch f.rng.IntN(24) {
	case 0:
		r.body = r.body[:f.rng.IntN(len(r.body)+1)]
	case 1:
		if len(r.body) > 0 {
			r.body[f.rng.IntN(len(r.body))] = byte(f.rng.IntN(256))
		}
	case 2:
		at := f.rng.IntN(len(r.body) + 1)
		r.body = append(r.body[:at:at], append([]byte(f.pick("\x00", "\xff\xfe", "{", "]", `,"model":"zm"`, "\\ud800", "  ", "1e999")), r.body[at:]...)...)
	case 3:
		r.method = f.pick("GET", "PUT", "DELETE", "PATCH", "HEAD")
		if r.method == "HEAD" {
			r.method = "OPTIONS"
		}
	case 4:
		r.path += f.pick("/", "/x", "?x=1", "/%2F", "/%00", "x")
	case 5:
		r.header = http.Header{f.pick("Content-Type", "Content-Encoding", "Accept", "X-Request-Id"): {f.pick("application/msgpack", "gzip", "text/plain", "\"", "a b")}}
	}
	return r
}

// scalars are values that belong nowhere in particular.
var scalars = []string{
	`null`, `true`, `-1`, `0`, `1`, `3.5`, `1e308`, `4294967296`, `18446744073709551616`, `-9223372036854775809`, `""`, `"zp"`, `"\u0000"`, `"é\ud83d\ude00"`,
	`[]`, `{}`, `[[[[[[[[[[]]]]]]]]]]`, `{"a":{"b":{"c":[]}}}`, `"0123456789abcdef"`, `[1,"a",null]`, `"async"`, `"user"`, `1024`, `65536`,
}

// mutate changes one node of a JSON tree.
func (f *fuzzer) mutate(tree any) any {
	if f.rng.IntN(3) > 0 {
		switch v := tree.(type) {
		case map[string]any:
			if k, ok := f.anyKey(v); ok {
				v[k] = f.mutate(v[k])
				return v
			}
		case []any:
			if len(v) > 0 {
				i := f.rng.IntN(len(v))
				v[i] = f.mutate(v[i])
				return v
			}
		}
	}
	switch v := tree.(type) {
	case map[string]any:
		switch k, ok := f.anyKey(v); f.rng.IntN(4) {
		case 0:
			delete(v, k)
			return v
		case 1:
			v[f.pick("x", "model", "tokens", "prompt", "messages", "rank", "stream", "n", "Model", "tools", "wait_ms", "mode", "type")] = f.scalar()
			return v
		case 2:
			if ok {
				v[k] = f.scalar()
			}
			return v
		}
	case []any:
		switch f.rng.IntN(4) {
		case 0:
			return append(v, f.scalar())
		case 1:
			if len(v) > 0 {
				return append(v, v[f.rng.IntN(len(v))])
			}
		case 2:
			return v[:f.rng.IntN(len(v)+1)]
		}
	}
	return f.scalar()
}

// anyKey is one of an object's keys, the same for the same seed.
func (f *fuzzer) anyKey(v map[string]any) (string, bool) {
	if len(v) == 0 {
		return "", false
	}
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys[f.rng.IntN(len(keys))], true
}

func (f *fuzzer) scalar() any {
	if f.rng.IntN(20) == 0 {
		return strings.Repeat("z", 1+f.rng.IntN(600))
	}
	return json.RawMessage(scalars[f.rng.IntN(len(scalars))])
}
