package bpe

import (
	"math/rand/v2"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Corpus makes texts that are hard for a tokenizer: of what its vocabulary, its added
// tokens and its expression tell apart, at random. It is for one user at a time.
type Corpus struct {
	rnd    *rand.Rand
	added  []string
	wides  []rune // characters of three bytes that are one token
	tokens int
	decode func(ids []uint32) string
}

// NewCorpus returns a corpus for t. decode gives the text of tokens; of what is no text by
// itself, any.
func (t *Tokenizer) NewCorpus(seed uint64, decode func(ids []uint32) string) *Corpus {
	c := &Corpus{
		rnd:    rand.New(rand.NewPCG(seed, 17)),
		added:  t.added,
		tokens: len(t.lengths),
		decode: decode,
	}
	if t.bridges != nil {
		c.wides = t.bridges.wide.singles()
	}
	return c
}

// blocks are where characters are taken from: of each script some that matter to words,
// numbers, and marks, first and last character.
var blocks = [][2]rune{
	{0x20, 0x7e}, {0x20, 0x7e}, {0x80, 0xff}, {0x100, 0x24f}, {0x2b0, 0x36f}, {0x370, 0x52f},
	{0x590, 0x6ff}, {0x900, 0x97f}, {0xe00, 0xe7f}, {0x1100, 0x11ff}, {0x13a0, 0x13ff}, {0x1c80, 0x1cbf},
	{0x1e00, 0x1fff}, {0x2000, 0x206f}, {0x2070, 0x218f}, {0x2190, 0x22ff}, {0x2460, 0x24ff}, {0x2c00, 0x2dff},
	{0x3000, 0x30ff}, {0x3000, 0x30ff}, {0x3100, 0x33ff}, {0x4e00, 0x9fff}, {0x4e00, 0x9fff}, {0xa640, 0xa7ff},
	{0xac00, 0xd7a3}, {0xe000, 0xe0ff}, {0xf900, 0xfaff}, {0xfb00, 0xfdff}, {0xfe00, 0xfeff}, {0xff00, 0xffef},
	{0x10400, 0x1044f}, {0x16f00, 0x16fff}, {0x1d400, 0x1d7ff}, {0x1e900, 0x1e95f}, {0x1f300, 0x1f6ff}, {0x20000, 0x2a6df},
	{0x1, 0x10ffff},
}

var (
	whites       = []string{" ", " ", " ", "\n", "\n", "\r\n", "\r", "\t", "\v", "\f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff"}
	contractions = []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'vE", "'M", "'Ll", "'D", "'\u017f", "'\u212a", "'", "''", "\u2019s", "'l", "'r", "'v"}
	words        = []string{"the", "The", "THE", "iPhone", "HTTPServer", "x", "I", "don", "we", "naïve", "e\u0301", "\u0301", "Ǆ", "ǅ", "ʰ", "ª", "Straße", "word", "function", "return"}
	digits       = []string{"0", "1", "12", "123", "1234", "3.14", "٣", "४", "²", "½", "Ⅷ", "〇", "①", "𝟗"}
	signs        = []string{"!", "//", "...", "({[", "->", "=\"", "\\n", "#", "$%", "_", "-", "/", "<|", "|>", "<", "、", "。", "“", "…", "€", "©", "\u2581", "\u2581\u2581"}
)

// fragments is how many kinds of fragments there are.
const fragments = 11

// Text returns the next text, of about so many bytes, without a NUL.
func (c *Corpus) Text(size int) string {
	var b strings.Builder
	kinds := c.rnd.Uint32() | 1<<c.rnd.IntN(fragments) // what this text is made of
	for b.Len() < size {
		if kind := c.rnd.IntN(fragments); kinds>>kind&1 == 1 {
			c.fragment(&b, kind)
		}
	}
	return textOnly(b.String())
}

func (c *Corpus) pick(from []string) string { return from[c.rnd.IntN(len(from))] }

// several is mostly small, and at times not.
func (c *Corpus) several() int {
	if c.rnd.IntN(40) == 0 {
		return 1 + c.rnd.IntN(90)
	}
	return 1 + c.rnd.IntN(4)
}

func (c *Corpus) fragment(b *strings.Builder, kind int) {
	switch kind {
	case 0:
		ids := make([]uint32, 1+c.rnd.IntN(6))
		for i := range ids {
			ids[i] = uint32(c.rnd.IntN(c.tokens))
		}
		b.WriteString(c.decode(ids))
	case 1:
		block := blocks[c.rnd.IntN(len(blocks))]
		for range c.several() {
			if r := block[0] + c.rnd.Int32N(block[1]-block[0]+1); r < 0xd800 || r > 0xdfff {
				b.WriteRune(r)
			}
		}
	case 2:
		for range c.several() {
			b.WriteString(c.pick(whites))
		}
	case 3:
		b.WriteString(c.pick(words))
		b.WriteString(c.pick(contractions))
	case 4:
		for range c.several() {
			b.WriteString(c.pick(digits))
		}
	case 5:
		c.addedToken(b)
	case 6:
		for range c.several() {
			if w := c.pick(words); c.rnd.IntN(4) == 0 {
				first, _ := utf8.DecodeRuneInString(w)
				b.WriteRune(unicode.SimpleFold(first))
			} else {
				b.WriteString(w)
			}
		}
	case 7:
		for range c.several() {
			b.WriteString(c.pick(signs))
		}
	case 8:
		one := c.pick([]string{" ", "\n", "a", "A", "1", "!", "\t", "字", "\u0301", "é", "👍", "ー"})
		b.WriteString(strings.Repeat(one, c.several()))
	case 9:
		// Long words without a space, of which a token may have several characters.
		for range 4 * c.several() {
			if len(c.wides) > 0 {
				b.WriteRune(c.wides[c.rnd.IntN(len(c.wides))])
			} else {
				b.WriteRune('字')
			}
		}
	default:
		b.WriteByte(' ')
		b.WriteString(c.pick(words))
	}
}

// addedToken writes one, whole or cut, or in upper case.
func (c *Corpus) addedToken(b *strings.Builder) {
	if len(c.added) == 0 {
		b.WriteString("<|none|>")
		return
	}
	switch s := c.pick(c.added); c.rnd.IntN(6) {
	case 0:
		b.WriteString(s[:c.rnd.IntN(len(s))])
	case 1:
		b.WriteString(s[c.rnd.IntN(len(s)):])
	case 2:
		b.WriteString(strings.ToUpper(s))
	default:
		b.WriteString(s)
	}
}
