package scorer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// engine is a plain model of one engine with one chain. It has which of its blocks full
// attention has, and which all of its window groups have.
type engine struct {
	store.Reuse
	prefix, window []bool // by engine block
}

// reuses is the rule of vLLM's KV cache coordinator. It is the longest prefix that ends below the last
// of n tokens, all of it held. Before its end the window must be held, or all from the root on.
func (e *engine) reuses(tokens int) int {
	best := 0
	for n := 1; n <= len(e.prefix) && n*e.Block < tokens; n++ {
		if !e.prefix[n-1] {
			break
		}
		held := true
		for k := max(n-(e.Window+e.Block-1)/e.Block, 0); k < n && e.Window > 0; k++ {
			held = held && e.window[k]
		}
		if held {
			best = n * e.Block
		}
	}
	return best
}

// cut is the engine's chain up to where another prompt parts from it.
func (e *engine) cut(tokens int) *engine {
	n := min(tokens/e.Block, len(e.prefix))
	return &engine{e.Reuse, e.prefix[:n], e.window[:n]}
}

// covers reports whether the index block [from, to) is held: every engine block with a
// token of it is.
func (e *engine) covers(held []bool, from, to int) bool {
	for k := from / e.Block; k*e.Block < to; k++ {
		if k >= len(held) || !held[k] {
			return false
		}
	}
	return true
}

// shown is what index blocks show by themselves of the engine's rule, where two chains part
// at a token. Each that has a token of what must be held is held.
func (e *engine) shown(size, part, tokens int) (best int) {
	show := func(held []bool, from, to int) bool {
		for i := max(from, 0) / size; i*size < to; i++ {
			if (i+1)*size > part || !e.covers(held, i*size, (i+1)*size) {
				return false
			}
		}
		return true
	}
	for end := e.Block; end < tokens && show(e.prefix, 0, end); end += e.Block {
		if e.Window == 0 || show(e.window, end-e.Window, end) {
			best = end
		}
	}
	return best
}

// What is said to be reusable is never more than the engine reuses, and never less than
// index blocks show. Where they lie in engine blocks it is the same.
func TestReusableIsWhatTheEngineReuses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(rt, "index block")
		e := engine{Reuse: store.Reuse{Block: rapid.SampledFrom([]int{1, 4, 8, 16, 20, 28, 32, 33, 64}).Draw(rt, "engine block")}}
		switch rapid.IntRange(0, 2).Draw(rt, "groups") {
		case 1:
			e.Window = rapid.IntRange(1, 5).Draw(rt, "window") * e.Block
		case 2:
			e.Window = e.Block // states
		}
		held := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 12)
		for _, p := range held.Draw(rt, "prefix") {
			e.prefix = append(e.prefix, p < 0.9)
		}
		for range e.prefix {
			e.window = append(e.window, rapid.Float64Range(0, 1).Draw(rt, "window held") < 0.7)
		}
		stored := sequence(1, len(e.prefix)*e.Block)
		part := rapid.IntRange(0, len(stored)).Draw(rt, "parts at")
		prompt := append(slices.Clone(stored[:part]), sequence(100000, rapid.IntRange(0, 40).Draw(rt, "more"))...)

		x := newPlainIndex(t)
		x.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "cuts"), 0))
		x.models["m"] = store.ModelInfo{Name: "m", BlockSize: size, Scheme: store.SchemeNative}
		chain := blockkey.Chain{BlockSize: size, Seed: blockkey.NativeSeed("", "")}
		keys := chain.AppendObjects(nil, stored, nil)
		x.holder("p", 0, store.GPU)
		for i, k := range keys {
			if e.covers(e.prefix, i*size, (i+1)*size) {
				x.add("m", "p", 0, store.GPU, k)
			}
			if e.Window > 0 && e.covers(e.window, i*size, (i+1)*size) {
				x.add("m", "p", 0, store.GPU.Window(), k)
			}
		}
		for i := range x.holders {
			x.holders[i].Reuse = e.Reuse
		}
		s := newScorer(t, scorer.Config{Index: x, BlockSize: size})
		r := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(prompt)})
		got, points := 0, 0.0
		if len(r.Pods) > 0 {
			got, points = r.Pods[0].Reusable, r.Pods[0].Score
		}
		want := e.cut(part).reuses(len(prompt))
		if got > want {
			rt.Fatalf("reusable are %d tokens, the engine reuses %d", got, want)
		}
		if least := e.shown(size, part, len(prompt)); got < least {
			rt.Fatalf("reusable are %d tokens, the index shows %d", got, least)
		}
		if limited := e.Window > 0 || e.Block > size; limited && points != float64(got/size) {
			rt.Fatalf("a score of %v for %d reusable tokens", points, got)
		}
		if e.Block%size == 0 && got != want {
			rt.Fatalf("reusable are %d tokens, the engine reuses %d", got, want)
		}
	})
}

// limited is an index with one pod, whose engine can reuse just that.
func limited(t *testing.T, size int, reuse store.Reuse, held map[store.Tier][]blockkey.Key) *plainIndex {
	x := newPlainIndex(t)
	x.models["m"] = store.ModelInfo{Name: "m", BlockSize: size, Scheme: store.SchemeNative}
	for tier, keys := range held {
		x.add("m", "p", 0, tier, keys...)
	}
	for i := range x.holders {
		x.holders[i].Reuse = reuse
	}
	return x
}

