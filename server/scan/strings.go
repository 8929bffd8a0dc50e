package scan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// StringBytes reads a string. The bytes are valid until the next one is read.
func (s *Scanner) StringBytes(what string) ([]byte, error) {
	if !s.TakeByte('"') {
		return nil, s.Unexpected(what)
	}
	start := s.pos
	ascii := s.run()
	if s.pos < len(s.data) && s.data[s.pos] == '"' {
		b := s.data[start:s.pos]
		s.pos++
		if !ascii && !utf8.Valid(b) {
			return nil, s.notUTF8(start)
		}
		return b, nil
	}
	return s.escaped(start, ascii)
}

// PeekQuoted returns what stands between the quotes of the string that is next, without
// having looked at it; ok is false where no string is next, or it has no end. A caller that finds nothing but
// an alphabet in it goes on by SkipQuoted.
func (s *Scanner) PeekQuoted() (b []byte, ok bool) {
	if !s.IsAt('"') {
		return nil, false
	}
	b, _, ok = bytes.Cut(s.data[s.pos+1:], []byte{'"'})
	return b, ok
}

// SkipQuoted moves on over a string that PeekQuoted has returned.
func (s *Scanner) SkipQuoted(b []byte) { s.pos += len(b) + 2 }

// escaped reads on a string whose first escape (or fault) is at s.pos.
func (s *Scanner) escaped(start int, ascii bool) ([]byte, error) {
	// A text without its escapes is shorter: there is room for all that can follow.
	out := slices.Grow(s.plain[:0], len(s.data)-start)
	out = append(out, s.data[start:s.pos]...)
	defer func() { s.plain = out }()
	for {
		if s.pos == len(s.data) {
			return nil, s.Syntax("the end of a string")
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			if !ascii && !utf8.Valid(out) {
				return nil, s.notUTF8(start)
			}
			s.pos++
			return out, nil
		case c != '\\':
			return nil, s.Syntax("no control character in a string (write it as an escape)")
		}
		s.pos++
		if s.pos == len(s.data) {
			return nil, s.Syntax("the rest of an escape")
		}
		switch c := s.data[s.pos]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, err := s.unicode()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
		default:
			return nil, s.Syntax("one of \"\\/bfnrtu after a backslash")
		}
		s.pos++
		var plain bool
		out, plain = s.copyRun(out)
		ascii = ascii && plain
	}
}

// unicode reads the digits of a \u escape, both halves of a pair, and leaves
// s.pos at the last digit.
func (s *Scanner) unicode() (rune, error) {
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if b := s.data[s.pos:]; len(b) > 2 && b[1] == '\\' && b[2] == 'u' {
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, s.Wrong("has half of a surrogate pair, which is no character")
}

func (s *Scanner) hex4() (rune, error) {
	b := s.data[s.pos+1:]
	var r rune
	for i := range 4 {
		if i == len(b) || hexDigit[b[i]] > 15 {
			s.pos += 1 + i
			return 0, s.Syntax("4 hex digits after \\u")
		}
		r = r<<4 | rune(hexDigit[b[i]])
	}
	s.pos += 4
	return r, nil
}

// copyRun is run for what stands behind an escape, which is mostly short: it appends the bytes
// to out, which has room for all of the text, as it looks at them.
func (s *Scanner) copyRun(out []byte) (_ []byte, ascii bool) {
	data, i, n := s.data, s.pos, len(out)
	room := out[:cap(out)]
	var high uint64
	for len(data)-i >= 8 && len(room)-n >= 8 {
		w := binary.LittleEndian.Uint64(data[i:])
		binary.LittleEndian.PutUint64(room[n:], w)
		if stop := stops(w); stop != 0 {
			k := bits.TrailingZeros64(stop) / 8
			high |= w & (1<<(8*k) - 1)
			s.pos = i + k
			return room[:n+k], high&tops == 0
		}
		high |= w
		i, n = i+8, n+8
	}
	out = room[:n]
	for ; i < len(data); i++ {
		c := data[i]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		out = append(out, c)
		high |= uint64(c)
	}
	s.pos = i
	return out, high&tops == 0
}

const ones, tops = 0x0101010101010101, 0x8080808080808080

// stops returns the top bit of each byte of w that is below 0x20, a quote or a backslash; the
// lowest bit set is always right, those above it may not be.
func stops(w uint64) uint64 {
	quote, back := w^ones*'"', w^ones*'\\'
	return (((w - ones*0x20) &^ w) | ((quote - ones) &^ quote) | ((back - ones) &^ back)) & tops
}

// run moves s.pos over the bytes that stand for themselves in a string, and
// reports whether all of them were ASCII. It looks at 8 bytes at once.
func (s *Scanner) run() (ascii bool) {
	data, i := s.data, s.pos
	var high uint64
	for len(data)-i >= 8 {
		w := binary.LittleEndian.Uint64(data[i:])
		if stop := stops(w); stop != 0 {
			n := bits.TrailingZeros64(stop) / 8
			high |= w & (1<<(8*n) - 1)
			s.pos = i + n
			return high&tops == 0
		}
		high |= w
		i += 8
	}
	for ; i < len(data); i++ {
		c := data[i]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		high |= uint64(c)
	}
	s.pos = i
	return high&tops == 0
}
