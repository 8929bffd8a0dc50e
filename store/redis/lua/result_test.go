package lua

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestResultsAgree: Go, guard.lua and the document give each result one number.
func TestResultsAgree(t *testing.T) {
	guard := must.Get(files.ReadFile("guard.lua"))(t)
	doc := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "docs", "redis-schema.md")))(t)
	inLua := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^local ([A-Z]+) = (-?\d+)`).FindAllStringSubmatch(string(guard), -1) {
		inLua[m[1]] = m[2]
	}
	for r, name := range resultNames {
		number := fmt.Sprint(int64(r))
		if got := inLua[strings.ToUpper(name)]; got != number {
			t.Errorf("guard.lua has %q for %v, Go has %s", got, r, number)
		}
		if !strings.Contains(string(doc), "| "+number+" | `"+strings.ToUpper(name)+"` |") {
			t.Errorf("the document has no row for %v, %s", r, number)
		}
	}
	if len(inLua) != len(resultNames) {
		t.Errorf("guard.lua has %d results, Go has %d", len(inLua), len(resultNames))
	}
	// A number in place of a name would be right by chance only.
	bare := regexp.MustCompile(`(?m)^[^-\n]*return \{?'?-\d`)
	for _, script := range []*Script{Begin, Holders, Apply, Fence, Compact} {
		if m := bare.FindString(script.Source); m != "" {
			t.Errorf("a script returns a bare number: %s", m)
		}
	}
}
