package lmcache

import (
	"encoding/binary"
	"math/bits"
)

// What CPython's hash() gives of ints, None, tuples and short strings, on 64 bits.

// third is the third element of the tuple that is hashed.
type third uint8

const (
	thirdAbsent third = iota
	thirdNone
	thirdEmpty
)

const (
	pyModulus = 1<<61 - 1 // of hashes of numbers
	// hash(None) from 3.12; before, it is an address.
	pyNone = 0xfca86420

	// Objects/tupleobject.c, which has XXH64's primes, from 3.8.
	tuplePrime1 uint64 = 11400714785074694791
	tuplePrime2 uint64 = 14029467366897019727
	tuplePrime5 uint64 = 2870177450012600261
	tupleTwist  uint64 = 3527539
	tupleMinus1        = 1546275796 // stands for -1, which is the sign of an error
)

// pyInt is hash() of an int: it has its sign, and -1 is taken.
func pyInt(v int64) uint64 {
	if v >= 0 {
		return uint64(v) % pyModulus
	}
	h := -int64(-uint64(v) % pyModulus)
	if h == -1 {
		h = -2
	}
	return uint64(h)
}

// tupleHash is hash() of a tuple, fed with the hashes of its elements.
type tupleHash uint64

func newTupleHash() tupleHash { return tupleHash(tuplePrime5) }

func (t tupleHash) add(lane uint64) tupleHash {
	return tupleHash(bits.RotateLeft64(uint64(t)+lane*tuplePrime2, 31) * tuplePrime1)
}

func (t tupleHash) sum(n int) uint64 {
	h := uint64(t) + (uint64(n) ^ (tuplePrime5 ^ tupleTwist))
	if h == ^uint64(0) {
		return tupleMinus1
	}
	return h
}

// builtin is hash((prev, tokens)) or hash((prev, tokens, third)).
func builtin(prev int64, chunk []uint32, end third) int64 {
	tokens := newTupleHash()
	for _, t := range chunk {
		tokens = tokens.add(uint64(t))
	}
	h, n := newTupleHash().add(pyInt(prev)).add(tokens.sum(len(chunk))), 2
	switch end {
	case thirdAbsent:
	case thirdNone:
		h = h.add(pyNone)
		n++
	case thirdEmpty:
		h = h.add(newTupleHash().sum(0))
		n++
	}
	return int64(h.sum(n))
}

// pyString is hash() of an ASCII string under PYTHONHASHSEED. It is SipHash-1-3 from
// 3.11, SipHash-2-4 before, with a key that a linear congruential generator makes of
// the seed.
func pyString(s string, seed uint32, python int) int64 {
	if s == "" {
		return 0
	}
	var key [16]byte
	if seed != 0 {
		x := seed
		for i := range key {
			x = x*214013 + 2531011
			key[i] = byte(x >> 16)
		}
	}
	rounds, final := 1, 3
	if python < 11 {
		rounds, final = 2, 4
	}
	h := int64(sipHash([]byte(s), binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), rounds, final))
	if h == -1 {
		h = -2
	}
	return h
}

// sipHash is SipHash by its paper (Aumasson and Bernstein, 2012).
func sipHash(b []byte, k0, k1 uint64, rounds, final int) uint64 {
	v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	mix := func(m uint64) {
		v[3] ^= m
		for range rounds {
			sipRound(&v)
		}
		v[0] ^= m
	}
	last := uint64(len(b)) << 56
	for ; len(b) >= 8; b = b[8:] {
		mix(binary.LittleEndian.Uint64(b))
	}
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	mix(last)
	v[2] ^= 0xff
	for range final {
		sipRound(&v)
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func sipRound(v *[4]uint64) {
	v[0] += v[1]
	v[2] += v[3]
	v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
	v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
	v[0] = bits.RotateLeft64(v[0], 32)
	v[2] += v[1]
	v[0] += v[3]
	v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
	v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
	v[2] = bits.RotateLeft64(v[2], 32)
}
