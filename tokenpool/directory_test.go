package tokenpool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

func writeFile(t testing.TB, content string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.OK(t, os.WriteFile(name, []byte(content), 0o644))
}

func TestDirectory(t *testing.T) {
	top := t.TempDir()
	root := filepath.Join(top, "root")
	writeFile(t, "outside", top, tokenfile.TokenizerFile)
	writeFile(t, "outside", top, "other", tokenfile.TokenizerFile)
	writeFile(t, "{1}", root, "org", "model", tokenfile.TokenizerFile)
	writeFile(t, "{c}", root, "org", "model", tokenfile.ConfigFile)
	writeFile(t, "{2}", root, "plain", tokenfile.TokenizerFile)
	writeFile(t, "x", root, "file")
	must.OK(t, os.MkdirAll(filepath.Join(root, "folder", tokenfile.TokenizerFile), 0o755))
	must.OK(t, os.MkdirAll(filepath.Join(root, "pipe"), 0o755))
	must.OK(t, syscall.Mkfifo(filepath.Join(root, "pipe", tokenfile.TokenizerFile), 0o644))
	must.OK(t, os.Symlink(filepath.Join(top, "other"), filepath.Join(root, "linked")))
	d := must.Get(NewDirectory(root))(t)
	for _, c := range []struct{ model, content, config string }{
		{"org/model", "{1}", "{c}"},
		{"plain", "{2}", ""},
		{"linked", "outside", ""}, // the operator's own link
	} {
		v, err := d.Stat(c.model)
		if err != nil {
			t.Errorf("%s: %v", c.model, err)
		}
		files, err := d.Fetch(t.Context(), c.model)
		if err != nil || string(files.Tokenizer) != c.content || string(files.Config) != c.config || files.Version != v || v == "" || files.From != "directory" {
			t.Errorf("%s: %+v, %v, version %s", c.model, files, err, v)
		}
	}
	for model, says := range map[string]string{
		"":                       "it is empty",
		"org/none":               "has no org/none/tokenizer.json",
		"org":                    "has no org/tokenizer.json",
		"file":                   "has no file/tokenizer.json",
		"folder":                 "not a regular file",
		"pipe":                   "not a regular file",
		"..":                     "begins with a dot",
		"../other":               "begins with a dot",
		"org/../../other":        "begins with a dot",
		"org/./model":            "begins with a dot",
		".git":                   "begins with a dot",
		"org//model":             "is empty",
		"org/model/":             "is empty",
		"/org/model":             "absolute",
		root + "/plain":          "absolute",
		`org\model`:              "backslash",
		`..\model`:               "backslash",
		"org/mo\ndel":            "control character",
		"org/model\x00":          "control character",
		"org/\xff":               "not valid UTF-8",
		strings.Repeat("m", 257): "257 bytes are more than 256",
		strings.Repeat("m", 256): "has no mmm", // longer than a file name may be
	} {
		is := ErrUnknownModel
		if model == "folder" || model == "pipe" {
			is = tokenfile.ErrBroken
		}
		for range 2 {
			_, err := d.Stat(model)
			if !errors.Is(err, is) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), top) && model[0] != '/' {
				t.Errorf("%q: error %v, want one that says %q", model, err, says)
			}
			_, err = d.Fetch(t.Context(), model)
			if !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: error %v, want one that says %q", model, err, says)
			}
		}
	}
	// Another content of the same size is another version.
	before, _ := d.Stat("plain")
	writeFile(t, "{3}", root, "new")
	must.OK(t, os.Rename(filepath.Join(root, "new"), filepath.Join(root, "plain", tokenfile.TokenizerFile)))
	if after, err := d.Stat("plain"); err != nil || after == before {
		t.Errorf("version %s, before %s, %v", after, before, err)
	}

	if _, err := NewDirectory(filepath.Join(top, "none")); err == nil {
		t.Error("a directory that is not there is taken")
	}
	if _, err := NewDirectory(filepath.Join(root, "file")); err == nil {
		t.Error("a file is taken for a directory")
	}
}

func TestDirectoryUnreadable(t *testing.T) {
	root := t.TempDir()
	writeFile(t, "{}", root, "big", tokenfile.TokenizerFile)
	must.OK(t, os.Truncate(filepath.Join(root, "big", tokenfile.TokenizerFile), maxTokenizerFile+1))
	d := must.Get(NewDirectory(root))(t)
	if _, err := d.Fetch(t.Context(), "big"); !errors.Is(err, tokenfile.ErrLoad) || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("too large: %v", err)
	}
	writeFile(t, "{}", root, "loop", tokenfile.TokenizerFile)
	loop := filepath.Join(root, "loop", tokenfile.TokenizerFile)
	must.OK(t, errors.Join(os.Remove(loop), os.Symlink(loop, loop)))
	if _, err := d.Stat("loop"); !errors.Is(err, tokenfile.ErrLoad) || strings.Contains(err.Error(), root) {
		t.Errorf("cannot be read: %v", err)
	}
}

func TestChain(t *testing.T) {
	a, b, c := newFakes(t, "both", "a"), newFakes(t, "both", "b"), newFakes(t, "hub")
	b.put("both", "2")
	c.remote = true
	local, all := Chain(a, b), Chain(a, b, c)
	for model, content := range map[string]string{"both": "1", "a": "1", "b": "1"} {
		for _, o := range []Origin{local, all} {
			v, err := o.Stat(model)
			files, err2 := o.Fetch(t.Context(), model)
			if err != nil || err2 != nil || v == "" || v != files.Version || string(files.Tokenizer) != content {
				t.Errorf("%s: version %q, %+v, %v, %v", model, v, files, err, err2)
			}
		}
	}
	// A model that moves to another origin is another version.
	before, _ := local.Stat("both")
	a.put("both", "")
	b.put("both", "1")
	if after, err := local.Stat("both"); err != nil || after == before {
		t.Errorf("version %q, before %q, %v", after, before, err)
	}
	if v, err := all.Stat("maybe"); v != "" || err != nil {
		t.Errorf("known to the network only: %q, %v", v, err)
	}
	_, err := local.Stat("none")
	if !errors.Is(err, ErrUnknownModel) || strings.Count(err.Error(), "no fake of it") != 2 || strings.Count(err.Error(), "none") != 1 {
		t.Errorf("error %v", err)
	}
	if _, err := all.Fetch(t.Context(), "none"); !errors.Is(err, ErrUnknownModel) || strings.Count(err.Error(), "no fake of it") != 3 {
		t.Errorf("error %v", err)
	}
	a.setDown(errors.New("out of order"))
	for _, f := range []func() error{
		func() error { _, err := all.Stat("b"); return err },
		func() error { _, err := all.Fetch(t.Context(), "b"); return err },
	} {
		if err := f(); err == nil || errors.Is(err, ErrUnknownModel) {
			t.Errorf("the first is down: %v", err)
		}
	}
	if _, err := Chain().Stat("m"); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("an empty chain: %v", err)
	}
}

// replaceFile puts a model's file "next" in the place of its tokenizer.json.
func replaceFile(root, model string) error {
	return os.Rename(filepath.Join(root, model, "next"), filepath.Join(root, model, tokenfile.TokenizerFile))
}
