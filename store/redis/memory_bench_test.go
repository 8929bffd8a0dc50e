package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// usedMemory is a server's used_memory.
func usedMemory(b *testing.B, c *redis.Client) float64 {
	b.Helper()
	for line := range strings.Lines(c.Info(b.Context(), "memory").Val()) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			n := must.Get(strconv.ParseFloat(v, 64))(b)
			return n
		}
	}
	b.Fatal("no used_memory")
	return 0
}

// BenchmarkMemory reports what a block takes of a server's memory with 1 and
// with 10 holders, beside a HASH a block.
func BenchmarkMemory(b *testing.B) {
	const blocks = 100000
	keys := benchChain(blocks)
	measure := func(b *testing.B, fill func(c *redis.Client, url string)) {
		b.Helper()
		for b.Loop() {
			b.StopTimer()
			s := redistest.Start(b)
			c := s.Client()
			before := usedMemory(b, c)
			b.StartTimer()
			fill(c, s.URL())
			b.ReportMetric((usedMemory(b, c)-before)/blocks, "B/block")
			s.Stop()
		}
	}
	for _, pods := range []int{1, 2, 10} {
		b.Run(fmt.Sprintf("kvatlas/pods=%d", pods), func(b *testing.B) {
			measure(b, func(_ *redis.Client, url string) {
				x := open(b, Config{URL: url, NoSweep: true})
				for p := range pods {
					for i := 0; i < len(keys); i += 5000 {
						apply(b, x, batchOf(benchPod(p), store.Add, keys[i:i+5000]...))
					}
				}
				_ = x.Close()
			})
		})
		for _, l := range layouts {
			b.Run(fmt.Sprintf("hash-%s/pods=%d", l.name, pods), func(b *testing.B) {
				measure(b, func(c *redis.Client, _ string) { l.fill(b, c, keys, pods) })
			})
		}
	}
}
