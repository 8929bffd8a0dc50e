package bpe

import (
	"os"
	"strconv"
	"testing"
)

// TestRandomTexts compares tokens and ends on texts of Corpus: a megabyte for each tokenizer,
// or as many bytes as KVATLAS_TEST_BYTES says, or as many texts as KVATLAS_TEST_TEXTS.
func TestRandomTexts(t *testing.T) {
	size, count := fromEnv(t, "KVATLAS_TEST_BYTES"), fromEnv(t, "KVATLAS_TEST_TEXTS")
	if size == 0 && count == 0 {
		size = 1 << 20
	}
	for _, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(os.Getpid())
			c := b.fast.NewCorpus(seed, b.ref.decode)
			n, done, bad, left := 0, 0, 0, 0
			for ; done < size || n < count; n++ {
				text := c.Text(1 + c.rnd.IntN(400))
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
