package tokenfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Engines load a tokenizer by transformers' AutoTokenizer, to which tokenizer.json is
// one of several files. Tokens and flags of the others are added to it, or replace
// what it says. Here autoTokenizer makes the tokenizer.json that has the tokens of
// all of them, so that one file says all from there on.
//
// It does step by step what three parts of transformers 5 do. They are
// PreTrainedTokenizerBase's _from_pretrained, TokenizersBackend's __init__, and the
// classes of models that build a tokenizer of their own (classes.go). The library
// numbers added tokens by their order, whatever numbers the file has. So adding tokens
// to a loaded tokenizer, as transformers does, is the same as having them at the end
// of the file's list.

// named are the tokens that every tokenizer may have (SPECIAL_TOKENS_ATTRIBUTES).
var named = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// isSpecific reports whether a member names a token that some models alone have.
func isSpecific(key string) bool {
	return strings.HasSuffix(key, "_token") && !slices.Contains(named, key)
}

// given is a token as a file gives it: by its text alone, or with flags.
type given struct {
	text  string
	plain bool // by its text alone
	flags
}

// flags are those of an added token. A nil Normalized is the opposite of Special.
type flags struct {
	SingleWord bool  `json:"single_word"`
	LStrip     bool  `json:"lstrip"`
	RStrip     bool  `json:"rstrip"`
	Normalized *bool `json:"normalized"`
	Special    bool  `json:"special"`
}

// added returns the library's token.
func (g given) added() AddedToken {
	t := AddedToken{
		Content: g.text, SingleWord: g.SingleWord, LStrip: g.LStrip, RStrip: g.RStrip, Normalized: !g.Special, Special: g.Special,
	}
	if g.Normalized != nil {
		t.Normalized = *g.Normalized
	}
	return t
}

// same reports whether Python takes two for equal.
func (g given) same(h given) bool { return g.plain == h.plain && g.added() == h.added() }

// readGiven reads a token: its text, or an object that says its __type. Where nothing
// else may stand (bare) the type is left out.
func readGiven(value json.RawMessage, bare bool) (given, bool) {
	if s, ok := readText(value); ok {
		return given{text: s, plain: true}, true
	}
	var t struct {
		Type    string  `json:"__type"`
		Content *string `json:"content"`
		flags
	}
	if json.Unmarshal(value, &t) != nil || t.Content == nil || !bare && t.Type != "AddedToken" {
		return given{}, false
	}
	return given{text: *t.Content, flags: t.flags}, true
}

// namedToken is a token and the member that names it.
type namedToken struct {
	name string
	given
}

// namedTokens keep their order, as a dict of Python does.
type namedTokens []namedToken

func (n *namedTokens) set(name string, t given) {
	if i := slices.IndexFunc(*n, func(o namedToken) bool { return o.name == name }); i >= 0 {
		(*n)[i].given = t
		return
	}
	*n = append(*n, namedToken{name, t})
}

// tokens are the tokens without their names.
func (n *namedTokens) tokens() (out []given) {
	for _, t := range *n {
		out = append(out, t.given)
	}
	return out
}

// tokenSettings are what the files beside a tokenizer.json say of its tokens.
type tokenSettings struct {
	// raw is tokenizer_config.json, changed by the files that are older than it.
	raw Object
	// tokens are members of raw that the older files have made tokens with flags.
	tokens map[string]given
	// decoder are the added tokens by number, and byText the last one of each text.
	decoder map[int64]given
	byText  map[string]given
	// explicit are the tokens of this model alone, as far as they are known to be.
	explicit namedTokens
	// extra are special tokens without a name.
	extra []given
}

// token returns the token that a member is.
func (s *tokenSettings) token(key string) (given, bool) {
	if t, ok := s.tokens[key]; ok {
		return t, true
	}
	return readGiven(s.raw.Get(key), false)
}

// setToken makes a member a token.
func (s *tokenSettings) setToken(key string, t given) {
	s.raw.Set(key, json.RawMessage("{}"))
	s.tokens[key] = t
}

// setDefault is setToken of a member that is not there.
func (s *tokenSettings) setDefault(key, text string) {
	if s.raw.find(key) < 0 {
		s.setToken(key, given{text: text, plain: true})
	}
}

