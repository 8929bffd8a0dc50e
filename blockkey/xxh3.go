package blockkey

import (
	"math/bits"
	"runtime"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// This file is XXH3-64 for what block keys are made of: runs of u32 tokens
// under one seed. It beats a general library at the block sizes that indexes
// have most. The secret is derived once a seed and not once a block, these
// sizes are unrolled, and a chain is hashed in one loop. Tokens are read as
// tokens, without a copy or a view of their bytes. Every read of XXH3 falls on
// a token boundary. Two adjacent tokens are one little-endian u64, which the
// compiler turns into one load. So it is right on any byte order.
//
// From 33 tokens on, except for 64, the library does it where it has assembly:
// its vector instructions make up for deriving the secret again.
//
// The function is the published one (XXH3_64bits_withSeed, xxHash 0.8). Tests
// hold every path against github.com/zeebo/xxh3 at every length.

const (
	prime32x1 = 0x9E3779B1
	prime32x2 = 0x85EBCA77
	prime32x3 = 0xC2B2AE3D
	prime64x1 = 0x9E3779B185EBCA87
	prime64x2 = 0xC2B2AE3D27D4EB4F
	prime64x3 = 0x165667B19E3779F9
	prime64x4 = 0x85EBCA77C2B2AE63
	prime64x5 = 0x27D4EB2F165667C5
	primeMx1  = 0x165667919E3779F9
	primeMx2  = 0x9FB21C651E98DF25
)

// Lengths in tokens at which XXH3 changes its ways: 16, 128 and 240 bytes.
const (
	maxTiny  = 4
	maxShort = 32
	maxMid   = 60
)

// secretWords is XXH3's default secret, 192 bytes, as little-endian words.
var secretWords = [24]uint64{
	0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
	0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
	0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
	0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
	0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
}

// wordAt reads the 8 bytes at a byte offset of a secret.
func wordAt(words *[24]uint64, offset int) uint64 {
	i, shift := offset/8, uint(offset%8)*8
	if shift == 0 {
		return words[i]
	}
	return words[i]>>shift | words[i+1]<<(64-shift)
}

// hasher holds what XXH3-64 derives from a seed. It is immutable once made.
type hasher struct {
	seed uint64
	// words is the secret with the seed mixed in: added to even words,
	// subtracted from odd ones. Inputs of 17 to 128 bytes, the first half of
	// those to 240, and long ones read it.
	words [24]uint64
	// mid is what inputs of 129 to 240 bytes read beyond byte 128, from odd
	// offsets of the plain secret. It has 14 words for pairs 8 to 14 and 2 for
	// the last pair.
	mid [16]uint64
	// last and merge are the words that long inputs read at odd offsets of the
	// seeded secret. One is for the last stripe, the other for the final merge.
	last, merge [8]uint64
}

// init makes h able to sum inputs of any length.
func (h *hasher) init(seed uint64) {
	h.initLen(seed, maxShort)
	h.initMid()
	h.initLong()
}

// initLen makes h able to sum inputs of n tokens (or of any length of the same
// class), and no more. A prompt of a few blocks must not pay for tables that it
// does not read.
func (h *hasher) initLen(seed uint64, n int) {
	h.seed = seed
	for i := 0; i < len(h.words); i += 2 {
		h.words[i] = secretWords[i] + seed
		h.words[i+1] = secretWords[i+1] - seed
	}
	switch {
	case n <= maxShort:
	case n <= maxMid:
		h.initMid()
	default:
		h.initLong()
	}
}

func (h *hasher) initMid() {
	for i := 0; i < 14; i += 2 {
		h.mid[i] = wordAt(&secretWords, 3+8*i) + h.seed
		h.mid[i+1] = wordAt(&secretWords, 11+8*i) - h.seed
	}
	h.mid[14] = wordAt(&secretWords, 119) + h.seed
	h.mid[15] = wordAt(&secretWords, 127) - h.seed
}

func (h *hasher) initLong() {
	for i := range h.last {
		h.last[i] = wordAt(&h.words, 121+8*i)
		h.merge[i] = wordAt(&h.words, 11+8*i)
	}
}

// sum returns XXH3-64 of the tokens as u32 little-endian.
func (h *hasher) sum(t []uint32) uint64 {
	switch n := len(t); {
	case n <= maxTiny:
		return sumTiny(t, h.seed)
	case n <= maxShort:
		return h.sumShort(t)
	case n == 64:
		return h.sum64((*[64]uint32)(t))
	case library:
		return xxh3.HashSeed(byteView(t), h.seed)
	case n <= maxMid:
		return h.sumMid(t)
	default:
		return h.sumLong(t)
	}
}

// library says that zeebo/xxh3 has assembly here. Both architectures are
// little-endian, which byteView needs.
const library = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"

// byteView returns the memory of t, which on a little-endian machine is its
// tokens as u32 little-endian.
func byteView(t []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t))), 4*len(t))
}

