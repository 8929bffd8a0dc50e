package blockkey

import (
	"encoding/binary"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func tokenBytes(t []uint32) []byte {
	b := make([]byte, 0, 4*len(t))
	for _, v := range t {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func sumOf(t []uint32, seed uint64) uint64 {
	var h hasher
	h.initLen(seed, len(t))
	return h.sum(t)
}

func TestSumAllLengths(t *testing.T) {
	buf := testTokens(4100, 1)
	for n := range len(buf) + 1 {
		for _, seed := range []uint64{0, 1, baseSeed, 1 << 63, ^uint64(0), 0x9E3779B185EBCA87 * uint64(n+1)} {
			if got, want := sumOf(buf[:n], seed), xxh3.HashSeed(tokenBytes(buf[:n]), seed); got != want {
				t.Fatalf("%d tokens, seed %#x: %#x, zeebo/xxh3 has %#x", n, seed, got, want)
			}
		}
	}
}

// TestSumPortable holds the paths of longer inputs that sum takes only where the
// library has no assembly. It holds the unrolled path of 64 tokens beside them.
func TestSumPortable(t *testing.T) {
	buf := testTokens(2100, 2)
	for n := maxShort + 1; n <= len(buf); n++ {
		for _, seed := range []uint64{0, baseSeed, ^uint64(n)} {
			var h hasher
			h.initLen(seed, n)
			want := xxh3.HashSeed(tokenBytes(buf[:n]), seed)
			var got uint64
			if n <= maxMid {
				got = h.sumMid(buf[:n])
			} else {
				got = h.sumLong(buf[:n])
			}
			if got != want {
				t.Fatalf("%d tokens, seed %#x: %#x, zeebo/xxh3 has %#x", n, seed, got, want)
			}
			if n == 64 {
				if got := h.sum64((*[64]uint32)(buf)); got != want {
					t.Fatalf("sum64, seed %#x: %#x, zeebo/xxh3 has %#x", seed, got, want)
				}
			}
		}
	}
}

func TestSumRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 700).Draw(t, "tokens")
		seed := rapid.Uint64().Draw(t, "seed")
		if got, want := sumOf(tokens, seed), xxh3.HashSeed(tokenBytes(tokens), seed); got != want {
			t.Fatalf("%#x, zeebo/xxh3 has %#x", got, want)
		}
	})
}

func TestSumPairIsChainStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, seed := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b"), rapid.Uint64().Draw(t, "seed")
		var raw [16]byte
		binary.LittleEndian.PutUint64(raw[:8], a)
		binary.LittleEndian.PutUint64(raw[8:], b)
		if got, want := sumPair(a, b, 16, seed), xxh3.HashSeed(raw[:], seed); got != want {
			t.Fatalf("%#x, zeebo/xxh3 has %#x", got, want)
		}
	})
}

// testTokens returns n tokens of a fixed pseudo-random sequence, in the range
// of real vocabularies except for every 97th.
func testTokens(n int, seed uint64) []uint32 {
	out := make([]uint32, n)
	x := seed
	for i := range out {
		x = x*6364136223846793005 + 1442695040888963407
		out[i] = uint32(x>>33) % 151936
		if i%97 == 96 {
			out[i] = uint32(x >> 32)
		}
	}
	return out
}
