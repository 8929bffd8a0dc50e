package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// ErrUnsupported says that a tokenizer is left to the reference. The text of an error that
// wraps it says why.
var ErrUnsupported = errors.New("bpe: not a tokenizer that this package does")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// patterns are the expressions that are known, by their text, each of which matches at
// every place of a text.
var patterns = map[string]splitter{
	tokenfile.SplitLlama3: {family: cl100k, word: letters, digits: 3},
	tokenfile.SplitQwen:   {family: cl100k, word: letters, digits: 1},
	tokenfile.SplitQwen35: {family: cl100k, word: letters | mark, digits: 1},
	tokenfile.SplitO200k:  {family: o200k, digits: 3, slash: true, suffix: true},
	tokenfile.SplitTekken: {family: o200k, digits: 1, slash: true},
	tokenfile.SplitKimi:   {family: o200k, digits: 3, suffix: true, apart: han},
	tokenfile.SplitGPT2:   {family: gpt2},
}

// deepSeekPatterns are those of DeepSeek V3 to V4, one behind the other.
var deepSeekPatterns = []string{tokenfile.SplitNumbers, tokenfile.SplitHan, tokenfile.SplitDeepSeek}

// file is what of a tokenizer.json decides about tokens.
type file struct {
	Truncation    any                    `json:"truncation"`
	Padding       any                    `json:"padding"`
	Added         []tokenfile.AddedToken `json:"added_tokens"`
	Normalizer    *tokenfile.Stage       `json:"normalizer"`
	PreTokenizer  *tokenfile.Stage       `json:"pre_tokenizer"`
	PostProcessor *tokenfile.Stage       `json:"post_processor"`
	Model         model                  `json:"model"`
}

type model struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	Prefix       string            `json:"continuing_subword_prefix"`
	Suffix       string            `json:"end_of_word_suffix"`
	IgnoreMerges bool              `json:"ignore_merges"`
	ByteFallback bool              `json:"byte_fallback"`
	Vocab        map[string]uint32 `json:"vocab,omitempty"`
	Merges       json.RawMessage   `json:"merges,omitempty"`
}

// Tables are a tokenizer.json in a form that is read in a tenth of the time. All fields are
// for encoding/gob.
type Tables struct {
	// File is the tokenizer.json without its vocabulary and merges.
	File []byte
	// Added are the numbers of its added tokens, in their order.
	Added []uint32
	// Spelled has the bytes of all tokens, in the order of their numbers; Lengths how many
	// each has, 0 for one that no text has.
	Spelled []byte
	Lengths []uint16
	// Merges are the pairs that are merged, by rank: left, right, and what they make.
	Merges []uint32
	// Bytes are the tokens of bytes, of SentencePiece's BPE; nil if tokens are bytes.
	Bytes []uint32
}

// Read reads a tokenizer.json. The error wraps ErrUnsupported if the tokenizer is one of
// those that are left to the reference.
func Read(data []byte) (*Tables, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, unsupported("%v", err)
	}
	vocab, lines := f.Model.Vocab, f.Model.Merges
	f.Model.Vocab, f.Model.Merges = nil, nil
	t := &Tables{}
	var err error
	if t.File, err = json.Marshal(f); err != nil {
		return nil, unsupported("%v", err)
	}
	// Refused before the larger part of the work.
	stages, err := t.pipeline()
	if err != nil {
		return nil, err
	}
	top := numberAdded(f.Added, vocab)
	for _, a := range f.Added {
		t.Added = append(t.Added, a.ID)
	}
	for _, id := range vocab {
		top = max(top, id)
	}
	if top >= maxToken {
		return nil, unsupported("token %d", top)
	}
	if err := t.readVocabulary(vocab, int(top)+1, stages.chars); err != nil {
		return nil, err
	}
	if t.Merges, err = readMerges(lines, vocab); err != nil {
		return nil, err
	}
	return t, nil
}

