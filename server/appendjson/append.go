// Package appendjson appends the parts of JSON texts that are written by hand. Its
// functions are pure.
package appendjson

import (
	"strconv"
	"unicode/utf8"
)

// Comma separates the i-th element from the one before it.
func Comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// Name appends the name of an object's i-th member.
func Name(b []byte, i int, name string) []byte {
	return append(String(Comma(b, i), name), ':')
}

// String appends a JSON string. What is not UTF-8 becomes U+FFFD.
func String(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	i := plain(s)
	if i == len(s) {
		return append(append(b, s...), '"')
	}
	from := 0
	for i < len(s) {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// plain returns how many of the first bytes are ASCII that needs no escape. It is a lower
// bound: a whole word of 8 bytes is judged at once.
func plain(s string) (n int) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; n+8 <= len(s); n += 8 {
		w := s[n : n+8]
		x := uint64(w[0]) | uint64(w[1])<<8 | uint64(w[2])<<16 | uint64(w[3])<<24 | uint64(w[4])<<32 | uint64(w[5])<<40 | uint64(w[6])<<48 | uint64(w[7])<<56
		quote, slash := x^'"'*ones, x^'\\'*ones
		// A top bit is set for a byte below ' ', for a quote and for a slash.
		if (x|(x-' '*ones)&^x|(quote-ones)&^quote|(slash-ones)&^slash)&tops != 0 {
			return n
		}
	}
	for ; n < len(s); n++ {
		if c := s[n]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return n
		}
	}
	return n
}

// Tokens appends an array of tokens.
func Tokens(b []byte, tokens []uint32) []byte {
	b = append(b, '[')
	for i, t := range tokens {
		b = strconv.AppendUint(Comma(b, i), uint64(t), 10)
	}
	return append(b, ']')
}
