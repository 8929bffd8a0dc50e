package bpe

import (
	"encoding/binary"
	"math/bits"
)

// wordCache remembers the tokens of short words. A word is found by all of its bytes, so
// that no answer is another word's. Its slot goes by a hash under a seed that is drawn for
// each cache. A word takes the place of one of few others, so no choice of words makes the
// cache slow or large. It is for one user at a time.
type wordCache struct {
	seed uint64
	sets [cacheSets][cacheWays]cachedWord
}

const (
	cacheSets = 1 << 13
	cacheWays = 4
	// maxCached is how many bytes a word in the cache has at most, and maxCachedTokens
	// how many tokens.
	maxCached       = 15
	maxCachedTokens = 5
)

// cachedWord is 40 bytes. high has the length of the word in its top byte, so that it is
// zero in none that is taken.
type cachedWord struct {
	low, high uint64
	tokens    [maxCachedTokens]uint32
	n         uint32
}

// wordKey reads the word b[i:j], of 1 to maxCached bytes. b has padding bytes behind.
func wordKey(b []byte, i, j int) (low, high uint64) {
	low, high = binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint64(b[i+8:])
	if n := uint(j - i); n <= 8 {
		low &= ^uint64(0) >> (64 - 8*n)
		high = 0
	} else {
		high &= 1<<(8*n-64) - 1
	}
	return low, high | uint64(j-i)<<56
}

func (c *wordCache) set(low, high uint64) *[cacheWays]cachedWord {
	h, l := bits.Mul64(low^c.seed, high^0x9e3779b97f4a7c15)
	return &c.sets[(h^l)%cacheSets]
}

// find returns the word in the set, nil if it is not there.
func find(set *[cacheWays]cachedWord, low, high uint64) *cachedWord {
	for i := range set {
		if set[i].low == low && set[i].high == high {
			return &set[i]
		}
	}
	return nil
}

// keep puts a word into its set, in place of the one that was put there first.
func keep(set *[cacheWays]cachedWord, low, high uint64, tokens []uint32) {
	copy(set[1:], set[:cacheWays-1])
	set[0] = cachedWord{low: low, high: high, n: uint32(len(tokens))}
	copy(set[0].tokens[:], tokens)
}
