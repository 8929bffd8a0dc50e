package bpe

import (
	"os"
	"strconv"
	"testing"
)

// TestRandomTexts compares tokens and ends on texts of Corpus, of as many bytes for each
// tokenizer as KVATLAS_TEST_BYTES says.
func TestRandomTexts(t *testing.T) {
	size := 1 << 20
	if s := os.Getenv("KVATLAS_TEST_BYTES"); s != "" {
		var err error
		if size, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			seed := uint64(os.Getpid())
			c := b.fast.NewCorpus(seed, b.ref.decode)
			n, done, bad, left := 0, 0, 0, 0
			for ; done < size; n++ {
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
