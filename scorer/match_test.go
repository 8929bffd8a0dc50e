package scorer_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// weigh is what blocks count by the default weights.
func weigh(c scorer.TierCounts) float64 {
	w := scorer.DefaultWeights()
	var sum float64
	for tier, n := range c {
		sum += float64(n) * w[tier]
	}
	return math.Round(sum*1e6) / 1e6
}

// A match is what each rank holds, counted by hand, and the ranking follows from it alone.
func TestMatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := newPlainIndex(t)
		x.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "cuts"), 0))
		n := rapid.IntRange(0, 12).Draw(rt, "blocks")
		keys := make([]blockkey.Key, n)
		for i := range keys {
			keys[i] = blockkey.Key(i + 1)
		}
		holds := map[rank][]store.Tier{} // by block the best tier, NumTiers means none
		for range rapid.IntRange(0, 8).Draw(rt, "adds") {
			r := rank{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "pod"), rapid.IntRange(0, 2).Draw(rt, "rank")}
			tier := store.Tier(rapid.IntRange(0, store.NumTiers-1).Draw(rt, "tier"))
			from := rapid.IntRange(0, n).Draw(rt, "from") / 2
			to := rapid.IntRange(from, n).Draw(rt, "to")
			x.add("m", r.pod, r.rank, tier, keys[from:to]...)
			if holds[r] == nil {
				holds[r] = slices.Repeat([]store.Tier{store.NumTiers}, n)
			}
			for i := from; i < to; i++ {
				holds[r][i] = min(holds[r][i], tier)
			}
		}
		s := newScorer(t, scorer.Config{Index: x, BlockSize: 4})
		for _, strategy := range scorer.Strategies() {
			resp := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Strategy: strategy, Match: true})
			m := resp.Match
			if !slices.Equal(m.Keys, keys) || m.BlockSize != 4 || (m.Extent == scorer.Prefix) != (strategy == scorer.LongestPrefix) {
				rt.Fatalf("%s: %d keys of size %d, extent %d", strategy, len(m.Keys), m.BlockSize, m.Extent)
			}
			best := map[string]float64{}
			ranks := map[string][]scorer.RankBlocks{}
			for slot, at := range m.Registry.Slots {
				pod := m.Registry.Pods[at.Pod].Name
				want, highest := byHand(holds[rank{pod, at.Rank}], m.Extent)
				if m.Held[slot] != want || m.Highest[slot] != highest || m.Usable(slot) != want {
					rt.Fatalf("%s, %s/%d: held %v, usable %v, highest %d; want %v, %d", strategy, pod, at.Rank, m.Held[slot], m.Usable(slot), m.Highest[slot], want, highest)
				}
				if want.Total() == 0 {
					continue
				}
				sc := weigh(want)
				if strategy == scorer.HighestBlock {
					sc = float64(highest)
				}
				best[pod] = max(best[pod], sc)
				ranks[pod] = append(ranks[pod], scorer.RankBlocks{Rank: at.Rank, Blocks: want.Total()})
			}
			if got := scores(resp); !reflect.DeepEqual(got, best) {
				rt.Fatalf("%s: scores %v, want %v", strategy, got, best)
			}
			for _, p := range resp.Pods {
				if !slices.Equal(p.Ranks, ranks[p.Pod]) {
					rt.Fatalf("%s, %s: ranks %v, want %v", strategy, p.Pod, p.Ranks, ranks[p.Pod])
				}
			}
		}
	})
}

// byHand counts what a rank holds, given the tier of each block.
func byHand(tiers []store.Tier, extent scorer.Extent) (c scorer.TierCounts, highest int32) {
	for i, tier := range tiers {
		if tier == store.NumTiers {
			if extent == scorer.Prefix {
				break
			}
			continue
		}
		c[tier]++
		highest = int32(i + 1)
	}
	return c, highest
}

// A match says where engines can resume, and stays what it was when others are asked for.
func TestMatchIsTheCallers(t *testing.T) {
	x := newPlainIndex(t)
	tokens := firstTokens(40)
	keys := blockKeys(4, tokens)
	x.add("m", "large", 0, store.GPU, keys[:7]...)
	x.add("m", "small", 1, store.CPU, keys...)
	x.pods[slices.IndexFunc(x.pods, func(p store.Pod) bool { return p.Name == "large" })].BlockSize = 16
	s := newScorer(t, scorer.Config{Index: x, BlockSize: 4})
	ask := func(strategy scorer.Strategy, tokens []uint32) *scorer.Match {
		return score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), Strategy: strategy, Match: true}).Match
	}
	said := func(m *scorer.Match) (out string) {
		for slot, at := range m.Registry.Slots {
			out += fmt.Sprint(m.Registry.Pods[at.Pod].Name, "/", at.Rank, " ", m.Held[slot], m.Usable(slot), m.Highest[slot], m.Reusable(slot), " ")
		}
		return fmt.Sprint(out, m.Reach, len(m.Keys))
	}
	m := ask(scorer.LongestPrefix, tokens)
	const want = "large/0 [7 0 0 0] [4 0 0 0] 7 16 small/1 [0 10 0 0] [0 10 0 0] 10 36 10 10"
	if got := said(m); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	anywhere := ask(scorer.Coverage, tokens)
	if got, want := said(anywhere), "large/0 [7 0 0 0] [7 0 0 0] 7 -1 small/1 [0 10 0 0] [0 10 0 0] 10 -1 10 10"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for range 5 {
		ask(scorer.LongestPrefix, tokens[:9])
	}
	if got := said(m); got != want {
		t.Errorf("later it is %s", got)
	}
	if r := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}); r.Match != nil {
		t.Error("a match that nobody has asked for")
	}
}

// TestTop holds an answer with Top against the beginning of the whole one.
func TestTop(t *testing.T) {
	x := newCrowdIndex(40, 2, 64)
	s := newScorer(t, scorer.Config{Index: x})
	keys := make([]blockkey.Key, 64)
	for i := range keys {
		keys[i] = blockkey.Key(i + 1)
	}
	for _, strategy := range scorer.Strategies() {
		for _, pods := range [][]string{nil, {"10.0.0.9:8000", "nobody", "10.0.0.7:8000", "a", "nobody"}} {
			req := scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Strategy: strategy, Pods: pods}
			all := score(t, s, req)
			if all.LeftOut != 0 || len(all.Pods) < 4 {
				t.Fatalf("%s: %d pods, %d left out", strategy, len(all.Pods), all.LeftOut)
			}
			for top := 1; top <= len(all.Pods)+1; top++ {
				req.Top = top
				got := score(t, s, req)
				n := min(top, len(all.Pods))
				if !reflect.DeepEqual(got.Pods, firstOf(all, n)) || got.Best != all.Best || got.LeftOut != len(all.Pods)-n {
					t.Fatalf("%s, top %d of %v: best %s, %d left out, %+v; want %s and the beginning of %+v", strategy, top, pods, got.Best, got.LeftOut, got.Pods, all.Best, all.Pods)
				}
			}
		}
	}
	if _, err := s.Score(t.Context(), scorer.Request{Model: "m", Top: -1}); !errors.Is(err, scorer.ErrRequest) {
		t.Error(err)
	}
}
