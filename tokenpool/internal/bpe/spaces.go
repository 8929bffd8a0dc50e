package bpe

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// bar is how SentencePiece writes a space: U+2581.
const bar = "\u2581"

// spaces says where spaces are written as bars, and where one is put in front.
type spaces struct {
	// normalized says that this is done once, before the search for added tokens that want
	// normalized text. Otherwise it is done to each part of a text behind that.
	normalized bool
	prepend    prepending
	// split says that each space begins a word.
	split bool
}

// prepending is where a space is put in front.
type prepending uint8

const (
	never prepending = iota
	// first is a text's first part, unless it begins with a space.
	first
	// always is each part, unless it begins with a space.
	always
	// everywhere is each part, also one that begins with a space.
	everywhere
)

// spacesOf reads the stages of SentencePiece's BPE, as transformers converts it.
func spacesOf(normalizer, preTokenizer *tokenfile.Stage) (s spaces, err error) {
	if normalizer == nil {
		p := preTokenizer
		if p == nil || p.Type != "Metaspace" || p.Replacement != bar {
			return s, unsupported("spaces that are not written as U+2581")
		}
		s.split = p.Split == nil || *p.Split
		switch {
		case p.AddPrefixSpace != nil && !*p.AddPrefixSpace || p.PrependScheme == "never":
			s.prepend = never
		case p.PrependScheme == "first":
			s.prepend = first
		case p.PrependScheme == "" || p.PrependScheme == "always":
			s.prepend = always
		default:
			return s, unsupported("prepend_scheme %q", p.PrependScheme)
		}
		return s, nil
	}
	s.normalized = true
	stages := []tokenfile.Stage{*normalizer}
	if normalizer.Type == "Sequence" {
		stages = normalizer.Normalizers
	}
	if len(stages) > 0 && stages[0].Type == "Prepend" && stages[0].Prepend == bar {
		s.prepend = everywhere
		stages = stages[1:]
	}
	if len(stages) != 1 || stages[0].Type != "Replace" || stages[0].Pattern.String != " " || stages[0].Content != bar {
		return s, unsupported("normalizer %s", normalizer.Type)
	}
	// No space is left to split by.
	if p := preTokenizer; p != nil && (p.Type != "Split" || p.Pattern.String != " " || p.Invert) {
		return s, unsupported("pre-tokenizer %s", p.Type)
	}
	return s, nil
}

// normalize is what an added token is looked for as in normalized text. In it, as in all
// texts here, a space stands for a bar.
func (s spaces) normalize(content string) string {
	if !s.normalized {
		return content
	}
	if s.prepend == everywhere {
		content = " " + content
	}
	return strings.ReplaceAll(content, bar, " ")
}

// readChars fills in what the tokens of SentencePiece's BPE are spelled like.
func (t *Tables) readChars(names []string, vocab map[string]uint32) error {
	bytes := map[uint32]string{}
	for b := range 256 {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			return unsupported("no token is byte %#x", b)
		}
		t.Bytes = append(t.Bytes, id)
		bytes[id] = string([]byte{byte(b)})
	}
	for id, name := range names {
		if b, ok := bytes[uint32(id)]; ok {
			name = b
		} else if strings.Contains(name, " ") {
			name = "" // no text has a space by then, so no token that has one is found
		}
		from := len(t.Spelled)
		t.Spelled = append(t.Spelled, strings.ReplaceAll(name, bar, " ")...)
		if err := t.setLength(id, from); err != nil {
			return err
		}
	}
	return nil
}

// encodeChars is Encode of SentencePiece's BPE. In the worker's text everything stands one
// byte behind its place in the text, so that a space can be put before it.
func (t *Tokenizer) encodeChars(w *worker, text string) {
	w.text = append(append(append(w.text[:0], ' '), text...), make([]byte, padding)...)
	add := func(id uint32, to int) { w.add(id, to-1) }
	if t.spaces.normalized {
		t.raw.each(w.text, 1, 1+len(text), func(i, j int) { t.segment(w, i, j, true) }, add)
		return
	}
	t.raw.each(w.text, 1, 1+len(text), func(i, j int) {
		t.normalized.each(w.text, i, j, func(i, j int) { t.segment(w, i, j, false) }, add)
	}, add)
}

// segment tokenizes w.text[i:j] once spaces are written as bars, and with find added tokens
// in that.
func (t *Tokenizer) segment(w *worker, i, j int, find bool) {
	tokens, char := len(w.ends), firstChar(w.text[i:j])
	end := w.blank(i, j)
	from := i
	if t.prepends(i, w.text[i] == ' ') {
		from--
		w.text[from] = ' '
	}
	if find {
		t.normalized.each(w.text, from, end, func(i, j int) { t.parts(w, i, j) }, func(id uint32, to int) { w.add(id, to-1) })
	} else {
		t.parts(w, from, end)
	}
	if end < j {
		w.unblank(tokens)
	}
	// The space in front belongs to the first character.
	if from < i && w.ends[tokens] == from {
		w.ends[tokens] += char
	}
}

