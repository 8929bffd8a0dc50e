// Package interop finds the Python environments in which tests run what others wrote:
// engines' publishers and caches, LMCache, OpenAI's client. They are large downloads, so
// that a run can leave the tests which need them to a later one.
package interop

import (
	"os"
	"path/filepath"
	"testing"
)

// Variable is the environment variable that says what becomes of tests that need other
// projects' code. With [Later] they are put off; otherwise they run, and fail where the
// code is missing.
const Variable = "KVATLAS_TEST_INTEROP"

// Later puts tests off: they are skipped with the reason [PutOff]. By that scripts/test.sh
// finds them, to run them and nothing else when the code is there.
const Later = "later"

// PutOff is the reason that a test gives which is put off.
const PutOff = "put off: make test-all runs it"

// Need skips the test where -short or [Variable] leaves other projects' code out.
func Need(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("other projects' code is left out of -short runs")
	}
	if os.Getenv(Variable) == Later {
		tb.Skip(PutOff)
	}
}

// Python returns the path of a Python, after [Need]. The test fails if it is missing, and
// says which command prepares it.
func Python(tb testing.TB, path, command string) string {
	tb.Helper()
	Need(tb)
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("%v\nThis test runs other projects' code: `make test-all` prepares all of it, `%s` this; -short leaves such tests out.", err, command)
	}
	return path
}

// Cache returns a directory of the checkout's .cache, in which scripts prepare code. It is
// looked for above the directory that a test runs in, since a program built with -trimpath
// does not know where its sources are.
func Cache(name string) string {
	dir, err := os.Getwd()
	if err != nil {
		return filepath.Join(".cache", name)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, ".cache", name)
		}
		if at == filepath.Dir(at) {
			return filepath.Join(dir, ".cache", name)
		}
	}
}
