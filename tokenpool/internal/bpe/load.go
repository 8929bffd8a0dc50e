package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

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
	// Llama 3, GLM 4.5, cl100k.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: cl100k, word: letters, digits: 3},
	// Qwen 1 to 3.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: cl100k, word: letters, digits: 1},
	// Qwen 3.5.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: cl100k, word: letters | mark, digits: 1},
	// gpt-oss, Llama 4, MiniMax: o200k.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: o200k, digits: 3, slash: true, suffix: true},
	// Mistral's tekken, Nemotron.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: o200k, digits: 1, slash: true},
	// Kimi K2.
	`[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {family: o200k, digits: 3, suffix: true, apart: han},
	// GPT-2, when it is spelled out.
	gpt2Pattern: {family: gpt2},
}

const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// deepSeekPatterns are those of DeepSeek V3 to V4, one behind the other.
var deepSeekPatterns = []string{
	`\p{N}{1,3}`,
	`[一-龥぀-ゟ゠-ヿ]+`,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
}

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
	UnkToken     *string           `json:"unk_token"`
	Prefix       string            `json:"continuing_subword_prefix"`
	Suffix       string            `json:"end_of_word_suffix"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       json.RawMessage   `json:"merges"`
}

// New reads a tokenizer.json. The error wraps ErrUnsupported if the tokenizer is one of
// those that are left to the reference.
func New(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, unsupported("%v", err)
	}
	t := &Tokenizer{}
	if err := t.pipeline(&f); err != nil {
		return nil, err
	}
	numberAdded(f.Added, f.Model.Vocab)
	if err := t.addTokens(f.Added); err != nil {
		return nil, err
	}
	if err := t.model(&f.Model, f.Added); err != nil {
		return nil, err
	}
	return t, nil
}

// pipeline reads what stands around the model.
func (t *Tokenizer) pipeline(f *file) error {
	if f.Truncation != nil || f.Padding != nil {
		return unsupported("it truncates or pads")
	}
	switch n := f.Normalizer; {
	case n == nil || n.Type == "Sequence" && len(n.Normalizers) == 0:
	case n.Type == "NFC" || n.Type == "Sequence" && len(n.Normalizers) == 1 && n.Normalizers[0].Type == "NFC":
		t.nfc = true
	default:
		return unsupported("normalizer %s", n.Type)
	}
	s, err := splitterOf(f.PreTokenizer)
	if err != nil {
		return err
	}
	s.classes = classes()
	t.splitter = s
	return checkPostProcessor(f.PostProcessor)
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
		return patterns[gpt2Pattern], nil
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
// file says: that of the vocabulary's token, or else the next one behind it.
func numberAdded(added []tokenfile.AddedToken, vocab map[string]uint32) {
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
	}
}

func (t *Tokenizer) addTokens(added []tokenfile.AddedToken) error {
	raw, normalized := map[string]uint32{}, map[string]uint32{}
	for _, a := range added {
		to := raw
		if a.Normalized {
			to = normalized
		}
		switch {
		case a.LStrip || a.RStrip || a.SingleWord:
			return unsupported("added token %q goes by what stands beside it", a.Content)
		case a.Content == "":
			continue
		case len(a.Content) > maxAdded:
			return unsupported("an added token of %d bytes", len(a.Content))
		case t.nfc && a.Normalized && !isNFC(a.Content):
			return unsupported("added token %q is normalized", a.Content)
		case a.ID >= maxToken:
			return unsupported("token %d", a.ID)
		}
		if _, ok := raw[a.Content]; ok {
			return unsupported("added token %q is there twice", a.Content)
		}
		if _, ok := normalized[a.Content]; ok {
			return unsupported("added token %q is there twice", a.Content)
		}
		to[a.Content] = a.ID
		t.added = append(t.added, a.Content)
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

// unspell appends the bytes of a token to b. It returns false for one that no text has.
func unspell(b []byte, token string) ([]byte, bool) {
	for _, r := range token {
		if int(r) >= len(spelling) || spelling[r] < 0 {
			return b, false
		}
		b = append(b, byte(spelling[r]))
	}
	return b, true
}

func (t *Tokenizer) model(m *model, added []tokenfile.AddedToken) error {
	switch {
	case m.Type != "BPE" && m.Type != "":
		return unsupported("model %s", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("dropout")
	case m.Prefix != "" || m.Suffix != "":
		return unsupported("affixes of words")
	}
	top := uint32(0)
	for _, id := range m.Vocab {
		top = max(top, id)
	}
	for _, a := range added {
		top = max(top, a.ID)
	}
	if top >= maxToken {
		return unsupported("token %d", top)
	}
	t.lengths = make([]uint16, top+1)
	var slab []byte
	whole := make(map[string]uint32, len(m.Vocab))
	longest, seen := 0, 0
	t.bridges = &bridges{}
	for token, id := range m.Vocab {
		var ok bool
		if slab, ok = unspell(slab[:0], token); !ok || len(slab) == 0 {
			continue
		}
		if len(slab) > 1<<16-1 {
			return unsupported("a token of %d bytes", len(slab))
		}
		t.lengths[id] = uint16(len(slab))
		t.bridges.add(slab)
		if len(slab) == 1 {
			t.byteIDs[slab[0]] = id
			seen++
		}
		if m.IgnoreMerges && utf8.Valid(slab) {
			whole[string(slab)] = id
			longest = max(longest, len(slab))
		}
	}
	if seen != len(t.byteIDs) {
		return unsupported("the vocabulary lacks bytes")
	}
	if m.IgnoreMerges {
		t.whole = &vocabulary{tokens: whole, longest: longest}
	}
	pairs, err := readMerges(m)
	if err != nil {
		return err
	}
	t.merges = newMerges(pairs, &t.byteIDs)
	return nil
}

// readMerges reads the list, which has pairs, or both tokens with a space between.
func readMerges(m *model) ([]pair, error) {
	var split [][2]string
	if json.Unmarshal(m.Merges, &split) != nil {
		var lines []string
		if err := json.Unmarshal(m.Merges, &lines); err != nil {
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
	if len(split) > maxRank {
		return nil, unsupported("%d merges", len(split))
	}
	pairs := make([]pair, len(split))
	var joined []byte
	for i, s := range split {
		joined = append(append(joined[:0], s[0]...), s[1]...)
		left, ok := m.Vocab[s[0]]
		right, ok2 := m.Vocab[s[1]]
		both, ok3 := m.Vocab[string(joined)]
		if !ok || !ok2 || !ok3 {
			return nil, unsupported("merge %q gives no token", s)
		}
		pairs[i] = pair{left, right, both}
	}
	return pairs, nil
}
