// Command testreport turns the output of go test -json back into what go test prints,
// with a count of what is done, and knows about skipped tests, which go test does
// not show without -v:
//
//	go test -json ./... | testreport -packages 14
//
// Packages' result lines ("ok  	path	0.1s") appear as they are and as they come, the
// output of a test only if it failed, and of one that is long the beginning and the end.
// The last lines sum up, and say of each failure where it is and what was said first, since
// of a long run the end is often all that is kept:
//
//	failed: path TestName: name_test.go:95: got 1, want 2
//
// The status is 1 if anything failed, if nothing ran, or, with -skips-fail, if a test was
// skipped: on a machine that is meant to have everything, a skip is a test that silently
// never runs.
package main

import (
	"flag"
	"fmt"
	"os"
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
