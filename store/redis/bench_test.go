package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// tally is a Folder that counts, as cheaply as a strategy could. It stops when no pod holds a block.
type tally struct {
	reg    *store.Registry
	blocks [64]int
	told   int
}

func (f *tally) Begin(r *store.Registry) { *f = tally{reg: r} }

func (f *tally) Run(n int, holders []store.HolderID) bool {
	f.told += n
	for _, id := range holders {
		if slot, _, live := f.reg.Holder(id); live {
			f.blocks[slot] += n
		}
	}
	return len(holders) > 0
}

// cpu reports what b.Loop's work cost in CPU time of this process and of the server. A
// busy machine disturbs that less than it does the clock.
func cpu(b *testing.B, plain *redis.Client) (report func()) {
	b.Helper()
	server := func() time.Duration { return cputime.Redis(plain.Info(b.Context(), "cpu").Val()) }
	c, s := cputime.Process(), server()
	return func() {
		n := float64(b.N) * float64(time.Microsecond)
		b.ReportMetric(float64(cputime.Process()-c)/n, "client-us/op")
		b.ReportMetric(float64(server()-s)/n, "server-us/op")
	}
}

func benchChain(n int) []blockkey.Key {
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

const benchPods = 10

func benchPod(i int) string { return fmt.Sprintf("10.0.0.%d:8000", i) }

// BenchmarkLookup reads chains that 10 pods hold wholly, or not at all. Beside
// them it makes the same read from a HASH a block by pipelined HKEYS. The fields
// are short (pod names) or ~105 bytes of JSON.
func BenchmarkLookup(b *testing.B) {
	s := redistest.Start(b)
	ctx := context.Background()
	plain := s.Client()
	keys := benchChain(8192)
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	for p := range benchPods {
		must.OK(b, x.Apply(ctx, store.Batch{Pod: benchPod(p), Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}))
	}
	for _, l := range layouts {
		l.fill(b, plain, keys, benchPods)
	}
	for _, n := range []int{128, 1024, 8192} {
		hit := keys[:n]
		miss := make([]blockkey.Key, n)
		for i := range miss {
			miss[i] = hit[i] + 1
		}
		for what, chain := range map[string][]blockkey.Key{"hit": hit, "miss": miss} {
			b.Run(fmt.Sprintf("kvatlas/%s/%d", what, n), func(b *testing.B) {
				b.ReportAllocs()
				f := &tally{}
				q := &store.Query{Model: blockkey.ModelOf("m"), Keys: chain, Fold: f}
				report := cpu(b, plain)
				for b.Loop() {
					must.OK(b, x.Lookup(ctx, q))
				}
				report()
				if what == "hit" && f.blocks[3] != n {
					b.Fatalf("found %d blocks of %d", f.blocks[3], n)
				}
			})
			for _, l := range layouts {
				b.Run(fmt.Sprintf("hkeys-%s/%s/%d", l.name, what, n), func(b *testing.B) {
					b.ReportAllocs()
					c := redis.NewClient(&redis.Options{Addr: s.Addr})
					defer func() { _ = c.Close() }()
					names := make([]string, n)
					for i, k := range chain {
						names[i] = l.key(k)
					}
					report := cpu(b, plain)
					var blocks map[string]int
					for b.Loop() {
						blocks = l.lookup(b, c, names)
					}
					report()
					if what == "hit" && blocks[benchPod(3)] != n {
						b.Fatalf("found %d blocks of %d", blocks[benchPod(3)], n)
					}
				})
			}
		}
	}
}

// BenchmarkApply applies events of so many blocks, three adds to a removal,
// beside the same in a HASH a block, pipelined.
func BenchmarkApply(b *testing.B) {
	s := redistest.Start(b)
	plain := s.Client()
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = c.Close() }()
	run := func(name string, size int, one func(keys []blockkey.Key, pod int, add bool)) {
		b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
			b.ReportAllocs()
			rng := rand.New(rand.NewPCG(1, uint64(size)))
			keys := make([]blockkey.Key, size)
			report := cpu(b, plain)
			for b.Loop() {
				for i := range keys {
					keys[i] = blockkey.Key(rng.Uint64N(1 << 20))
				}
				one(keys, rng.IntN(benchPods), rng.IntN(4) > 0)
			}
			report()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
	for _, size := range []int{16, 128, 512} {
		run("kvatlas", size, func(keys []blockkey.Key, pod int, add bool) {
			kind := store.Remove
			if add {
				kind = store.Add
			}
			apply(b, x, batchOf(benchPod(pod), kind, keys...))
		})
		if size == 16 {
			// An ingester has the events of several ranks at a time.
			const events = 8
			batches := make([]store.Batch, 0, events)
			run("kvatlas-8-events-a-call", size, func(keys []blockkey.Key, pod int, add bool) {
				kind := store.Remove
				if add {
					kind = store.Add
				}
				batches = append(batches, batchOf(benchPod(pod), kind, slices.Clone(keys)...))
				if len(batches) == events {
					apply(b, x, batches...)
					batches = batches[:0]
				}
			})
		}
		for _, l := range layouts {
			run("hash-"+l.name, size, func(keys []blockkey.Key, pod int, add bool) { l.apply(b, c, keys, pod, add) })
		}
	}
}
