package event

import (
	"encoding/binary"
	"math"
)

// cursor reads MessagePack. A method that reads a value of some type returns false
// and leaves the cursor where it is when the value has another type. The bytes may
// end before the value does, or be no MessagePack. Then the cursor is broken for
// good and stands at the end; a reader checks that once.
type cursor struct {
	b      []byte
	i      int
	broken bool
}

// invalid is the one byte that begins no value.
const invalid = 0xc1

func (c *cursor) fail() {
	c.broken = true
	c.i = len(c.b)
}

func (c *cursor) left() int { return len(c.b) - c.i }

// peek returns the first byte of the next value.
func (c *cursor) peek() byte {
	if c.i >= len(c.b) {
		c.fail()
		return invalid
	}
	return c.b[c.i]
}

// size reads an n-byte big-endian number after the first byte of a value.
func (c *cursor) size(n int) (uint64, bool) {
	if c.left() < 1+n {
		c.fail()
		return 0, false
	}
	b := c.b[c.i+1:]
	var v uint64
	switch n {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.BigEndian.Uint16(b))
	case 4:
		v = uint64(binary.BigEndian.Uint32(b))
	case 8:
		v = binary.BigEndian.Uint64(b)
	}
	c.i += 1 + n
	return v, true
}

// null reads nil.
func (c *cursor) null() bool {
	if c.peek() != 0xc0 {
		return false
	}
	c.i++
	return true
}

func isArray(t byte) bool { return t&0xf0 == 0x90 || t == 0xdc || t == 0xdd }
func isMap(t byte) bool   { return t&0xf0 == 0x80 || t == 0xde || t == 0xdf }
func isText(t byte) bool  { return t&0xe0 == 0xa0 || t >= 0xd9 && t <= 0xdb }
func isBytes(t byte) bool { return t >= 0xc4 && t <= 0xc6 }

// array reads the head of an array. It has at least a byte for each of its n values.
func (c *cursor) array() (n int, ok bool) {
	return c.head(0x90, 0xdc, 1)
}

// mapping reads the head of a map. It has at least two bytes for each of its n pairs.
func (c *cursor) mapping() (n int, ok bool) {
	return c.head(0x80, 0xde, 2)
}

func (c *cursor) head(fix, wide byte, least int) (n int, ok bool) {
	var v uint64
	switch t := c.peek(); {
	case t&0xf0 == fix:
		v = uint64(t & 0x0f)
		c.i++
	case t == wide:
		if v, ok = c.size(2); !ok {
			return 0, false
		}
	case t == wide+1:
		if v, ok = c.size(4); !ok {
			return 0, false
		}
	default:
		return 0, false
	}
	if v > uint64(c.left()/least) {
		c.fail()
		return 0, false
	}
	return int(v), true
}

// text reads a string. The bytes are those of the message.
func (c *cursor) text() (s []byte, ok bool) {
	var n uint64
	switch t := c.peek(); {
	case t&0xe0 == 0xa0:
		n = uint64(t & 0x1f)
		c.i++
		ok = true
	case t == 0xd9:
		n, ok = c.size(1)
	case t == 0xda:
		n, ok = c.size(2)
	case t == 0xdb:
		n, ok = c.size(4)
	}
	if !ok {
		return nil, false
	}
	return c.take(n)
}

// bytes reads a byte string.
func (c *cursor) bytes() (s []byte, ok bool) {
	var n uint64
	switch c.peek() {
	case 0xc4:
		n, ok = c.size(1)
	case 0xc5:
		n, ok = c.size(2)
	case 0xc6:
		n, ok = c.size(4)
	}
	if !ok {
		return nil, false
	}
	return c.take(n)
}

func (c *cursor) take(n uint64) ([]byte, bool) {
	if n > uint64(c.left()) {
		c.fail()
		return nil, false
	}
	s := c.b[c.i : c.i+int(n)]
	c.i += int(n)
	return s, true
}

// integer reads an integer. A negative one is returned as two's complement.
func (c *cursor) integer() (v uint64, negative, ok bool) {
	switch t := c.peek(); {
	case t < 0x80:
		c.i++
		return uint64(t), false, true
	case t >= 0xe0:
		c.i++
		return uint64(int64(int8(t))), true, true
	case t >= 0xcc && t <= 0xcf:
		v, ok = c.size(1 << (t - 0xcc))
		return v, false, ok
	case t >= 0xd0 && t <= 0xd3:
		width := 1 << (t - 0xd0)
		if v, ok = c.size(width); !ok {
			return 0, false, false
		}
		shift := 64 - 8*width
		s := int64(v<<shift) >> shift
		return uint64(s), s < 0, true
	}
	return 0, false, false
}

// natural reads an integer from 0 to most.
func (c *cursor) natural(most uint64) (int, bool) {
	v, negative, ok := c.integer()
	return int(v), ok && !negative && v <= most
}

// boolean reads true or false.
func (c *cursor) boolean() (v, ok bool) {
	switch c.peek() {
	case 0xc2:
		c.i++
		return false, true
	case 0xc3:
		c.i++
		return true, true
	}
	return false, false
}

// number reads a float or an integer.
func (c *cursor) number() (float64, bool) {
	switch c.peek() {
	case 0xca:
		v, ok := c.size(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case 0xcb:
		v, ok := c.size(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := c.integer()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// skip passes over one value, however deep, without a stack. It counts the values
// that are still to come, of which each has a byte at least.
func (c *cursor) skip() {
	for pending := 1; pending > 0; pending-- {
		var (
			t  = c.peek()
			n  int
			ok bool
		)
		switch {
		case isArray(t):
			if n, ok = c.array(); ok {
				pending += n
			}
		case isMap(t):
			if n, ok = c.mapping(); ok {
				pending += 2 * n
			}
		case isText(t):
			_, ok = c.text()
		case isBytes(t):
			_, ok = c.bytes()
		case t == 0xc0 || t == 0xc2 || t == 0xc3:
			c.i++
			ok = true
		case t == 0xca || t == 0xcb:
			_, ok = c.number()
		case t >= 0xd4 && t <= 0xd8: // extensions of 1 to 16 bytes and their type
			_, ok = c.take(2 + 1<<(t-0xd4))
		case t >= 0xc7 && t <= 0xc9:
			var v uint64
			if v, ok = c.size(1 << (t - 0xc7)); ok {
				_, ok = c.take(v + 1)
			}
		default:
			_, _, ok = c.integer()
		}
		if !ok || pending-1 > c.left() {
			c.fail()
			return
		}
	}
}