// readVocabulary fills in what tokens are spelled like, of SentencePiece's BPE if chars is
// set.
func (t *Tables) readVocabulary(vocab map[string]uint32, size int, chars bool) error {
	names := make([]string, size)
	for token, id := range vocab {
		if names[id] != "" {
			return unsupported("token %d is there twice", id)
		}
		names[id] = token
	}
	t.Lengths = make([]uint16, size)
	if chars {
		return t.readChars(names, vocab)
	}
	for id, name := range names {
		from := len(t.Spelled)
		var ok bool
		if t.Spelled, ok = unspell(t.Spelled, name); !ok {
			t.Spelled = t.Spelled[:from]
		}
		if err := t.setLength(id, from); err != nil {
			return err
		}
	}
	return nil
}

// setLength sets the length of a token that is spelled from there on.
func (t *Tables) setLength(id, from int) error {
	n := len(t.Spelled) - from
	if n > math.MaxUint16 {
		return unsupported("a token of %d bytes", n)
	}
	t.Lengths[id] = uint16(n)
	return nil
}

// New makes a Tokenizer. The error wraps ErrUnsupported if it is one of those that are left
// to the reference.
func New(tables *Tables) (*Tokenizer, error) {
	f, err := tables.pipeline()
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{splitter: f.splitter, nfc: f.nfc, lengths: tables.Lengths}
	if len(f.Added) != len(tables.Added) {
		return nil, unsupported("%d added tokens have %d numbers", len(f.Added), len(tables.Added))
	}
	for i := range f.Added {
		f.Added[i].ID = tables.Added[i]
	}
	if err := t.addTokens(f.Added, f.spaces.normalize); err != nil {
		return nil, err
	}
	if f.chars {
		t.spaces = f.spaces
		t.spaceTokens = slices.ContainsFunc(f.Added, func(a tokenfile.AddedToken) bool { return a.Content != "" && f.spaces.touchesSpace(a) })
		if t.chars, err = newChars(tables, f.spaces.split); err != nil {
			return nil, err
		}
		t.byteIDs = t.chars.asciiIDs()
		t.normalized.ink(f.spaces.normalized)
		t.merges, err = newMerges(tables.Merges, len(t.lengths), &t.byteIDs)
		return t, err
	}
	if err := t.addVocabulary(tables.Spelled, f.Model.IgnoreMerges); err != nil {
		return nil, err
	}
	if t.merges, err = newMerges(tables.Merges, len(t.lengths), &t.byteIDs); err != nil {
		return nil, err
	}
	t.bridges.wide.addTokens(tables.Spelled, t.lengths, t.merges, &t.byteIDs)
	return t, nil
}

// addVocabulary makes the tables that go by how tokens are spelled.
func (t *Tokenizer) addVocabulary(spelled []byte, ignoreMerges bool) error {
	t.bridges = &bridges{wide: newWide(spelled, t.lengths)}
	single, at := 0, 0
	for id, n := range t.lengths {
		if at+int(n) > len(spelled) {
			return unsupported("a vocabulary that is cut off")
		}
		token := spelled[at : at+int(n)]
		at += int(n)
		t.bridges.add(token)
		if n == 1 {
			t.byteIDs[token[0]] = uint32(id)
			single++
		}
	}
	if single != len(t.byteIDs) {
		return unsupported("the vocabulary lacks bytes")
	}
	if ignoreMerges {
		t.whole = newVocabulary(spelled, t.lengths)
	}
	return nil
}

// stages is what stands around the model.
type stages struct {
	file
	nfc      bool
	splitter splitter
	// chars says that it is SentencePiece's BPE; spaces is how that writes them.
	chars  bool
	spaces spaces
}

