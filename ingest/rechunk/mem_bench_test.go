package rechunk

import (
	"fmt"
	"runtime"
	"testing"
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
					if err := c.Apply(b.Context(), &messages[i], nil); err != nil {
						b.Fatal(err)
					}
					if _, err := c.Take(b.Context(), uint64(i+1), nil); err != nil {
						b.Fatal(err)
					}
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
