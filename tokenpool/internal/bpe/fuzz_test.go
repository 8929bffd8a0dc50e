package bpe

import (
	"os"
	"strconv"
	"testing"
)

// TestRandomTexts compares tokens and ends on texts of Corpus. They have a megabyte for each
// tokenizer, or as many bytes as KVATLAS_TEST_BYTES says, or are as many texts as
// KVATLAS_TEST_TEXTS says. They are made of up to 400 bytes; with KVATLAS_TEST_LENGTH, of up to
// as many as that says, but for one in 32. The reference takes ten microseconds for a byte, which
// bounds how many texts can be played.
func TestRandomTexts(t *testing.T) {
	size, count := fromEnv(t, "KVATLAS_TEST_BYTES"), fromEnv(t, "KVATLAS_TEST_TEXTS")
	length := fromEnv(t, "KVATLAS_TEST_LENGTH")
	if size == 0 && count == 0 {
		size = 1 << 20
	}
	for i, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(i)<<32 + uint64(os.Getpid())
			c := b.fast.NewCorpus(seed, b.ref.decode)
			n, done, bad, left := 0, 0, 0, 0
			for ; done < size || n < count; n++ {
				most := 400
				if length > 0 && c.rnd.IntN(32) != 0 {
					most = length
				}
				text := c.Text(1 + c.rnd.IntN(most))
				done += len(text)
				if _, _, ok := b.fast.Encode(text); !ok {
					left++
				}
				if d := b.differ(text); d != "" {
					t.Error(d)
					if bad++; bad > 10 {
						t.FailNow()
					}
				}
			}
			t.Logf("seed %d: %d texts of %d bytes, %d of them left to the reference", seed, n, done, left)
			if left > n*9/10 {
				t.Error("too few texts were compared")
			}
		})
	}
}

// fromEnv is a number of the environment, 0 where there is none.
func fromEnv(t *testing.T, name string) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
