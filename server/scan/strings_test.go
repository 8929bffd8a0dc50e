package scan

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestEscapedStrings holds strings with escapes at all places to encoding/json, with a scanner
// that goes from text to text: what stands behind an escape is read 8 bytes at once.
func TestEscapedStrings(t *testing.T) {
	var s Scanner
	for n := range 40 {
		for at := range n + 1 {
			for _, escape := range []string{`\n`, `\"`, `\\`, `\u00e9`, `\ud83d\ude00`, "é", `\n\n`} {
				for _, behind := range []string{``, `\t`, "ü", "\x01", "\xff", `\x`, `\ud83d`} {
					plain := strings.Repeat("abcdefg ", 6)[:n]
					text := `"` + plain[:at] + escape + plain[at:] + behind + `"`
					var want string
					werr := json.Unmarshal([]byte(text), &want)
					if behind == "\xff" || behind == `\ud83d` {
						werr = ErrTooDeep // encoding/json puts U+FFFD there
					}
					s.Start([]byte(text+strings.Repeat(" ", at)), nil)
					got, err := s.StringBytes("a string")
					if (err == nil) != (werr == nil) || err == nil && string(got) != want {
						t.Fatalf("%q: %q, %v; want %q, %v", text, got, err, want, werr)
					}
					if s.Release(64); cap(s.plain) > 64 {
						t.Fatalf("keeps %d bytes", cap(s.plain))
					}
				}
			}
		}
	}
}

// TestReleaseLongPath has a scanner keep no room that the name of a field took, which may be as
// long as a body.
func TestReleaseLongPath(t *testing.T) {
	var s Scanner
	name := strings.Repeat("x", 1<<16)
	s.Start([]byte(`{"`+name+`":1}`), nil)
	read := func(path string) error {
		if path != name {
			t.Fatalf("the path has %d bytes", len(path))
		}
		_, err := s.Raw("a number")
		return err
	}
	if err := s.Members("an object", 1, read); err != nil || cap(s.path) < len(name) {
		t.Fatalf("room for a path of %d bytes: %v", cap(s.path), err)
	}
	if s.Release(64); cap(s.path) > 64 {
		t.Fatalf("keeps %d bytes", cap(s.path))
	}
}

// BenchmarkEscapedText reads a text of 1 MB in lines of code, of which every sixth byte is an
// escape, with a scanner that is used again.
func BenchmarkEscapedText(b *testing.B) {
	line := "\tif err := open(\"file\", \"r\"); err != nil {\n\t\treturn \"\", err\n\t}\n"
	body, err := json.Marshal(strings.Repeat(line, 1<<20/len(line)))
	if err != nil {
		b.Fatal(err)
	}
	var s Scanner
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		s.Start(body, nil)
		text, err := s.StringBytes("a string")
		if err != nil || !bytes.HasPrefix(text, []byte(line)) {
			b.Fatal(err)
		}
		s.Release(4 << 20)
	}
}
