package scorer_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// ask is a prompt of two blocks that everyone holds, and one or two tokens of its own.
func ask(i int) []uint32 { return append(firstTokens(32), uint32(i), uint32(i*i)) }

// TestTies holds what a choice among equal pods promises. It is one of the best, it does
// not depend on the other candidates, and all get their share.
func TestTies(t *testing.T) {
	for _, strategy := range scorer.Strategies() {
		t.Run(string(strategy), func(t *testing.T) {
			x := newPlainIndex(t)
			keys := blockkey.AppendNative(nil, firstTokens(32), 16, blockkey.NativeSeed("", ""))
			for _, pod := range []string{"a", "b", "c", "d"} {
				x.add("m", pod, 0, store.GPU, keys...)
			}
			x.add("m", "less", 0, store.GPU, keys[:1]...)
			s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
			share := map[string]int{}
			for i := range 400 {
				r := score(t, s, scorer.Request{Model: "m", Strategy: strategy, Input: scorer.Tokens(ask(i))})
				share[r.Best]++
				if fmt.Sprint(r.Pods[0].Pod, r.Pods[1].Pod, r.Pods[2].Pod, r.Pods[3].Pod, r.Pods[4].Pod) != "abcdless" {
					t.Fatalf("the ranking is %+v", r.Pods)
				}
				// Without another of the pods the prompt stays where it is.
				other := map[string]string{"a": "b", "b": "c", "c": "d", "d": "a"}[r.Best]
				var rest []string
				for _, pod := range []string{"d", "c", "b", "a", "less", "none"} {
					if pod != other {
						rest = append(rest, pod)
					}
				}
				again := score(t, s, scorer.Request{Model: "m", Strategy: strategy, Pods: rest, Input: scorer.Tokens(ask(i))})
				if again.Best != r.Best {
					t.Errorf("prompt %d moves from %s to %s when %s goes", i, r.Best, again.Best, other)
				}
			}
			for _, pod := range []string{"a", "b", "c", "d"} {
				if n := share[pod]; n < 70 || n > 130 {
					t.Errorf("%s gets %d of 400 prompts: %v", pod, n, share)
				}
			}
		})
	}
}

// TestTiesInTop has best among the pods of the answer, however few of equal ones are in it. The order and
// the others are as without Top.
func TestTiesInTop(t *testing.T) {
	x := newPlainIndex(t)
	keys := blockkey.AppendNative(nil, firstTokens(32), 16, blockkey.NativeSeed("", ""))
	for _, pod := range []string{"a", "b", "c", "d"} {
		x.add("m", pod, 0, store.GPU, keys...)
	}
	x.add("m", "less", 0, store.GPU, keys[:1]...)
	s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
	for i := range 50 {
		all := score(t, s, scorer.Request{Model: "m", Pods: []string{"a", "b", "c", "d", "less", "none"}, Input: scorer.Tokens(ask(i))})
		for top := 1; top <= 6; top++ {
			r := score(t, s, scorer.Request{Model: "m", Top: top, Pods: []string{"a", "b", "c", "d", "less", "none"}, Input: scorer.Tokens(ask(i))})
			want := firstOf(all, top)
			if r.Best != all.Best || r.LeftOut != 6-top || !reflect.DeepEqual(r.Pods, want) {
				t.Fatalf("top %d of %+v: best %s, %d left out of %+v; want %s and %+v", top, all.Pods, r.Best, r.LeftOut, r.Pods, all.Best, want)
			}
		}
	}
}

// firstOf is what Top leaves of a whole answer.
func firstOf(all *scorer.Response, top int) []scorer.PodScore {
	out := slices.Clone(all.Pods[:min(top, len(all.Pods))])
	if at := slices.IndexFunc(all.Pods, func(p scorer.PodScore) bool { return p.Pod == all.Best }); at >= len(out) {
		out[len(out)-1] = all.Pods[at]
	}
	return out
}

// TestTiesByKeys has the same choice for tokens that are whole blocks as for their
// keys, and another one for other keys.
func TestTiesByKeys(t *testing.T) {
	x := newPlainIndex(t)
	share := map[string]int{}
	for i := range 200 {
		tokens := append(firstTokens(16), ask(i)[32:]...)
		tokens = append(tokens, firstTokens(14)...)
		keys := blockkey.AppendNative(nil, tokens, 16, blockkey.NativeSeed("", ""))
		for _, pod := range []string{"a", "b"} {
			x.add("m", pod, 0, store.GPU, keys[0])
		}
		s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
		byTokens := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)})
		byKeys := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys)})
		if byTokens.Best != byKeys.Best {
			t.Errorf("prompt %d: %s by tokens, %s by keys", i, byTokens.Best, byKeys.Best)
		}
		share[byKeys.Best]++
	}
	if share["a"] < 70 || share["b"] < 70 {
		t.Errorf("shares %v", share)
	}
}

// TestNoTie has no choice where no pod holds anything.
func TestNoTie(t *testing.T) {
	s := newScorer(t, scorer.Config{Index: newPlainIndex(t), BlockSize: 16})
	if r := score(t, s, scorer.Request{Model: "m", Pods: []string{"a", "b"}, Input: scorer.Tokens(firstTokens(40))}); r.Best != "" {
		t.Errorf("best is %q of %+v", r.Best, r.Pods)
	}
}
