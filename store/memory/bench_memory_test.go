package memory

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// BenchmarkMachine is what the machine gives at the moment, to judge the others
// by. It is a load of a random cache line of 20 MiB. It is measured when 128 loads
// do not wait for each other, and when each waits for the last one.
func BenchmarkMachine(b *testing.B) {
	type line [8]uint64
	lines := make([]line, 20<<20/64)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range lines {
		lines[i][0] = rng.Uint64()
	}
	keys := randomKeys(rng, 1<<20)
	load := func(at uint64) uint64 {
		hi, _ := bits.Mul64(at, uint64(len(lines)))
		return atomic.LoadUint64(&lines[hi][0])
	}
	for _, c := range []struct {
		name string
		sum  func(keys []blockkey.Key) uint64
	}{
		{"overlapped", func(keys []blockkey.Key) (sum uint64) {
			for _, k := range keys {
				sum += load(uint64(k))
			}
			return sum
		}},
		{"one by one", func(keys []blockkey.Key) (sum uint64) {
			for _, k := range keys {
				sum = load(uint64(k) ^ sum)
			}
			return sum
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var sum uint64
			p, loads := 0, 0
			time := startCPU()
			for b.Loop() {
				sum += c.sum(keys[p : p+128])
				p = (p + 128) % len(keys)
				loads += 128
			}
			b.ReportMetric(float64(time.stop().Nanoseconds())/float64(loads), "cpu-ns/load")
			runtime.KeepAlive(sum)
		})
	}
}

// BenchmarkFindScattered looks up chains whose blocks do not lie beside each
// other, since they came one by one among the blocks of 31 other chains.
func BenchmarkFindScattered(b *testing.B) {
	c := &corpus{x: open(b, Config{})}
	rng := rand.New(rand.NewPCG(1, 2))
	const n, together = 128, 32
	for len(c.chains)*n < 1<<20 {
		lot := make([][]blockkey.Key, together)
		for i := range lot {
			lot[i] = randomKeys(rng, n)
		}
		for at := range n {
			for _, chain := range lot {
				mustApply(b, c.x, benchBatch("10.0.0.1:8000", store.Add, chain[at:at+1]))
			}
		}
		c.chains = append(c.chains, lot...)
	}
	benchFind(b, c)
}

// BenchmarkFindNothing looks up chains that no pod holds: to the end, and as a
// folder does that stops at once.
func BenchmarkFindNothing(b *testing.B) {
	c := newCorpus(b, 1<<20, 128, 1, false)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range c.chains {
		c.chains[i] = randomKeys(rng, 128)
	}
	benchFind(b, c)
}

// BenchmarkFindParallel is BenchmarkFind on all cores at once.
func BenchmarkFindParallel(b *testing.B) {
	c := newCorpus(b, 1<<20, 128, 10, true)
	for _, writing := range []bool{false, true} {
		b.Run(fmt.Sprintf("blocks=128/writing=%v", writing), func(b *testing.B) {
			b.ReportAllocs()
			var stop atomic.Bool
			done := make(chan struct{})
			go func() { // one writer takes chains down and puts them up again
				defer close(done)
				for i := 0; writing && !stop.Load(); i++ {
					chain := c.chains[i%len(c.chains)]
					mustApply(b, c.x, benchBatch("10.0.0.1:8000", store.Remove, chain))
					mustApply(b, c.x, benchBatch("10.0.0.1:8000", store.Add, chain))
				}
			}()
			var seed atomic.Uint64
			b.RunParallel(func(pb *testing.PB) {
				rng := rand.New(rand.NewPCG(3, seed.Add(1)))
				q := &store.Query{Model: benchMask, Fold: &nullFolder{}}
				qs := []*store.Query{q}
				ctx := context.Background()
				for pb.Next() {
					q.Keys = c.chains[rng.IntN(len(c.chains))]
					if err := c.x.Lookup(ctx, qs...); err != nil {
						b.Error(err)
						return
					}
				}
			})
			stop.Store(true)
			<-done
		})
	}
}

// BenchmarkMemory reports what the heap grows by for each block: when a million
// are there, and after nine tenths of them have gone at random.
func BenchmarkMemory(b *testing.B) {
	const total = 1 << 20
	for _, holders := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			keys := randomKeys(rng, total)
			gone := slices.Clone(keys)
			rng.Shuffle(total, func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
			gone = gone[:total/10*9]
			for b.Loop() {
				before := heap()
				x := must.Get(New(Config{}))(b)
				each := func(kind store.OpKind, keys []blockkey.Key) {
					for p := range holders {
						for part := range slices.Chunk(keys, 4096) {
							mustApply(b, x, benchBatch(fmt.Sprint("pod", p), kind, part))
						}
					}
				}
				each(store.Add, keys)
				b.ReportMetric(float64(heap()-before)/total, "heap-B/block")
				b.ReportMetric(float64(x.Stats().Bytes)/total, "B/block")
				each(store.Remove, gone)
				x.janitor.clean()
				left := float64(x.Stats().Blocks)
				b.ReportMetric(float64(heap()-before)/left, "churned-heap-B/block")
				b.ReportMetric(float64(x.Stats().Bytes)/left, "churned-B/block")
				_ = x.Close()
			}
		})
	}
}

// BenchmarkRetire retires a pod of a million blocks: until the next lookup
// knows, and until its memory has been given back. The time of an operation
// includes filling the index.
func BenchmarkRetire(b *testing.B) {
	keys := randomKeys(rand.New(rand.NewPCG(1, 2)), 1<<20)
	for b.Loop() {
		x := open(b, Config{})
		addChain(b, x, "a", keys)
		x.janitor.mu.Lock() // the sweep is timed apart
		time := startCPU()
		must.Get(x.Retire(context.Background(), "a"))(b)
		if at := find(b, x, keys[:1]); len(at[0]) != 0 {
			b.Fatal("still credited")
		}
		b.ReportMetric(float64(time.stop().Microseconds()), "visible-cpu-us")
		x.janitor.mu.Unlock()
		time = startCPU()
		x.janitor.clean()
		x.janitor.mu.Lock() // the goroutine may have been faster
		b.ReportMetric(float64(time.stop().Milliseconds()), "sweep-cpu-ms")
		x.janitor.mu.Unlock()
		if n := x.Stats().Blocks; n != 0 {
			b.Fatalf("%d blocks are left", n)
		}
		_ = x.Close()
	}
}

// BenchmarkMemoryOfMixedHolders is what a block takes where ten of 1,000 pods at random hold each chain of
// 128 blocks. Each of them holds another part of its beginning.
func BenchmarkMemoryOfMixedHolders(b *testing.B) {
	const total, chain, pods, holders = 1 << 20, 128, 1000, 10
	rng := rand.New(rand.NewPCG(1, 2))
	keys := randomKeys(rng, total)
	for b.Loop() {
		before := heap()
		x := must.Get(New(Config{}))(b)
		for part := range slices.Chunk(keys, chain) {
			for i, pod := range rng.Perm(pods)[:holders] {
				n := chain
				if i > 0 {
					n = 1 + rng.IntN(chain)
				}
				mustApply(b, x, benchBatch(fmt.Sprint("pod", pod), store.Add, part[:n]))
			}
		}
		b.ReportMetric(float64(heap()-before)/total, "heap-B/block")
		b.ReportMetric(float64(x.Stats().Bytes)/total, "B/block")
		_ = x.Close()
	}
}
