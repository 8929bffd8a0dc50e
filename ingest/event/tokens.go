package event

import (
	"encoding/binary"
	"math"
)

// token reads a token.
func (d *Decoder) token() (uint32, bool) {
	v, ok := d.natural(math.MaxUint32)
	return uint32(v), ok
}

// tokens reads the tokens of an event. They are numbers, or pairs of them, each
// with the token that follows. Where TensorRT-LLM puts an object's digest in place
// of a token, there are texts among them. No key can be made of these: then there
// are none.
func (d *Decoder) tokens(field string) (tokens []uint32, bigram bool) {
	n := d.list(field, d.limits.Tokens)
	if n > 0 && isArray(d.peek()) {
		tokens, ok := d.pairs(n)
		if !ok {
			d.refuse(BadField, field)
		}
		return tokens, true
	}
	opaque := false
	out := d.batch.arena.newTokens(n)
	// The loop has its own copy of where it is, in a register: of a message nearly
	// all bytes are tokens.
	b, at := d.b, d.i
	for i := range out {
		if at+5 <= len(b) {
			// Two bytes or four, as it comes: no branch could be foretold.
			if wide := b[at] - 0xcd; wide <= 1 {
				out[i] = binary.BigEndian.Uint32(b[at+1:]) >> (16 * (1 - wide) & 31)
				at += 3 + 2*int(wide)
				continue
			}
		}
		if at < len(b) && b[at] < 0x80 {
			out[i] = uint32(b[at])
			at++
			continue
		}
		d.i = at
		if isText(d.peek()) {
			opaque = true
			d.skip()
		} else if v, ok := d.token(); ok {
			out[i] = v
		} else {
			d.refuse(BadField, field)
			return nil, false
		}
		at = d.i
	}
	d.i = at
	if opaque {
		return nil, false
	}
	return out, false
}

// pairs reads n pairs of tokens, of which each begins with what the one before
// ends with.
func (d *Decoder) pairs(n int) ([]uint32, bool) {
	out := d.batch.arena.newTokens(n + 1)
	for i := range n {
		if k, ok := d.array(); !ok || k != 2 {
			return nil, false
		}
		first, ok := d.token()
		if !ok || i > 0 && first != out[i] {
			return nil, false
		}
		out[i] = first
		if out[i+1], ok = d.token(); !ok {
			return nil, false
		}
	}
	return out, true
}
