package scan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
)

// The long arrays: tokens and block keys.

// Tokens appends an array of token ids to dst. This is where most bytes of
// most requests pass.
func (s *Scanner) Tokens(dst []uint32, limit int) ([]uint32, error) {
	if !s.TakeByte('[') {
		return dst, s.Unexpected("an array of tokens")
	}
	s.Space()
	if s.TakeByte(']') {
		return dst, nil
	}
	first, data := len(dst), s.data
	for {
		if len(dst)-first == limit {
			return dst, s.TooMany(limit)
		}
		// A local position stays in a register.
		i := s.pos
		if v, n := shortNumber(data[i:]); n > 0 && data[i+n] == ',' {
			dst = append(dst, v)
			s.pos = i + n + 1
			continue
		}
		if i < len(data) && IsSpace(data[i]) {
			s.Space()
			i = s.pos
		}
		start := i
		var v uint64
		for i < len(data) {
			d := data[i] - '0'
			if d > 9 {
				break
			}
			v = v*10 + uint64(d)
			i++
		}
		n := i - start
		if n == 0 || n > 10 || v > math.MaxUint32 || (n > 1 && data[start] == '0') {
			return dst, s.badToken(len(dst) - first)
		}
		if i < len(data) && IsSpace(data[i]) {
			s.pos = i
			s.Space()
			i = s.pos
		}
		if i == len(data) {
			s.pos = i
			return dst, s.Syntax("',' or ']'")
		}
		dst = append(dst, uint32(v))
		switch data[i] {
		case ',':
			s.pos = i + 1
		case ']':
			s.pos = i + 1
			return dst, nil
		case '.', 'e', 'E':
			return dst, s.badToken(len(dst) - first - 1)
		default:
			s.pos = i
			return dst, s.Syntax("',' or ']'")
		}
	}
}

// shortNumber reads the 1 to 7 digits that b begins with and says how many they
// are; 0 stands for all else, and for what is near the end of b. It takes the
// digits together instead of one by one, which halves the time of a long list:
// their number varies from token to token, so a loop over them is mispredicted
// at every end.
func shortNumber(b []byte) (v uint32, n int) {
	if len(b) < 8 {
		return 0, 0
	}
	w := binary.LittleEndian.Uint64(b) ^ 0x3030303030303030 // digits become 0 to 9
	stop := ((w + 0x0606060606060606) | w) & 0xf0f0f0f0f0f0f0f0
	n = bits.TrailingZeros64(stop) / 8
	if n == 0 || n == 8 || (w&0xff == 0 && n > 1) {
		return 0, 0
	}
	w <<= 64 - 8*n // as if zeros stood in front, to make 8 digits
	w = (w * (10<<8 + 1)) >> 8 & 0x00ff00ff00ff00ff
	w = (w * (100<<16 + 1)) >> 16 & 0x0000ffff0000ffff
	w = (w * (10000<<32 + 1)) >> 32
	return uint32(w), n
}

// badToken says what is wrong with the element at s.pos.
func (s *Scanner) badToken(n int) error {
	s.element(n)
	_, err := s.Uint(math.MaxUint32, "a whole number")
	if err == nil {
		err = s.Syntax("a token")
	}
	return err
}

// BlockKeys appends an array of block keys to dst.
func (s *Scanner) BlockKeys(dst []blockkey.Key, limit int) ([]blockkey.Key, error) {
	if !s.TakeByte('[') {
		return dst, s.Unexpected("an array of block keys")
	}
	s.Space()
	if s.TakeByte(']') {
		return dst, nil
	}
	base := len(s.path)
	for first := len(dst); ; {
		if len(dst)-first == limit {
			return dst, s.TooMany(limit)
		}
		s.Space()
		k, ok := s.plainKey()
		if !ok {
			s.element(len(dst) - first)
			var err error
			if k, err = s.escapedKey(); err != nil {
				return dst, err
			}
			s.path = s.path[:base]
		}
		dst = append(dst, k)
		s.Space()
		if s.TakeByte(']') {
			return dst, nil
		}
		if !s.TakeByte(',') {
			return dst, s.Syntax("',' or ']'")
		}
	}
}

// plainKey reads a block key that is written without escapes, as all are.
func (s *Scanner) plainKey() (blockkey.Key, bool) {
	b := s.data[s.pos:]
	if len(b) < 18 || b[0] != '"' || b[17] != '"' {
		return 0, false
	}
	v, ok := hex16(b[1:17])
	if ok {
		s.pos += 18
	}
	return blockkey.Key(v), ok
}

// escapedKey reads a block key of any spelling, or says what is wrong with it.
func (s *Scanner) escapedKey() (blockkey.Key, error) {
	b, err := s.StringBytes("a string of 16 hex digits")
	if err != nil {
		return 0, err
	}
	k, err := blockkey.ParseKey(string(b))
	if err != nil {
		return 0, s.Wrong("is not a block key: it takes a string of 16 hex digits")
	}
	return k, nil
}

// element puts the place in an array into the path.
func (s *Scanner) element(n int) {
	s.path = append(s.path, '[')
	s.path = append(strconv.AppendInt(s.path, int64(n), 10), ']')
}

func hex16(b []byte) (v uint64, ok bool) {
	for _, c := range b {
		d := hexDigit[c]
		if d > 15 {
			return 0, false
		}
		v = v<<4 | uint64(d)
	}
	return v, true
}

// hexDigit is the value of a hex digit, 0xff for what is none.
var hexDigit = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range byte(10) {
		t['0'+i] = i
	}
	for i := range byte(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()
