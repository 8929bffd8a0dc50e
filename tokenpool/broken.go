package tokenpool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// brokenError is an ErrBroken: a file that no other try will read. Clients see its text,
// which therefore has no path.
type brokenError struct{ model, file, what, cure string }

func (e *brokenError) Error() string {
	return fmt.Sprintf("%v: model %s: its %s %s: %s", ErrBroken, quoteModel(e.model), e.file, e.what, e.cure)
}

func (e *brokenError) Is(target error) bool { return target == ErrBroken || target == ErrLoad }

// Cures of broken files.
const (
	cureLFS     = "fetch the file itself, with `git lfs pull` in the model's folder"
	cureAgain   = "fetch the file again"
	cureReplace = "put the model's file in its place"
	cureMode    = "let the user that the server runs as read it"
	cureVersion = "save it again with transformers that this version of kvatlas reads, or use a newer kvatlas"
)

// fileError says what is wrong with one of a model's files. Its model is filled in by
// who knows it.
func fileError(file, what, cure string) *brokenError {
	return &brokenError{file: file, what: what, cure: cure}
}

// ofModel completes an error of a model's files.
func ofModel(model string, err error) error {
	if e, ok := errors.AsType[*brokenError](err); ok {
		e := *e
		e.model = model
		return &e
	}
	return fmt.Errorf("%w: model %s: %w", ErrLoad, quoteModel(model), err)
}

// lfsPointer is how a pointer of Git LFS begins, which stands for a file where a
// repository was cloned without it.
var lfsPointer = []byte("version https://git-lfs.github.com/spec/")

// notTheFile says what is in place of a model's file, whatever kind it should be of;
// nil if that may be it.
func notTheFile(file string, data []byte) *brokenError {
	head := bytes.ToLower(bytes.TrimSpace(data[:min(len(data), 256)]))
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return fileError(file, "is empty", cureAgain)
	case bytes.HasPrefix(data, lfsPointer):
		return fileError(file, "is a pointer of Git LFS in place of the file", cureLFS)
	case bytes.HasPrefix(head, []byte("<!doctype")), bytes.HasPrefix(head, []byte("<html")):
		return fileError(file, "is a web page, as a proxy or a sign-in gives it, in place of the file", cureAgain)
	}
	return nil
}

// checkJSON says what is wrong with a file that should hold a JSON object.
func checkJSON(file string, data []byte) error {
	if e := notTheFile(file, data); e != nil {
		return e
	}
	var o map[string]json.RawMessage
	err := json.Unmarshal(data, &o)
	if err == nil && o != nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if e.Offset >= int64(len(bytes.TrimRightFunc(data, unicode.IsSpace))) {
			return fileError(file, fmt.Sprintf("is cut off after %d bytes", len(data)), cureAgain)
		}
		return fileError(file, fmt.Sprintf("is not JSON from byte %d on", e.Offset), cureAgain)
	}
	return fileError(file, "is JSON, but no object", cureReplace)
}

// models are the kinds of models that the library knows.
var models = map[string]bool{"": true, "BPE": true, "WordPiece": true, "WordLevel": true, "Unigram": true}

// check says what is wrong with the files that make a model's tokenizer, as far as that
// can be told without the library.
func (f Files) check() error {
	if k := tiktokenOf(f.Name); k != nil {
		if e := notTheFile(f.Name, f.Tokenizer); e != nil {
			return e
		}
		return nil
	}
	if err := checkJSON(tokenizerFile, f.Tokenizer); err != nil {
		return err
	}
	for file, data := range map[string][]byte{configFile: f.Config, addedTokensFile: f.Added, specialTokensFile: f.SpecialTokens} {
		if data == nil {
			continue
		}
		if err := checkJSON(file, data); err != nil {
			return err
		}
	}
	var t struct {
		Model *struct {
			Type string `json:"type"`
		} `json:"model"`
	}
	if err := json.Unmarshal(f.Tokenizer, &t); err != nil || t.Model == nil {
		return fileError(tokenizerFile, "has no model: it is of something else than a tokenizer", cureReplace)
	}
	if !models[t.Model.Type] {
		return fileError(tokenizerFile, fmt.Sprintf("has a model of the type %s, which is none of BPE, WordPiece, WordLevel and Unigram", quoteModel(t.Model.Type)), cureVersion)
	}
	return nil
}

// refused says what the library finds wrong with a tokenizer.json. It has no line feeds
// and is cut to a length fit for a client.
func refused(err error) error {
	what := strings.Join(strings.FieldsFunc(err.Error(), unicode.IsSpace), " ")
	what = strings.TrimPrefix(what, "Failed to create tokenizer from bytes: ")
	if len(what) > 200 {
		what = strings.ToValidUTF8(what[:200], "") + "..."
	}
	return fileError(tokenizerFile, "is no tokenizer that the library reads ("+what+")", cureVersion)
}
