package chat

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the time at which the goldens were made.
var noon = time.Date(2026, time.November, 27, 12, 3, 4, 0, time.UTC)

// golden reads a file of testdata, unpacked if it is packed.
func golden(t testing.TB, name string) io.Reader {
	t.Helper()
	f := must.Get(os.Open(filepath.Join("testdata", name)))(t)
	t.Cleanup(func() { _ = f.Close() })
	if filepath.Ext(name) != ".gz" {
		return f
	}
	z := must.Get(gzip.NewReader(f))(t)
	return z
}

var templateSources = sync.OnceValues(func() (map[string]string, error) {
	f, err := os.Open(filepath.Join("testdata", "templates.json.gz"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	return sources, json.NewDecoder(z).Decode(&sources)
})

// source returns the source of one of the real templates.
func source(t testing.TB, name string) string {
	t.Helper()
	all := must.Get(templateSources())(t)
	src, ok := all[name]
	if !ok {
		t.Fatalf("testdata has no template %q", name)
	}
	return src
}

func compile(t testing.TB, src string) *Template {
	t.Helper()
	tmpl, err := Compile(src)
	if err != nil {
		t.Fatalf("Compile(%.200q): %v", src, err)
	}
	return tmpl
}

// around cuts out the place where two texts begin to differ.
func around(got, want string) (string, string) {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	from := max(at-40, 0)
	return got[from:min(len(got), at+80)], want[from:min(len(want), at+80)]
}
