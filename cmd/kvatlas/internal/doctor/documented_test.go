package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestFindingsAreDocumented has a paragraph for each finding that the doctor's own files make.
// Those of the packages that it calls are held by tests of theirs.
func TestFindingsAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile(operations))(t)
	_, paragraphs, ok := strings.Cut(string(text), "\n## What each finding means\n")
	if !ok {
		t.Fatal("docs/operations.md has no section on findings")
	}
	files := must.Get(filepath.Glob("*.go"))(t)
	named := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			pair, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := pair.Key.(*ast.Ident); !ok || key.Name != "What" {
				return true
			}
			what, ok := pair.Value.(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a finding whose name is not written where it is made", name)
				return true
			}
			word := must.Get(strconv.Unquote(what.Value))(t)
			named[word] = true
			return true
		})
	}
	for what := range named {
		_, rest, ok := strings.Cut(paragraphs, "\n### "+what+"\n\n")
		if words := len(strings.Fields(rest[:max(0, strings.Index(rest+"\n###", "\n###"))])); !ok || words < 10 {
			t.Errorf("docs/operations.md has no paragraph %q, or one of %d words", what, words)
		}
	}
	for _, what := range []string{"directory", "tokenizer", "health", "readiness", "server version", "index", "hash seed", "access"} {
		if !named[what] {
			t.Errorf("the doctor has no finding %q", what)
		}
	}
}
