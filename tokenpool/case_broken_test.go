package tokenpool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

const aPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 17209961\n"

// bytesRanks is a tiktoken file of the bytes alone.
func bytesRanks() string {
	r := map[string]uint32{}
	for b := range 256 {
		r[string([]byte{byte(b)})] = uint32(b)
	}
	return fileOf(r)
}

// tinyTokenizer is a whole tokenizer.json.
const tinyTokenizer = `{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}`

// TestCaseBrokenTokenizerFiles asks for models with a file that will never be read. The error
// says which file it is, what is wrong with it and what to do, and has no path. A file
// that has been repaired is taken at once.
func TestCaseBrokenTokenizerFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		is    error
		says  []string
		cured string // the file that is put right, a tokenizer.json unless told
	}{
		{name: "a pointer", files: map[string]string{tokenfile.TokenizerFile: aPointer}, says: []string{"tokenizer.json is a pointer of Git LFS", "git lfs pull"}},
		{name: "a cut", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer[:50]}, says: []string{"tokenizer.json is cut off after 50 bytes", "fetch the file again"}},
		{name: "an object", files: map[string]string{tokenfile.TokenizerFile: "{}"}, says: []string{"tokenizer.json has no model", "put the model's file"}},
		{name: "no object", files: map[string]string{tokenfile.TokenizerFile: "[1]"}, says: []string{"tokenizer.json is JSON, but no object"}},
		{name: "a word", files: map[string]string{tokenfile.TokenizerFile: "null"}, says: []string{"tokenizer.json is JSON, but no object"}},
		{name: "text", files: map[string]string{tokenfile.TokenizerFile: `{"version": nothing}`}, says: []string{"tokenizer.json is not JSON from byte"}},
		{name: "two", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer + tinyTokenizer}, says: []string{"tokenizer.json is not JSON from byte"}},
		{name: "empty", files: map[string]string{tokenfile.TokenizerFile: ""}, says: []string{"tokenizer.json is empty"}},
		{name: "white space", files: map[string]string{tokenfile.TokenizerFile: " \n "}, says: []string{"tokenizer.json is empty"}},
		{name: "a page", files: map[string]string{tokenfile.TokenizerFile: "\n<!DOCTYPE html><html></html>"}, says: []string{"tokenizer.json is a web page"}},
		{
			name: "another type", files: map[string]string{tokenfile.TokenizerFile: strings.Replace(tinyTokenizer, "BPE", "Neural", 1)},
			says: []string{`tokenizer.json has a model of the type "Neural"`, "newer kvatlas"},
		},
		{
			name: "another version", files: map[string]string{tokenfile.TokenizerFile: strings.Replace(tinyTokenizer, "1.0", "2.0", 1)},
			says: []string{"tokenizer.json is no tokenizer that the library reads (Unknown tokenizer version '2.0'"},
		},
		{
			name:  "an unknown stage",
			files: map[string]string{tokenfile.TokenizerFile: strings.Replace(tinyTokenizer, `"model"`, `"normalizer":{"type":"Upper"},"model"`, 1)},
			says:  []string{"tokenizer.json is no tokenizer that the library reads"},
		},
		{
			// The library's own words for it would have a NUL, over which it ends the process.
			name:  "a NUL",
			files: map[string]string{tokenfile.TokenizerFile: strings.Replace(tinyTokenizer, `"model"`, `"normalizer":{"type":"a\u0000b"},"model"`, 1)},
			says:  []string{"tokenizer.json has a NUL"},
		},
		{
			name: "a NUL in the version", files: map[string]string{tokenfile.TokenizerFile: strings.Replace(tinyTokenizer, "1.0", `1\u0000`, 1)},
			says: []string{"tokenizer.json has a NUL"},
		},
		{
			name: "the configuration", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer, tokenfile.ConfigFile: aPointer}, cured: tokenfile.ConfigFile,
			says: []string{"tokenizer_config.json is a pointer of Git LFS", "git lfs pull"},
		},
		{
			name: "a cut configuration", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer, tokenfile.ConfigFile: `{"bos_token":`}, cured: tokenfile.ConfigFile,
			says: []string{"tokenizer_config.json is cut off"},
		},
		{
			name: "its numbers", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer, tokenfile.ConfigFile: `{"added_tokens_decoder":{"x":1}}`}, cured: tokenfile.ConfigFile,
			says: []string{`tokenizer_config.json has no token of a number at "x"`},
		},
		{
			name: "an older file", files: map[string]string{tokenfile.TokenizerFile: tinyTokenizer, tokenfile.AddedTokensFile: `{"x":"y"}`}, cured: tokenfile.AddedTokensFile,
			says: []string{`added_tokens.json has no number for "x"`},
		},
		{name: "tiktoken", files: map[string]string{"tiktoken.model": "no base64\n"}, says: []string{"tiktoken.model cannot be used: line 1 is not a token"}},
		{name: "a tiktoken pointer", files: map[string]string{"tiktoken.model": aPointer}, says: []string{"tiktoken.model is a pointer of Git LFS"}},
		{name: "tiktoken alone", files: map[string]string{"tiktoken.model": bytesRanks()}, says: []string{"tiktoken.model cannot be used", "no tokenizer_config.json beside it"}},
		{name: "a configuration alone", files: map[string]string{tokenfile.ConfigFile: "{}"}, is: ErrUnsupported, says: []string{"only tokenizer_config.json", "save_pretrained"}},
		{name: "version 3", files: map[string]string{"tokenizer.model.v3": "x"}, is: ErrUnsupported, says: []string{"tokenizer.model.v3 (Mistral's", "save_pretrained"}},
		{name: "a folder", files: map[string]string{filepath.Join(tokenfile.TokenizerFile, "x"): "x"}, says: []string{"tokenizer.json is not a regular file"}, cured: "-"},
		{name: "a link", says: []string{"tokenizer.json is a link that leads to no file"}},
		{name: "huge", says: []string{"tokenizer.json has 268435457 bytes, the limit is 268435456"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			folder := filepath.Join(root, "org", "model")
			must.OK(t, os.MkdirAll(folder, 0o755))
			for name, content := range c.files {
				writeFile(t, content, folder, name)
			}
			file := filepath.Join(folder, tokenfile.TokenizerFile)
			switch c.name {
			case "a link":
				must.OK(t, os.Symlink("../blobs/none", file))
			case "huge":
				writeFile(t, "{", folder, tokenfile.TokenizerFile)
				must.OK(t, os.Truncate(file, maxTokenizerFile+1))
			}
			origin := must.Get(NewDirectory(root))(t)
			p := must.Get(New(Config{Origin: origin}))(t)
			defer func() { _ = p.Close() }()
			ask := func() error {
				_, err := p.Tokens(t.Context(), prompt.Request{Model: "org/model", Text: "ab", Mode: prompt.Sync})
				return err
			}
			is := c.is
			if is == nil {
				is = tokenfile.ErrBroken
			}
			for range 2 { // the second answer is remembered
				err := ask()
				if !errors.Is(err, is) || strings.Contains(err.Error(), root) || strings.Count(err.Error(), "\n") > 0 {
					t.Fatalf("error %v, want %v", err, is)
				}
				for _, says := range append(c.says, `model "org/model"`) {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("error %v\nwant one that says %q", err, says)
					}
				}
			}
			if c.cured == "-" {
				return
			}
			whole, content := tokenfile.TokenizerFile, tinyTokenizer
			if c.cured != "" {
				whole, content = c.cured, "{}"
			}
			writeFile(t, content, folder, "new")
			must.OK(t, os.Rename(filepath.Join(folder, "new"), filepath.Join(folder, whole)))
			if err := ask(); err != nil {
				t.Errorf("repaired: %v", err)
			}
		})
	}
	origin := &Directory{root: "/secret"}
	err := origin.failed("org/model", tokenfile.TokenizerFile, &fs.PathError{Op: "open", Path: "/secret/org/model/tokenizer.json", Err: syscall.EACCES})
	if !errors.Is(err, tokenfile.ErrBroken) || !strings.Contains(err.Error(), "tokenizer.json may not be read by this server: let the user") || strings.Contains(err.Error(), "secret") {
		t.Errorf("no permission: %v", err)
	}
}

