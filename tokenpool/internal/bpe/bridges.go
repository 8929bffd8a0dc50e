package bpe

import (
	"unicode/utf8"
	"unsafe"
)

// bridges knows between which two characters a token can reach. Where none can, merging
// never joins what stands on both sides, so a long word is merged in parts. Chinese,
// which has no spaces, is an example: most parts are words that the cache knows.
//
// Each place before a character's first byte is kept of every token, with what of the
// token stands next to it. On the left that is the character before, or those of its
// bytes that the token has. On the right it is the character behind, or its first bytes.
// A place in a text is bridged if any of these can be there. They are bits of a filter:
// that two fall together only means that a word is not cut where it could be. Places
// between two ASCII characters are left out, since tokens reach over most of them.
type bridges struct {
	bits [bridgeBits / 64]uint64
	wide *wide // answers for characters of three bytes
}

const bridgeBits = 1 << 21

func bridgeBit(before, after uint32) (word, bit uint32) {
	h := uint32((uint64(before)<<32 | uint64(after)) * 0x9e3779b97f4a7c15 >> (64 - 21))
	return h / 64, h % 64
}

// pack makes a number of up to four bytes.
func pack(b []byte) (n uint32) {
	for _, c := range b {
		n = n<<8 | uint32(c)
	}
	return n
}

// around is what of the characters on both sides of token[i] is in the token.
func around(token []byte, i int) (before, after []byte) {
	from := i - 1
	for from > 0 && from > i-4 && !utf8.RuneStart(token[from]) {
		from--
	}
	to := i + 1
	for to < len(token) && to < i+4 && !utf8.RuneStart(token[to]) {
		to++
	}
	return token[from:i], token[i:to]
}

// add keeps the places in a token.
func (s *bridges) add(token []byte) {
	for i := 1; i < len(token); i++ {
		if !utf8.RuneStart(token[i]) || token[i] < 0x80 && token[i-1] < 0x80 {
			continue
		}
		before, after := around(token, i)
		word, bit := bridgeBit(pack(before), pack(after))
		s.bits[word] |= 1 << bit
	}
}

// reach reports whether a token can reach from one character to the next one, of up to
// four bytes each, packed.
func (s *bridges) reach(before, after uint32) bool {
	for b := before; ; b &= ^uint32(0) >> (uint32(leadingZeroBytes(b)+1) * 8) {
		for a := after; a != 0; a >>= 8 {
			if word, bit := bridgeBit(b, a); s.bits[word]>>bit&1 == 1 {
				return true
			}
		}
		if b < 0x100 {
			return false
		}
	}
}

func leadingZeroBytes(n uint32) int {
	switch {
	case n >= 1<<24:
		return 0
	case n >= 1<<16:
		return 1
	case n >= 1<<8:
		return 2
	}
	return 3
}

// memoryBytes is what it takes.
func (s *bridges) memoryBytes() int64 {
	if s == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*s)+unsafe.Sizeof(*s.wide)) + 8*int64(cap(s.wide.pairs.bits)+cap(s.wide.cuts.bits))
}

// next returns the first place behind i in b[i:end] that no token reaches over, or end. A
// character begins at i.
func (s *bridges) next(b []byte, i, end int) int {
	for from := i; ; from = i {
		i++
		for i < end && !utf8.RuneStart(b[i]) {
			i++
		}
		switch {
		case i >= end:
			return end
		case isWide(b[from]) && isWide(b[i]):
			if s.wide.apart(wideAt(b, from), wideAt(b, i)) {
				return i
			}
		case b[from] >= 0x80 || b[i] >= 0x80:
			to := i + 1
			for to < end && !utf8.RuneStart(b[to]) {
				to++
			}
			if !s.reach(pack(b[from:i]), pack(b[i:to])) {
				return i
			}
		}
	}
}
