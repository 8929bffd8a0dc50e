package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestReadFile: a device without end is read as far as it takes to refuse it.
func TestReadFile(t *testing.T) {
	text, err := ReadFile("/dev/zero")
	if err != nil || len(text) != maxFile+1 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	path := filepath.Join(t.TempDir(), "kvatlas.yaml")
	must.OK(t, os.WriteFile(path, []byte("listen: :1\n"), 0o600))
	if text, err = ReadFile(path); err != nil || string(text) != "listen: :1\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err = ReadFile(path + "x"); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
}
