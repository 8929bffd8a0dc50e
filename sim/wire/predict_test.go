package wire_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// requestsVariable is the environment variable that says how many requests each engine of
// TestPrediction is asked; seedVariable repeats a run.
const (
	requestsVariable = "KVATLAS_TEST_REQUESTS"
	seedVariable     = "KVATLAS_TEST_SEED"
)

func number(t *testing.T, variable string, or uint64) uint64 {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return or
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// follower is an index that follows a pod, and a scorer on it.
type follower struct {
	t       *testing.T
	pod     *wire.Pod
	name    string
	index   store.Index
	scorer  *scorer.Scorer
	applied chan struct{} // has one when the index has moved since

	mu    sync.Mutex // protects all below
	began []ingest.Reason
}

func follow(t *testing.T, p *wire.Pod, indexBlock int) *follower {
	t.Helper()
	x, err := memory.New(memory.Config{})
	must.OK(t, err)
	t.Cleanup(func() { x.Close() })
	f := &follower{t: t, pod: p, name: p.Address(), index: x, applied: make(chan struct{}, 1)}
	must.Get(x.EnsureModel(t.Context(), store.ModelInfo{Name: model, BlockSize: indexBlock, Scheme: store.SchemeNative}))(t)
	must.Get(x.Register(t.Context(), store.Pod{Name: f.name, Model: model, Ranks: p.Config().Ranks}))(t)
	if f.scorer, err = scorer.New(scorer.Config{Index: x, Budget: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	moved := func() {
		select {
		case f.applied <- struct{}{}:
		default:
		}
	}
	in := must.Get(ingest.New(ingest.Config{Index: x, Observer: ingest.Observer{
		Lag: func(string, int, time.Duration) { moved() },
		Began: func(_ string, _ int, _ store.Generation, r ingest.Reason) {
			f.mu.Lock()
			f.began = append(f.began, r)
			f.mu.Unlock()
			moved()
		},
		Undecodable: func(_ string, _ int, seq uint64, n int, err error) {
			t.Errorf("message %d: %d events: %v", seq, n, err)
		},
	}}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	c := p.Config()
	reading.Go(func() {
		if err := in.Read(ctx, ingest.Source{Pod: f.name, Model: model, Engine: c.Engine.Kind.String(), Events: c.Events, Replay: c.Replay, Topic: c.Topic}, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Read returned %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		in.Close()
	})
	return f
}

// life returns the life of rank 0 that the index knows.
func (f *follower) life() store.Life {
	f.t.Helper()
	return must.Get(f.index.Life(f.t.Context(), f.name, 0))(f.t)
}

// wait waits until all that rank 0 has published is in the index, in a generation behind
// the one given.
func (f *follower) wait(behind store.Generation) {
	f.t.Helper()
	n := must.Get(f.pod.Published(0))(f.t)
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		life := f.life()
		if life.Generation > behind && life.Seq >= n {
			return
		}
		select {
		case <-f.applied:
		case <-deadline.C:
			f.t.Fatalf("after a minute %d of %d messages are in the index, in generation %d behind %d", life.Seq, n, life.Generation, behind)
		}
	}
}

// predict returns how many tokens the index says will be reused.
func (f *follower) predict(tokens []uint32, lora, salt string) int {
	f.t.Helper()
	r := must.Get(f.scorer.Score(f.t.Context(), scorer.Request{Model: model, Input: scorer.Tokens(tokens), LoRA: lora, Salt: salt, Pods: []string{f.name}}))(f.t)
	if r.Degraded != "" {
		f.t.Fatalf("degraded: %s", r.Degraded)
	}
	return r.Pods[0].Reusable
}

// talk is a load of conversations, which share their beginnings.
type talk struct {
	rng     *rand.Rand
	systems [][]uint32
	open    []*conversation
}

type conversation struct {
	tokens     []uint32
	lora, salt string
}

func newTalk(seed uint64) *talk {
	k := &talk{rng: rand.New(rand.NewPCG(seed, 5))}
	for _, n := range []int{0, 1, 16, 33, 128, 300, 700} {
		k.systems = append(k.systems, k.text(n))
	}
	return k
}

func (k *talk) text(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = k.rng.Uint32N(256)
	}
	return out
}

// next returns a prompt, and the conversation that it belongs to. named has adapters and
// salts in it.
func (k *talk) next(named bool) ([]uint32, *conversation) {
	var c *conversation
	if len(k.open) > 0 && k.rng.IntN(100) < 85 {
		c = k.open[k.rng.IntN(len(k.open))]
	}
	if c == nil || len(c.tokens) > 1500 {
		k.open = slices.DeleteFunc(k.open, func(o *conversation) bool { return o == c })
		c = &conversation{tokens: slices.Clone(k.systems[k.rng.IntN(len(k.systems))])}
		if named {
			c.lora = []string{"", "", "", "", "law"}[k.rng.IntN(5)]
			c.salt = []string{"", "", "", "", "tenant"}[k.rng.IntN(5)]
		}
		if k.open = append(k.open, c); len(k.open) > 24 {
			k.open = slices.Delete(k.open, 0, 1)
		}
	}
	tokens := slices.Clone(c.tokens)
	switch n := k.rng.IntN(100); {
	case n < 10 && len(tokens) > 0: // the same again
	case n < 25 && len(tokens) > 16: // a part of it, often of whole blocks
		tokens = append(tokens[:(1+k.rng.IntN(len(tokens)/16))*16], k.text([]int{0, 0, 1, 16}[k.rng.IntN(4)])...)
	default:
		tokens = append(tokens, k.text(1+k.rng.IntN(150))...)
		c.tokens = slices.Clone(tokens)
	}
	return tokens, c
}

// complete has a pod answer a prompt and returns the tokens of the answer and how many of
// the prompt were cached.
func complete(t *testing.T, p *wire.Pod, prompt []uint32, c *conversation, n int) (said []uint32, cached int) {
	t.Helper()
	name := model
	if c.lora != "" {
		name = c.lora
	}
	body := fields{"model": name, "prompt": prompt, "max_tokens": n}
	if c.salt != "" {
		body["cache_salt"] = c.salt
	}
	r := ask(t, p, http.MethodPost, "/v1/completions", body)
	text, _ := at(r, "choices", 0, "text").(string)
	for i := range len(text) {
		said = append(said, uint32(text[i]))
	}
	tokens, _ := at(r, "usage", "prompt_tokens_details", "cached_tokens").(float64)
	return said, int(tokens)
}

// setup is an engine and an index whose predictions are held to what the engine delivers.
type setup struct {
	name       string
	config     wire.Config
	indexBlock int
}

// cacheTokens is the size of a cache: small, so that much is evicted.
const cacheTokens = 12 * 1024

// setups are the engines with blocks of three sizes, and index blocks of two.
func setups() (out []setup) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		for _, size := range []int{16, 32, 128} {
			for _, index := range []int{16, 64} {
				out = append(out, setup{fmt.Sprintf("%v, blocks of %d, index blocks of %d", kind, size, index), wire.Config{
					Engine: engine.Config{Kind: kind, BlockSize: size, Blocks: cacheTokens / size},
				}, index})
			}
		}
	}
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		out = append(out, setup{fmt.Sprintf("%v with a host", kind), wire.Config{
			Engine: engine.Config{Kind: kind, Blocks: cacheTokens / 32, HostBlocks: cacheTokens / 16},
		}, 16})
	}
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang} {
		out = append(out, setup{fmt.Sprintf("%v with a host and a disk", kind), wire.Config{
			Engine: engine.Config{Kind: kind, Blocks: cacheTokens / 32, HostBlocks: cacheTokens / 64, DiskBlocks: cacheTokens / 16},
		}, 16})
	}
	for _, h := range []struct {
		name    string
		version string
		config  engine.Config
		index   int
	}{
		{"vllm with a window", "", engine.Config{Blocks: cacheTokens / 8, Window: 128}, 16},
		{"vllm with a window, all of it kept", "", engine.Config{Blocks: cacheTokens / 8, Window: 128, Retention: engine.RetainAll}, 16},
		{"vllm 0.24.0 with a window", "0.24.0", engine.Config{Blocks: cacheTokens / 8, Window: 128}, 16},
		{"vllm with a window, kept each 256 tokens", "", engine.Config{Blocks: cacheTokens / 8, Window: 100, Retention: 256}, 16},
		{"vllm with states", "", engine.Config{Blocks: cacheTokens / 16, State: true}, 16},
		{"vllm with states, all of them kept", "", engine.Config{Blocks: cacheTokens / 16, State: true, Retention: engine.RetainAll}, 16},
		{"vllm 0.24.0 with states", "0.24.0", engine.Config{Blocks: cacheTokens / 16, State: true}, 16},
		{"vllm with states in blocks of 128", "", engine.Config{Blocks: cacheTokens / 64, BlockSize: 128, State: true}, 64},
		{"vllm with states and small chunks", "", engine.Config{Blocks: cacheTokens / 16, State: true, BatchTokens: 100}, 16},
	} {
		out = append(out, setup{h.name, wire.Config{Version: h.version, Engine: h.config}, h.index})
	}
	for _, version := range []string{"0.30.0", "0.24.0", "0.22.0", "0.20.0", "0.17.0"} {
		out = append(out, setup{"vllm " + version, wire.Config{Version: version, Engine: engine.Config{Blocks: cacheTokens / 16}}, 16})
	}
	return append(out, setup{"sglang 0.5.20", wire.Config{Version: "0.5.20", Engine: engine.Config{Kind: engine.SGLang, Blocks: cacheTokens / 16}}, 16})
}

