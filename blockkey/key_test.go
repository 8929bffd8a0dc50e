package blockkey

import (
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func TestKeyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Key(rapid.Uint64().Draw(t, "key"))
		s := k.String()
		if len(s) != 16 || strings.ToLower(s) != s {
			t.Fatalf("%q is not 16 lower-case digits", s)
		}
		for _, s := range []string{s, strings.ToUpper(s)} {
			if got, err := ParseKey(s); err != nil || got != k {
				t.Fatalf("%q: %v %v", s, got, err)
			}
		}
	})
	if got := string(Key(0x0123456789abcdef).AppendText([]byte("k="))); got != "k=0123456789abcdef" {
		t.Errorf("%q", got)
	}
	for _, s := range []string{"", "0", "123456789abcdef", "0123456789abcdef0", "0123456789abcdeg", "0x23456789abcdef", "+123456789abcdef", "0123_56789abcdef", strings.Repeat("f", 1000)} {
		if k, err := ParseKey(s); err == nil || k != 0 || len(err.Error()) > 200 {
			t.Errorf("%q: %v, error %v", s, k, err)
		}
	}
}

func TestStoreKey(t *testing.T) {
	k := Key(0x1122334455667788)
	if got := k.In(0); got != 0x1122334455667788 {
		t.Errorf("zero model: %x", got)
	}
	m := ModelOf("meta-llama/Llama-3.1-8B-Instruct")
	if want := xxh3.HashStringSeed("meta-llama/Llama-3.1-8B-Instruct", 1337); uint64(m) != want {
		t.Errorf("mask %x, want %x", m, want)
	}
	if got := k.In(m); uint64(got) != uint64(k)^uint64(m) {
		t.Errorf("store key %x", got)
	}
	if k.In(m) == k.In(ModelOf("meta-llama/Llama-3.1-8B")) {
		t.Error("two models share a store key")
	}
	if got := StoreKey(0x1122334455667788).Bytes(); got != [8]byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88} {
		t.Errorf("bytes %x", got)
	}
}

// TestPartitionsEven looks at the spread of real keys over the partitions: a
// skewed one would load one part of a cluster more than others.
func TestPartitionsEven(t *testing.T) {
	const blocks = 64 * 1000
	var count [Partitions]int
	m := ModelOf("m")
	for _, k := range AppendNative(nil, testTokens(blocks*4, 1), 4, baseSeed) {
		count[k.In(m).Partition()]++
	}
	for p, n := range count {
		// 1000 expected, a deviation of 31.6: 8 of them are 253.
		if n < 747 || n > 1253 {
			t.Errorf("partition %d has %d of %d blocks", p, n, blocks)
		}
	}
}

// TestModelOf holds the masks against XXH3-64 with seed 1337 by the reference
// implementation (python-xxhash).
func TestModelOf(t *testing.T) {
	for name, want := range map[string]Model{
		"m":                       0xa3e0593b0699cd3d,
		"meta-llama/Llama-3.1-8B": 0x6f47ea9c9dc7b735,
		"Qwen/Qwen3-32B":          0xeb04f76e88eba6f8,
		strings.Repeat("a", 300):  0x43e2fdffc6ab9d82,
	} {
		if got := ModelOf(name); got != want {
			t.Errorf("%q: got %#x, want %#x", name, got, want)
		}
	}
}
