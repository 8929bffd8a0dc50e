package tokenpool

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// TestRealOrigins takes a real tokenizer from the hub into the cache, another
// one from a directory that is asked first, and replaces that one.
func TestRealOrigins(t *testing.T) {
	bert := string(moduleFile(t, "bert-base-uncased.json"))
	h := newFakeHub(t)
	h.files["/bert/resolve/main/tokenizer.json"] = bert
	h.cut, h.cuts = 300_000, 2
	root := t.TempDir()
	dir := must.Get(NewDirectory(root))(t)
	store := must.Get(prefixcache.NewLRU(prefixcache.Config{}))(t)
	p := must.Get(New(Config{Origin: Chain(dir, h.client(HubConfig{})), Store: store}))(t)
	defer func() { _ = p.Close() }()
	ask := func(model string, from prompt.Source, tokens ...uint32) {
		t.Helper()
		p.settle() // or it might find the run before
		res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: "Hello, world", Mode: prompt.Sync})
		if err != nil || !res.Exact || res.Source != from || !slices.Equal(res.Tokens, tokens) {
			t.Errorf("%s: %+v, %v, want %v from %s", model, res, err, tokens, from)
		}
	}
	ask("bert", prompt.FromTokenizer, 101, 7592, 1010, 2088, 102)
	ask("bert", prompt.FromPrefixStore, 101, 7592, 1010, 2088, 102)
	m := p.Models()
	if len(m) != 1 || m[0].From != "hub" || m[0].Revision != commit || m[0].Vocabulary != 30522 || m[0].FileBytes != int64(len(bert)) ||
		m[0].Fingerprint != "3140af3f138a2783" || m[0].LoadTook <= 0 {
		t.Errorf("models %+v", m)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "none", Text: "x", Mode: prompt.Sync}); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("unknown model: %v", err)
	}

	// The directory comes first as soon as it has the model.
	words := `{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},
		"model":{"type":"WordLevel","vocab":{"[UNK]":0,"Hello":1,"world":2},"unk_token":"[UNK]"}}`
	writeFile(t, words, root, "bert", tokenfile.TokenizerFile)
	p.recheck()
	ask("bert", prompt.FromTokenizer, 1, 0, 2)
	writeFile(t, `{"model":`, root, "bert", tokenfile.TokenizerFile)
	p.recheck()
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "bert", Text: "Hello, world", Mode: prompt.Sync}); !errors.Is(err, tokenfile.ErrLoad) {
		t.Errorf("half a file: %v", err)
	}
	writeFile(t, bert, root, "bert", tokenfile.TokenizerFile)
	// The same content is the same scope, wherever it lies.
	if res, err := p.Tokens(t.Context(), prompt.Request{Model: "bert", Text: "Hello, world", Mode: prompt.Sync}); err != nil || len(res.Tokens) != 5 {
		t.Errorf("repaired: %+v, %v", res, err)
	}
	ask("bert", prompt.FromPrefixStore, 101, 7592, 1010, 2088, 102)
	if got := p.Models(); len(got) != 1 || got[0].From != "directory" {
		t.Errorf("models %+v", got)
	}
}
