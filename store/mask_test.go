package store_test

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/store"
)

func TestMask(t *testing.T) {
	// XXH3-64 with seed 1337 by the reference implementation (python-xxhash).
	for name, want := range map[string]uint64{
		"m":                       0xa3e0593b0699cd3d,
		"meta-llama/Llama-3.1-8B": 0x6f47ea9c9dc7b735,
		"Qwen/Qwen3-32B":          0xeb04f76e88eba6f8,
		strings.Repeat("a", 300):  0x43e2fdffc6ab9d82,
	} {
		if got := uint64(store.Mask(name)); got != want {
			t.Errorf("%q: got %#x, want %#x", name, got, want)
		}
	}
}
