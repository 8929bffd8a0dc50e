package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// Directory is an Origin over a folder that holds
// <root>/<org>/<model>/tokenizer.json, or a tiktoken file in its place. Symbolic links are followed, since they
// are the operator's; names that would lead out of the folder are refused.
type Directory struct{ root string }

// NewDirectory returns the Directory at root, which must exist.
func NewDirectory(root string) (*Directory, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: tokenizer directory %q: %w", root, err)
	}
	fi, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: tokenizer directory: %w", err)
	}
	if !fi.IsDir() {
		return nil, fmt.Errorf("tokenpool: tokenizer directory: %s is not a directory", abs)
	}
	return &Directory{abs}, nil
}

// Stat implements Origin with a stat of each of the files, so that a new chat
// template counts like a new tokenizer.
func (d *Directory) Stat(model string) (string, error) {
	_, version, err := d.find(model)
	return version, err
}

// find returns the name of the file that holds a model's tokenizer, and the version
// of the model.
func (d *Directory) find(model string) (name, v string, err error) {
	if err := checkModel(model); err != nil {
		return "", "", err
	}
	var missing error
	for _, name := range tokenizerFiles {
		fi, err := os.Stat(d.path(model, name))
		switch {
		case err == nil && !fi.Mode().IsRegular():
			return "", "", tokenfile.OfModel(model, tokenfile.Wrong(name, "is not a regular file", tokenfile.CureReplace))
		case err == nil:
			return name, version(fi) + d.others(model), nil
		}
		if _, linked := os.Readlink(d.path(model, name)); errors.Is(err, fs.ErrNotExist) && linked == nil {
			return "", "", tokenfile.OfModel(model, tokenfile.Wrong(name, "is a link that leads to no file", tokenfile.CureAgain))
		}
		if err = d.failed(model, name, err); !errors.Is(err, ErrUnknownModel) {
			return "", "", err
		}
		missing = err
	}
	if found := slowOnly(d.path(model, "")); found != "" {
		return "", "", unsupported(model, "the tokenizer directory has only %s of it: %s", found, convertHint)
	}
	return "", "", missing
}

// Fetch implements Origin.
func (d *Directory) Fetch(_ context.Context, model string) (Files, error) {
	// Stat first: opening a named pipe would hang.
	name, _, err := d.find(model)
	if err != nil {
		return Files{}, err
	}
	others := d.others(model)
	data, v, err := readFile(d.path(model, name), maxTokenizerFile)
	if err != nil {
		return Files{}, d.failed(model, name, err)
	}
	rules, err := readOptional(d.path(model, media.File), media.MaxFileBytes)
	if err != nil {
		return Files{}, d.failed(model, media.File, err)
	}
	files := Files{Files: tokenfile.Files{Tokenizer: data, Name: name}, Media: rules, From: "directory", Version: v + others}
	for name, to := range map[string]*[]byte{
		tokenfile.ConfigFile: &files.Config, tokenfile.AddedTokensFile: &files.Added, tokenfile.SpecialTokensFile: &files.SpecialTokens, modelFile: &files.Model,
	} {
		if *to, err = readOptional(d.path(model, name), maxConfigFile); err != nil {
			return Files{}, d.failed(model, name, err)
		}
	}
	if files.Chat, err = chat.ReadFiles(filepath.Dir(d.path(model, tokenfile.TokenizerFile))); err != nil {
		files.ChatErr = withoutPath(err)
	}
	return files, nil
}

// others identifies the content of the files beside the tokenizer.
func (d *Directory) others(model string) string {
	var b strings.Builder
	for _, name := range append(chat.FileNames(), tokenfile.AddedTokensFile, modelFile, media.File) {
		if fi, err := os.Stat(d.path(model, name)); err == nil {
			b.WriteByte('/')
			b.WriteString(version(fi))
		}
	}
	return b.String()
}

func (d *Directory) path(model, file string) string {
	return filepath.Join(d.root, filepath.FromSlash(model), file)
}

// failed tells a file that is not there from one that cannot be read. The
// root's path stays out of it: clients see errors of this kind.
func (d *Directory) failed(model, name string, err error) error {
	if e, ok := errors.AsType[*tokenfile.Error](err); ok {
		return tokenfile.OfModel(model, e)
	}
	if errors.Is(err, fs.ErrPermission) {
		return tokenfile.OfModel(model, tokenfile.Wrong(name, "may not be read by this server", tokenfile.CureMode))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) {
		return unknown(model, "the tokenizer directory has no %s/tokenizer.json", model)
	}
	return fmt.Errorf("%w: model %s: read from the tokenizer directory: %w", tokenfile.ErrLoad, tokenfile.Quote(model), withoutPath(err))
}

// withoutPath leaves out of an error what it says about the place of a file.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", filepath.Base(pe.Path), pe.Err)
	}
	return err
}

// version identifies the content of a file by what changes with it.
func version(fi fs.FileInfo) string {
	var inode uint64
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		inode = uint64(st.Ino) //nolint:unconvert // narrower on some systems
	}
	return fmt.Sprintf("%d-%d-%d", fi.Size(), fi.ModTime().UnixNano(), inode)
}

// readFile reads a file of at most limit bytes, and says which version of it
// was read.
func readFile(path string, limit int64) ([]byte, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	if fi.Size() > limit {
		return nil, "", tokenfile.Wrong(filepath.Base(path), fmt.Sprintf("has %d bytes, the limit is %d", fi.Size(), limit), tokenfile.CureReplace)
	}
	data := make([]byte, fi.Size())
	// A file that shrinks meanwhile ends in an error, one that grows has
	// another version at the next Stat.
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, "", fmt.Errorf("%s changed while it was read: %w", filepath.Base(path), err)
	}
	return data, version(fi), nil
}

// readOptional reads a file of at most limit bytes; nil when there is none.
func readOptional(path string, limit int64) ([]byte, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, tokenfile.Wrong(filepath.Base(path), "is not a regular file", tokenfile.CureReplace)
	}
	data, _, err := readFile(path, limit)
	return data, err
}
