package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSums holds the lines that sum up what go test -json (Go 1.26, with -race) printed
// of tests that fail in each way there is.
func TestSums(t *testing.T) {
	for name, want := range map[string]string{
		"failures": `
failed: example.org/j TestA: a_test.go:3: hello
        a_test.go:3: first / second line
        a_test.go:3: again
failed: example.org/j TestSub/x: a_test.go:4: l
        a_test.go:4: sub fails
failed: example.org/j TestRace: WARNING: DATA RACE, read in j.TestRace.func1 a_test.go:5, previous write in j.TestRace.func2 a_test.go:5
        testing.go:1712: race detected during execution of test
failed: example.org/j
`,
		"panic": `
failed: example.org/j TestPanic/deep
failed: example.org/j TestPanic: panic: oh no [recovered, repanicked], in j.TestPanic.func1 a_test.go:7
        a_test.go:7: log
failed: example.org/j
`,
		"goroutine": `
failed: example.org/j TestExit: panic: in goroutine, in j.TestExit.func1 a_test.go:8
failed: example.org/j
`,
		"exit": `
failed: example.org/j TestOS: bye
failed: example.org/j
`,
		"fatal": `
failed: example.org/j TestConc: WARNING: DATA RACE, write in j.TestConc.func1 a_test.go:12, previous write in j.TestConc.func1 a_test.go:12
        fatal error: concurrent map writes, in j.TestConc.func1 a_test.go:12
failed: example.org/j
`,
		"timeout": `
failed: example.org/j TestHang/sub: panic: test timed out after 1s / running tests: / TestHang (1s) / TestHang/sub (1s), in j.wait a_test.go:11 < j.TestHang.func1 a_test.go:10
failed: example.org/j
`,
		"leak": `
failed: example.org/leak: goleak: Errors on successful test run: found unexpected goroutines: Goroutine 8 in state select (no cases), with example.org/leak.TestLeaves.func1 on top of the stack, in leak.TestLeaves.func1 leak_test.go:13
`,
	} {
		t.Run(name, func(t *testing.T) {
			in, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			r := newReport(&out, 1)
			if err := r.read(bytes.NewReader(in), nil); err != nil {
				t.Fatal(err)
			}
			if r.finish(false) {
				t.Error("all is well")
			}
			_, sum, _ := strings.Cut(out.String(), "\nfailed: ")
			got, _, _ := strings.Cut("\nfailed: "+sum, "test: 0 packages ok")
			if got != want {
				t.Errorf("got%swant%s", got, want)
			}
		})
	}
}

// TestSumIsShort: however much fails and whatever it prints, the sum is short, and so is
// what is shown of each.
func TestSumIsShort(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, 300)
	const size = 1 << 20
	long := strings.Repeat("x", size/100)
	for i := range 300 {
		pkg := fmt.Sprintf("x/%03d", i)
		r.add(event{Action: "start", Package: pkg})
		r.add(event{Action: "skip", Package: pkg, Test: "TestS"})
		r.add(event{Action: "output", Package: pkg, Test: "TestT", Output: "    x_test.go:1: one\n"})
		for n := range 100 {
			if i < 3 {
				r.add(event{Action: "output", Package: pkg, Test: "TestT", Output: fmt.Sprintf("    x_test.go:%d: %s\n", n+2, long)})
			}
		}
		r.add(event{Action: "fail", Package: pkg, Test: "TestT"})
		r.add(event{Action: "fail", Package: pkg})
	}
	if got := out.Len(); got > 3*(2*excerptBytes+1000)+300*200 {
		t.Errorf("%d bytes are shown", got)
	}
	if !strings.Contains(out.String(), " bytes are left out ...\n") {
		t.Error("it is not said that something is left out")
	}
	out.Reset()
	if r.finish(true) {
		t.Error("all is well")
	}
	sum := strings.Split(out.String(), "\n")
	if len(sum) > 95 {
		t.Errorf("%d lines", len(sum))
	}
	if i := slices.IndexFunc(sum, func(s string) bool { return len(s) > messageBytes+100 }); i >= 0 {
		t.Errorf("a line has %d bytes", len(sum[i]))
	}
	for _, want := range []string{
		"skipped: x/014 TestS", "skipped: and 285 more", "failed: x/000 TestT: x_test.go:1: one", "        (97 more messages)",
		"failed: x/024 TestT: x_test.go:1: one", "failed: x/024", "failed: and 550 more, which are named above",
	} {
		if !slices.Contains(sum, want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

// TestUnfinished: a go command that is ended in the middle has not tested everything.
func TestUnfinished(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, 2)
	r.add(event{Action: "start", Package: "x/a"})
	r.add(event{Action: "pass", Package: "x/a"})
	r.add(event{Action: "start", Package: "x/b"})
	r.add(event{Action: "output", Package: "x/b", Test: "TestB", Output: "    b_test.go:1: at work"})
	if r.finish(false) {
		t.Error("all is well")
	}
	for _, want := range []string{"failed: x/b TestB: b_test.go:1: at work\n", "failed: x/b\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestCausePieces: go test cuts long lines into pieces.
func TestCausePieces(t *testing.T) {
	text := "=== RUN   TestX\n    x_test.go:9: got\n        1\n        want 2\nlog line\n    x_test.go:10: " + strings.Repeat("y", 3*messageBytes) + "\n--- FAIL: TestX (0.00s)\n"
	var want []string
	for size := 1; size < 100; size++ {
		var c cause
		for piece := range slices.Chunk([]byte(text), size) {
			c.write(string(piece))
		}
		if got := c.lines(); want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d bytes: %q", size, got)
		}
	}
	if len(want) != 2 || want[0] != "x_test.go:9: got / 1 / want 2" || len(want[1]) != messageBytes+3 {
		t.Errorf("got %q", want)
	}
}

func TestExcerpt(t *testing.T) {
	for _, n := range []int{0, 1, 100, excerptBytes / 10, 2 * excerptBytes / 10, 2*excerptBytes/10 + 1, 10 * excerptBytes} {
		var e excerpt
		var all, out strings.Builder
		for i := range n {
			line := fmt.Sprintf("%08d\n", i) // 9 bytes, so that lines are cut
			e.write(line)
			all.WriteString(line)
		}
		if len(e.tail) > 2*excerptBytes {
			t.Errorf("%d lines: %d bytes are kept", n, len(e.tail))
		}
		e.print(&out)
		head, tail, cut := strings.Cut(out.String(), "    ... ")
		if !cut {
			if out.String() != all.String() {
				t.Errorf("%d lines: got %d bytes, want %d", n, out.Len(), all.Len())
			}
			continue
		}
		var left int
		note, tail, _ := strings.Cut(tail, "\n")
		if _, err := fmt.Sscanf(note, "%d bytes are left out ...", &left); err != nil {
			t.Fatal(err)
		}
		if len(head) < excerptBytes-9 || len(tail) < excerptBytes-9 || len(head)+left+len(tail) != all.Len() ||
			!strings.HasPrefix(all.String(), head) || !strings.HasSuffix(all.String(), tail) || len(head)%9+len(tail)%9 != 0 {
			t.Errorf("%d lines: %d and %d bytes, %d left out", n, len(head), len(tail), left)
		}
	}
	// One line without an end.
	var e excerpt
	var out strings.Builder
	e.write(strings.Repeat("z", 100*excerptBytes))
	e.print(&out)
	if out.Len() > 2*excerptBytes+100 || !strings.HasSuffix(out.String(), "z\n") || !strings.Contains(out.String(), "z\n    ... ") {
		t.Errorf("%d bytes", out.Len())
	}
}
