package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// BenchmarkMapWrite writes 256 blocks a call, each with an entry of the map, which has so many
// of them before. It does so with its compactions, and without a map.
func BenchmarkMapWrite(b *testing.B) {
	for _, entries := range []int{0, 1 << 15, 1 << 18} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			x := open(b, Config{URL: redistest.Start(b).URL(), NoSweep: true})
			gen := mustBegin(b, x, "a", 1)
			rng := rand.New(rand.NewPCG(1, 2))
			seq := uint64(0)
			write := func(n int, keys ...blockkey.Key) {
				seq++
				batch := guardedBatch("a", gen, 1, seq, store.Add, keys...)
				for range n {
					batch.Map = append(batch.Map, store.MapOp{MapKey: store.MapKey{Hash: rng.Uint64()}, Value: []byte("12345678\x01\x01\x02")})
				}
				apply(b, x, batch)
			}
			for at := 0; at < entries; at += 4096 {
				write(4096)
			}
			keys := make([]blockkey.Key, 256)
			b.ReportAllocs()
			for b.Loop() {
				for i := range keys {
					keys[i] = blockkey.Key(rng.Uint64())
				}
				write(min(entries, 256), keys...)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/block")
		})
	}
}
