package enginetest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// TestTwins drives vLLM's own cache through two histories of which it publishes the same bytes.
// After them it finds different things for one prompt. In the one a block was computed twice, in
// the other it was reported. So no reader of its events can be exact. Where the stream has shown
// a report, what is credited is no more than either has; where it has shown none, copies count.
func TestTwins(t *testing.T) {
	step := func(op, name string, tokens []uint32, n int) enginetest.Step {
		return enginetest.Step{Op: op, Name: name, Tokens: tokens, N: n}
	}
	whole := func(name string, tokens []uint32) []enginetest.Step { // a request that is computed at once
		return []enginetest.Step{step("begin", name, tokens, len(tokens)), step("end", name, nil, 0)}
	}
	reported := func(name string, tokens []uint32) []enginetest.Step {
		s := whole(name, tokens)
		s[0].Report = true
		return s
	}
	fill := func(removed int) enginetest.Step { return enginetest.Step{Op: "fill", Removed: removed} }
	prompt, other := consecutive(1, 200), consecutive(1000, 200)
	for _, c := range []struct {
		name           string
		blocks, window int
		first          []enginetest.Step // of both
		copied, told   []enginetest.Step
		evict          []enginetest.Step
		find           int // tokens of the prompt
		held           int // what the copies leave of them; the report leaves nothing
	}{
		{
			name: "a prompt of one block", blocks: 20,
			first:  whole("a", prompt[:16]),
			copied: whole("b", prompt[:16]), // the last token is computed always, and with it the block
			told:   reported("b", prompt[:17]),
			evict:  []enginetest.Step{fill(1)},
			find:   17, held: 16,
		},
		{
			name: "a first chunk of less than a block", blocks: 20,
			first: nil,
			copied: slices.Concat([]enginetest.Step{step("begin", "b", prompt[:33], 7)}, whole("a", prompt[:33]),
				[]enginetest.Step{step("go", "b", nil, 26), step("end", "b", nil, 0)}),
			told:  slices.Concat(whole("a", prompt[:33]), reported("b", prompt[:33])),
			evict: []enginetest.Step{fill(2)},
			find:  33, held: 32,
		},
		{
			name: "beside a window", blocks: 60, window: 128,
			// All of the prompt is held, but of the window only what its end needs.
			first:  []enginetest.Step{step("begin", "a", prompt[:145], 144), step("go", "a", nil, 1), fill(1), step("end", "a", nil, 0)},
			copied: whole("b", prompt[:144]),
			told:   reported("b", prompt[:145]),
			evict:  []enginetest.Step{fill(16)},
			find:   145, held: 144,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := enginetest.StartScript(t, enginetest.CacheOptions{
				Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Blocks: c.blocks, BlockSize: 16, Window: c.window,
			})
			shown := slices.Concat(whole("p", other[:33]), reported("q", other[:49]), []enginetest.Step{{Op: "reset"}})
			for before, steps := range map[string][]enginetest.Step{"nothing is reported before": nil, "a report is shown before": shown} {
				var payloads [2][][]byte
				var held, credited [2]int
				for i, part := range [][]enginetest.Step{c.copied, c.told} {
					payloads[i] = cache.Play(slices.Concat(steps, c.first, part, c.evict)...)
					held[i] = cache.Find(prompt[:c.find])
					credited[i] = credit(t, payloads[i], prompt[:c.find])
				}
				if !slices.EqualFunc(payloads[0], payloads[1], bytes.Equal) {
					t.Errorf("%s: what is published differs:\n%x\n%x", before, payloads[0], payloads[1])
				}
				if want := [2]int{c.held, 0}; held != want {
					t.Errorf("%s: the cache has %v of the prompt's tokens, want %v", before, held, want)
				}
				want := 0
				if steps == nil {
					want = c.held
				}
				if credited != [2]int{want, want} {
					t.Errorf("%s: %v tokens are credited, want %d", before, credited, want)
				}
			}
		})
	}
}

// TestCopiesThatLookLikeAReport has a prompt computed twice, and another request go on
// directly behind the copies, as a request does behind its report. What is reported of it
// later are no more copies: when its end is evicted it is gone.
func TestCopiesThatLookLikeAReport(t *testing.T) {
	cache := enginetest.StartScript(t, enginetest.CacheOptions{Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Blocks: 30, BlockSize: 16})
	prompt, other := consecutive(1, 200), consecutive(1000, 200)
	do := func(op, name string, tokens []uint32, n int) enginetest.Step {
		return enginetest.Step{Op: op, Name: name, Tokens: tokens, N: n}
	}
	report := func(name string, tokens []uint32, n int) enginetest.Step {
		s := do("begin", name, tokens, n)
		s.Report = true
		return s
	}
	copies := do("go", "b", nil, 26)
	copies.More = true
	payloads := cache.Play(
		do("begin", "p", other[:33], 33), do("end", "p", nil, 0), report("q", other[:49], 33), do("end", "q", nil, 0), do("reset", "", nil, 0), // reports are known
		do("begin", "b", prompt[:33], 7), do("begin", "a", prompt[:33], 33), do("end", "a", nil, 0), // b is overtaken
		copies, do("begin", "c", prompt[:49], 17), // c goes on behind what a has, in the message of b's copies
		do("end", "b", nil, 0), enginetest.Step{Op: "fill", Removed: 2}, // b's go
		report("d", prompt[:50], 1), do("end", "d", nil, 0), do("end", "c", nil, 0),
		enginetest.Step{Op: "fill", Removed: 1}, // and the third block
	)
	held, credited := cache.Find(prompt[:50]), credit(t, payloads, prompt[:50])
	if held != 32 || credited > held {
		t.Errorf("%d tokens are credited, the cache has %d, want 32", credited, held)
	}
}

// credit is how many tokens of a prompt are credited to an engine that has published
// payloads, from its first on.
func credit(t *testing.T, payloads [][]byte, prompt []uint32) int {
	t.Helper()
	index := openIndex(t, false)
	must.Get(index.Register(t.Context(), store.Pod{Name: pod, Model: model, Engine: "vllm"}))(t)
	in := must.Get(ingest.New(ingest.Config{Index: index, BlockSize: 16}))(t)
	defer in.Close()
	var d event.Decoder
	for i, p := range payloads {
		var b event.Batch
		if err := d.Decode(p, &b); err != nil || b.Skipped > 0 {
			t.Fatalf("%v, %d events are skipped", err, b.Skipped)
		}
		seq := uint64(i)
		must.Get(in.Push(t.Context(), ingest.Pushed{Pod: pod, Model: model, Seq: &seq, Ranks: []ingest.RankEvents{{Events: b.Events}}}))(t)
	}
	sc := must.Get(scorer.New(scorer.Config{Index: index}))(t)
	r := must.Get(sc.Score(t.Context(), scorer.Request{Model: model, Input: scorer.Tokens(append(slices.Clone(prompt), 0)), Pods: []string{pod}}))(t)
	return r.Pods[0].Reusable
}

func consecutive(from, n uint32) (tokens []uint32) {
	for i := range n {
		tokens = append(tokens, from+i)
	}
	return tokens
}
