package bpe

import (
	"sync"

	"golang.org/x/text/unicode/norm"
)

// settled has a bit for each character below settledEnd that NFC leaves as it is, whatever
// stands beside it: it is normal by itself, and composes with nothing before it. A text of
// these alone is NFC, which is found in a third of the time that the library takes.
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
	for i, r := range text {
		if r < 0x300 {
			continue
		}
		bits := settled()
		for _, r := range text[i:] {
			if r >= settledEnd || bits[r/64]>>(r%64)&1 == 0 {
				return norm.NFC.IsNormalString(text)
			}
		}
		break
	}
	return true
}
