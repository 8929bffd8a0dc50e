package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// flaky is an index that takes a part of some writes, and says of those that it is away.
type flaky struct {
	pagedIndex
	rng    *rand.Rand
	faults atomic.Int64
}

func (f *flaky) Apply(ctx context.Context, batches ...store.Batch) error {
	if f.rng.IntN(4) > 0 {
		return f.pagedIndex.Apply(ctx, batches...)
	}
	f.faults.Add(1)
	var some []store.Batch
	for i := range batches {
		if int(batches[i].Guard.Generation)%2 == f.rng.IntN(2) && (len(some) == 0 || *some[0].Guard == *batches[i].Guard) {
			some = append(some, batches[i])
		}
	}
	// Batches under one guard are one content: all of them, or none.
	if n := countGuard(batches, some); n != len(some) {
		some = nil
	}
	if len(some) > 0 {
		if err := f.pagedIndex.Apply(ctx, some...); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: it says so", store.ErrUnavailable)
}

func countGuard(batches, like []store.Batch) (n int) {
	for i := range batches {
		if len(like) > 0 && *batches[i].Guard == *like[0].Guard {
			n++
		}
	}
	return n
}

// newRedis opens indexes on a server of its own, as so many processes have them.
func newRedis(t *testing.T, n int) (out []pagedIndex) {
	t.Helper()
	url := redistest.Start(t).URL()
	for range n {
		x := must.Get(redis.Open(redis.Config{URL: url}))(t)
		t.Cleanup(func() { _ = x.Close() })
		out = append(out, x)
	}
	return out
}

// TestPushStreams pushes random histories through two replicas in turn, whose writes fail in
// part. One stream has events of three ranks, and one is a rank's alone. What the index holds
// of each rank is what a plain model holds of the pushes since the last one that is missing.
func TestPushStreams(t *testing.T) {
	for name, indexes := range map[string]func(t *testing.T) []pagedIndex{
		"memory": func(t *testing.T) []pagedIndex { x := newIndex(t); return []pagedIndex{x, x} },
		"redis": func(t *testing.T) []pagedIndex {
			xs := newRedis(t, 2)
			must.Get(xs[0].EnsureModel(t.Context(), store.ModelInfo{Name: testModel, BlockSize: indexBlock, Scheme: store.SchemeNative}))(t)
			must.Get(xs[0].Register(t.Context(), store.Pod{Name: "pod", Model: testModel}))(t)
			return xs
		},
	} {
		t.Run(name, func(t *testing.T) { pushStreams(t, indexes(t)) })
	}
}

// ranksOfStream are the ranks that the stream of rank 0 has events of; ownRank is a
// stream of its own.
const ranksOfStream, ownRank = 3, 3

func pushStreams(t *testing.T, xs []pagedIndex) {
	rng := rand.New(rand.NewPCG(21, 22))
	var replicas []*Ingester
	var flakies []*flaky
	for i, x := range xs {
		f := &flaky{pagedIndex: x, rng: rand.New(rand.NewPCG(uint64(i), 23))}
		flakies = append(flakies, f)
		replicas = append(replicas, newIngester(t, Config{Index: f}))
	}
	push := func(p Pushed) PushResult {
		t.Helper()
		for range 200 {
			res, err := replicas[rng.IntN(2)].Push(t.Context(), p)
			if err == nil {
				return res
			}
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		t.Fatal("a push never gets through")
		return PushResult{}
	}
	caches, models := make([]*fakeCache, ownRank+1), make([]*plain, ownRank+1)
	renew := func(rank int, engine bool) {
		models[rank] = &plain{blocks: map[int64]*cached{}}
		if engine {
			caches[rank] = newFakeCache(rng, true)
		}
	}
	for rank := range caches {
		renew(rank, true)
	}
	ownSeq, seq := uint64(0), uint64(0)
	holes := 0
	for step := range 250 {
		if rng.IntN(4) == 0 {
			told := []enginetest.Event{caches[ownRank].event()}
			models[ownRank].apply(told)
			push(Pushed{Pod: "pod", Model: testModel, Rank: ownRank, Seq: &ownSeq, Ranks: []RankEvents{{ownRank, eventsOf(told)}}})
			ownSeq++
		}
		switch rng.IntN(40) {
		case 0: // a push is lost
			seq++
			holes++
			for rank := range ranksOfStream {
				renew(rank, false)
			}
		case 1: // the engine begins anew
			seq = 0
			holes++
			for rank := range ranksOfStream {
				renew(rank, true)
			}
		}
		p := Pushed{Pod: "pod", Model: testModel, Seq: &seq}
		for rank := range ranksOfStream {
			if rng.IntN(3) == 0 {
				continue
			}
			told := []enginetest.Event{caches[rank].event(), caches[rank].event()}
			models[rank].apply(told)
			p.Ranks = append(p.Ranks, RankEvents{rank, eventsOf(told)})
		}
		push(p)
		if rng.IntN(3) == 0 {
			for _, r := range push(p).Ranks {
				if !r.Duplicate || r.Applied != 0 || r.Began != 0 {
					t.Fatalf("step %d again: %+v", step, r)
				}
			}
		}
		seq++
		for rank, m := range models {
			got := must.Get(held(t.Context(), xs[0], "pod", rank))(t)
			if diff := differ(got, m.keys()); diff != "" {
				t.Fatalf("step %d, rank %d: %s", step, rank, diff)
			}
		}
	}
	if holes == 0 || flakies[0].faults.Load() == 0 || flakies[1].faults.Load() == 0 {
		t.Errorf("%d holes, %d and %d faults", holes, flakies[0].faults.Load(), flakies[1].faults.Load())
	}
}
