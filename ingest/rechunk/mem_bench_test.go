package rechunk

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// BenchmarkMemory reports what a Chunker takes for each engine block that it keeps in
// memory.
func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{1, 16, 64, 2048} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			messages := stream(size, 200)
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				c := mustNew(b, Config{BlockSize: 64, Fresh: true})
				for i := range messages {
					must.OK(b, c.Apply(b.Context(), &messages[i], nil))
					must.Get(c.Take(b.Context(), uint64(i+1), nil))(b)
					c.Done()
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(c.blocks.n), "B/block")
				runtime.KeepAlive(c)
			}
		})
	}
}
