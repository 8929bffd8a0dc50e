package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestPythonClient runs the tests of clients/python, the examples of its README among them,
// against this program.
func TestPythonClient(t *testing.T) {
	root := must.Get(filepath.Abs("../.."))(t)
	python := interop.Python(t, filepath.Join(root, ".cache", "venv-clients", "bin", "python"), "scripts/venv.sh clients clients/python/requirements-test.txt")
	s := start(t)
	_, line, token := call(t, "", "token", "--role=write", "python")
	credentials := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(credentials, []byte(line), 0o600))
	guarded := start(t, "--credentials="+credentials)
	for _, args := range [][]string{{"-m", "mypy"}, {"-m", "pytest", "-q", "-p", "no:cacheprovider"}} {
		cmd := exec.CommandContext(t.Context(), python, args...)
		cmd.Dir = filepath.Join(root, "clients", "python")
		cmd.Env = append(os.Environ(), "KVATLAS_URL="+s.url, "KVATLAS_GUARDED_URL="+guarded.url, "KVATLAS_GUARDED_TOKEN="+strings.TrimSpace(token), "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1", "MYPY_CACHE_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