// autoTokenizer returns the tokenizer.json that has the tokens of AutoTokenizer, and
// whether it takes special tokens in a text for text (split_special_tokens). It returns
// the file as it is when the others change nothing.
func (f Files) autoTokenizer() (data []byte, split bool, err error) {
	if !bytes.HasPrefix(bytes.TrimLeft(f.Tokenizer, " \t\r\n"), []byte("{")) {
		return f.Tokenizer, false, nil // the library says what it is
	}
	file, err := ReadObject(f.Tokenizer)
	if err != nil {
		return nil, false, Wrong(TokenizerFile, "cannot be read: "+err.Error(), CureAgain)
	}
	var tokens []AddedToken
	if v := file.Get("added_tokens"); v != nil {
		if err := json.Unmarshal(v, &tokens); err != nil {
			return nil, false, Wrong(TokenizerFile, "has added_tokens of another form: "+err.Error(), CureVersion)
		}
	}
	s, err := f.tokenSettings(tokens)
	if err != nil {
		return nil, false, err
	}
	class := f.class(s)
	var again func(given) given
	built := class != nil && class.build(&file, s)
	if built {
		tokens, again = nil, class.again
	}
	var padding struct {
		Token *string `json:"pad_token"`
	}
	if v := file.Get("padding"); v != nil && json.Unmarshal(v, &padding) == nil && padding.Token != nil {
		s.setDefault("pad_token", *padding.Token)
	}
	all := s.addTo(tokens, again)
	split = isTrue(s.raw.Get("split_special_tokens"))
	if !built && slices.Equal(all, tokens) {
		return f.Tokenizer, split, nil
	}
	if err := assignIDs(all, file.Get("model")); err != nil {
		return nil, false, Wrong(TokenizerFile, "has a vocabulary of another form: "+err.Error(), CureVersion)
	}
	if built && class.finish != nil {
		class.finish(&file, s, all)
	}
	added := toJSON(all)
	file.Set("added_tokens", added)
	return file.AppendJSON(make([]byte, 0, len(f.Tokenizer)+len(added))), split, nil
}

// tokenSettings reads the files beside tokenizer.json, which has the tokens added.
func (f Files) tokenSettings(added []AddedToken) (*tokenSettings, error) {
	s := &tokenSettings{tokens: map[string]given{}, decoder: map[int64]given{}, byText: map[string]given{}}
	var err error
	if f.Config != nil {
		if s.raw, err = ReadObject(f.Config); err != nil {
			return nil, Wrong(ConfigFile, "cannot be read: "+err.Error(), CureAgain)
		}
	}
	if v := s.raw.Get("additional_special_tokens"); v != nil && !isTrue(s.raw.Get("extra_special_tokens")) {
		s.raw.Drop("additional_special_tokens")
		s.raw.Set("extra_special_tokens", v)
	}
	for _, m := range slices.Clone(s.raw) {
		if t, plain := readText(m.value); plain && isSpecific(m.key) {
			s.explicit.set(m.key, given{text: t, plain: true})
			s.raw.Drop(m.key)
		}
	}
	s.takeNamedExtra()
	if v := s.raw.Get("added_tokens_decoder"); v != nil {
		err = s.readDecoder(v)
	} else {
		err = s.readOlder(f, added)
	}
	if err != nil {
		return nil, err
	}
	for _, key := range named {
		t, ok := s.token(key)
		if d, again := s.byText[t.text]; ok && again {
			s.setToken(key, d)
		}
	}
	if v := s.raw.Get("additional_special_tokens"); v != nil && s.raw.find("extra_special_tokens") < 0 {
		s.raw.Set("extra_special_tokens", v)
	}
	var list []json.RawMessage
	if v := s.raw.Get("extra_special_tokens"); v != nil && json.Unmarshal(v, &list) == nil {
		var extra []given
		for _, v := range list {
			if t, ok := readGiven(v, false); ok {
				extra = append(extra, t)
			}
		}
		s.extra = append(extra, s.extra...)
	}
	return s, nil
}

// takeNamedExtra makes extra special tokens that have names tokens of this model.
func (s *tokenSettings) takeNamedExtra() {
	o, err := ReadObject(s.raw.Get("extra_special_tokens"))
	if err != nil {
		return // a list
	}
	s.raw.Drop("extra_special_tokens")
	for _, m := range o {
		if t, ok := readGiven(m.value, false); ok {
			s.explicit.set(m.key, t)
		}
	}
}

// number makes a token the one of a number.
func (s *tokenSettings) number(id int64, t given) { s.decoder[id], s.byText[t.text] = t, t }

func (s *tokenSettings) readDecoder(value json.RawMessage) error {
	o, err := ReadObject(value)
	if err != nil {
		return Wrong(ConfigFile, "has an added_tokens_decoder that is no object", CureReplace)
	}
	for _, m := range o {
		id, err := strconv.ParseInt(m.key, 10, 64)
		t, ok := readGiven(m.value, true)
		if err != nil || !ok || t.plain {
			return Wrong(ConfigFile, fmt.Sprintf("has no token of a number at %s of added_tokens_decoder", Quote(m.key)), CureReplace)
		}
		s.number(id, t)
	}
	return nil
}

