package tokenpool

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

var autoTokenizerDir = filepath.Join("..", "testdata", "autotokenizer")

// autoVariant is what AutoTokenizer makes of the files of a model.
type autoVariant struct {
	Family    string                     `json:"family"`
	What      string                     `json:"what"`
	Tokenizer map[string]json.RawMessage `json:"tokenizer"` // members that replace those of the family's file
	Config    json.RawMessage            `json:"config"`
	Files     map[string]json.RawMessage `json:"files"`
	Texts     []string                   `json:"texts"`
	IDs       [][2][]uint32              `json:"ids"` // of each text, without and with special tokens around it
	Class     string                     `json:"class"`
	Error     string                     `json:"error"`
}

// autoFamilies returns the tokenizer.json files that the variants are of.
func autoFamilies(t testing.TB) map[string]tokenfile.Object {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(autoTokenizerDir, "families.json.gz"))
	must.OK(t, err)
	z := must.Get(gzip.NewReader(bytes.NewReader(packed)))(t)
	data := must.Get(io.ReadAll(z))(t)
	var raw map[string]json.RawMessage
	must.OK(t, json.Unmarshal(data, &raw))
	out := map[string]tokenfile.Object{}
	for name, r := range raw {
		if out[name], err = tokenfile.ReadObject(r); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// of returns the files of a variant.
func (v autoVariant) of(families map[string]tokenfile.Object) Files {
	file := slices.Clone(families[v.Family]) // its members stay those of the family
	for key, value := range v.Tokenizer {
		file.Set(key, value)
	}
	f := Files{Files: tokenfile.Files{
		Tokenizer: file.AppendJSON(nil), Added: v.Files[tokenfile.AddedTokensFile], SpecialTokens: v.Files[tokenfile.SpecialTokensFile], Model: v.Files[modelFile],
	}}
	if !tokenfile.IsNull(v.Config) {
		f.Config = v.Config
	}
	return f
}

// TestAutoTokenizer holds the tokens of contradicting files to transformers'.
func TestAutoTokenizer(t *testing.T) {
	families := autoFamilies(t)
	seen := map[string]int{}
	fast := 0
	for i, v := range readGoldenOf[autoVariant](t, filepath.Join(autoTokenizerDir, "variants.jsonl.gz")) {
		if v.Error != "" { // no engine starts with these files
			seen["refused"]++
			_, _, _ = v.of(families).JSON()
			continue
		}
		seen[v.Class]++
		seen["all"]++
		isFast, err := v.check(families)
		if isFast {
			fast++
		}
		if err != nil {
			t.Errorf("variant %d, %s (%s): %s: %v\nconfig: %.2000s\nfiles: %s", i, v.Family, v.Class, v.What, err, v.Config, v.Files)
		}
	}
	t.Log(seen, "of which fast", fast)
	if seen["all"] < 500 || fast < 500 {
		t.Errorf("only %d variants, %d fast", seen["all"], fast)
	}
}

// check holds the library, and the fast tokenizer where it does these files, to the tokens.
func (v autoVariant) check(families map[string]tokenfile.Object) (isFast bool, err error) {
	data, split, err := v.of(families).JSON()
	if err != nil {
		return false, err
	}
	e, err := newLibrary(data, split)
	if err != nil {
		return false, err
	}
	defer e.close()
	if tables, err := bpe.Read(data); err == nil && !split {
		if fast, err := bpe.New(tables); err == nil {
			isFast = true
			for _, text := range v.Texts {
				if err := fast.Compare(&proven{encoder: e}, text); err != nil {
					return true, fmt.Errorf("fast: %q: %w", text, err)
				}
			}
		}
	}
	for i, text := range v.Texts {
		for around, want := range v.IDs[i] {
			got, _, err := tokenize(e, text, around == 1)
			if err != nil {
				return isFast, err
			}
			if !slices.Equal(got, want) {
				return isFast, fmt.Errorf("%q, special %v:\ngot  %d\nwant %d", text, around == 1, got, want)
			}
		}
	}
	return isFast, nil
}
