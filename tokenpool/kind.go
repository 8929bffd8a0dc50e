package tokenpool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// tokenizerFiles are the files of which one holds a tokenizer that can be run, the
// first one that a model has.
var tokenizerFiles = tokenfile.Names()

// slowFiles are what models have that transformers runs in Python, or turns into a
// tokenizer.json when it loads them, with what is in them.
var slowFiles = []struct{ file, what string }{
	{"tokenizer.model", "SentencePiece (or tiktoken without the code that belongs to it)"},
	{"spiece.model", "SentencePiece"},
	{"sentencepiece.bpe.model", "SentencePiece"},
	{"tekken.json", "Mistral's Tekken"},
	{"merges.txt", "vocabulary and merges of a BPE"},
	{"vocab.txt", "the vocabulary of a WordPiece"},
	{"vocab.json", "a vocabulary"},
}

// convertHint says what to do about a model that has only slow files.
const convertHint = `make a tokenizer.json of it once, with transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(DIR)`

// slowOnly says what a folder has in place of a tokenizer that can be run; empty
// when it has nothing of the kind.
func slowOnly(dir string) string {
	var found []string
	for _, s := range slowFiles {
		if _, err := os.Stat(filepath.Join(dir, s.file)); err == nil {
			found = append(found, fmt.Sprintf("%s (%s)", s.file, s.what))
		}
	}
	for pattern, what := range map[string]string{
		"*.tiktoken": "tiktoken of a model whose code is not known here", "tokenizer.model.*": "Mistral's SentencePiece or Tekken",
	} {
		others, _ := filepath.Glob(filepath.Join(globEscape(dir), pattern))
		for _, o := range others {
			found = append(found, fmt.Sprintf("%s (%s)", filepath.Base(o), what))
		}
	}
	if len(found) == 0 {
		if _, err := os.Stat(filepath.Join(dir, tokenfile.ConfigFile)); err == nil {
			found = append(found, tokenfile.ConfigFile+" (which has no vocabulary)")
		}
	}
	return strings.Join(found, ", ")
}

// globEscape has filepath.Glob take a path as it is.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// IsTokenizerFile reports whether a file of that name can hold a tokenizer that a Pool
// runs.
func IsTokenizerFile(name string) bool { return slices.Contains(tokenizerFiles, name) }