// TestHubGivesAPointer: a mirror without the large files is told from one that is not
// there now, and is asked once.
func TestHubGivesAPointer(t *testing.T) {
	h := newFakeHub(t)
	h.files[hubPath] = aPointer
	_, err := h.client(HubConfig{}).Fetch(t.Context(), "org/model")
	if !errors.Is(err, tokenfile.ErrBroken) || !strings.Contains(err.Error(), "tokenizer.json is a pointer of Git LFS") || len(h.requests()) != 1 {
		t.Errorf("%v after %q", err, h.requests())
	}
	h.set(func(h *fakeHub) { h.files[hubPath] = "<html>sign in</html>" })
	if _, err = h.client(HubConfig{Attempts: 1}).Fetch(t.Context(), "org/model"); errors.Is(err, tokenfile.ErrBroken) || !errors.Is(err, tokenfile.ErrLoad) {
		t.Errorf("a page of a proxy, which may be gone with the next try: %v", err)
	}
	h.set(func(h *fakeHub) {
		h.files[hubPath] = tinyTokenizer
		h.files[strings.TrimSuffix(hubPath, tokenfile.TokenizerFile)+tokenfile.ConfigFile] = aPointer
	})
	if _, err = h.client(HubConfig{}).Fetch(t.Context(), "org/model"); !errors.Is(err, tokenfile.ErrBroken) || !strings.Contains(err.Error(), tokenfile.ConfigFile) {
		t.Errorf("the configuration: %v", err)
	}
}