// What the index says before a request comes is what the engine reuses, rounded to the
// larger of their blocks: through evictions, clears and restarts.
func TestPrediction(t *testing.T) {
	requests := int(number(t, requestsVariable, 250))
	seed := number(t, seedVariable, uint64(rand.Uint32()))
	for _, s := range setups() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.config.LoRAs = []string{"law"}
			predict(t, s, start(t, s.config), requests, seed)
		})
	}
}

func predict(t *testing.T, s setup, p *wire.Pod, requests int, seed uint64) {
	f := follow(t, p, s.indexBlock)
	f.wait(0)
	k := newTalk(seed)
	unit := max(s.indexBlock, p.Config().Engine.BlockSize)
	named := p.Config().Engine.Kind != engine.TRTLLM // its events have neither
	var exact, short, over, reused int
	behind := store.Generation(0)
	for i := range requests {
		switch i % 1000 {
		case 180:
			behind = f.life().Generation
			must.OK(t, p.Restart())
			http.DefaultClient.CloseIdleConnections() // to the process that has ended
		case 700:
			must.OK(t, p.Apply(wire.Fault{Kind: wire.Clear}))
			// An idle vLLM reports it when it has something to do.
			complete(t, p, k.text(1), &conversation{}, 1)
		}
		tokens, c := k.next(named)
		f.wait(behind)
		want := f.predict(tokens, c.lora, c.salt) / unit * unit
		said, cached := complete(t, p, tokens, c, 1+k.rng.IntN(30))
		// With a tier below, vLLM may reuse all of a prompt. Its last token is computed all the same.
		cached = min(cached, len(tokens)-1)
		switch got := cached / unit * unit; {
		case got == want:
			exact++
		case got > want:
			short++
		default:
			over++
		}
		if cached/unit*unit != want && short+over < 4 {
			t.Logf("seed %d, request %d of %d tokens, adapter %q, salt %q: %d were to be reused, %d were", seed, i, len(tokens), c.lora, c.salt, want, cached)
		}
		if want > 0 {
			reused++
		}
		if len(c.tokens) == len(tokens) {
			c.tokens = append(c.tokens, said...)
		}
	}
	t.Logf("seed %d: %d requests, %d with hits: %d exact, %d short, %d over", seed, requests, reused, exact, short, over)
	if 1000*(short+over) > requests {
		t.Errorf("seed %d: %d of %d were predicted exactly, %d short, %d over", seed, exact, requests, short, over)
	}
	if reused < requests/10 || reused > requests*99/100 {
		t.Errorf("the load shows little: %d of %d with hits", reused, requests)
	}
}
