package scorer_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// predicting is an index in which some blocks are held and some are predicted.
type predicting struct {
	*testing.T
	store.Index
}

func newPredicting(t *testing.T) predicting {
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = x.Close() })
	return predicting{t, x}
}

func (x predicting) hold(pod string, tier store.Tier, reuse store.Reuse, keys ...blockkey.Key) {
	x.Helper()
	op := store.Op{Kind: store.Add, Tier: tier, Keys: keys}
	if tier == store.Predicted {
		op.Until = time.Now().Add(time.Hour)
	}
	must.OK(x, x.Apply(x.Context(), store.Batch{Pod: pod, Model: "m", Reuse: reuse, Ops: []store.Op{op}}))
}

func chainOf(n int) []blockkey.Key {
	k := make([]blockkey.Key, n)
	for i := range k {
		k[i] = blockkey.Key(i + 1)
	}
	return k
}

// A predicted block counts only where it is asked for, as one on the GPU. It counts only where the rank
// holds it in no other way.
func TestPredictedBlocks(t *testing.T) {
	k := chainOf(8)
	x := newPredicting(t)
	x.hold("a", store.CPU, store.Reuse{}, k[0], k[3])
	x.hold("a", store.Predicted, store.Reuse{}, k[0], k[1], k[2], k[5])
	x.hold("b", store.GPU, store.Reuse{}, k[0])
	s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
	for _, c := range []struct {
		strategy   scorer.Strategy
		predicted  bool
		a          scorer.TierCounts
		predicteds int
		highest    int32
	}{
		{scorer.LongestPrefix, false, scorer.TierCounts{store.CPU: 1}, 0, 1},
		{scorer.LongestPrefix, true, scorer.TierCounts{store.CPU: 2, store.GPU: 2}, 2, 4},
		{scorer.Coverage, false, scorer.TierCounts{store.CPU: 2}, 0, 4},
		{scorer.Coverage, true, scorer.TierCounts{store.CPU: 2, store.GPU: 3}, 3, 6},
	} {
		r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k), Strategy: c.strategy, Predicted: c.predicted, Match: true})
		m := r.Match
		if m.Held[0] != c.a || m.UsablePredicted(0) != c.predicteds || m.Highest[0] != c.highest || m.UsablePredicted(1) != 0 {
			t.Errorf("%s, predicted %v: held %v, %d predicted, highest %d; want %+v", c.strategy, c.predicted, m.Held[0], m.UsablePredicted(0), m.Highest[0], c)
		}
		at := slices.IndexFunc(r.Pods, func(p scorer.PodScore) bool { return p.Pod == "a" })
		if r.Pods[at].Predicted != c.predicteds {
			t.Errorf("%s, predicted %v: %+v", c.strategy, c.predicted, r.Pods[at])
		}
	}
	// A pod with predictions alone is only in answers that ask for them.
	x.hold("silent", store.GPU, store.Reuse{}, 99)
	x.hold("silent", store.Predicted, store.Reuse{}, k...)
	for _, asked := range []bool{false, true} {
		r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k), Predicted: asked, Explain: true})
		if best := r.Best == "silent"; best != asked {
			t.Errorf("predicted %v: the best is %s", asked, r.Best)
		}
		want := scorer.BlockHolder{Pod: "silent", Tier: "gpu", Kind: scorer.KindPredicted}
		if named := slices.Contains(r.Explanation.Blocks[0].Holders, want); named != asked {
			t.Errorf("predicted %v: block 0 is held by %+v", asked, r.Explanation.Blocks[0].Holders)
		}
	}
}

// An engine that cannot resume everywhere cannot do so in what is predicted either; what is
// predicted has its windows.
func TestPredictedBlocksOfLimitedEngines(t *testing.T) {
	k := chainOf(8)
	for name, c := range map[string]struct {
		reuse            store.Reuse
		usable, predicts int
	}{
		"larger blocks": {store.Reuse{Block: 64}, 4, 1},
		"windows":       {store.Reuse{Block: 16, Window: 32}, 7, 4},
	} {
		x := newPredicting(t)
		x.hold("a", store.GPU, c.reuse, k[:3]...)
		x.hold("a", store.GPU.Window(), c.reuse, k[:3]...)
		x.hold("a", store.Predicted, store.Reuse{}, k[3:7]...)
		s := newScorer(t, scorer.Config{Index: x, BlockSize: 16})
		m := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(k), Predicted: true, Match: true}).Match
		if n, p := m.Usable(0).Total(), m.UsablePredicted(0); n != c.usable || p != c.predicts {
			t.Errorf("%s: %d blocks can be used, %d predicted; want %d, %d", name, n, p, c.usable, c.predicts)
		}
	}
}
