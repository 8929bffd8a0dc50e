package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// slowlog starts to note how long commands, or scripts by their sums, keep the server from
// others. Func report gives the shortest of those commands' runs, which a busy machine disturbs
// least, and the median.
func slowlog(b *testing.B, plain *redis.Client, commands ...string) (report func()) {
	b.Helper()
	ctx := b.Context()
	for k, v := range map[string]string{"slowlog-log-slower-than": "0", "slowlog-max-len": "100000"} {
		must.OK(b, plain.ConfigSet(ctx, k, v).Err())
	}
	plain.Do(ctx, "SLOWLOG", "RESET")
	return func() {
		var took []float64
		for _, e := range plain.SlowLogGet(ctx, -1).Val() {
			if slices.Contains(commands, strings.ToLower(e.Args[0])) || len(e.Args) > 1 && slices.Contains(commands, e.Args[1]) {
				took = append(took, float64(e.Duration.Microseconds()))
			}
		}
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2], "median-us/call")
		b.ReportMetric(took[0], "min-us/call")
		b.ReportMetric(took[len(took)*95/100], "p95-us/call")
	}
}

// BenchmarkApplyScript is the longest that one run of apply.lua takes: 512
// blocks that so many hold already get one more holder, and lose it.
func BenchmarkApplyScript(b *testing.B) {
	s := redistest.Start(b)
	plain := s.Client()
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	keys := manyKeys(callKeys)
	held := 0
	for _, holders := range []int{0, 1, 10, 100} {
		for ; held < holders; held++ {
			apply(b, x, batchOf(fmt.Sprintf("pod%03d", held), store.Add, keys...))
		}
		for name, pod := range map[string]string{"last": "late", "middle": "early"} {
			if holders == 0 && name == "middle" {
				continue
			}
			if name == "middle" {
				// An id in the middle of those that hold the blocks.
				pod = fmt.Sprintf("pod%03d", holders/2)
			}
			b.Run(fmt.Sprintf("%d/%s", holders, name), func(b *testing.B) {
				apply(b, x, batchOf(pod, store.Add, keys...))
				report := slowlog(b, plain, "evalsha")
				for b.Loop() {
					apply(b, x, batchOf(pod, store.Remove, keys...))
					apply(b, x, batchOf(pod, store.Add, keys...))
				}
				report()
				if name == "last" {
					apply(b, x, batchOf(pod, store.Remove, keys...))
				}
			})
		}
	}
}

// BenchmarkRetire retires a pod that holds many blocks with many ranks: what it
// takes does not depend on the blocks.
func BenchmarkRetire(b *testing.B) {
	s := redistest.Start(b)
	plain := s.Client()
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	for _, c := range []struct{ blocks, ranks int }{{1, 1}, {100000, 1}, {1, 64}, {1, 1024}} {
		b.Run(fmt.Sprintf("blocks=%d/ranks=%d", c.blocks, c.ranks), func(b *testing.B) {
			keys := manyKeys(c.blocks)
			for part := range slices.Chunk(keys, store.MaxOpKeys) {
				apply(b, x, batchOf("a", store.Add, part...))
			}
			report := slowlog(b, plain, lua.Retire.Sum)
			for b.Loop() {
				b.StopTimer()
				var batches []store.Batch
				for rank := range c.ranks {
					batches = append(batches, store.Batch{Pod: "a", Rank: rank, Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: []blockkey.Key{1}}}})
				}
				apply(b, x, batches...)
				b.StartTimer()
				if known, err := x.Retire(b.Context(), "a"); err != nil || !known {
					b.Fatal(known, err)
				}
			}
			report()
		})
	}
}

// BenchmarkRegistryLoad loads registries of several sizes, and reports how long
// the longest of the commands keeps the server from others.
func BenchmarkRegistryLoad(b *testing.B) {
	for _, pods := range []int{10, 100, 1000, 4000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			s := redistest.Start(b)
			plain := s.Client()
			x := open(b, Config{URL: s.URL(), NoSweep: true})
			const ranks = 8
			for p := range pods {
				pod := store.Pod{Name: fmt.Sprintf("10.0.%d.%d:8000", p/256, p%256), Model: "meta-llama/Llama-3.1-8B", Ranks: ranks, Engine: "vllm", Lease: store.Seconds(3600e9)}
				must.Get(x.Register(b.Context(), pod))(b)
				var batches []store.Batch
				for rank := range ranks {
					batches = append(batches, store.Batch{Pod: pod.Name, Rank: rank, Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: []blockkey.Key{1}}}})
				}
				apply(b, x, batches...)
			}
			report := slowlog(b, plain, "hgetall", "hscan")
			b.ReportAllocs()
			for b.Loop() {
				must.Get(x.Registry(b.Context()))(b)
			}
			report()
		})
	}
}
