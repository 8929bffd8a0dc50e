package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

const benchModel = "meta-llama/Llama-3.1-8B"

var benchMask = blockkey.ModelOf(benchModel)

func randomKeys(rng *rand.Rand, n int) []blockkey.Key {
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

func benchBatch(pod string, kind store.OpKind, keys []blockkey.Key) store.Batch {
	return store.Batch{Pod: pod, Model: benchModel, Ops: []store.Op{{Kind: kind, Keys: keys}}}
}

func mustApply(tb testing.TB, x *Index, batches ...store.Batch) {
	tb.Helper()
	must.OK(tb, x.Apply(context.Background(), batches...))
}

// addChain adds a chain in events of 1,024 blocks.
func addChain(tb testing.TB, x *Index, pod string, keys []blockkey.Key) {
	tb.Helper()
	for len(keys) > 0 {
		n := min(len(keys), 1024)
		mustApply(tb, x, benchBatch(pod, store.Add, keys[:n]))
		keys = keys[n:]
	}
}

// nullFolder takes everything and does nothing with it.
type nullFolder struct{ blocks int }

func (f *nullFolder) Begin(*store.Registry) { f.blocks = 0 }
func (f *nullFolder) Run(n int, _ []store.HolderID) bool {
	f.blocks += n
	return true
}

// prefixFolder counts for each (pod, rank) the blocks that it holds from the
// start, and stops when none goes on. A scorer does that at least.
type prefixFolder struct {
	reg   *store.Registry
	len   []int // by slot
	at    int
	going int
}

func (f *prefixFolder) Begin(r *store.Registry) {
	f.reg, f.at, f.going = r, 0, 0
	if cap(f.len) < len(r.Slots) {
		f.len = make([]int, len(r.Slots))
	}
	f.len = f.len[:len(r.Slots)]
	clear(f.len)
}

func (f *prefixFolder) Run(n int, holders []store.HolderID) bool {
	f.going = 0
	for _, id := range holders {
		if slot, _, live := f.reg.Holder(id); live && f.len[slot] == f.at {
			f.len[slot] += n
			f.going++
		}
	}
	f.at += n
	return f.going > 0
}

// corpus is an index with many chains.
type corpus struct {
	x      *Index
	chains [][]blockkey.Key
}

// newCorpus holds chains of n blocks, together at least total. All pods hold
// the first block of a chain. With forks, one pod fewer holds each further
// stretch of 16 (down to one, then from the start again).
func newCorpus(tb testing.TB, total, n, pods int, forks bool) *corpus {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	c := &corpus{x: open(tb, Config{})}
	for blocks := 0; blocks < total; blocks += n {
		chain := randomKeys(rng, n)
		c.chains = append(c.chains, chain)
		for p := range pods {
			pod := fmt.Sprintf("10.0.0.%d:8000", p)
			if !forks {
				addChain(tb, c.x, pod, chain)
				continue
			}
			for i := 0; i < n; i += 16 {
				if i/16%(pods+1) <= pods-1-p || p == 0 {
					addChain(tb, c.x, pod, chain[i:min(n, i+16)])
				}
			}
		}
	}
	return c
}

func BenchmarkFind(b *testing.B) {
	for _, holders := range []int{1, 10, 100} {
		for _, forks := range []bool{false, true} {
			for _, n := range []int{128, 1024, 8192} {
				b.Run(fmt.Sprintf("holders=%d/forks=%v/blocks=%d", holders, forks, n), func(b *testing.B) {
					benchFind(b, newCorpus(b, 1<<20, n, holders, forks))
				})
			}
		}
	}
}

// benchFind looks up chains of a corpus: cold is a random one of a million
// blocks each time, hot the same one again and again.
func benchFind(b *testing.B, c *corpus) {
	for _, temp := range []string{"cold", "hot"} {
		for _, fold := range []struct {
			name string
			f    store.Folder
		}{{"null", &nullFolder{}}, {"prefix", &prefixFolder{}}} {
			b.Run(temp+"/"+fold.name, func(b *testing.B) {
				b.ReportAllocs()
				rng := rand.New(rand.NewPCG(3, 4))
				q := &store.Query{Model: benchMask, Fold: fold.f}
				qs := []*store.Query{q}
				ctx := context.Background()
				chains := c.chains
				if temp == "hot" {
					chains = chains[:1]
				}
				blocks := 0
				time := startCPU()
				for b.Loop() {
					q.Keys = chains[rng.IntN(len(chains))]
					must.OK(b, c.x.Lookup(ctx, qs...))
					blocks += len(q.Keys)
				}
				d := time.stop()
				report(b, d, blocks)
				b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkApply builds an index of a million blocks, adds all of them again,
// and removes them, in events of n blocks.
func BenchmarkApply(b *testing.B) {
	const total = 1 << 20
	const pod = "10.0.0.1:8000"
	keys := randomKeys(rand.New(rand.NewPCG(5, 6)), total)
	for _, n := range []int{1, 16, 128} {
		for _, what := range []string{"add", "again", "remove"} {
			b.Run(fmt.Sprintf("%s/blocks=%d", what, n), func(b *testing.B) {
				bt := []store.Batch{benchBatch(pod, store.Add, nil)}
				ctx := context.Background()
				b.ReportAllocs()
				var used time.Duration
				for b.Loop() {
					x := must.Get(New(Config{}))(b)
					if what != "add" {
						addChain(b, x, pod, keys)
					}
					if what == "remove" {
						bt[0].Ops[0].Kind = store.Remove
					}
					runtime.GC()
					time := startCPU()
					for i := 0; i < total; i += n {
						bt[0].Ops[0].Keys = keys[i : i+n]
						must.OK(b, x.Apply(ctx, bt...))
					}
					used += time.stop()
					_ = x.Close()
				}
				report(b, used, b.N*total)
			})
		}
	}
}
