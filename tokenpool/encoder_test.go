package tokenpool

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// moduleFile reads test data that the tokenizer library's module carries.
func moduleFile(t testing.TB, name string) []byte {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/daulet/tokenizers").Output()
	if err != nil {
		t.Fatalf("where is the module github.com/daulet/tokenizers: %v", err)
	}
	data := must.Get(os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "test", "data", name)))(t)
	return data
}

func TestPlain(t *testing.T) {
	for in, out := range map[string]string{
		`{"truncation":null,"padding":null,"model":{}}`:                                   `{"truncation":null,"padding":null,"model":{}}`,
		`{"truncation":{"max_length":3},"model":{}}`:                                      `{"truncation":null,"model":{}}`,
		` { "truncation" : {"max_length" : 3 } , "padding":{"a":[1,{}]}  ,"m":1} ` + "\n": ` { "truncation" : null , "padding":null  ,"m":1} ` + "\n",
		`{"model":{"vocab":{"padding":5,"truncation":{"x":1}}}}`:                          `{"model":{"vocab":{"padding":5,"truncation":{"x":1}}}}`,
		`{"model":{"vocab":{"\"padding\":":5}},"padding":"x","z":"<\u00e9é>"}`:            `{"model":{"vocab":{"\"padding\":":5}},"padding":null,"z":"<\u00e9é>"}`,
		`{}`: `{}`,
	} {
		got, err := plain([]byte(in))
		if err != nil || string(got) != out {
			t.Errorf("%s:\n got %s, %v\nwant %s", in, got, err, out)
		}
	}
	for _, in := range []string{``, `[]`, `null`, `"x"`, `<html>`, `{"padding":{}`, `{"padding":{},`, `{"padding":{},"x`} {
		if got, err := plain([]byte(in)); err == nil && json.Valid(got) {
			t.Errorf("%s is taken: %s", in, got)
		}
	}
}

// TestTruncationIsOff: this file says to cut at 256 tokens and to pad to a
// multiple of eight.
func TestTruncationIsOff(t *testing.T) {
	e := must.Get(newLibrary(moduleFile(t, "all-minilm-l6-v2.json"), false))(t)
	defer e.close()
	for _, n := range []int{1, 5, 1000} {
		ids, ends, err := tokenize(e, strings.Repeat("word ", n), true)
		if err != nil || len(ids) != n+2 || len(ends) != n+2 || ids[0] != 101 || ids[n+1] != 102 || slices.Contains(ids, 0) {
			t.Errorf("%d words: %d tokens, %v", n, len(ids), err)
		}
	}
}

// TestNoTokens tells texts that rightly have no tokens from failures, which the
// library reports in the same way.
func TestNoTokens(t *testing.T) {
	bert := must.Get(newLibrary(moduleFile(t, "bert-base-uncased.json"), false))(t)
	defer bert.close()
	for _, text := range []string{"", " ", " \t\n\r  ", "\u200b\u200d", "\x01\x02\x7f", "\ufffd", "\u0301", strings.Repeat(" ", 1<<20)} {
		ids, _, err := tokenize(bert, text, false)
		if err != nil || len(ids) != 0 {
			t.Errorf("%.20q: %v, %v", text, ids, err)
		}
		ids, ends, err := tokenize(bert, text, true)
		if err != nil || !slices.Equal(ids, []uint32{101, 102}) || !slices.Equal(ends, []int{0, 0}) {
			t.Errorf("%.20q with special tokens: %v, %v, %v", text, ids, ends, err)
		}
	}

	// A tokenizer without special tokens around texts, that knows two words
	// and strips the rest off.
	strips := `{"version":"1.0","added_tokens":[],"normalizer":{"type":"Replace","pattern":{"Regex":"[^a-z ]"},"content":""},
		"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,
		"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}`
	e := must.Get(newLibrary([]byte(strips), false))(t)
	defer e.close()
	for text, n := range map[string]int{"": 0, "123": 0, "   ": 0, "a b x": 3} {
		for _, special := range []bool{false, true} {
			if ids, _, err := tokenize(e, text, special); err != nil || len(ids) != n {
				t.Errorf("%q: %v, %v", text, ids, err)
			}
		}
	}

	// This one fails on every word it does not know: its unknown token is not
	// in its vocabulary.
	broken := must.Get(newLibrary(moduleFile(t, "sentence-transformers-labse.json"), false))(t)
	defer broken.close()
	for _, special := range []bool{false, true} {
		if ids, _, err := tokenize(broken, "hello world", special); !errors.Is(err, ErrTokenizer) {
			t.Errorf("a failure: %v, %v", ids, err)
		}
	}
}

func TestUnreadable(t *testing.T) {
	for _, data := range []string{``, `{}`, `{"model":{"type":"none"}}`, `<html>`} {
		if _, err := newLibrary([]byte(data), false); err == nil {
			t.Errorf("%s is read", data)
		}
	}
}
