package scorer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// crowdIndex is an index in which every rank of many pods holds some of a prompt, the later ones
// less of it. It answers in runs of eight blocks and costs nothing itself.
type crowdIndex struct {
	reg  *store.Registry
	runs [][]store.HolderID
}

func newCrowdIndex(pods, ranks, blocks int) *crowdIndex {
	x := &crowdIndex{}
	var list []store.Pod
	var holders []store.Holder
	for p := range pods {
		list = append(list, store.Pod{Name: fmt.Sprintf("10.0.%d.%d:8000", p/250, p%250), Model: "m"})
		for r := range ranks {
			holders = append(holders, store.Holder{ID: store.HolderID(len(holders) + 1), Pod: list[p].Name, Rank: r, Tier: store.Tier(len(holders) % store.NumTiers)})
		}
	}
	x.reg = store.NewRegistry(1, list, holders, map[string]store.ModelInfo{"m": {Name: "m", BlockSize: 64, Scheme: store.SchemeNative}}, time.Time{})
	for n := 0; n < blocks; n += 8 {
		var ids []store.HolderID
		for _, h := range holders {
			if int(h.ID)%(blocks/8) >= n/8 {
				ids = append(ids, h.ID)
			}
		}
		x.runs = append(x.runs, ids)
	}
	return x
}

func (x *crowdIndex) Cached() *store.Registry { return x.reg }

func (x *crowdIndex) Lookup(_ context.Context, queries ...*store.Query) error {
	for _, q := range queries {
		q.Fold.Begin(x.reg)
		for _, ids := range x.runs {
			if !q.Fold.Run(8, ids) {
				break
			}
		}
	}
	return nil
}

// BenchmarkScoreOfManyRanks is the cost of fold and ranking where the fleet is large and all of
// it holds something.
func BenchmarkScoreOfManyRanks(b *testing.B) {
	for _, pods := range []int{16, 1000} {
		x := newCrowdIndex(pods, 4, 64)
		keys := make([]blockkey.Key, 64)
		for i := range keys {
			keys[i] = blockkey.Key(i + 1)
		}
		for _, strategy := range scorer.Strategies() {
			b.Run(fmt.Sprintf("pods=%d/%s", pods, strategy), func(b *testing.B) {
				s := newScorer(b, scorer.Config{Index: x})
				req := scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Strategy: strategy}
				b.ReportAllocs()
				for b.Loop() {
					must.Get(s.Score(b.Context(), req))(b)
				}
			})
		}
	}
}

// BenchmarkScoreBesideIdlePods is the cost of a prompt that ten pods hold, by how many others
// are registered.
func BenchmarkScoreBesideIdlePods(b *testing.B) {
	for _, idle := range []int{0, 1000, 9000} {
		x := newCrowdIndex(idle+10, 1, 64)
		for i := range x.runs {
			x.runs[i] = []store.HolderID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		}
		keys := make([]blockkey.Key, 64)
		for i := range keys {
			keys[i] = blockkey.Key(i + 1)
		}
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			s := newScorer(b, scorer.Config{Index: x, Budget: time.Second})
			req := scorer.Request{Model: "m", Input: scorer.BlockKeys(keys)}
			b.ReportAllocs()
			for b.Loop() {
				must.Get(s.Score(b.Context(), req))(b)
			}
		})
	}
}