// The score has the weights of the blocks below where the engine resumes. Windows count in the
// tier that the last of these is in.
func TestLimitsByTier(t *testing.T) {
	k := make([]blockkey.Key, 8)
	for i := range k {
		k[i] = blockkey.Key(i + 1)
	}
	for name, tc := range map[string]struct {
		reuse    store.Reuse
		held     map[store.Tier][]blockkey.Key
		score    float64
		reusable int
	}{
		"larger blocks": {store.Reuse{Block: 32},
			map[store.Tier][]blockkey.Key{store.GPU: k[:3], store.CPU: k[3:5]}, 3.8, 64},
		"nothing whole": {store.Reuse{Block: 128},
			map[store.Tier][]blockkey.Key{store.GPU: k[:7]}, 0, 0},
		"a window that begins on the GPU": {store.Reuse{Block: 16, Window: 32},
			map[store.Tier][]blockkey.Key{store.GPU: k[:6], store.GPU.Window(): k[2:4]}, 4, 64},
		"a window in another tier": {store.Reuse{Block: 16, Window: 32},
			map[store.Tier][]blockkey.Key{store.GPU: k[:6], store.CPU.Window(): k[2:4]}, 0, 0},
		"a window in a slower tier, with its prefix": {store.Reuse{Block: 16, Window: 32},
			map[store.Tier][]blockkey.Key{store.GPU: k[:2], store.CPU: k[2:6], store.CPU.Window(): k[1:5]}, 2 + 3*0.8, 80},
		"windows of two tiers": {store.Reuse{Block: 16, Window: 32},
			map[store.Tier][]blockkey.Key{store.GPU: k[:4], store.CPU: k[4:6], store.GPU.Window(): k[:2], store.CPU.Window(): k[4:6]}, 4 + 2*0.8, 96},
		"a window from the root": {store.Reuse{Block: 16, Window: 64},
			map[store.Tier][]blockkey.Key{store.GPU: k, store.GPU.Window(): k[:2]}, 2, 32},
		"a prefix without any window": {store.Reuse{Block: 16, Window: 64},
			map[store.Tier][]blockkey.Key{store.GPU: k}, 0, 0},
		"a window without a prefix": {store.Reuse{Block: 16, Window: 16},
			map[store.Tier][]blockkey.Key{store.GPU: k[:1], store.GPU.Window(): k[1:]}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := limited(t, 16, tc.reuse, tc.held)
			s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
			for range 20 { // the index cuts its runs anywhere
				r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k)})
				if p := r.Pods[0]; p.Score != tc.score || p.Reusable != tc.reusable {
					t.Fatalf("%+v, want a score of %v, and %d reusable tokens", p, tc.score, tc.reusable)
				}
			}
		})
	}
}

// The last token of a prompt is computed, also where the engine's block size is not known
// or is smaller. Other strategies tell what is held.
func TestReusableWithoutLimits(t *testing.T) {
	prompt := sequence(1, 128)
	chain := blockkey.Chain{BlockSize: 64, Seed: blockkey.NativeSeed("", "")}
	keys := chain.AppendObjects(nil, prompt, nil)
	for _, tc := range []struct {
		block  int
		tokens int
		want   int
	}{
		{0, 128, 64}, {0, 127, 64}, {64, 128, 64}, {16, 128, 112}, {1, 128, 127}, {48, 128, 96}, {48, 64, 48}, {16, 129, 128}, {0, 129, 128},
	} {
		x := limited(t, 64, store.Reuse{Block: tc.block}, map[store.Tier][]blockkey.Key{store.GPU: keys})
		s := newScorer(t, scorer.Config{Index: x})
		asked := append(slices.Clone(prompt), 7)[:tc.tokens]
		p := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(asked)}).Pods[0]
		if whole := tc.tokens / 64; p.Score != float64(whole) || p.Blocks != whole || p.Reusable != tc.want {
			t.Errorf("engine blocks of %d, %d tokens: %+v, want %d reusable", tc.block, tc.tokens, p, tc.want)
		}
		if p = score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys)}).Pods[0]; tc.block != 48 && p.Reusable != 128 {
			t.Errorf("engine blocks of %d, by block keys: %+v, want 128 reusable", tc.block, p)
		}
		for _, st := range []scorer.Strategy{scorer.Coverage, scorer.HighestBlock} {
			if p = score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(prompt), Strategy: st}).Pods[0]; p.Score != 2 || p.Reusable != -1 {
				t.Errorf("%s: %+v", st, p)
			}
		}
	}
}

// A candidate that is left alone may yet be able to reuse no more than the others.
func TestEarlyExitWithLimits(t *testing.T) {
	k := make([]blockkey.Key, 8)
	for i := range k {
		k[i] = blockkey.Key(i + 1)
	}
	x := limited(t, 16, store.Reuse{Block: 64}, map[store.Tier][]blockkey.Key{store.GPU: k})
	x.add("m", "q", 0, store.GPU, k[:2]...)
	s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k), EarlyExit: true})
	if r.Best != "p" || r.Pods[0].Score != 8 {
		t.Errorf("%+v", r.Pods)
	}
}

// An explanation says which holders are of window groups.
func TestExplanationNamesWindows(t *testing.T) {
	k := []blockkey.Key{1, 2}
	x := limited(t, 16, store.Reuse{Block: 16, Window: 16}, map[store.Tier][]blockkey.Key{store.GPU: k, store.GPU.Window(): k[1:]})
	s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k), Explain: true})
	prefix, window := scorer.BlockHolder{Pod: "p", Tier: "gpu"}, scorer.BlockHolder{Pod: "p", Tier: "gpu", Kind: scorer.KindWindow}
	for i, want := range [][]scorer.BlockHolder{{prefix}, {prefix, window}} {
		if got := r.Explanation.Blocks[i].Holders; !slices.Equal(got, want) {
			t.Errorf("block %d is held by %+v, want %+v", i, got, want)
		}
	}
}

// sequence is n tokens that rise.
func sequence(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}
