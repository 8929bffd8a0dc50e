package scan

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unsafe"

	"github.com/kvatlas/kvatlas/blockkey"
)

// The long arrays: tokens and block keys.

// Tokens appends an array of token ids to dst. This is where most bytes of
// most requests pass.
func (s *Scanner) Tokens(dst []uint32, limit int) ([]uint32, error) {
	if !s.takeByte('[') {
		return dst, s.Unexpected("an array of tokens")
	}
	s.Space()
	if s.takeByte(']') {
		return dst, nil
	}
	first, data := len(dst), s.data
	dst = s.manyTokens(dst, limit)
	for {
		room := dst[len(dst):max(len(dst), min(cap(dst), first+limit))]
		at, n := shortTokens(data, room, s.pos)
		s.pos, dst = at, dst[:len(dst)+n]
		if len(dst)-first == limit {
			return dst, s.TooMany(limit)
		}
		i := s.pos
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
		n = i - start
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

// tokenLanes is in how many parts a long array is read at once. Where an element begins is known
// only when the one before it has been read. The processor works on several such chains at the
// same time.
const tokenLanes = 2

// lane is a part of an array: where its next element begins, where that goes, and how many
// there are still.
type lane struct{ at, to, left int }

// manyTokens makes room in dst for the array that is next. It reads the most of it, if it is long
// and its elements are as shortTokens takes them. What it leaves is for the caller.
func (s *Scanner) manyTokens(dst []uint32, limit int) []uint32 {
	list := s.data[s.pos:]
	if end := bytes.IndexByte(list, ']'); end >= 0 {
		list = list[:end]
	}
	comma := []byte{','} // searches for single bytes are many times as fast as reading
	n := bytes.Count(list, comma)
	dst = slices.Grow(dst, min(n+1, limit))
	if n < 16*tokenLanes || n >= limit {
		return dst
	}
	list = list[:len(list)-16] // what is near the end cannot be read 8 bytes at once
	var lanes [tokenLanes + 1]lane
	at, to := s.pos, len(dst)
	for k := range tokenLanes {
		lanes[k] = lane{at: at, to: to}
		part := list[min(at-s.pos, len(list)):max(at-s.pos, (k+1)*len(list)/tokenLanes)]
		next := bytes.LastIndexByte(part, ',') + 1
		lanes[k].left = bytes.Count(part, comma)
		if next == 0 || lanes[k].left < 2 {
			return dst
		}
		at, to = at+next, to+lanes[k].left
		if s.data[at] == ' ' {
			at++
		}
	}
	lanes[tokenLanes] = lane{at: at, to: to}
	if !readLanes(s.data, dst[:to], &lanes) {
		return dst
	}
	s.pos = at
	return dst[:to]
}

// readLanes reads all lanes but the last, which says where the one before it ends. It reports
// whether they were as they should be. 16 bytes or more follow them.
func readLanes(data []byte, dst []uint32, lanes *[tokenLanes + 1]lane) bool {
	a, b := lanes[0], lanes[1]
	together := min(a.left, b.left)
	into, intoB := dst[a.to:][:together], dst[b.to:][:together]
	i, j := a.at, b.at
	end := uint(len(data) - 8)
	for k := range into {
		if uint(i) > end || uint(j) > end {
			return false
		}
		v, w := load(data, i)^digitZeros, load(data, j)^digitZeros
		n, m := digitBits(v), digitBits(w)
		if !isToken(v, n) || !isToken(w, m) {
			return false
		}
		i, j = i+n/8+1, j+m/8+1
		if data[i] == ' ' {
			i++
		}
		if data[j] == ' ' {
			j++
		}
		into[k], intoB[k] = tokenOf(v, n), tokenOf(w, m)
	}
	return lane{i, a.to + together, a.left - together}.finish(data, dst, b.at) &&
		lane{j, b.to + together, b.left - together}.finish(data, dst, lanes[tokenLanes].at)
}

// load returns the 8 bytes from data[i:] on, which the caller has found to be there. What Go does
// for a slice of them is a sixth of a token.
func load(data []byte, i int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(data)), i))[:])
}

// finish reads the rest of a lane, and reports whether it ends where it should.
func (l lane) finish(data []byte, dst []uint32, end int) bool {
	at, n := shortTokens(data, dst[l.to:l.to+l.left], l.at)
	return n == l.left && at == end
}

// shortTokens reads elements from data[at:] into dst as long as they have 1 to 7 digits. Each
// must have a comma and perhaps a space behind it. What is otherwise, or near the end of data, is
// left to the caller.
func shortTokens(data []byte, dst []uint32, at int) (end, n int) {
	for n < len(dst) && len(data)-at > 8 {
		w := load(data, at) ^ digitZeros
		b := digitBits(w)
		if !isToken(w, b) {
			break
		}
		at += b/8 + 1
		if data[at] == ' ' {
			at++
		}
		dst[n] = tokenOf(w, b)
		n++
	}
	return at, n
}

// The digits of an element are taken together instead of one by one. Their number varies from
// token to token, so a loop over them is mispredicted at every end. Of eight bytes of text in w,
// digitZeros makes digits 0 to 9.
const digitZeros = 0x3030303030303030

// digitBits returns how many of the bits of w are those of its leading digits.
func digitBits(w uint64) int {
	return bits.TrailingZeros64(((w+0x0606060606060606)|w)&0xf0f0f0f0f0f0f0f0) &^ 7
}

// isToken reports whether the b bits of digits are 1 to 7, without a zero before others, and
// have a comma behind them. What stands before the comma is digits, so that it is enough to look
// at the first.
func isToken(w uint64, b int) bool {
	return byte(w>>(b&63)) == ','^'0' && (byte(w)-1 < 9 || b == 8)
}

// tokenOf returns the number that the b bits of digits are.
func tokenOf(w uint64, b int) uint32 {
	w <<= -b & 63 // as if zeros stood in front, to make 8 digits
	w = (w * (10<<8 + 1)) >> 8 & 0x00ff00ff00ff00ff
	w = (w * (100<<16 + 1)) >> 16 & 0x0000ffff0000ffff
	return uint32((w * (10000<<32 + 1)) >> 32)
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
	if !s.takeByte('[') {
		return dst, s.Unexpected("an array of block keys")
	}
	s.Space()
	if s.takeByte(']') {
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
		if s.takeByte(']') {
			return dst, nil
		}
		if !s.takeByte(',') {
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

// hexDigit is the value of a hex digit, 0xff for any other byte.
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
