package bpe

import "unicode/utf8"

// wide is what is known of characters of three bytes, U+0800 to U+FFFF, which most of
// Chinese, Japanese, Korean and Hindi are. It knows which token each of them is where it
// stands apart, and between which two of them a token can reach. Its tables are smaller
// than those of bridges and than the cache of words, and are read once or twice for a
// character.
type wide struct {
	// of has for each character its token and 1, 0 where there is none or several, and the
	// bits below.
	of [1 << 16]uint32
	// pairs has the pairs of characters that stand whole beside each other in a token. In
	// cuts is what a token has of two where it lacks bytes of one or both. Where they are
	// wrong, a word is not cut where it could be.
	pairs, cuts filter
}

const (
	wideToken = 1<<22 - 1
	// wideEnds says that cuts has this character, or last bytes of it, before others.
	wideEnds = 1 << 31
	// wideBegins says that cuts has this character behind last bytes of others.
	wideBegins = 1 << 30
)

// isWide reports whether a character that begins with c has three bytes.
func isWide(c byte) bool { return c&0xf0 == 0xe0 }

// wideAt is the character of three bytes that begins at b[i].
func wideAt(b []byte, i int) uint32 {
	return uint32(b[i]&0xf)<<12 | uint32(b[i+1]&0x3f)<<6 | uint32(b[i+2]&0x3f)
}

// packWide is wideAt the other way round: its bytes, packed.
func packWide(r uint32) uint32 {
	return (0xe0|r>>12)<<16 | (0x80|r>>6&0x3f)<<8 | 0x80 | r&0x3f
}

// apart reports whether it is certain that no token reaches from character x to y.
func (w *wide) apart(x, y uint32) bool {
	return !w.pairs.has(uint64(x), uint64(y)) && ((w.of[x]&wideEnds|w.of[y]&wideBegins) == 0 || !w.reach(x, y))
}

// reach reports whether a token can reach from x to y that lacks bytes of one of them, or
// of both.
func (w *wide) reach(x, y uint32) bool {
	before, after := uint64(packWide(x)), uint64(packWide(y))
	if w.of[y]&wideBegins != 0 && (w.cuts.has(before&0xff, after) || w.cuts.has(before&0xffff, after)) {
		return true
	}
	if w.of[x]&wideEnds == 0 {
		return false
	}
	for _, after := range [...]uint64{after >> 16, after >> 8} {
		if w.cuts.has(before&0xff, after) || w.cuts.has(before&0xffff, after) || w.cuts.has(before, after) {
			return true
		}
	}
	return false
}

// newWide makes the tables for the tokens of Tables.
func newWide(spelled []byte, lengths []uint16) *wide {
	w := &wide{}
	var pairs, cuts [][2]uint64
	var lasts [1 << 16]bool // last bytes of a character before first bytes of another one
	at := 0
	for _, n := range lengths {
		token := spelled[at : at+int(n)]
		at += int(n)
		for i := 1; i < len(token); i++ {
			if !isWide(token[i]) {
				continue
			}
			before, after := around(token, i)
			first, last := utf8.RuneStart(before[0]), len(after) == 3
			if len(before) > 3 || first && (len(before) < 3 || !isWide(before[0])) {
				continue // the character before is no wide one
			}
			if first && last {
				pairs = append(pairs, [2]uint64{uint64(wideAt(before, 0)), uint64(wideAt(after, 0))})
				continue
			}
			cuts = append(cuts, [2]uint64{uint64(pack(before)), uint64(pack(after))})
			switch {
			case first:
				w.of[wideAt(before, 0)] |= wideEnds
			case last:
				w.of[wideAt(after, 0)] |= wideBegins
			default:
				lasts[uint16(pack(before))] = true
			}
		}
	}
	for r := range w.of {
		if b := packWide(uint32(r)); lasts[b&0xff] || lasts[b&0xffff] {
			w.of[r] |= wideEnds
		}
	}
	w.pairs, w.cuts = newFilter(pairs), newFilter(cuts)
	return w
}

// addTokens finds out which characters are one token, by merging each that is a token.
func (w *wide) addTokens(spelled []byte, lengths []uint16, m *merges, byteIDs *[256]uint32) {
	var mem merger
	at := 0
	for id, n := range lengths {
		token := spelled[at : at+int(n)]
		at += int(n)
		if n != 3 || !isWide(token[0]) || !utf8.Valid(token) {
			continue
		}
		if ids := mem.merge(m, byteIDs, token); len(ids) == 1 && ids[0] == uint32(id) {
			w.of[wideAt(token, 0)] |= uint32(id) + 1
		}
	}
}

// singles are the characters that are one token. There are none in nil.
func (w *wide) singles() (out []rune) {
	if w != nil {
		for r, is := range &w.of {
			if is&wideToken != 0 {
				out = append(out, rune(r))
			}
		}
	}
	return out
}

// filter has pairs of numbers. Of one in sixteen pairs or less that it has not it says that
// it has.
type filter struct {
	bits  []uint64
	shift uint8
}

func newFilter(pairs [][2]uint64) filter {
	f, size := filter{shift: 58}, 64
	for ; size < 16*len(pairs); size *= 2 {
		f.shift--
	}
	f.bits = make([]uint64, size/64)
	for _, p := range pairs {
		bit := f.bit(p[0], p[1])
		f.bits[bit/64] |= 1 << (bit % 64)
	}
	return f
}

func (f *filter) bit(before, after uint64) uint64 {
	return ((before<<24 ^ after) * 0x9e3779b97f4a7c15) >> f.shift
}

func (f *filter) has(before, after uint64) bool {
	bit := f.bit(before, after)
	return f.bits[bit/64]>>(bit%64)&1 == 1
}
