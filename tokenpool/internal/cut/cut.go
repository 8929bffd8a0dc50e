// Package cut knows where a text can be cut so that the tokens of the whole are those
// of the parts, one after the other. The tokenization of a prefix is in general
// not a prefix of the tokenization of the whole; at two kinds of places it is.
//
// Before an added token. The library first finds the added tokens in the text as it stands, the longest one
// of those that begin first (leftmost-longest). Then it normalizes, splits and tokenizes each of the pieces
// between them on its own. A cut before an occurrence of such a token changes nothing on two conditions.
// The token must be found there in any case, and nothing to its left may look beyond it. That holds for a
// token which
//   - is looked for in the text as it stands (normalized is false),
//   - takes no white space to its left and needs no edge of a word (lstrip and
//     single_word are false), and begins with a sign: for a token to its left that
//     needs the edge of a word it is one, as the end of a text is,
//   - overlaps with no other added token, nor with itself: so no search finds
//     another one in its place.
//
// The dummy prefix that sentencepiece models put before a text (Metaspace with
// prepend_scheme first) goes by the place of the piece. The piece behind the cut is
// the added token itself, so it gets no prefix, as in the whole.
//
// Between a line feed and an ASCII letter or digit, for tokenizers that split the
// text with one of the expressions in tokenfile.LineSplits. None of their alternatives
// matches a line feed with a letter or digit behind it, so a match ends there in any
// case. One alternative takes line feeds at the end of white space, and it comes
// before the one that looks ahead. So the match before the cut is the same without
// what follows. Byte-level BPE then tokenizes each match on its own. Normalization to
// NFC keeps its hands off: a line feed composes with nothing.
//
// Between an ASCII letter or digit and a space or a comma, for the same reasons. No
// alternative matches the one behind the other. Letters and digits before the cut match
// in the same way whatever follows, since only white space is looked beyond. (An
// apostrophe would not do: o200k has 's in the match of a word.) No added token may
// have such a pair in it. These places are many, so cuts at them move whenever
// something in front has changed. They are taken only where there is no other within
// wordsAfter bytes, as in a long line of numbers.
//
// Before a space with an ASCII letter or digit on both sides, for SentencePiece's BPE where
// no token reaches over such a place (space.go).
package cut