// pipeline reads what stands around the model.
func (t *Tables) pipeline() (s stages, err error) {
	if err := json.Unmarshal(t.File, &s.file); err != nil {
		return s, unsupported("%v", err)
	}
	if s.Truncation != nil || s.Padding != nil {
		return s, unsupported("it truncates or pads")
	}
	switch m := &s.Model; {
	case m.Type != "BPE" && m.Type != "":
		return s, unsupported("model %s", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return s, unsupported("dropout")
	case m.Prefix != "" || m.Suffix != "":
		return s, unsupported("affixes of words")
	}
	if s.Model.ByteFallback && !isByteLevel(s.PreTokenizer) {
		if s.Model.IgnoreMerges {
			return s, unsupported("ignore_merges over characters")
		}
		s.chars = true
		if s.spaces, err = spacesOf(s.Normalizer, s.PreTokenizer); err != nil {
			return s, err
		}
		return s, checkPostProcessor(s.PostProcessor)
	}
	switch n := s.Normalizer; {
	case n == nil || n.Type == "Sequence" && len(n.Normalizers) == 0:
	case n.Type == "NFC" || n.Type == "Sequence" && len(n.Normalizers) == 1 && n.Normalizers[0].Type == "NFC":
		s.nfc = true
	default:
		return s, unsupported("normalizer %s", n.Type)
	}
	if s.splitter, err = splitterOf(s.PreTokenizer); err != nil {
		return s, err
	}
	s.splitter.classes = classes()
	return s, checkPostProcessor(s.PostProcessor)
}

// checkPostProcessor refuses those that change where tokens end.
func checkPostProcessor(p *tokenfile.Stage) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "TemplateProcessing":
		return nil
	case "ByteLevel":
		if p.TrimOffsets != nil && !*p.TrimOffsets {
			return nil
		}
	case "Sequence":
		for i := range p.Processors {
			if err := checkPostProcessor(&p.Processors[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return unsupported("post-processor %s", p.Type)
}

// isByteLevel reports whether a pre-tokenizer writes a text as bytes.
func isByteLevel(p *tokenfile.Stage) bool {
	return p != nil && (p.Type == "ByteLevel" || slices.ContainsFunc(p.Pretokenizers, func(s tokenfile.Stage) bool { return isByteLevel(&s) }))
}

func splitterOf(p *tokenfile.Stage) (splitter, error) {
	if p == nil {
		return splitter{}, unsupported("no pre-tokenizer")
	}
	stages := []tokenfile.Stage{*p}
	if p.Type == "Sequence" {
		stages = p.Pretokenizers
	}
	if len(stages) == 0 {
		return splitter{}, unsupported("no pre-tokenizer")
	}
	last, splits := stages[len(stages)-1], stages[:len(stages)-1]
	if last.Type != "ByteLevel" || last.AddPrefixSpace == nil || *last.AddPrefixSpace {
		return splitter{}, unsupported("pre-tokenizer %s", last.Type)
	}
	usesRegex := last.UseRegex == nil || *last.UseRegex
	if len(splits) == 0 && usesRegex {
		return patterns[tokenfile.SplitGPT2], nil
	}
	if usesRegex {
		return splitter{}, unsupported("two expressions")
	}
	for _, s := range splits {
		// What is not matched is split off as well, and nothing is where all is matched.
		if s.Type != "Split" || s.Invert != (s.Behavior == "Removed") || s.Behavior != "Isolated" && (s.Behavior != "Removed" || len(splits) > 1) {
			return splitter{}, unsupported("pre-tokenizer %s, %s", s.Type, s.Behavior)
		}
	}
	switch len(splits) {
	case 1:
		if s, ok := patterns[splits[0].Pattern.Regex]; ok {
			return s, nil
		}
		return splitter{}, unsupported("expression %q", splits[0].Pattern.Regex)
	case len(deepSeekPatterns):
		for i, s := range splits {
			if s.Pattern.Regex != deepSeekPatterns[i] {
				return splitter{}, unsupported("expression %q", s.Pattern.Regex)
			}
		}
		return splitter{family: deepSeek, digits: 3}, nil
	}
	return splitter{}, unsupported("%d expressions", len(splits))
}

// numberAdded gives added tokens the numbers that the reference gives them, whatever the
// file says. That is the number of the vocabulary's token, or else the next one behind the
// vocabulary. It returns the highest one.
func numberAdded(added []tokenfile.AddedToken, vocab map[string]uint32) (top uint32) {
	next := uint32(len(vocab))
	for i := range added {
		a := &added[i]
		if a.Content == "" {
			continue
		}
		if id, ok := vocab[a.Content]; ok {
			a.ID = id
		} else {
			a.ID = next
		}
		next = max(next, a.ID+1)
		top = max(top, a.ID)
	}
	return top
}

// addTokens takes the added tokens. normalize makes of the content of one that is looked
// for in normalized text what is looked for there.
func (t *Tokenizer) addTokens(added []tokenfile.AddedToken, normalize func(string) string) error {
	raw, normalized := map[string]addedToken{}, map[string]addedToken{}
	contents := map[string]bool{}
	strips, spaced := false, false
	for _, a := range added {
		to, content := raw, a.Content
		switch {
		case a.SingleWord:
			return unsupported("added token %q goes by what stands beside it", a.Content)
		case content == "":
			continue
		case len(content) > maxAdded:
			return unsupported("an added token of %d bytes", len(content))
		case t.nfc && a.Normalized && !isNFC(content):
			return unsupported("added token %q is normalized", content)
		case int(a.ID) >= len(t.lengths):
			return unsupported("token %d", a.ID)
		case contents[content]:
			return unsupported("added token %q is there twice", content)
		}
		contents[content] = true
		if a.Normalized {
			to = normalized
			content = normalize(content)
			if _, ok := to[content]; ok {
				return unsupported("added token %q is there twice", a.Content)
			}
		}
		to[content] = addedToken{a.ID, a.LStrip, a.RStrip}
		strips = strips || a.LStrip || a.RStrip
		spaced = spaced || startsWithSpace(a.Content)
		t.added = append(t.added, a.Content)
	}
	if strips && spaced {
		return unsupported("added tokens of white space, and some that take it")
	}
	t.raw, t.normalized = newMatcher(raw), newMatcher(normalized)
	return nil
}

// spelling is how byte-level tokenizers write bytes: as the printable character of
// Latin-1 with that number, others from U+0100 on, in order.
var spelling = func() (of [0x144]int16) {
	for i := range of {
		of[i] = -1
	}
	next := 0x100
	for c := range 0x100 {
		if c > ' ' && c < 0x7f || c > 0xa0 && c != 0xad {
			of[c] = int16(c)
		} else {
			of[next] = int16(c)
			next++
		}
	}
	return of
}()

// unspell appends the bytes of a token to b. It reports false for one that no text has.
func unspell(b []byte, token string) ([]byte, bool) {
	for _, r := range token {
		if int(r) >= len(spelling) || spelling[r] < 0 {
			return b, false
		}
		b = append(b, byte(spelling[r]))
	}
	return b, true
}

// readMerges reads the list, which has pairs, or both tokens with a space between.
func readMerges(data json.RawMessage, vocab map[string]uint32) ([]uint32, error) {
	var split [][2]string
	if json.Unmarshal(data, &split) != nil {
		var lines []string
		if err := json.Unmarshal(data, &lines); err != nil {
			return nil, unsupported("merges: %v", err)
		}
		split = make([][2]string, len(lines))
		for i, line := range lines {
			left, right, ok := strings.Cut(line, " ")
			if !ok || strings.Contains(right, " ") {
				return nil, unsupported("merge %q", line)
			}
			split[i] = [2]string{left, right}
		}
	}
	merges := make([]uint32, 0, 3*len(split))
	var joined []byte
	for _, s := range split {
		joined = append(append(joined[:0], s[0]...), s[1]...)
		left, ok := vocab[s[0]]
		right, ok2 := vocab[s[1]]
		both, ok3 := vocab[string(joined)]
		if !ok || !ok2 || !ok3 {
			return nil, unsupported("merge %q gives no token", s)
		}
		merges = append(merges, left, right, both)
	}
	return merges, nil
}
