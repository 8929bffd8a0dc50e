package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// TestWhyNotOfABrokenFile: /readyz says what the log says of a file that will never be read.
func TestWhyNotOfABrokenFile(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "m", "tokenizer.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	origin, err := tokenpool.NewDirectory(root)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := tokenpool.New(tokenpool.Config{Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	_, err = pool.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a", Mode: prompt.Sync})
	if got, want := whyNot(err), "its tokenizer.json is empty: fetch the file again"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