// readOlder reads the files that older versions have written, which count where there
// is no added_tokens_decoder.
func (s *tokenSettings) readOlder(f Files, added []AddedToken) error {
	var extra []given
	if f.SpecialTokens != nil {
		o, err := ReadObject(f.SpecialTokens)
		if err != nil {
			return Wrong(SpecialTokensFile, "cannot be read: "+err.Error(), CureAgain)
		}
		for _, m := range o {
			var list []json.RawMessage
			if m.key == "extra_special_tokens" && json.Unmarshal(m.value, &list) == nil && list != nil {
				for _, v := range list {
					t, ok := readGiven(v, true)
					if t.Special = !t.plain; ok && !slices.ContainsFunc(extra, t.same) {
						extra = append(extra, t)
					}
				}
				if s.raw.find(m.key) < 0 {
					s.raw.Set(m.key, json.RawMessage("[]"))
				}
				continue
			}
			if t, ok := readGiven(m.value, true); ok && !t.plain && m.key != "extra_special_tokens" {
				t.Special = true
				s.setToken(m.key, t)
				continue
			}
			delete(s.tokens, m.key)
			s.raw.Set(m.key, m.value)
		}
		s.takeNamedExtra()
	}
	if f.Added != nil {
		o, err := ReadObject(f.Added)
		if err != nil {
			return Wrong(AddedTokensFile, "cannot be read: "+err.Error(), CureAgain)
		}
		special := s.specialTexts(extra)
		for _, m := range o {
			id, err := strconv.ParseInt(string(m.value), 10, 64)
			if err != nil {
				return Wrong(AddedTokensFile, "has no number for "+Quote(m.key), CureReplace)
			}
			normalized := !special[m.key]
			s.number(id, given{text: m.key, flags: flags{Normalized: &normalized, Special: special[m.key]}})
		}
	}
	for _, t := range added {
		s.number(int64(t.ID), given{text: t.Content, flags: flags{t.SingleWord, t.LStrip, t.RStrip, &t.Normalized, t.Special}})
	}
	s.extra = extra
	return nil
}

// specialTexts are those by which added_tokens.json is found to have special tokens.
func (s *tokenSettings) specialTexts(extra []given) map[string]bool {
	out := map[string]bool{}
	for _, key := range named {
		if t, ok := s.tokens[key]; ok {
			out[t.text] = true
		} else if t, ok := readText(s.raw.Get(key)); ok {
			out[t] = true
		}
	}
	for _, t := range extra {
		out[t.text] = true
	}
	var list []string
	if v := s.raw.Get("extra_special_tokens"); v != nil && json.Unmarshal(v, &list) == nil {
		for _, t := range list {
			out[t] = true
		}
	}
	return out
}

// special are the special tokens that have names, in transformers' order.
func (s *tokenSettings) special() (out namedTokens) {
	for _, key := range named {
		if t, ok := s.token(key); ok {
			out.set(key, t)
		}
	}
	var specific namedTokens
	for _, m := range s.raw {
		if t, ok := s.token(m.key); ok && isSpecific(m.key) {
			specific.set(m.key, t)
		}
	}
	for _, t := range s.explicit {
		specific.set(t.name, t.given)
	}
	for _, t := range specific {
		out.set(t.name, t.given)
	}
	return out
}

// addTo returns a tokenizer's tokens and those of the settings. All special ones are
// added once more in the form that again gives, if it is set.
func (s *tokenSettings) addTo(tokens []AddedToken, again func(given) given) []AddedToken {
	var more []given
	known := map[string]bool{}
	for _, t := range tokens {
		known[t.Content] = true
	}
	for _, id := range slices.Sorted(maps.Keys(s.decoder)) {
		more = append(more, s.decoder[id])
		known[s.decoder[id].text] = true
	}
	special := s.special()
	names := map[string]bool{}
	for _, t := range special {
		names[t.text] = true
		if !known[t.text] && !slices.ContainsFunc(more, t.same) {
			more = append(more, t.given)
		}
	}
	for _, t := range s.extra {
		if !known[t.text] && !slices.ContainsFunc(more, t.same) {
			more = append(more, t)
		}
	}
	out := tokenList{at: map[string]int{}}
	for _, t := range tokens {
		out.add(t)
	}
	for _, t := range more {
		t.Special = t.Special || t.plain || names[t.text]
		out.add(t.added())
	}
	if again != nil {
		for _, t := range slices.Concat(special.tokens(), s.extra) {
			t = again(t)
			t.Special = true
			out.add(t.added())
		}
	}
	return out.list
}

// tokenList are added tokens, one of each text.
type tokenList struct {
	list []AddedToken
	at   map[string]int
}

// add adds a token. One of a text that the list has changes its flags, but a special
// token remains one.
func (l *tokenList) add(t AddedToken) {
	if t.Content == "" {
		return
	}
	if i, ok := l.at[t.Content]; ok {
		t.ID, t.Special = l.list[i].ID, t.Special || l.list[i].Special
		l.list[i] = t
		return
	}
	l.at[t.Content] = len(l.list)
	l.list = append(l.list, t)
}

// assignIDs gives the tokens the numbers that the library gives them: those of the
// vocabulary, and the next free ones to others.
func assignIDs(tokens []AddedToken, model json.RawMessage) error {
	m, err := ReadObject(model)
	if err != nil {
		return err
	}
	vocab := map[string]uint32{}
	if err := json.Unmarshal(m.Get("vocab"), &vocab); err != nil {
		var list [][2]any // of a Unigram: text and score
		if err := json.Unmarshal(m.Get("vocab"), &list); err != nil {
			return err
		}
		for i, v := range list {
			if text, ok := v[0].(string); ok {
				vocab[text] = uint32(i)
			}
		}
	}
	next := uint32(len(vocab))
	for i := range tokens {
		id, ok := vocab[tokens[i].Content]
		if !ok {
			id = next
		}
		tokens[i].ID = id
		next = max(next, id+1)
	}
	return nil
}
