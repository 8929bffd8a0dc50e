package bpe

import (
	"math/rand/v2"
	"os"
	"testing"
	"unicode/utf8"
)

// TestWide holds the tables of wide characters to the tokens themselves. No two characters
// are apart that a token, or a part of one, reaches over. Those that are one token are what
// the merges make of them.
func TestWide(t *testing.T) {
	for _, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			seed := uint64(os.Getpid())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 1))
			reached := map[string]bool{} // what of two characters a token has, beside each other
			var wides []rune
			at := 0
			for _, n := range b.tables.Lengths {
				token := b.tables.Spelled[at : at+int(n)]
				at += int(n)
				for i := 1; i < len(token); i++ {
					if isWide(token[i]) {
						before, after := around(token, i)
						reached[string(before)+"|"+string(after)] = true
					}
				}
				if r, n := utf8.DecodeRune(token); n == 3 {
					wides = append(wides, r)
				}
			}
			if len(wides) == 0 {
				t.Skip("no token begins with a wide character")
			}
			apart := 0
			for range 200_000 {
				x, y := wides[rnd.IntN(len(wides))], wides[rnd.IntN(len(wides))]
				if rnd.IntN(4) == 0 {
					x = 0x800 + rnd.Int32N(0xd800-0x800)
				}
				if !b.fast.bridges.wide.apart(uint32(x), uint32(y)) {
					continue
				}
				apart++
				before, after := string(x), string(y)
				for i := range 3 {
					for j := 1; j <= 3; j++ {
						if reached[before[i:]+"|"+after[:j]] {
							t.Fatalf("%q and %q are apart, and a token has %q of them", x, y, before[i:]+after[:j])
						}
					}
				}
			}
			t.Logf("%d of 200000 pairs are apart, of %d characters; the tables have %d bytes", apart, len(wides), b.fast.bridges.memoryBytes())
			if apart == 0 {
				t.Error("no pair is apart")
			}
			for r, is := range b.fast.bridges.wide.of {
				if is&wideToken == 0 {
					continue
				}
				var mem merger
				if ids := mem.merge(b.fast.merges, &b.fast.byteIDs, []byte(string(rune(r)))); len(ids) != 1 || ids[0] != is&wideToken-1 {
					t.Fatalf("%q is token %d by itself, and %d by its merges", rune(r), is&wideToken-1, ids)
				}
			}
		})
	}
}