// sumTiny hashes at most 4 tokens.
func sumTiny(t []uint32, seed uint64) uint64 {
	switch n := len(t); n {
	case 0:
		x := seed ^ secretWords[7] ^ secretWords[8]
		x = (x ^ x>>33) * prime64x2
		x = (x ^ x>>29) * prime64x3
		return x ^ x>>32
	case 1, 2:
		seed ^= uint64(bits.ReverseBytes32(uint32(seed))) << 32
		x := uint64(t[n-1]) | uint64(t[0])<<32
		x ^= (secretWords[1] ^ secretWords[2]) - seed
		x ^= bits.RotateLeft64(x, 49) ^ bits.RotateLeft64(x, 24)
		x *= primeMx2
		x ^= x>>35 + uint64(4*n)
		x *= primeMx2
		return x ^ x>>28
	default:
		return sumPair(uint64(t[0])|uint64(t[1])<<32, uint64(t[n-2])|uint64(t[n-1])<<32, uint64(4*n), seed)
	}
}

// sumPair hashes 9 to 16 bytes, given as their first and their last 8.
func sumPair(lo, hi, bytes, seed uint64) uint64 {
	lo ^= (secretWords[3] ^ secretWords[4]) + seed
	hi ^= (secretWords[5] ^ secretWords[6]) - seed
	return avalanche(bytes + bits.ReverseBytes64(lo) + hi + fold(lo, hi))
}

// sumShort hashes 5 to 32 tokens.
func (h *hasher) sumShort(t []uint32) uint64 {
	n := len(t)
	acc := lengthTerm(n)
	w := &h.words
	if n > 8 {
		if n > 16 {
			if n > 24 {
				acc += pair(t[12:16], w[12], w[13]) + pair(t[n-16:n-12], w[14], w[15])
			}
			acc += pair(t[8:12], w[8], w[9]) + pair(t[n-12:n-8], w[10], w[11])
		}
		acc += pair(t[4:8], w[4], w[5]) + pair(t[n-8:n-4], w[6], w[7])
	}
	acc += pair(t[0:4], w[0], w[1]) + pair(t[n-4:n], w[2], w[3])
	return avalanche(acc)
}

// sumMid hashes 33 to 60 tokens.
func (h *hasher) sumMid(t []uint32) uint64 {
	n := len(t)
	acc := lengthTerm(n)
	head, w := (*[maxShort]uint32)(t), (*[16]uint64)(h.words[:])
	acc += pair(head[0:4], w[0], w[1]) + pair(head[4:8], w[2], w[3]) +
		pair(head[8:12], w[4], w[5]) + pair(head[12:16], w[6], w[7]) +
		pair(head[16:20], w[8], w[9]) + pair(head[20:24], w[10], w[11]) +
		pair(head[24:28], w[12], w[13]) + pair(head[28:32], w[14], w[15])
	acc = avalanche(acc)
	acc += pair(t[n-4:], h.mid[14], h.mid[15])
	for m := h.mid[:14]; len(t) >= maxShort+4 && len(m) >= 2; t, m = t[4:], m[2:] {
		acc += pair(t[maxShort:maxShort+4], m[0], m[1])
	}
	return avalanche(acc)
}

// A long input is read in stripes of 16 tokens into 8 accumulators. Stripe i of
// a run of 16 uses the secret from word i on; after a full run the
// accumulators are scrambled. The last 16 tokens are a stripe of their own,
// which overlaps the one before unless the length is a multiple of 16.
const (
	stripeTokens = 16
	runStripes   = 16
)

