package bpe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/daulet/tokenizers"

	"github.com/kvatlas/kvatlas/internal/must"
)

// reference is the library that this package is held to.
type reference struct{ *tokenizers.Tokenizer }

func (r reference) encode(text string) ([]uint32, []int) {
	e := r.EncodeWithOptions(text, false, tokenizers.WithReturnOffsets())
	ends := make([]int, len(e.Offsets))
	for i, o := range e.Offsets {
		ends[i] = int(o[1])
	}
	return e.IDs, ends
}

func (r reference) decode(ids []uint32) string { return r.Decode(ids, false) }

// both are a tokenizer and its reference.
type both struct {
	name   string
	tables *Tables
	fast   *Tokenizer
	ref    reference
}

func load(t testing.TB, name string, data []byte) both {
	t.Helper()
	tables, err := Read(data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	fast, err := New(tables)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	ref, err := tokenizers.FromBytes(data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() { _ = ref.Close() }) // after parallel subtests
	return both{name, tables, fast, reference{ref}}
}

// all loads the tokenizers at hand: those of `make models`, and those in the folder that
// KVATLAS_TEST_TOKENIZERS names.
func all(t testing.TB) (out []both) {
	t.Helper()
	paths, _ := filepath.Glob("../../../.cache/tokenizers/*/*/tokenizer.json")
	if dir := os.Getenv("KVATLAS_TEST_TOKENIZERS"); dir != "" {
		more, _ := filepath.Glob(filepath.Join(dir, "*", "*", "tokenizer.json"))
		paths = append(paths, more...)
	}
	for _, path := range paths {
		data := must.Get(os.ReadFile(path))(t)
		name := filepath.Base(filepath.Dir(path))
		if strings.HasPrefix(name, "bert") {
			continue
		}
		out = append(out, load(t, name, data))
	}
	if len(out) == 0 {
		t.Skip("no tokenizers: run make models")
	}
	return out
}

// differ says how the two differ on a text, empty if they do not.
func (b both) differ(text string) string {
	ids, ends, ok := b.fast.Encode(text)
	if !ok {
		return ""
	}
	want, wantEnds := b.ref.encode(text)
	if slices.Equal(ids, want) && slices.Equal(ends, wantEnds) {
		return ""
	}
	return fmt.Sprintf("%s: %q: tokens %v ending at %v, want %v at %v", b.name, text, ids, ends, want, wantEnds)
}
