package tokenfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrLoad says that a tokenizer for the model exists, as far as known, but could
	// not be fetched or read. Try again later.
	ErrLoad = errors.New("tokenpool: tokenizer cannot be loaded")
	// ErrBroken says, beside ErrLoad, that a file of the model cannot be read however
	// often it is tried. The error names the file, what is wrong and what to do.
	ErrBroken = errors.New("tokenpool: broken tokenizer file")
)

// Error is an ErrBroken: a file that no other try will read. Clients see its text,
// which therefore has no path.
type Error struct{ model, file, What, cure string }

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%v: model %s: its %s %s: %s", ErrBroken, Quote(e.model), e.file, e.What, e.cure)
}

// Is reports whether target is ErrBroken or ErrLoad.
func (e *Error) Is(target error) bool { return target == ErrBroken || target == ErrLoad }

// Cures of broken files.
const (
	cureLFS     = "fetch the file itself, with `git lfs pull` in the model's folder"
	CureAgain   = "fetch the file again"
	CureReplace = "put the model's file in its place"
	CureMode    = "let the user that the server runs as read it"
	CureVersion = "save it again with transformers that this version of kvatlas reads, or use a newer kvatlas"
)

// Wrong says what is wrong with one of a model's files. The caller that knows the model fills it in.
func Wrong(file, what, cure string) *Error {
	return &Error{file: file, What: what, cure: cure}
}

// OfModel completes an error of a model's files.
func OfModel(model string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e := *e
		e.model = model
		return &e
	}
	return fmt.Errorf("%w: model %s: %w", ErrLoad, Quote(model), err)
}

// LFSPointer is how a pointer of Git LFS begins, which stands for a file where a
// repository was cloned without it.
var LFSPointer = []byte("version https://git-lfs.github.com/spec/")

// NotTheFile says what is in place of a model's file, whatever kind it should be of;
// nil if that may be it.
func NotTheFile(file string, data []byte) *Error {
	head := bytes.ToLower(bytes.TrimSpace(data[:min(len(data), 256)]))
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return Wrong(file, "is empty", CureAgain)
	case bytes.HasPrefix(data, LFSPointer):
		return Wrong(file, "is a pointer of Git LFS in place of the file", cureLFS)
	case bytes.HasPrefix(head, []byte("<!doctype")), bytes.HasPrefix(head, []byte("<html")):
		return Wrong(file, "is a web page, as a proxy or a sign-in gives it, in place of the file", CureAgain)
	}
	return nil
}

// checkJSON says what is wrong with a file that should hold a JSON object.
func checkJSON(file string, data []byte) error {
	if e := NotTheFile(file, data); e != nil {
		return e
	}
	var o map[string]json.RawMessage
	err := json.Unmarshal(data, &o)
	if err == nil && o != nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if e.Offset >= int64(len(bytes.TrimRightFunc(data, unicode.IsSpace))) {
			return Wrong(file, fmt.Sprintf("is cut off after %d bytes", len(data)), CureAgain)
		}
		return Wrong(file, fmt.Sprintf("is not JSON from byte %d on", e.Offset), CureAgain)
	}
	return Wrong(file, "is JSON, but no object", CureReplace)
}

// models are the kinds of models that the library knows.
var models = map[string]bool{"": true, "BPE": true, "WordPiece": true, "WordLevel": true, "Unigram": true}

// Check says what is wrong with the files that make a model's tokenizer, as far as that
// can be told without the library.
func (f Files) Check() error {
	if k := tiktokenOf(f.Name); k != nil {
		if e := NotTheFile(f.Name, f.Tokenizer); e != nil {
			return e
		}
		return nil
	}
	if err := checkJSON(TokenizerFile, f.Tokenizer); err != nil {
		return err
	}
	for file, data := range map[string][]byte{ConfigFile: f.Config, AddedTokensFile: f.Added, SpecialTokensFile: f.SpecialTokens} {
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
		return Wrong(TokenizerFile, "has no model: it is of something else than a tokenizer", CureReplace)
	}
	if !models[t.Model.Type] {
		return Wrong(TokenizerFile, fmt.Sprintf("has a model of the type %s, which is not one of BPE, WordPiece, WordLevel and Unigram", Quote(t.Model.Type)), CureVersion)
	}
	return nil
}
