package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// usedMemory is a server's used_memory.
func usedMemory(b *testing.B, c *redis.Client) float64 {
	b.Helper()
	for line := range strings.Lines(c.Info(b.Context(), "memory").Val()) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("no used_memory")
	return 0
}

// hashFields are the fields of a HASH a block, the layout that BenchmarkLookup
// and BenchmarkMemory compare with.
var hashFields = map[string]func(i int) string{
	"short": func(i int) string { return benchPod(i) + "@gpu" },
	"json": func(i int) string {
		return fmt.Sprintf(`{"podIdentifier":%q,"deviceTier":"gpu","annotation":"","speculative":false,"groupIdx":%d,"groups":[0,1,2]}`, benchPod(i), i)
	},
}

// BenchmarkMemory reports what a block takes of a server's memory with 1 and
// with 10 holders, beside a HASH a block.
func BenchmarkMemory(b *testing.B) {
	const blocks = 100000
	keys := benchChain(blocks)
	measure := func(b *testing.B, args []string, fill func(c *redis.Client, url string)) {
		b.Helper()
		for b.Loop() {
			b.StopTimer()
			s := redistest.Start(b, args...)
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
			measure(b, nil, func(_ *redis.Client, url string) {
				x := open(b, Config{URL: url, NoSweep: true})
				for p := range pods {
					for i := 0; i < len(keys); i += 5000 {
						apply(b, x, batchOf(benchPod(p), store.Add, keys[i:i+5000]...))
					}
				}
				_ = x.Close()
			})
		})
		for name, field := range hashFields {
			b.Run(fmt.Sprintf("hash-%s/pods=%d", name, pods), func(b *testing.B) {
				measure(b, nil, func(c *redis.Client, _ string) { fillHashes(b, c, "m", keys, pods, field) })
			})
		}
	}
}

// fillHashes writes a HASH a block with a field for each pod.
func fillHashes(b *testing.B, c *redis.Client, model string, keys []blockkey.Key, pods int, field func(i int) string) {
	b.Helper()
	pipe := c.Pipeline()
	for i, k := range keys {
		var fv []any
		for p := range pods {
			fv = append(fv, field(p), "1")
		}
		pipe.HSet(b.Context(), model+"@"+k.String(), fv...)
		if i%512 == 511 || i == len(keys)-1 {
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
}
