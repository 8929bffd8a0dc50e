// Package jsonpack turns JSON into MessagePack, so that a package that gets both needs one
// reader.
package jsonpack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// ErrJSON is wrapped by the errors about text that is no JSON.
var ErrJSON = errors.New("not JSON")

// MaxDepth is how deep a JSON text may go. The deepest that is known, TensorRT-LLM's events
// in a list of pushes, goes to 9.
const MaxDepth = 32

// Append appends the MessagePack of a JSON text to dst. Integers of 64 bits, signed or not,
// stay exact, others become floats. The result is at most about five times the text. On an
// error dst is returned as it was.
func Append(dst, text []byte) ([]byte, error) {
	p := packer{b: text, out: dst}
	p.space()
	if err := p.value(0); err != nil {
		return dst, err
	}
	p.space()
	if p.i < len(p.b) {
		return dst, p.fail("more behind its end")
	}
	return p.out, nil
}

// packer turns JSON into MessagePack.
type packer struct {
	b   []byte
	i   int
	out []byte
}

func (p *packer) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrJSON, what, p.i)
}

func (p *packer) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *packer) peek() byte {
	if p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

func (p *packer) value(depth int) error {
	if depth > MaxDepth {
		return p.fail("deeper than 32 levels")
	}
	switch c := p.peek(); {
	case c == '[':
		return p.list(depth, ']', 0xdd)
	case c == '{':
		return p.list(depth, '}', 0xdf)
	case c == '"':
		return p.text()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case c == 'n':
		return p.word("null", 0xc0)
	case c == 'f':
		return p.word("false", 0xc2)
	case c == 't':
		return p.word("true", 0xc3)
	case p.i >= len(p.b):
		return p.fail("it ends where a value is due,")
	}
	return p.fail("no value")
}

func (p *packer) word(w string, code byte) error {
	if !bytes.HasPrefix(p.b[p.i:], []byte(w)) {
		return p.fail("no value")
	}
	p.i += len(w)
	p.out = append(p.out, code)
	return nil
}

// list reads an array or an object, of which the number of values is known, and
// written, at its end.
func (p *packer) list(depth int, end, code byte) error {
	p.i++
	head := len(p.out)
	p.out = append(p.out, code, 0, 0, 0, 0)
	n := uint32(0)
	p.space()
	for p.peek() != end {
		if n > 0 {
			if p.peek() != ',' {
				return p.fail("neither a comma nor an end")
			}
			p.i++
			p.space()
		}
		if end == '}' {
			if p.peek() != '"' {
				return p.fail("no name")
			}
			if err := p.text(); err != nil {
				return err
			}
			p.space()
			if p.peek() != ':' {
				return p.fail("no colon")
			}
			p.i++
			p.space()
		}
		if err := p.value(depth + 1); err != nil {
			return err
		}
		p.space()
		n++
	}
	p.i++
	binary.BigEndian.PutUint32(p.out[head+1:], n)
	return nil
}

// number reads a number as JSON has it.
func (p *packer) number() error {
	start := p.i
	if p.peek() == '-' {
		p.i++
	}
	var (
		v     uint64
		fits  = true
		first = p.i
	)
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		if v > (math.MaxUint64-uint64(c-'0'))/10 {
			fits = false
		}
		v = v*10 + uint64(c-'0')
		p.i++
	}
	digits := p.i - first
	if digits == 0 || digits > 1 && p.b[first] == '0' {
		return p.fail("no number")
	}
	if c := p.peek(); c != '.' && c != 'e' && c != 'E' {
		if negative := first > start; fits && !negative {
			p.out = msgp.AppendUint64(p.out, v)
			return nil
		} else if fits && v <= 1<<63 {
			p.out = msgp.AppendInt64(p.out, int64(-v))
			return nil
		}
	}
	if p.peek() == '.' {
		p.i++
		if !p.digits() {
			return p.fail("no number")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.i++
		if c := p.peek(); c == '+' || c == '-' {
			p.i++
		}
		if !p.digits() {
			return p.fail("no number")
		}
	}
	f, err := strconv.ParseFloat(string(p.b[start:p.i]), 64)
	if err != nil {
		return p.fail("a number out of range")
	}
	p.out = msgp.AppendFloat64(p.out, f)
	return nil
}

func (p *packer) digits() bool {
	start := p.i
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.i++
	}
	return p.i > start
}

// text reads a string.
func (p *packer) text() error {
	start := p.i
	p.i++
	plain := true
	for {
		switch c := p.peek(); {
		case c == '"':
			s := p.b[start+1 : p.i]
			p.i++
			if plain && utf8.Valid(s) {
				p.out = msgp.AppendStringFromBytes(p.out, s)
				return nil
			}
			var unescaped string
			if err := json.Unmarshal(p.b[start:p.i], &unescaped); err != nil {
				p.i = start
				return p.fail("no string")
			}
			p.out = msgp.AppendString(p.out, unescaped)
			return nil
		case c == '\\':
			plain = false
			p.i += 2
		case c < ' ':
			return p.fail("a string that does not end,")
		default:
			p.i++
		}
	}
}
