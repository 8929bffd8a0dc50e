package bpe

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

// class is what the expressions ask of a character: bits of the constants below.
type class uint16

const (
	upper  class = 1 << iota // Lu, Lt
	lower                    // Ll
	letter                   // Lm, Lo
	mark                     // M
	number                   // N
	punct                    // P
	symbol                   // S
	space                    // \s
	han                      // \p{Han}

	letters = upper | lower | letter
)

// classesText has a line for each run of characters of one class: the first one and the
// bits, both hexadecimal. It is written by TestClasses from what the reference's engine
// says of each character, since tables of other origins are of other Unicode versions.
//
//go:embed classes.txt
var classesText string

// classTable finds the class of a character in two steps.
type classTable struct {
	ascii  [128]class
	block  [0x110000 / blockSize]uint16
	blocks [][blockSize]class
}

const blockSize = 256

// classes is read once, with the first tokenizer.
var classes = sync.OnceValue(readClasses)

func readClasses() *classTable {
	t := &classTable{}
	var flat [0x110000]class
	at, bits := 0, class(0)
	fill := func(to int) {
		for ; at < to; at++ {
			flat[at] = bits
		}
	}
	for line := range strings.Lines(classesText) {
		first, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		from, err := strconv.ParseUint(first, 16, 32)
		next, err2 := strconv.ParseUint(value, 16, 16)
		if err != nil || err2 != nil || from > uint64(len(flat)) {
			panic("bpe: classes.txt is damaged: " + line) // it is part of the program
		}
		fill(int(from))
		bits = class(next)
	}
	fill(len(flat))
	known := map[[blockSize]class]uint16{}
	for i := range t.block {
		b := [blockSize]class(flat[i*blockSize:])
		n, ok := known[b]
		if !ok {
			n = uint16(len(t.blocks))
			known[b] = n
			t.blocks = append(t.blocks, b)
		}
		t.block[i] = n
	}
	copy(t.ascii[:], flat[:])
	return t
}

// of is the class of a character; r must not be above U+10FFFF.
func (t *classTable) of(r rune) class {
	return t.blocks[t.block[uint32(r)/blockSize]][uint32(r)%blockSize]
}

// at returns the class of the character that begins at b[i], and its length. Behind the
// text b must have padding bytes. Where the text is not UTF-8 any class may come, but
// reads stay in bounds.
func (t *classTable) at(b []byte, i int) (class, int) {
	c := b[i]
	switch {
	case c < 0x80:
		return t.ascii[c], 1
	case c < 0xe0:
		return t.of(rune(c&0x1f)<<6 | rune(b[i+1]&0x3f)), 2
	case c < 0xf0:
		return t.of(rune(c&0xf)<<12 | rune(b[i+1]&0x3f)<<6 | rune(b[i+2]&0x3f)), 3
	default:
		return t.of(min(rune(c&7)<<18|rune(b[i+1]&0x3f)<<12|rune(b[i+2]&0x3f)<<6|rune(b[i+3]&0x3f), 0x10ffff)), 4
	}
}

// padding is how many zero bytes stand behind a text. It keeps reads of eight bytes
// from any place in bounds, and reads of a character that is cut off.
const padding = 16
