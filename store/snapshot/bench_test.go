package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// benchBlocks is how many blocks the benchmarks have. It can be more, but for the
// time it takes to write them.
const benchBlocks = 100_000

// eachBench runs a benchmark for both indexes, and with blocks of one and of ten
// pods.
func eachBench(b *testing.B, run func(b *testing.B, open opener, full store.Index)) {
	b.Helper()
	server := redistest.Start(b)
	for _, index := range []struct {
		name string
		open opener
	}{{"memory", openMemory}, {"redis", openRedis(server.URL())}} {
		for _, pods := range []int{1, 10} {
			b.Run(fmt.Sprintf("%s/pods=%d", index.name, pods), func(b *testing.B) {
				x := index.open(b)
				for p := range pods {
					add(b, x, fmt.Sprintf("10.0.0.%d:8000", p), "m1", store.GPU, chain(1, benchBlocks)...)
				}
				b.ReportAllocs()
				run(b, index.open, x)
				b.ReportMetric(benchBlocks*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
			})
		}
	}
}

// tally counts bytes.
type tally int64

func (n *tally) Write(b []byte) (int, error) { *n += tally(len(b)); return len(b), nil }

func BenchmarkDump(b *testing.B) {
	eachBench(b, func(b *testing.B, _ opener, full store.Index) {
		var plain, packed tally
		z := must.Get(gzip.NewWriterLevel(&packed, gzip.BestSpeed))(b)
		must.Get(snapshot.Dump(b.Context(), io.MultiWriter(&plain, z), full, snapshot.Options{}))(b)
		must.OK(b, z.Close())
		for b.Loop() {
			must.Get(snapshot.Dump(b.Context(), io.Discard, full, snapshot.Options{}))(b)
		}
		b.ReportMetric(float64(plain)/benchBlocks, "bytes/block")
		b.ReportMetric(float64(packed)/benchBlocks, "gzip-bytes/block")
	})
}

func BenchmarkRestore(b *testing.B) {
	eachBench(b, func(b *testing.B, open opener, full store.Index) {
		text := dump(b, full, snapshot.Options{})
		for b.Loop() {
			b.StopTimer()
			x := open(b)
			b.StartTimer()
			must.Get(snapshot.Restore(b.Context(), bytes.NewReader(text), x, snapshot.Merge))(b)
		}
	})
}
