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
	if !s.takeByte('"') {
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

// PeekQuoted returns what stands between the quotes of the string that is next, without having looked at it.
// Result ok is false where no string is next, or it has no end. A caller that finds nothing but an alphabet
// in it goes on by SkipQuoted.
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
func (s *Scanner) escaped(start int, ascii bool) (_ []byte, err error) {
	// A text without its escapes is shorter: there is room for all that can follow.
	out := slices.Grow(s.plain[:0], len(s.data)-start+block)
	out = append(out, s.data[start:s.pos]...)
	defer func() { s.plain = out }()
	out, plain, err := s.copyBlocks(out)
	for ascii = ascii && plain; err == nil; {
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
		case c == '\\':
			out, err = s.escape(out)
		case c < ' ':
			return nil, s.Syntax("no control character in a string (write it as an escape)")
		default:
			ascii = ascii && c < utf8.RuneSelf
			out = append(out, c)
			s.pos++
		}
	}
	return nil, err
}

// shortEscapes are what letters behind a backslash stand for, 0 where that is nothing.
var shortEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape appends to out what the escape at s.pos stands for.
func (s *Scanner) escape(out []byte) ([]byte, error) {
	if s.pos++; s.pos == len(s.data) {
		return out, s.Syntax("the rest of an escape")
	}
	c := s.data[s.pos]
	if short := shortEscapes[c]; short != 0 {
		s.pos++
		return append(out, short), nil
	}
	if c != 'u' {
		return out, s.Syntax("one of \"\\/bfnrtu after a backslash")
	}
	r, err := s.unicode()
	if err != nil {
		return out, err
	}
	s.pos++
	return utf8.AppendRune(out, r), nil
}

const (
	// block is how many bytes copyBlocks searches at once, and the most that it copies at once.
	block = 64
	// copied is how many bytes it copies first: what stands between escapes is mostly shorter.
	copied = 16
)

// copyBlocks appends a string from s.pos on to out, which has room for all of it and a block.
// It stops at what is no part of the string, or near the end of the data. Where stops are is
// found for a whole block, so that none waits for the one before. Copies have one of two
// lengths, whatever they are for: what is too much is overwritten by the next one.
func (s *Scanner) copyBlocks(out []byte) (_ []byte, ascii bool, err error) {
	data, room := s.data, out[:cap(out)]
	i, n := s.pos, len(out)
	var high uint64
	for from := i; len(data)-from >= 2*block; from += block {
		stops, others := stopsOf((*[block]byte)(data[from:]))
		high |= others
		stops &^= 1<<uint(i-from) - 1 // of an escape that began in the block before
		for stops != 0 {
			bit := bits.TrailingZeros64(stops)
			at := from + bit
			*(*[copied]byte)(room[n:]) = *(*[copied]byte)(data[i:])
			if at-i > copied {
				*(*[block]byte)(room[n:]) = *(*[block]byte)(data[i:])
			}
			n += at - i
			if data[at] != '\\' {
				s.pos = at
				return room[:n], high == 0, nil
			}
			if short := shortEscapes[data[at+1]]; short != 0 {
				room[n] = short
				i, n = at+2, n+1
				stops &^= 3 << (bit & (block - 1))
				continue
			}
			s.pos = at
			out, err := s.escape(room[:n])
			if err != nil {
				return out, false, err
			}
			i, n = s.pos, len(out)
			stops &^= 1<<uint(i-from) - 1
		}
		if end := from + block; i < end {
			*(*[block]byte)(room[n:]) = *(*[block]byte)(data[i:])
			i, n = end, n+end-i
		}
	}
	s.pos = i
	return room[:n], high == 0, nil
}

// stopsOf returns a bit for each byte that does not stand for itself in a string. It also returns
// bits that are 0 where all bytes are ASCII.
func stopsOf(b *[block]byte) (stops, high uint64) {
	const low = ones * 0x7f
	for i := 0; i < block; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		l := w & low
		// The top bit of each byte is set where it is no quote, no backslash and not below ' '.
		others := ((l^ones*'"'+low)&(l^ones*'\\'+low)&(l+ones*(0x80-' ')) | w) & tops
		stops |= ((others ^ tops) >> 7 * 0x0102040810204080 >> 56) << i
		high |= w & tops
	}
	return stops, high
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
	if len(b) >= 4 {
		v, w, x, y := hexDigit[b[0]], hexDigit[b[1]], hexDigit[b[2]], hexDigit[b[3]]
		if v|w|x|y <= 15 {
			s.pos += 4
			return rune(v)<<12 | rune(w)<<8 | rune(x)<<4 | rune(y), nil
		}
	}
	for i := range 4 {
		if i == len(b) || hexDigit[b[i]] > 15 {
			s.pos += 1 + i
			break
		}
	}
	return 0, s.Syntax("4 hex digits after \\u")
}

const ones, tops = 0x0101010101010101, 0x8080808080808080

// stops returns the top bit of each byte of w that is below 0x20, a quote or a backslash. The
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
