package redistest

import (
	"os"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// DocumentedACL returns the commands that a document has between two marks, as words.
func DocumentedACL(tb testing.TB, file, mark string) (lines [][]string) {
	tb.Helper()
	text := must.Get(os.ReadFile(file))(tb)
	_, rest, ok1 := strings.Cut(string(text), "<!-- "+mark+": begin -->\n```\n")
	block, _, ok2 := strings.Cut(rest, "```\n<!-- "+mark+": end -->")
	if !ok1 || !ok2 {
		tb.Fatalf("%s has no block of %s", file, mark)
	}
	for line := range strings.Lines(block) {
		if words := strings.Fields(line); len(words) > 0 { // not between the users
			lines = append(lines, words)
		}
	}
	return lines
}
