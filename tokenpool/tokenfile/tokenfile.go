// Package tokenfile makes one tokenizer.json of the files that a model has. It reads them as
// transformers' AutoTokenizer and the code of tiktoken models do, and says what is wrong with
// a file that cannot be used. It is a pure function of the files.
package tokenfile

import "fmt"

// Names of the files that a model may have.
const (
	TokenizerFile     = "tokenizer.json"
	ConfigFile        = "tokenizer_config.json"
	AddedTokensFile   = "added_tokens.json"
	SpecialTokensFile = "special_tokens_map.json"
)

// Quote quotes a name that a client sent, cut to a length fit for a log.
func Quote(model string) string {
	if len(model) > 100 {
		model = model[:100] + "..."
	}
	return fmt.Sprintf("%q", model)
}

// Files are the files of a model that make its tokenizer.
type Files struct {
	// Tokenizer is the content of the file called Name, which has the tokenizer: a
	// tokenizer.json (or no name) or a tiktoken file.
	Tokenizer []byte
	Name      string
	// Config, Added, SpecialTokens and Model are tokenizer_config.json, added_tokens.json,
	// special_tokens_map.json and config.json; nil where there is none.
	Config, Added, SpecialTokens, Model []byte
}

// tiktokenOf returns the family that a file belongs to, nil for a tokenizer.json.
func tiktokenOf(name string) *tiktoken {
	for i := range tiktokens {
		if tiktokens[i].file == name {
			return &tiktokens[i]
		}
	}
	return nil
}

// JSON returns the tokenizer.json that gives the tokens of the files. It is the one that they
// have, with the tokens that transformers takes from the others, or one made of their tiktoken
// file. Result split says that special tokens in a text are text.
func (f Files) JSON() (data []byte, split bool, err error) {
	k := tiktokenOf(f.Name)
	if k == nil {
		return f.autoTokenizer()
	}
	if data, err = k.json(f.Tokenizer, f.Config); err != nil {
		return nil, false, Wrong(k.file, "cannot be used: "+err.Error(), CureReplace)
	}
	return data, false, nil
}

// Parts says how a family tokenizes a long text. Result most is how many characters between
// two special tokens it takes at once. Of these, run is the most in a row without white space,
// or of nothing but it. Both are 0 for any number, as for all files that are no tiktoken file.
func Parts(name string) (most, run int) {
	if k := tiktokenOf(name); k != nil {
		return k.maxPart, k.maxRun
	}
	return 0, 0
}

// Names are the names of the files of which one holds a tokenizer that can be run, the
// first one that a model has.
func Names() []string {
	names := []string{TokenizerFile}
	for _, k := range tiktokens {
		names = append(names, k.file)
	}
	return names
}

// IsTiktoken reports whether a file of that name is a tiktoken file.
func IsTiktoken(name string) bool { return tiktokenOf(name) != nil }

// AddedToken is an element of added_tokens in a tokenizer.json.
type AddedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// Stage is a normalizer, pre-tokenizer or post-processor of a tokenizer.json, or a sequence of
// them: the fields that decide about tokens.
type Stage struct {
	Type          string  `json:"type"`
	Normalizers   []Stage `json:"normalizers"`
	Pretokenizers []Stage `json:"pretokenizers"`
	Processors    []Stage `json:"processors"`
	Pattern       struct {
		Regex, String string
	} `json:"pattern"`
	Behavior       string `json:"behavior"`
	Invert         bool   `json:"invert"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`
	UseRegex       *bool  `json:"use_regex"`
	TrimOffsets    *bool  `json:"trim_offsets"`
	// Of Prepend and Replace.
	Prepend string `json:"prepend"`
	Content string `json:"content"`
	// Of Metaspace.
	Replacement   string `json:"replacement"`
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool  `json:"split"`
}
