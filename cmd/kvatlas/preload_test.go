package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// TestWhyNotOfABrokenFile: /readyz says what the log says of a file that will never be read.
func TestWhyNotOfABrokenFile(t *testing.T) {
	root := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(root, "m"), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(root, "m", "tokenizer.json"), nil, 0o644))
	origin := must.Get(tokenpool.NewDirectory(root))(t)
	pool := must.Get(tokenpool.New(tokenpool.Config{Origin: origin}))(t)
	defer func() { _ = pool.Close() }()
	_, err := pool.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a", Mode: prompt.Sync})
	if got, want := whyNot(err), "its tokenizer.json is empty: fetch the file again"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
