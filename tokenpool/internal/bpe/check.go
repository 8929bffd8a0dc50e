package bpe

import (
	"fmt"
	"slices"
	"strings"
)

// Reference is the tokenizer that this package is held to.
type Reference interface {
	// Encode returns the tokens of a text, without those that go around it, and the
	// byte at which each ends.
	Encode(text string) (ids []uint32, ends []int)
	// Decode returns the text of tokens.
	Decode(ids []uint32) string
}

// checkBytes is how much text of Corpus a tokenizer is checked on, beside what is made for its
// vocabulary. The reference takes about half a second for it.
const checkBytes = 256 << 10

// Check compares t with the reference on texts that are made for its vocabulary, its added
// tokens and its expression. An error says on what they differ. It goes on while goOn
// reports true, and asks it before each text. If it ends early, there is no proof, which
// is an error too.
func (t *Tokenizer) Check(ref Reference, goOn func() bool) error {
	check := func(texts ...string) error {
		for _, text := range texts {
			if !goOn() {
				return errStopped
			}
			if err := t.Compare(ref, text); err != nil {
				return err
			}
		}
		return nil
	}
	if err := check(fixedTexts...); err != nil {
		return err
	}
	// Every added token, alone and beside all that could take part in it.
	for part := range slices.Chunk(t.added, 16) {
		var b strings.Builder
		for _, a := range part {
			b.WriteString(a + "a" + a + " " + a + a + "\n" + a[:len(a)-1] + " " + a[1:] + strings.ToUpper(a) + "1" + a + "'s")
		}
		if err := check(strings.ToValidUTF8(b.String(), "\ufffd")); err != nil {
			return err
		}
	}
	// A part of the vocabulary, each time another one, each token as a word.
	c := t.NewCorpus(uint64(len(t.lengths)), ref.Decode)
	var b strings.Builder
	for id := c.rnd.IntN(vocabularyPart); id < len(t.lengths); id += vocabularyPart {
		b.WriteString(ref.Decode([]uint32{uint32(id)}))
		b.WriteString("\n!")
		if b.Len() > 2<<10 {
			if err := check(textOnly(b.String())); err != nil {
				return err
			}
			b.Reset()
		}
	}
	for done := 0; done < checkBytes; {
		text := c.Text(1 + c.rnd.IntN(600))
		done += len(text)
		if err := check(text); err != nil {
			return err
		}
	}
	return nil
}

// vocabularyPart is of how many tokens one is checked as a word.
const vocabularyPart = 24

var errStopped = fmt.Errorf("bpe: the check was stopped")

// textOnly leaves out what no text of a pool has.
func textOnly(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "0")
}

// Compare compares the tokens of one text, and where they end. Of a text that t leaves to
// the reference it says nothing.
func (t *Tokenizer) Compare(ref Reference, text string) error {
	ids, ends, ok := t.Encode(text)
	if !ok {
		return nil
	}
	want, wantEnds := ref.Encode(text)
	for i := range max(len(ids), len(want)) {
		if i >= len(ids) || i >= len(want) || ids[i] != want[i] || ends[i] != wantEnds[i] {
			return &DifferenceError{Text: text, Token: i}
		}
	}
	return nil
}

// DifferenceError is where the reference gives other tokens. Its text is not in the message: a
// prompt is not for the log.
type DifferenceError struct {
	// Text is the text, and Token the place of the first token that is another, or ends
	// elsewhere.
	Text  string
	Token int
}

// Error implements error.
func (d *DifferenceError) Error() string {
	return fmt.Sprintf("bpe: token %d of a text of %d bytes is not the reference's", d.Token, len(d.Text))
}

// fixedTexts are what the expressions and the places between words turn on, and long runs.
var fixedTexts = []string{
	"", " ", "a", "\n", "Hello, World! It's 12345 and they'll've I'D 'S'T'RE don\u2019t 'ſ",
	"  two\t\ttabs \r\n\r\n  lines \n \n\n x   \u00a0\u3000 y\u2028\u0085z ",
	"1 12 123 1234 12345 3.14159 1e-9 ٣٤٥ ²³ ½ Ⅷ ①② 𝟗𝟘 〇一",
	"camelCase HTTPServer ABCdef ǅungla ʰʲ ªº straße İstanbul Ωμέγα ПРИВЕТмир",
	"中文没有空格，句子很长。日本語テスト、カタカナー゛゜・ 한국어 조합 \u1112\u1161\u11ab",
	"e\u0301\u0327 a\u0300b \u0301x ก็ नमस्ते שָׁלוֹם مَرْحَبًا",
	"\u2581", " \u2581", "\u2581 \u2581a\u2581\u2581b \u2581c", "中 \u2581 文", "<0x0A> <0x41>\n<0x", "  x   y    z\t \n  v ",
	"👍🏽👩‍👩‍👧‍👦🇩🇪 ✈️ ♥ \u200b\u200d\ufeff\ufffd",
	"if (x != y) { return a->b[\"c\"]; } // TODO\n\t/* ... */ #!/bin/sh\n<div class='x'/>///\n",
	strings.Repeat(" ", 3000), strings.Repeat("\n", 1000), strings.Repeat("a", 3000), strings.Repeat("7", 1000),
	strings.Repeat("\u0301", 500), strings.Repeat("的", 1000), strings.Repeat("=-", 1000), strings.Repeat("ab ", 1000),
	strings.Repeat("The quick brown fox jumps over the lazy dog, 1234 times.\n", 1200), // above 64 KiB
}
