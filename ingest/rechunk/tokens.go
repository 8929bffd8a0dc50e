package rechunk

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/store"
)

// Tokens are kept in chunks of one entry each. A chunk has a byte with the bits of
// a token, one with their number, and the tokens, the first in the lowest bits. A
// chunk has as many tokens as it can, so that more tokens change only the last.

// chunkOf returns how many of tokens the first chunk takes and how wide they are.
func chunkOf(tokens []uint32) (count, width int) {
	const room = 8 * (store.MaxMapValue - 2)
	for count < len(tokens) && count < 255 {
		w := max(width, bits.Len32(tokens[count]))
		if w*(count+1) > room {
			break
		}
		width = w
		count++
	}
	return count, width
}

// chunks is how many chunks tokens take.
func chunks(tokens []uint32) (n int) {
	for len(tokens) > 0 {
		count, _ := chunkOf(tokens)
		tokens = tokens[count:]
		n++
	}
	return n
}

func appendChunk(dst []byte, tokens []uint32, width int) []byte {
	dst = append(dst, byte(width), byte(len(tokens)))
	var acc uint64
	have := 0
	for _, t := range tokens {
		acc |= uint64(t) << have
		for have += width; have >= 8; have -= 8 {
			dst = append(dst, byte(acc))
			acc >>= 8
		}
	}
	if have > 0 {
		dst = append(dst, byte(acc))
	}
	return dst
}

// decodeChunk appends the tokens of a chunk. It returns false when the bytes are not a chunk.
func decodeChunk(dst []uint32, v []byte) ([]uint32, bool) {
	if len(v) < 2 || v[0] > 32 || v[1] == 0 {
		return dst, false
	}
	width, count := int(v[0]), int(v[1])
	v = v[2:]
	if len(v) != (width*count+7)/8 {
		return dst, false
	}
	var acc uint64
	have := 0
	for range count {
		for have < width {
			acc |= uint64(v[0]) << have
			v = v[1:]
			have += 8
		}
		dst = append(dst, uint32(acc&(1<<width-1)))
		acc >>= width
		have -= width
	}
	return dst, true
}
