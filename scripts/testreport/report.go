package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Bounds of the sum, which is to fit into the last hundred lines of a log.
const (
	sumFailures = 50 // failures that are named
	sumLines    = 75 // of them and their further messages
	sumSkipped  = 15 // skipped tests that are named where others failed
)

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

	outputs  map[string]*output // by package and test, of what is not done; of builds by import path
	running  []string           // packages, in the order in which they began
	ok       int                // packages
	empty    int                // packages without tests
	broken   int                // packages that failed
	failures []failure          // of tests, packages and builds
	skipped  []string           // tests
	passed   int                // tests, subtests included
}

// output is what a test has printed, or a package outside of its tests.
type output struct {
	excerpt
	cause
}

func (o *output) write(s string) {
	o.excerpt.write(s)
	o.cause.write(s)
}

// failure is one of a test, or of a package if test is empty.
type failure struct {
	path, test string
	cause      *cause
}

func (f failure) String() string {
	if f.test == "" {
		return f.path
	}
	return f.path + " " + f.test
}

func newReport(out io.Writer, packages int) *report {
	return &report{out: out, packages: packages, start: time.Now(), outputs: make(map[string]*output)}
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
		if !strings.HasPrefix(e.Output, "# ") { // which names the package
			r.output(e.ImportPath).cause.write(e.Output)
		}
	case "build-fail":
		r.fail(failure{path: e.ImportPath, test: "(build)", cause: &r.output(e.ImportPath).cause})
	case "output":
		r.output(key).write(e.Output)
	case "pass", "skip", "fail":
		o := r.output(key)
		delete(r.outputs, key)
		if e.Test == "" {
			r.packageDone(e, o)
		} else {
			r.testDone(e, o)
		}
	}
}

// output is what is kept of the output under a key.
func (r *report) output(key string) *output {
	o := r.outputs[key]
	if o == nil {
		o = new(output)
		r.outputs[key] = o
	}
	return o
}

func (r *report) fail(f failure) { r.failures = append(r.failures, f) }

func (r *report) testDone(e event, o *output) {
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		reason := ""
		if lines := o.cause.lines(); len(lines) > 0 {
			reason = ": " + lines[len(lines)-1] // t.Skip ends the test
		}
		r.skipped = append(r.skipped, e.Package+" "+e.Test+reason)
	case "fail":
		r.fail(failure{e.Package, e.Test, &o.cause})
		o.print(r.out)
	}
}

// packageDone counts a package, and says after each how far the run is.
func (r *report) packageDone(e event, o *output) {
	r.running = slices.DeleteFunc(r.running, func(p string) bool { return p == e.Package })
	if e.Action == "fail" {
		r.unfinished(e.Package)
	}
	o.print(resultsOnly{r.out})
	switch e.Action {
	case "pass":
		r.ok++
	case "skip":
		r.empty++
	case "fail":
		r.broken++
		r.fail(failure{e.Package, "", &o.cause})
	}
	r.progress()
}

// unfinished takes the tests of a package for failed that have begun and not ended:
// whatever they have printed is what there is to go by. One that crashed is to blame for
// the others.
func (r *report) unfinished(path string) {
	var all, crashed []failure
	for _, key := range slices.Sorted(maps.Keys(r.outputs)) {
		test, of := strings.CutPrefix(key, path+"\x00")
		if !of || test == "" {
			continue
		}
		o := r.outputs[key]
		delete(r.outputs, key)
		o.print(r.out)
		f := failure{path, test, &o.cause}
		all = append(all, f)
		if o.cause.end(); len(o.cause.crashes) > 0 {
			crashed = append(crashed, f)
		}
	}
	if len(crashed) > 0 {
		all = crashed
	}
	r.failures = append(r.failures, all...)
}

// resultsOnly leaves out lines that say nothing that a package's result line does not.
type resultsOnly struct{ out io.Writer }

func (w resultsOnly) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		switch strings.TrimSpace(line) {
		case "PASS", "FAIL":
			continue
		}
		if _, err := io.WriteString(w.out, line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// progress says how far the run is, and what it is at.
func (r *report) progress() {
	of, at := "", "compiling"
	if r.packages > 0 {
		of = fmt.Sprintf(" of %d", r.packages)
	}
	done := r.ok + r.empty + r.broken
	switch {
	case len(r.running) > 0:
		at = "testing " + strings.Join(r.running, ", ")
	case done == r.packages:
		at = "all done"
	}
	fmt.Fprintf(r.out, "test: [%3.0fs] %d%s packages done, %s\n", time.Since(r.start).Seconds(), done, of, at)
}

// finish prints the sum and says whether all is well.
func (r *report) finish(skipsFail bool) bool {
	for _, path := range slices.Clone(r.running) { // the go command was ended
		o := r.output(path + "\x00")
		o.write("it had not ended when the output of go test did\n")
		r.packageDone(event{Action: "fail", Package: path}, o)
	}
	r.sumSkipped()
	r.sumFailures()
	fmt.Fprintf(r.out, "test: %d packages ok, %d without tests, %d failed; %d tests passed, %d skipped; %.0f s\n",
		r.ok, r.empty, r.broken, r.passed, len(r.skipped), time.Since(r.start).Seconds())
	switch {
	case len(r.failures) > 0:
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

func (r *report) sumSkipped() {
	for i, s := range r.skipped {
		if i == sumSkipped && len(r.failures) > 0 {
			fmt.Fprintf(r.out, "skipped: and %d more\n", len(r.skipped)-i)
			return
		}
		fmt.Fprintln(r.out, "skipped:", s)
	}
}

// sumFailures names the failures, each with its first line, and with what more there is
// to say while there is room.
func (r *report) sumFailures() {
	failures := slices.DeleteFunc(slices.Clone(r.failures), r.saidByOthers)
	room := sumLines - min(len(failures), sumFailures)
	for i, f := range failures {
		if i == sumFailures {
			fmt.Fprintf(r.out, "failed: and %d more, which are named above\n", len(failures)-i)
			return
		}
		lines := f.cause.lines()
		if f.test == "" && r.failedTests(f.path, "") && len(f.cause.crashes) == 0 {
			lines = nil // its tests say why
		}
		if len(lines) == 0 {
			fmt.Fprintf(r.out, "failed: %v\n", f)
			continue
		}
		fmt.Fprintf(r.out, "failed: %v: %s\n", f, lines[0])
		more := lines[1:]
		more = more[:min(len(more), room)]
		room -= len(more)
		for _, line := range more {
			fmt.Fprintln(r.out, "       ", line)
		}
	}
}

// saidByOthers says whether a test failed for no other reason than its subtests.
func (r *report) saidByOthers(f failure) bool {
	return f.test != "" && !f.cause.told() && r.failedTests(f.path, f.test+"/")
}

// failedTests says whether tests of a package failed whose name begins so.
func (r *report) failedTests(path, prefix string) bool {
	return slices.ContainsFunc(r.failures, func(f failure) bool {
		return f.path == path && f.test != "" && strings.HasPrefix(f.test, prefix)
	})
}
