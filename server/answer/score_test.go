package answer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/request"
)

// TestAppendScore: what an answer says of a pod does not depend on the pods beside it.
func TestAppendScore(t *testing.T) {
	type scores struct {
		Scores, Matched map[string]json.RawMessage
	}
	encoded := func(t *rapid.T, pods ...scorer.PodScore) (s scores) {
		must.OK(t, json.Unmarshal(answer.AppendScore(nil, &scorer.Response{Pods: pods}, &request.Input{}), &s))
		return s
	}
	few := rapid.IntRange(0, 2)
	rapid.Check(t, func(t *rapid.T) {
		var pods []scorer.PodScore
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			p := scorer.PodScore{Pod: fmt.Sprintf("p%d", i), Score: float64(few.Draw(t, "score")) / 2, Blocks: few.Draw(t, "blocks"), Tokens: few.Draw(t, "tokens"), Reusable: few.Draw(t, "reusable") - 1, Predicted: few.Draw(t, "predicted")}
			for tier := range few.Draw(t, "tiers") {
				p.Tiers = append(p.Tiers, scorer.TierBlocks{Tier: []string{"gpu", "cpu"}[tier], Blocks: few.Draw(t, "in tier")})
			}
			for rank := range few.Draw(t, "ranks") {
				p.Ranks = append(p.Ranks, scorer.RankBlocks{Rank: rank, Blocks: few.Draw(t, "of rank")})
			}
			pods = append(pods, p)
		}
		all := encoded(t, pods...)
		for _, p := range pods {
			alone := encoded(t, p)
			if !bytes.Equal(all.Scores[p.Pod], alone.Scores[p.Pod]) || !bytes.Equal(all.Matched[p.Pod], alone.Matched[p.Pod]) {
				t.Fatalf("%+v: %s and %s beside others, %s and %s alone", p, all.Scores[p.Pod], all.Matched[p.Pod], alone.Scores[p.Pod], alone.Matched[p.Pod])
			}
			if has := alone.Matched[p.Pod] != nil; has != (p.Blocks > 0) {
				t.Fatalf("%+v: matched is %v", p, has)
			}
		}
	})
}

// BenchmarkAppendScore is the encoding of an answer with a thousand pods.
func BenchmarkAppendScore(b *testing.B) {
	r := &scorer.Response{Best: "10.0.0.0:8000", Blocks: 256, BlockSize: 64, Tokens: 16_384, Source: scorer.SourceTokens, Exact: true}
	for i := range 1000 {
		r.Pods = append(r.Pods, scorer.PodScore{
			Pod: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Score: 256, Blocks: 256, Tokens: 16_384, Reusable: 16_320,
			Tiers: []scorer.TierBlocks{{Tier: "gpu", Blocks: 256}}, Ranks: []scorer.RankBlocks{{Blocks: 256}},
		})
	}
	var buf []byte
	for b.Loop() {
		buf = answer.AppendScore(buf[:0], r, &request.Input{})
	}
	b.SetBytes(int64(len(buf)))
}
