package rechunk

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// Against real indexes: what they hold and give back is what the model says, and
// a generation goes on under another owner.

func TestMemoryIndex(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = x.Close() })
	indexed(t, x, 12)
}

func TestRedisIndex(t *testing.T) {
	s := redistest.Start(t)
	indexed(t, openRedis(t, s.URL()), 8)
}

func TestClusterIndex(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	indexed(t, openRedis(t, c.URL()), 4)
}

func openRedis(t *testing.T, url string) store.Index {
	x := must.Get(redis.Open(redis.Config{URL: url, DialTimeout: 20 * time.Second, Timeout: 20 * time.Second}))(t)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

var pods atomic.Int64

func indexed(t *testing.T, x store.Index, messages int) {
	rapid.Check(t, func(t *rapid.T) {
		pod := fmt.Sprintf("pod-%d", pods.Add(1))
		must.Get(x.Register(t.Context(), store.Pod{Name: pod, Model: "m"}))(t)
		gen := must.Get(x.Begin(t.Context(), pod, 0, 1))(t)
		index := rapid.SampledFrom([]int{4, 8}).Draw(t, "index block")
		h := drawHistory(t, index)
		r := newRig(t, Config{BlockSize: index})
		r.from = func(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
			return x.ReadMap(ctx, gen, keys...)
		}
		ever := map[blockkey.Key]bool{}
		r.to = func(ch Changes, seq uint64) {
			b := store.Batch{Pod: pod, Model: "m", Guard: &store.Guard{Generation: gen, Fence: 1, Seq: seq}}
			must.OK(t, x.Apply(t.Context(), ch.AppendBatches(nil, b)...))
			for _, op := range ch.Ops {
				for _, k := range op.Keys {
					ever[k] = true
				}
			}
		}
		for range rapid.IntRange(1, messages).Draw(t, "messages") {
			r.apply(h.draw(t)...)
			h.goOn(t, r)
		}
		r.write()
		var keys []blockkey.Key
		for k := range ever {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		got := storetest.Collector{Keys: len(keys)}
		must.OK(t, x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: &got}))
		held := map[credit]bool{}
		for i, places := range got.Answer {
			for _, at := range places {
				if at.Pod == pod {
					held[credit{at.Tier, keys[i]}] = true
				}
			}
		}
		if d := diff(held, r.model.credits()); d != "" {
			t.Fatalf("in the index %s", d)
		}
		must.Get(x.Retire(t.Context(), pod))(t)
	})
}
