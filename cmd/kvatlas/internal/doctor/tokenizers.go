package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// maxTokenizers bounds the tokenizers that are looked at.
const maxTokenizers = 1000

// lookAtTokenizers reads the tokenizers of the directory, without loading them
// into a tokenizer. It looks whether a file is JSON and has a model in it. That
// shows what goes wrong in the field: downloads that were cut off and pointers
// of Git LFS.
func (c *Config) lookAtTokenizers(ctx context.Context) *Section {
	if c.Tokenizers == "" {
		return nil
	}
	s := &Section{Name: "tokenizers", Subject: c.Tokenizers}
	add := func(f check.Finding) { s.Findings = append(s.Findings, f) }
	dir, err := tokenpool.NewDirectory(c.Tokenizers)
	if err != nil {
		add(check.Finding{
			Level: check.Fail, What: "directory", Found: strings.TrimPrefix(err.Error(), "tokenpool: "),
			Means: "kvatlas serve does not start", Do: "make the directory, or correct " + c.TokenizersGiven,
		})
		return s
	}
	models, err := findModels(ctx, c.Tokenizers)
	if err != nil {
		add(check.Finding{Level: check.Warn, What: "directory", Found: err.Error(), Means: "what lies behind it has not been looked at", Do: "let this user read the directory"})
	}
	if len(models) == 0 && err == nil {
		f := check.Finding{
			Level: check.Warn, What: "directory", Found: "no <org>/<model>/tokenizer.json in it",
			Means: "texts can be scored only for models that the hub has: " + c.Hub,
			Do:    "put the tokenizer.json of each model there; scripts/fetch-tokenizers.sh fetches some",
		}
		if c.HubOffline {
			f.Level, f.Means = check.Fail, "no text can be scored, since the hub is not asked (hub-offline); tokens and block keys can"
		}
		add(f)
	}
	for _, m := range models {
		add(lookAtTokenizer(ctx, dir, m))
	}
	return s
}

// findModels lists the models of a directory, which may have links in it.
func findModels(ctx context.Context, root string) (models []string, err error) {
	var walk func(model string, depth int) error
	walk = func(model string, depth int) error {
		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(model)))
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case len(models) >= maxTokenizers:
				return nil
			case tokenpool.IsTokenizerFile(e.Name()) && model != "":
				if !slices.Contains(models, model) {
					models = append(models, model)
				}
			case strings.HasPrefix(e.Name(), "."), depth == 0:
			case e.IsDir(), e.Type()&fs.ModeSymlink != 0 && isDir(filepath.Join(root, model, e.Name())):
				if err := walk(strings.TrimPrefix(model+"/"+e.Name(), "/"), depth-1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = walk("", 2)
	return models, err
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// lookAtTokenizer reads one tokenizer.
func lookAtTokenizer(ctx context.Context, dir *tokenpool.Directory, model string) check.Finding {
	f := check.Finding{What: "tokenizer", Where: model}
	broken := func(why string) check.Finding {
		f.Level, f.Found = check.Fail, why
		f.Means, f.Do = "texts of this model cannot be scored", "fetch its tokenizer.json again"
		return f
	}
	files, err := dir.Fetch(ctx, model)
	if err != nil {
		return broken(err.Error())
	}
	if bytes.HasPrefix(files.Tokenizer, []byte("version https://git-lfs")) {
		f := broken("a pointer of Git LFS in place of the file")
		f.Do = "run git lfs pull in its folder"
		return f
	}
	if files.Name != "tokenizer.json" {
		if files.Tokenizer, _, err = files.JSON(); err != nil {
			return broken(err.Error())
		}
	}
	var t struct {
		Model struct {
			Type  string          `json:"type"`
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(files.Tokenizer, &t); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return broken(fmt.Sprintf("tokenizer.json is no JSON, or only a part of it (%d bytes): %v", len(files.Tokenizer), err))
		}
		return broken("tokenizer.json is not of the usual form: " + err.Error())
	}
	if len(t.Model.Vocab) == 0 {
		return broken("tokenizer.json has no vocabulary")
	}
	f.Found = fmt.Sprintf("%s, %.1f MB", cmp.Or(t.Model.Type, "vocabulary of no stated type"), float64(len(files.Tokenizer))/1e6)
	return f
}
