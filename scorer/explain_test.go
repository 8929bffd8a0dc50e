package scorer_test

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// TestCaseSmallOnesUnderAttackExplain explains more than there is room for: the leading
// blocks with all their holders, and how many are left out. The score is what it is without.
func TestCaseSmallOnesUnderAttackExplain(t *testing.T) {
	for name, c := range map[string]struct{ keys, pods, prompts, blocks int }{
		"one block more":     {scorer.MaxExplainedBlocks + 1, 1, 1, scorer.MaxExplainedBlocks},
		"all of them":        {scorer.MaxExplainedBlocks, 1, 1, scorer.MaxExplainedBlocks},
		"many holders":       {scorer.MaxExplainedBlocks, 64, 1, scorer.MaxExplainedHolders / 64},
		"nobody's":           {2 * scorer.MaxExplainedBlocks, 0, 1, scorer.MaxExplainedBlocks},
		"many prompts":       {scorer.MaxExplainedBlocks, 1, 64, scorer.MaxExplainedBlocks / 64},
		"more than a share":  {100, scorer.MaxExplainedHolders/64 + 1, 64, 0},
		"just what is there": {scorer.MaxExplainedHolders / 64, 64, 1, scorer.MaxExplainedHolders / 64},
	} {
		t.Run(name, func(t *testing.T) {
			keys := make([]blockkey.Key, c.keys)
			for i := range keys {
				keys[i] = blockkey.Key(i + 1)
			}
			x := newPlainIndex(t)
			for i := range c.pods {
				x.add("m", fmt.Sprint("p", i), 0, store.GPU, keys...)
			}
			s := newScorer(t, scorer.Config{Index: x})
			all := make([]scorer.Request, c.prompts)
			for i := range all {
				all[i] = scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Explain: true}
			}
			rs := must.Get(s.ScoreAll(t.Context(), all))(t)
			for _, r := range rs {
				ex := r.Explanation
				if len(ex.Blocks) != c.blocks || ex.LeftOut != c.keys-c.blocks || len(ex.Keys) != c.keys || ex.Keys[c.keys-1] != keys[c.keys-1] {
					t.Fatalf("%d blocks explained, %d left out, %d keys; want %d of %d", len(ex.Blocks), ex.LeftOut, len(ex.Keys), c.blocks, c.keys)
				}
				if c.blocks > 0 && len(ex.Blocks[c.blocks-1].Holders) != c.pods {
					t.Errorf("the last block has %d holders, want %d", len(ex.Blocks[c.blocks-1].Holders), c.pods)
				}
				if len(r.Pods) != c.pods || c.pods > 0 && r.Pods[0].Blocks != c.keys {
					t.Errorf("%d pods, the first %+v", len(r.Pods), r.Pods[0])
				}
			}
		})
	}
}
