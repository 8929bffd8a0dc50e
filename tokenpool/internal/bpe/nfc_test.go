package bpe

import (
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestNFC compares isNFC with the library: each character by itself, behind letters of
// several kinds, and before marks.
func TestNFC(t *testing.T) {
	beside := []string{"", "e", "\u0301", "\u0323", "\u1100", "\uac00", "\u11a8", "\u0915", "\u093c", "\u05d0", "\u3099", "\u30ab", "字"}
	settledChars := 0
	for r := range rune(0x20100) {
		if r >= 0xd800 && r < 0xe000 {
			continue
		}
		for _, c := range beside {
			for _, s := range []string{c + string(r), string(r) + c} {
				if got, want := isNFC(s), norm.NFC.IsNormalString(s); got != want {
					t.Fatalf("%+q: %v, want %v", s, got, want)
				}
			}
		}
		if r < settledEnd && settled()[r/64]>>(r%64)&1 == 1 {
			settledChars++
		}
	}
	if settledChars < settledEnd*9/10 {
		t.Errorf("only %d characters are settled", settledChars)
	}
}

func BenchmarkNFC(b *testing.B) {
	text := textOf("Chinese", 0, 8<<10)
	for name, is := range map[string]func(string) bool{"settled": isNFC, "library": norm.NFC.IsNormalString} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if !is(text) {
					b.Fatal("it is NFC")
				}
			}
		})
	}
}
