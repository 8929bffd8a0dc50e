package bpe

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/daulet/tokenizers"

	_ "github.com/kvatlas/kvatlas/tokenpool/internal/link"

	"github.com/kvatlas/kvatlas/internal/must"
)

var rewrite = flag.Bool("rewrite", false, "write classes.txt anew")

// matches has the reference's expression engine say which characters match: it puts an x
// in the place of each.
func matches(t *testing.T, expression string) []bool {
	t.Helper()
	vocab := map[string]int{}
	for r, c := range &spelling {
		if c >= 0 {
			vocab[string(rune(r))] = int(c)
		}
	}
	type m = map[string]any
	data := must.Get(json.Marshal(m{
		"version": "1.0", "added_tokens": []any{},
		"normalizer":    m{"type": "Replace", "pattern": m{"Regex": expression}, "content": "x"},
		"pre_tokenizer": m{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		"model":         m{"type": "BPE", "vocab": vocab, "merges": []any{}},
	}))(t)
	tok := must.Get(tokenizers.FromBytes(data))(t)
	defer func() { _ = tok.Close() }()
	is := make([]bool, 0x110000)
	const part = 1 << 12
	for from := rune(1); from < 0x110000; from += part {
		var text strings.Builder
		var all []rune
		for r := from; r < min(from+part, 0x110000); r++ {
			if asked(r) {
				text.WriteRune(r)
				all = append(all, r)
			}
		}
		ids, _ := tok.Encode(text.String(), false)
		at := 0
		for _, r := range all {
			if n := utf8.RuneLen(r); at+n <= len(ids) && string(bytesOf(ids[at:at+n])) == string(r) && r != 'x' {
				at += n
				continue
			}
			if at >= len(ids) || ids[at] != 'x' {
				t.Fatalf("%s: lost at %U", expression, r)
			}
			is[r] = r != 'x' || expression == `\p{Ll}`
			at++
		}
	}
	return is
}

// asked leaves out most of the planes that are not assigned, where nothing is of a class.
func asked(r rune) bool {
	return utf8.ValidRune(r) && (r < 0x40000 || r>>16 == 0xe || r&0xff == 0)
}

func bytesOf(ids []uint32) []byte {
	b := make([]byte, len(ids))
	for i, id := range ids {
		b[i] = byte(id)
	}
	return b
}

// TestClasses compares the class of every character with what the reference's engine says.
func TestClasses(t *testing.T) {
	want := make([]class, 0x110000)
	for _, c := range []struct {
		expression string
		is         class
	}{
		{`[\p{Lu}\p{Lt}]`, upper},
		{`\p{Ll}`, lower},
		{`[\p{Lm}\p{Lo}]`, letter},
		{`\p{M}`, mark},
		{`\p{N}`, number},
		{`\p{P}`, punct},
		{`\p{S}`, symbol},
		{`\s`, space},
		{`\p{Han}`, han},
	} {
		for r, is := range matches(t, c.expression) {
			if is {
				want[r] |= c.is
			}
		}
	}
	if *rewrite {
		var b bytes.Buffer
		for r, c := range want {
			if r > 0 && c == want[r-1] {
				continue
			}
			fmt.Fprintf(&b, "%x %x\n", r, c)
		}
		must.OK(t, os.WriteFile("classes.txt", b.Bytes(), 0o644))
		t.Skip("classes.txt is written")
	}
	table := classes()
	n := 0
	for r, c := range want {
		if !asked(rune(r)) {
			continue
		}
		if got := table.of(rune(r)); got != c {
			t.Errorf("%U: class %x, want %x", r, got, c)
			if n++; n > 20 {
				t.FailNow()
			}
		}
		b := append([]byte(string(rune(r))), make([]byte, padding)...)
		if got, size := table.at(b, 0); got != c || size != utf8.RuneLen(rune(r)) {
			t.Fatalf("%U: class %x of %d bytes", r, got, size)
		}
	}
}
