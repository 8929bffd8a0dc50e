package bpe

import (
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// settled has a bit for each character below settledEnd that NFC leaves as it is, whatever
// stands beside it. Such a character is normal by itself, and composes with nothing before
// it. A text of these alone is NFC, which is found in a third of the time that the library
// takes.
var settled = sync.OnceValue(func() *[settledEnd / 64]uint64 {
	var bits [settledEnd / 64]uint64
	var b [4]byte
	for r := range rune(settledEnd) {
		s := string(r)
		n := copy(b[:], s)
		if p := norm.NFC.Properties(b[:n]); p.BoundaryBefore() && norm.NFC.IsNormalString(s) {
			bits[r/64] |= 1 << (r % 64)
		}
	}
	return &bits
})

// settledEnd is behind the emoji.
const settledEnd = 0x20000

// isNFC reports whether normalization to NFC changes nothing. What is composed begins
// at U+0300.
func isNFC(text string) bool {
	bits := settled()
	for i := 0; i < len(text); {
		c := text[i]
		if c < 0x80 {
			i++
			continue
		}
		var r rune
		n := 3
		if isWide(c) && i+2 < len(text) {
			r = rune(c&0xf)<<12 | rune(text[i+1]&0x3f)<<6 | rune(text[i+2]&0x3f)
		} else {
			r, n = utf8.DecodeRuneInString(text[i:])
		}
		if r >= settledEnd || bits[r/64]>>(r%64)&1 == 0 {
			return norm.NFC.IsNormalString(text)
		}
		i += n
	}
	return true
}
