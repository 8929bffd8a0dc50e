package blockkey

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"
)

// zeeboNative is the native scheme written with the general library: the
// yardstick of the benchmarks and a second opinion for the tests. Its input is
// the tokens' bytes, ready made.
func zeeboNative(dst []Key, raw []byte, blockSize int, seed Seed) []Key {
	var buf [16]byte
	var k uint64
	for i := 0; len(raw) >= 4*blockSize; i++ {
		local := xxh3.HashSeed(raw[:4*blockSize], uint64(seed))
		raw = raw[4*blockSize:]
		if i == 0 {
			k = local
		} else {
			binary.LittleEndian.PutUint64(buf[:8], k)
			binary.LittleEndian.PutUint64(buf[8:], local)
			k = xxh3.HashSeed(buf[:], 1337)
		}
		dst = append(dst, Key(k))
	}
	return dst
}

// BenchmarkAppendNative hashes prompts of 8,192 tokens, with the chain. Run it
// with -count and compare scheme=kvatlas with scheme=zeebo of one run: absolute
// figures move with the machine's clock.
func BenchmarkAppendNative(b *testing.B) {
	const tokens = 8192
	prompt := testTokens(tokens, 3)
	raw := tokenBytes(prompt)
	for _, size := range []int{16, 32, 48, 64, 128, 256} {
		for _, scope := range []struct {
			name string
			seed Seed
		}{{"plain", NativeSeed("", "")}, {"lora", NativeSeed("sql-lora", "")}} {
			dst := make([]Key, 0, tokens/size)
			report := func(b *testing.B) {
				ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				b.ReportMetric(ns/float64(tokens/size), "ns/block")
				b.ReportMetric(float64(tokens)/ns, "Gtokens/s")
			}
			b.Run(fmt.Sprintf("block=%d/scope=%s/scheme=kvatlas", size, scope.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dst = AppendNative(dst[:0], prompt, size, scope.seed)
				}
				report(b)
			})
			b.Run(fmt.Sprintf("block=%d/scope=%s/scheme=zeebo", size, scope.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dst = zeeboNative(dst[:0], raw, size, scope.seed)
				}
				report(b)
			})
		}
	}
}