// prepends reports whether a space is put before the part that begins at i.
func (t *Tokenizer) prepends(i int, spaced bool) bool {
	switch t.spaces.prepend {
	case first:
		return i == 1 && !spaced
	case always:
		return !spaced
	case everywhere:
		return true
	case never:
	}
	return false
}

func firstChar(b []byte) int {
	_, n := charAt(b, 0)
	return n
}

// blank writes bars in w.text[i:j] as spaces, and returns where the text ends then.
func (w *worker) blank(i, j int) int {
	at := bytes.Index(w.text[i:j], []byte(bar))
	if at < 0 {
		return j
	}
	w.bars = w.bars[:0]
	to := i + at
	for from := to; from < j; {
		if bytes.HasPrefix(w.text[from:j], []byte(bar)) {
			w.bars = append(w.bars, to)
			w.text[to] = ' '
			from += len(bar)
		} else {
			w.text[to] = w.text[from]
			from++
		}
		to++
	}
	w.text[to] = 0 // no character goes on
	return to
}

// unblank moves the ends of tokens from the one of that number on to where they are in the
// text that had bars.
func (w *worker) unblank(from int) {
	k := 0
	for i, end := range w.ends[from:] {
		for k < len(w.bars) && w.bars[k] < end+1 {
			k++
		}
		w.ends[from+i] = end + (len(bar)-1)*k
	}
}

// parts adds the tokens of what stands between added tokens.
func (t *Tokenizer) parts(w *worker, i, end int) {
	for i < end {
		j, r, alone := t.chars.next(w.text, i, end)
		switch {
		case alone:
			if id := t.chars.token(r); id != 0 {
				w.add(id-1, j-1)
			} else {
				for _, b := range w.text[i:j] {
					w.add(t.chars.bytes[b], j-1)
				}
			}
		case j-i <= maxCached:
			t.shortPart(w, i, j)
		default:
			t.spell(w, i, t.chars.merge(&w.merger, t.merges, w.text[i:j]), 1)
		}
		i = j
	}
}

// shortPart adds the tokens of up to maxCached bytes.
func (t *Tokenizer) shortPart(w *worker, i, j int) {
	low, high := wordKey(w.text, i, j)
	set := w.words.set(low, high)
	if c := find(set, low, high); c != nil {
		if c.n == 1 {
			w.add(c.tokens[0], j-1)
			return
		}
		t.spell(w, i, c.tokens[:c.n], 1)
		return
	}
	tokens := t.chars.merge(&w.merger, t.merges, w.text[i:j])
	t.spell(w, i, tokens, 1)
	if len(tokens) <= maxCachedTokens {
		keep(set, low, high, tokens)
	}
}

// SpaceCut is how texts of SentencePiece's BPE can be cut before a space with an ASCII
// letter or digit on both sides.
type SpaceCut struct {
	// Put says that the tokenizer puts a space before a text that begins with a letter. So
	// what is behind a cut is tokenized without its own space.
	Put bool
	// Token is a space by itself.
	Token uint32
}

// SpaceCut reports whether, and how, texts can be cut before such a space. No merge reaches
// over from what is before it. No added token has such a place, begins where the space or
// the letter behind it stands, or takes the space.
func (t *Tokenizer) SpaceCut() (SpaceCut, bool) {
	if t.chars == nil || t.spaceTokens {
		return SpaceCut{}, false
	}
	for c := range byte(utf8.RuneSelf) {
		if isAlnum(c) && t.chars.reach(uint32(c), ' ') {
			return SpaceCut{}, false
		}
	}
	return SpaceCut{Put: t.spaces.prepend != never, Token: t.chars.token(' ') - 1}, true
}

// touchesSpace reports whether an added token may be found otherwise where a text is cut
// before a space.
func (s spaces) touchesSpace(a tokenfile.AddedToken) bool {
	content := strings.ReplaceAll(a.Content, bar, " ")
	if isAlnum(content[0]) || content[0] == ' ' && (a.Normalized || a.Content[0] == ' ') || a.Normalized && s.prepend == everywhere {
		return true
	}
	for i := 1; i < len(content); i++ {
		if content[i] == ' ' && isAlnum(content[i-1]) {
			return true
		}
	}
	return a.RStrip && isAlnum(content[len(content)-1])
}

func isAlnum(c byte) bool { return isASCIILetter(c) || c >= '0' && c <= '9' }
