package scan

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestEscapedStrings holds strings with escapes at all places to encoding/json, with a scanner that
// goes from text to text. What stands behind an escape is read 8 bytes at once.
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

// TestLongEscapedStrings holds strings of many blocks, with all that stops a copy at all places
// of them, to encoding/json.
func TestLongEscapedStrings(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pieces := []string{`\n`, `\"`, `\\`, `\/`, `\u00e9`, `\u2028`, `\ud83d\ude00`, "é", "\U0001F600", "x", "\x7f"}
	wrong := []string{"\x00", "\x1f", `\x`, `\u12g4`, `\ud83d`, `"`, "\xff", "\xc3"}
	var s Scanner
	for range 20_000 {
		var b strings.Builder
		b.WriteByte('"')
		for length := rng.IntN(300); b.Len() < length; {
			b.WriteString(pieces[rng.IntN(len(pieces))])
			b.WriteString(strings.Repeat("y", rng.IntN(1+rng.IntN(70))))
		}
		bad := ""
		if rng.IntN(4) == 0 {
			bad = wrong[rng.IntN(len(wrong))]
		}
		b.WriteString(bad)
		b.WriteString(strings.Repeat("z", rng.IntN(3)))
		text := b.String()
		if rng.IntN(20) > 0 {
			text += `"`
		}
		behind := strings.Repeat("é", rng.IntN(100))
		var want string
		dec := json.NewDecoder(strings.NewReader(text))
		werr := dec.Decode(&want)
		if bad == "\xff" || bad == "\xc3" || bad == `\ud83d` {
			werr = ErrTooDeep // encoding/json puts U+FFFD there
		}
		if werr != nil {
			behind = "" // else the string may go on
		}
		s.Start([]byte(text+behind), nil)
		got, err := s.StringBytes("a string")
		if (err == nil) != (werr == nil) || err == nil && (string(got) != want || s.pos != int(dec.InputOffset())) {
			t.Fatalf("%q: %q to %d, %v; want %q, %v", text, got, s.pos, err, want, werr)
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

// BenchmarkEscapedText reads texts of 1 MB with a scanner that is used again. They are lines of code,
// of which every sixth byte is an escape, lines of prose, and Chinese as Python writes it.
func BenchmarkEscapedText(b *testing.B) {
	line := "\tif err := open(\"file\", \"r\"); err != nil {\n\t\treturn \"\", err\n\t}\n"
	code := must.Get(json.Marshal(strings.Repeat(line, 1<<20/len(line))))(b)
	var lines []byte
	for rng := rand.New(rand.NewPCG(1, 2)); len(lines) < 1<<20; {
		lines = append(lines, "the quick brown fox jumps over a lazy dog while others compute what is known"[:20+rng.IntN(56)]...)
		lines = append(lines, '\n')
	}
	prose := must.Get(json.Marshal(string(lines)))(b)
	for name, body := range map[string][]byte{"code": code, "prose": prose, "unicode": []byte(`"` + strings.Repeat(`\u4f60\u597d`, 1<<20/12) + `"`)} {
		b.Run(name, func(b *testing.B) {
			var s Scanner
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			before := cputime.Process()
			for b.Loop() {
				s.Start(body, nil)
				must.Get(s.StringBytes("a string"))(b)
				s.Release(4 << 20)
			}
			b.ReportMetric(float64((cputime.Process()-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}
