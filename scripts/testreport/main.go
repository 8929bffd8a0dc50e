// Command testreport turns the output of go test -json back into what go test prints,
// with a count of what is done, and knows about skipped tests, which go test does
// not show without -v:
//
//	go test -json ./... | testreport -packages 14
//
// Packages' result lines ("ok  	path	0.1s") appear as they are and as they come, the
// output of a test only if it failed. The last line sums up. The status is 1 if
// anything failed, if nothing ran, or, with -skips-fail, if a test was skipped: on a
// machine that is meant to have everything, a skip is a test that silently never runs.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	packages := flag.Int("packages", 0, "number of packages that are tested, 0 if not known")
	skipsFail := flag.Bool("skips-fail", false, "a skipped test is a failure")
	flag.Parse()
	r := newReport(os.Stdout, *packages)
	if err := r.read(os.Stdin, time.Tick(30*time.Second)); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.finish(*skipsFail) {
		os.Exit(1)
	}
}

// event is a line of go test -json; see go doc cmd/test2json and go help buildjson.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// report folds events. Its output is written as the events come.
type report struct {
	out      io.Writer
	packages int       // expected, 0 if not known
	start    time.Time // of the report, for elapsed times

	outputs map[string]*strings.Builder // by package and test, of tests that are not done
	running []string                    // packages, in the order in which they began
	ok      int                         // packages
	empty   int                         // packages without tests
	failed  []string                    // tests and packages
	skipped []string                    // tests
	passed  int                         // tests, subtests included
}

func newReport(out io.Writer, packages int) *report {
	return &report{out: out, packages: packages, start: time.Now(), outputs: make(map[string]*strings.Builder)}
}

// read takes events until the end of in. Lines that are no events, such as what the go
// command says while it downloads, are passed through. At each tick it says how far the
// run is, since a package may take minutes.
func (r *report) read(in io.Reader, tick <-chan time.Time) error {
	lines, failed := make(chan string), make(chan error, 1)
	go func() {
		defer close(lines)
		br := bufio.NewReader(in)
		for {
			line, err := br.ReadString('\n')
			if line != "" {
				lines <- line
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					failed <- fmt.Errorf("reading events: %w", err)
				}
				return
			}
		}
	}()
	for {
		select {
		case line, more := <-lines:
			if !more {
				select {
				case err := <-failed:
					return err
				default:
					return nil
				}
			}
			r.line(line)
		case <-tick:
			r.progress()
		}
	}
}

func (r *report) line(line string) {
	var e event
	if line[0] != '{' || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(r.out, line)
		return
	}
	r.add(e)
}

// add folds one event.
func (r *report) add(e event) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "start":
		r.running = append(r.running, e.Package)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.failed = append(r.failed, e.ImportPath+" (build)")
	case "output":
		if e.Test == "" {
			r.packageOutput(e.Output)
			return
		}
		b := r.outputs[key]
		if b == nil {
			b = new(strings.Builder)
			r.outputs[key] = b
		}
		b.WriteString(e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.packageDone(e)
			return
		}
		r.testDone(e, r.outputs[key])
		delete(r.outputs, key)
	}
}

// packageOutput prints what a package prints outside of its tests. PASS and FAIL say
// nothing that the result line does not.
func (r *report) packageOutput(s string) {
	switch strings.TrimSpace(s) {
	case "PASS", "FAIL":
	default:
		fmt.Fprint(r.out, s)
	}
}

func (r *report) testDone(e event, output *strings.Builder) {
	name := e.Package + " " + e.Test
	text := ""
	if output != nil {
		text = output.String()
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, name+skipReason(text))
	case "fail":
		r.failed = append(r.failed, name)
		fmt.Fprint(r.out, text)
	}
}

// packageDone counts a package, and says after each how far the run is.
func (r *report) packageDone(e event) {
	r.running = slices.DeleteFunc(r.running, func(p string) bool { return p == e.Package })
	switch e.Action {
	case "pass":
		r.ok++
	case "skip":
		r.empty++
	case "fail":
		r.failed = append(r.failed, e.Package)
		// Whatever a test that never ended has printed is what there is to go by.
		for key, b := range r.outputs {
			if strings.HasPrefix(key, e.Package+"\x00") {
				fmt.Fprint(r.out, b.String())
				delete(r.outputs, key)
			}
		}
	}
	r.progress()
}

// progress says how far the run is, and what it is at.
func (r *report) progress() {
	of, at := "", "compiling"
	if r.packages > 0 {
		of = fmt.Sprintf(" of %d", r.packages)
	}
	done := r.ok + r.empty + r.failedPackages()
	switch {
	case len(r.running) > 0:
		at = "testing " + strings.Join(r.running, ", ")
	case done == r.packages:
		at = "all done"
	}
	fmt.Fprintf(r.out, "test: [%3.0fs] %d%s packages done, %s\n", time.Since(r.start).Seconds(), done, of, at)
}

// failedPackages counts the packages, not the tests, that have failed.
func (r *report) failedPackages() int {
	n := 0
	for _, f := range r.failed {
		if !strings.Contains(f, " ") {
			n++
		}
	}
	return n
}

// skipReason finds what t.Skip was given, in a skipped test's output:
// "    file_test.go:12: reason".
func skipReason(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		return ": " + line
	}
	return ""
}

// finish prints the sum and says whether all is well.
func (r *report) finish(skipsFail bool) bool {
	for _, s := range r.skipped {
		fmt.Fprintln(r.out, "skipped:", s)
	}
	for _, f := range r.failed {
		fmt.Fprintln(r.out, "failed:", f)
	}
	fmt.Fprintf(r.out, "test: %d packages ok, %d without tests, %d failed; %d tests passed, %d skipped; %.0f s\n",
		r.ok, r.empty, r.failedPackages(), r.passed, len(r.skipped), time.Since(r.start).Seconds())
	switch {
	case len(r.failed) > 0:
		return false
	case r.ok == 0:
		fmt.Fprintln(r.out, "test: no package with tests has run: that is a failure")
		return false
	case len(r.skipped) > 0 && skipsFail:
		fmt.Fprintln(r.out, "test: skipped tests are failures here")
		return false
	}
	return true
}