import (
	"encoding/json"
	"index/suffixarray"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// Cutter cuts the texts of one tokenizer. It is safe for concurrent use, once its fields
// are set.
type Cutter struct {
	// Tokens are the added tokens before which it cuts.
	Tokens  map[string]bool
	firsts  string     // the bytes that they begin with
	lengths [256][]int // of those that begin with a byte, ascending
	// Lines reports whether texts are cut at line feeds.
	Lines bool
	words bool
	// WordsAfter is behind how many bytes cuts between words are taken.
	WordsAfter int
	// MaxLines is how many bytes a text may have to be cut at lines; 0 is any.
	MaxLines int
	// Added are all added tokens, by their content.
	Added map[string]uint32
	// space is how a text is cut before a space; nil if it is not, or not yet known.
	space atomic.Pointer[space]
}

// harmlessSplits are further expressions that match no line feed at all. Before
// one of tokenfile.LineSplits they only cut more.
var harmlessSplits = []string{tokenfile.SplitNumbers, tokenfile.SplitHan}

// New reads a tokenizer.json. What it does not understand makes no cuts. With split,
// special tokens are not found in a text.
func New(data []byte, split bool) *Cutter {
	var file struct {
		Added        []tokenfile.AddedToken `json:"added_tokens"`
		Normalizer   *tokenfile.Stage       `json:"normalizer"`
		PreTokenizer *tokenfile.Stage       `json:"pre_tokenizer"`
		Model        struct {
			Type    string   `json:"type"`
			Dropout *float64 `json:"dropout"`
		} `json:"model"`
	}
	c := &Cutter{Tokens: map[string]bool{}, WordsAfter: wordsAfter, Added: map[string]uint32{}}
	if json.Unmarshal(data, &file) != nil {
		return c
	}
	for _, t := range file.Added {
		c.Added[t.Content] = t.ID
	}
	if file.Model.Dropout != nil && *file.Model.Dropout > 0 {
		return c
	}
	all := newContents(file.Added)
	for _, t := range file.Added {
		if split && t.Special || t.Normalized || t.LStrip || t.SingleWord || t.Content == "" || !isSign(t.Content[0]) || strings.TrimSpace(t.Content) != t.Content ||
			!all.apart(t.Content) || c.Tokens[t.Content] {
			continue
		}
		first, n := t.Content[0], len(t.Content)
		if c.Tokens[t.Content] = true; len(c.lengths[first]) == 0 {
			c.firsts += string(rune(first))
		}
		if i, found := slices.BinarySearch(c.lengths[first], n); !found {
			c.lengths[first] = slices.Insert(c.lengths[first], i, n)
		}
	}
	c.Lines = file.Model.Type == "BPE" && keepsLines(file.Normalizer) && splitsLines(file.PreTokenizer) &&
		!slices.ContainsFunc(file.Added, func(t tokenfile.AddedToken) bool {
			return t.LStrip || strings.Contains(t.Content, "\n")
		})
	c.words = c.Lines && !slices.ContainsFunc(file.Added, func(t tokenfile.AddedToken) bool {
		// One that takes what is to its right ends behind it.
		return wordEnd(t.Content, 1) < len(t.Content) || t.RStrip && t.Content != "" && isAlnum(t.Content[len(t.Content)-1])
	})
	return c
}

// wordsAfter is eight times the least piece that is kept: words are cut where lines are long.
const wordsAfter = 4 << 10

// wordEnd returns the first place, at from (1 or more) or later, between a letter or
// digit and a space or comma. Without one it returns the end of the text.
func wordEnd(text string, from int) int {
	for i := from; i < len(text); i++ {
		if (text[i] == ' ' || text[i] == ',') && isAlnum(text[i-1]) {
			return i
		}
	}
	return len(text)
}

// Any reports whether there can be cuts at all.
func (c *Cutter) Any() bool { return c.Lines || c.firsts != "" || c.space.Load() != nil }

// contents are the added tokens' own texts, each between two zeros.
type contents struct{ index *suffixarray.Index }

func newContents(added []tokenfile.AddedToken) contents {
	b := []byte{0}
	for _, t := range added {
		b = append(append(b, t.Content...), 0)
	}
	return contents{suffixarray.New(b)}
}

// apart reports whether of the contents only s itself can overlap an s in any text. Then no other one
// contains s, ends with the beginning of s, or begins with its end.
func (c contents) apart(s string) bool {
	if len(c.index.Lookup([]byte(s), 2)) > 1 || strings.IndexByte(s, 0) >= 0 {
		return false
	}
	for n := 1; n < len(s); n++ {
		if c.index.Lookup([]byte(s[:n]+"\x00"), 1) != nil || c.index.Lookup([]byte("\x00"+s[n:]), 1) != nil {
			return false
		}
	}
	return true
}

func keepsLines(n *tokenfile.Stage) bool {
	if n == nil || n.Type == "NFC" {
		return true
	}
	return n.Type == "Sequence" && !slices.ContainsFunc(n.Normalizers, func(s tokenfile.Stage) bool { return !keepsLines(&s) })
}

func splitsLines(p *tokenfile.Stage) bool {
	if p == nil || p.Type != "Sequence" || len(p.Pretokenizers) < 2 {
		return false
	}
	last := len(p.Pretokenizers) - 1
	for i, s := range p.Pretokenizers {
		known := harmlessSplits
		switch i {
		case last:
			if s.Type != "ByteLevel" || s.AddPrefixSpace == nil || *s.AddPrefixSpace || s.UseRegex == nil || *s.UseRegex {
				return false
			}
			continue
		case last - 1:
			known = tokenfile.LineSplits
		}
		if s.Type != "Split" || s.Invert || s.Behavior != "Isolated" || !slices.Contains(known, s.Pattern.Regex) {
			return false
		}
	}
	return true
}

// Next returns the first place at from or behind it where text can be cut, or
// the end of the text. What comes behind the place and what belongs to the cut
// there makes no difference to it.
func (c *Cutter) Next(text string, from int) int {
	end := len(text)
	inLines := c.MaxLines == 0 || end <= c.MaxLines
	if c.words && inLines {
		// Found first, so that nothing behind it is looked at: a text is cut in time
		// that grows with its length.
		if word := max(from+c.WordsAfter, 1); word < end {
			end = wordEnd(text, word)
		}
	}
	if c.Lines && inLines {
		for i := max(from, 1); i < end; {
			n := strings.IndexByte(text[i-1:end], '\n')
			if n < 0 {
				break
			}
			if i += n; i < end && (isAlnum(text[i])) {
				end = i
				break
			}
			i++
		}
	}
	if c.space.Load() != nil {
		end = c.nextSpace(text, from, end)
	}
	for i := from; i < end; i++ {
		n := strings.IndexAny(text[i:end], c.firsts)
		if n < 0 {
			break
		}
		i += n
		if i > 0 && c.At(text, i) > 0 {
			return i
		}
	}
	return end
}

// At returns how long the added token is that stands at i, 0 if there is none.
func (c *Cutter) At(text string, i int) int {
	for _, l := range c.lengths[text[i]] {
		if l <= len(text)-i && c.Tokens[text[i:i+l]] {
			return l
		}
	}
	return 0
}

// isSign reports whether b is ASCII that is neither white space nor part of a word.
func isSign(b byte) bool { return b > ' ' && b < 0x7f && b != '_' && !isAlnum(b) }

func isAlnum(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}
