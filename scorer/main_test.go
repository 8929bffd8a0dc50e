package scorer_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plainIndex is the index as one would write it on a blackboard: a map from
// store key to holders. It cuts its runs at random, since a fold must not care
// where they are cut.
type plainIndex struct {
	t       testing.TB
	holders []store.Holder
	pods    []store.Pod
	models  map[string]store.ModelInfo
	blocks  map[blockkey.StoreKey]map[store.HolderID]bool
	rng     *rand.Rand
	fail    error         // returned by every Lookup, after Begin
	failAt  int           // blocks read before fail strikes
	stall   time.Duration // how long a Lookup takes before it answers
	read    int           // blocks given to folders in all lookups
	lookups int
}

func newPlainIndex(t testing.TB) *plainIndex {
	return &plainIndex{
		t:      t,
		models: map[string]store.ModelInfo{},
		blocks: map[blockkey.StoreKey]map[store.HolderID]bool{},
		rng:    rand.New(rand.NewPCG(1, 2)),
	}
}

// holder returns the id of (pod, rank, tier), new where there was none.
func (x *plainIndex) holder(pod string, rank int, tier store.Tier) store.HolderID {
	for _, h := range x.holders {
		if h.Pod == pod && h.Rank == rank && h.Tier == tier {
			return h.ID
		}
	}
	if !slices.ContainsFunc(x.pods, func(p store.Pod) bool { return p.Name == pod }) {
		x.pods = append(x.pods, store.Pod{Name: pod, Model: "m"})
	}
	id := store.HolderID(len(x.holders) + 1)
	x.holders = append(x.holders, store.Holder{ID: id, Pod: pod, Rank: rank, Tier: tier})
	return id
}

func (x *plainIndex) add(model, pod string, rank int, tier store.Tier, keys ...blockkey.Key) {
	id := x.holder(pod, rank, tier)
	for _, k := range keys {
		sk := k.In(blockkey.ModelOf(model))
		if x.blocks[sk] == nil {
			x.blocks[sk] = map[store.HolderID]bool{}
		}
		x.blocks[sk][id] = true
	}
}

func (x *plainIndex) remove(model, pod string, rank int, tier store.Tier, keys ...blockkey.Key) {
	id := x.holder(pod, rank, tier)
	for _, k := range keys {
		delete(x.blocks[k.In(blockkey.ModelOf(model))], id)
	}
}

// end ends the life of a holder without touching the blocks that name it.
func (x *plainIndex) end(pod string, rank int, tier store.Tier) {
	for i, h := range x.holders {
		if h.Pod == pod && h.Rank == rank && h.Tier == tier {
			x.holders[i].Pod = "\x00ended"
		}
	}
}

func (x *plainIndex) registry() *store.Registry {
	return store.NewRegistry(1, slices.Clone(x.pods), slices.Clone(x.holders), x.models, time.Time{})
}

func (x *plainIndex) Cached() *store.Registry {
	return store.NewRegistry(0, nil, nil, nil, time.Time{}) // knows nothing: the hardest case
}

func (x *plainIndex) Lookup(ctx context.Context, queries ...*store.Query) error {
	x.lookups++
	reg := x.registry()
	for _, q := range queries {
		q.Fold.Begin(reg)
	}
	if x.stall > 0 {
		select {
		case <-time.After(x.stall):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, q := range queries {
		for i := 0; i < len(q.Keys); {
			if x.fail != nil && i >= x.failAt {
				return x.fail
			}
			ids := x.at(q, i)
			n := 1
			for i+n < len(q.Keys) && slices.Equal(x.at(q, i+n), ids) && x.rng.IntN(3) > 0 && (x.fail == nil || i+n < x.failAt) {
				n++
			}
			x.read += n
			if !q.Fold.Run(n, ids) {
				break
			}
			i += n
		}
	}
	return nil
}

func (x *plainIndex) at(q *store.Query, i int) []store.HolderID {
	var ids []store.HolderID
	for id := range x.blocks[q.Keys[i].In(q.Model)] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func newScorer(t testing.TB, cfg scorer.Config) *scorer.Scorer {
	t.Helper()
	s := must.Get(scorer.New(cfg))(t)
	return s
}

func score(t testing.TB, s *scorer.Scorer, r scorer.Request) *scorer.Response {
	t.Helper()
	resp := must.Get(s.Score(t.Context(), r))(t)
	return resp
}

// scores gives the ranking as name -> score.
func scores(r *scorer.Response) map[string]float64 {
	m := map[string]float64{}
	for _, p := range r.Pods {
		m[p.Pod] = p.Score
	}
	return m
}