// sum64 hashes 64 tokens, the default index block. It is sumLong unrolled and
// taken pair by pair of accumulators. They meet only in the final merge, so two
// at a time stay in registers where eight would be spilled.
func (h *hasher) sum64(t *[64]uint32) uint64 {
	acc := lengthTerm(64)
	w, l, m := &h.words, &h.last, &h.merge

	a, b := uint64(prime32x3), uint64(prime64x1)
	a, b = mix(a, b, (*[4]uint32)(t[0:]), w[0], w[1])
	a, b = mix(a, b, (*[4]uint32)(t[16:]), w[1], w[2])
	a, b = mix(a, b, (*[4]uint32)(t[32:]), w[2], w[3])
	a, b = mix(a, b, (*[4]uint32)(t[48:]), l[0], l[1])
	acc += fold(a^m[0], b^m[1])

	a, b = prime64x2, prime64x3
	a, b = mix(a, b, (*[4]uint32)(t[4:]), w[2], w[3])
	a, b = mix(a, b, (*[4]uint32)(t[20:]), w[3], w[4])
	a, b = mix(a, b, (*[4]uint32)(t[36:]), w[4], w[5])
	a, b = mix(a, b, (*[4]uint32)(t[52:]), l[2], l[3])
	acc += fold(a^m[2], b^m[3])

	a, b = prime64x4, prime32x2
	a, b = mix(a, b, (*[4]uint32)(t[8:]), w[4], w[5])
	a, b = mix(a, b, (*[4]uint32)(t[24:]), w[5], w[6])
	a, b = mix(a, b, (*[4]uint32)(t[40:]), w[6], w[7])
	a, b = mix(a, b, (*[4]uint32)(t[56:]), l[4], l[5])
	acc += fold(a^m[4], b^m[5])

	a, b = prime64x5, prime32x1
	a, b = mix(a, b, (*[4]uint32)(t[12:]), w[6], w[7])
	a, b = mix(a, b, (*[4]uint32)(t[28:]), w[7], w[8])
	a, b = mix(a, b, (*[4]uint32)(t[44:]), w[8], w[9])
	a, b = mix(a, b, (*[4]uint32)(t[60:]), l[6], l[7])
	acc += fold(a^m[6], b^m[7])

	return avalanche(acc)
}

// sumLong hashes 61 or more tokens, stripe by stripe.
func (h *hasher) sumLong(t []uint32) uint64 {
	acc := lengthTerm(len(t))
	tail := (*[stripeTokens]uint32)(t[len(t)-stripeTokens:])
	t = t[:(len(t)-1)/stripeTokens*stripeTokens]

	var (
		a0, a1 uint64 = prime32x3, prime64x1
		a2, a3 uint64 = prime64x2, prime64x3
		a4, a5 uint64 = prime64x4, prime32x2
		a6, a7 uint64 = prime64x5, prime32x1
	)
	w := h.words[:]
	for len(t) >= stripeTokens && len(w) >= 8 {
		a0, a1 = mix(a0, a1, (*[4]uint32)(t[0:]), w[0], w[1])
		a2, a3 = mix(a2, a3, (*[4]uint32)(t[4:]), w[2], w[3])
		a4, a5 = mix(a4, a5, (*[4]uint32)(t[8:]), w[4], w[5])
		a6, a7 = mix(a6, a7, (*[4]uint32)(t[12:]), w[6], w[7])
		t, w = t[stripeTokens:], w[1:]
		if len(w) == len(h.words)-runStripes {
			a0, a1, a2, a3 = scramble(a0, w[0]), scramble(a1, w[1]), scramble(a2, w[2]), scramble(a3, w[3])
			a4, a5, a6, a7 = scramble(a4, w[4]), scramble(a5, w[5]), scramble(a6, w[6]), scramble(a7, w[7])
			w = h.words[:]
		}
	}
	l, m := &h.last, &h.merge
	a0, a1 = mix(a0, a1, (*[4]uint32)(tail[0:]), l[0], l[1])
	a2, a3 = mix(a2, a3, (*[4]uint32)(tail[4:]), l[2], l[3])
	a4, a5 = mix(a4, a5, (*[4]uint32)(tail[8:]), l[4], l[5])
	a6, a7 = mix(a6, a7, (*[4]uint32)(tail[12:]), l[6], l[7])
	acc += fold(a0^m[0], a1^m[1]) + fold(a2^m[2], a3^m[3])
	acc += fold(a4^m[4], a5^m[5]) + fold(a6^m[6], a7^m[7])
	return avalanche(acc)
}

// mix takes 16 bytes of a stripe into a pair of accumulators.
func mix(a, b uint64, t *[4]uint32, s0, s1 uint64) (uint64, uint64) {
	d0, d1 := uint64(t[0])|uint64(t[1])<<32, uint64(t[2])|uint64(t[3])<<32
	k0, k1 := d0^s0, d1^s1
	a += d1 + uint64(uint32(k0))*(k0>>32)
	b += d0 + uint64(uint32(k1))*(k1>>32)
	return a, b
}

func scramble(a, s uint64) uint64 { return (a ^ a>>47 ^ s) * prime32x1 }

// pair folds 4 tokens with two words of the secret.
func pair(t []uint32, s0, s1 uint64) uint64 {
	_ = t[3]
	return fold((uint64(t[0])|uint64(t[1])<<32)^s0, (uint64(t[2])|uint64(t[3])<<32)^s1)
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func avalanche(x uint64) uint64 {
	x = (x ^ x>>37) * primeMx1
	return x ^ x>>32
}

// lengthTerm is what the accumulator of n tokens begins with.
func lengthTerm(n int) uint64 { return uint64(n) * 4 * prime64x1 }
