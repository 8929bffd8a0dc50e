package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Recorded from go test -json (Go 1.26), with the times left out.
const (
	okPackage = `{"Action":"start","Package":"x/a"}
{"Action":"run","Package":"x/a","Test":"TestA"}
{"Action":"output","Package":"x/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"x/a","Test":"TestA","Output":"    a_test.go:5: noise\n"}
{"Action":"output","Package":"x/a","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"x/a","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"x/a","Output":"PASS\n"}
{"Action":"output","Package":"x/a","Output":"ok  \tx/a\t0.002s\n"}
{"Action":"pass","Package":"x/a","Elapsed":0.002}
`
	skippedTest = `{"Action":"output","Package":"x/b","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"x/b","Test":"TestB","Output":"    b_test.go:9: no redis-server\n"}
{"Action":"output","Package":"x/b","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"x/b","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"x/b","Output":"ok  \tx/b\t0.003s\n"}
{"Action":"pass","Package":"x/b","Elapsed":0.003}
`
	failedTest = `{"Action":"output","Package":"x/c","Test":"TestC","Output":"    c_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"x/c","Test":"TestC","Elapsed":0}
{"Action":"output","Package":"x/c","Output":"FAIL\tx/c\t0.004s\n"}
{"Action":"fail","Package":"x/c","Elapsed":0.004}
`
	timedOut = `{"Action":"output","Package":"x/d","Test":"TestD","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"x/d","Output":"FAIL\tx/d\t1.0s\n"}
{"Action":"fail","Package":"x/d","Elapsed":1}
`
	noTests = `{"Action":"output","Package":"x/e","Output":"?   \tx/e\t[no test files]\n"}
{"Action":"skip","Package":"x/e","Elapsed":0}
`
	broken = `{"ImportPath":"x/f [x/f.test]","Action":"build-output","Output":"f.go:3:1: syntax error\n"}
{"ImportPath":"x/f [x/f.test]","Action":"build-fail"}
{"Action":"output","Package":"x/f","Output":"FAIL\tx/f [build failed]\n"}
{"Action":"fail","Package":"x/f","Elapsed":0,"FailedBuild":"x/f [x/f.test]"}
`
)

func TestReport(t *testing.T) {
	tests := []struct {
		name      string
		in        string
		skipsFail bool
		ok        bool
		has       []string
		hasNot    []string
	}{
		{"pass", okPackage + noTests, true, true,
			[]string{"ok  \tx/a\t0.002s\n", "1 of 2 packages done, compiling\n", "2 of 2 packages done, all done\n", "1 packages ok, 1 without tests, 0 failed; 1 tests passed, 0 skipped"},
			[]string{"noise", "PASS"}},
		{"a skip is shown with its reason", okPackage + skippedTest, false, true,
			[]string{"skipped: x/b TestB: b_test.go:9: no redis-server\n", "1 skipped"}, nil},
		{"a skip fails where nothing may be skipped", okPackage + skippedTest, true, false,
			[]string{"skipped tests are failures here"}, nil},
		{"a failure shows the test's output", okPackage + failedTest, false, false,
			[]string{"c_test.go:7: got 1, want 2", "failed: x/c TestC: c_test.go:7: got 1, want 2\n", "failed: x/c\n", "FAIL\tx/c\t0.004s\n", "1 failed"}, []string{"noise"}},
		{"a test that never ends shows what it printed", timedOut, false, false,
			[]string{"panic: test timed out", "failed: x/d TestD: panic: test timed out after 1s\n", "failed: x/d\n"}, nil},
		{"a build failure", okPackage + broken, false, false,
			[]string{"f.go:3:1: syntax error", "failed: x/f [x/f.test] (build): f.go:3:1: syntax error\n", "1 failed"}, nil},
		{"nothing ran", noTests, false, false, []string{"no package with tests has run"}, nil},
		{"no input", "", false, false, []string{"no package with tests has run"}, nil},
		{"other lines pass through", "go: downloading x v1\n{not json\n" + okPackage, false, true,
			[]string{"go: downloading x v1\n", "{not json\n"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out, 2)
			if err := r.read(strings.NewReader(tt.in), nil); err != nil {
				t.Fatal(err)
			}
			if got := r.finish(tt.skipsFail); got != tt.ok {
				t.Errorf("finish = %v, want %v", got, tt.ok)
			}
			for _, s := range tt.has {
				if !strings.Contains(out.String(), s) {
					t.Errorf("output lacks %q:\n%s", s, out.String())
				}
			}
			for _, s := range tt.hasNot {
				if strings.Contains(out.String(), s) {
					t.Errorf("output has %q:\n%s", s, out.String())
				}
			}
		})
	}
}

// TestReportProgress checks that a run that goes on for long says what it is at.
func TestReportProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		r := newReport(&out, 3)
		in, events := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- r.read(in, time.Tick(30*time.Second)) }()
		if _, err := io.WriteString(events, okPackage+`{"Action":"start","Package":"x/slow"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if err := events.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"test: [ 30s] 1 of 3 packages done, testing x/slow\n",
			"test: [ 60s] 1 of 3 packages done, testing x/slow\n",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("output lacks %q:\n%s", want, out.String())
			}
		}
	})
}

// TestReportReadError checks that a broken pipe is not taken for the end of the run.
func TestReportReadError(t *testing.T) {
	r := newReport(io.Discard, 1)
	in, events := io.Pipe()
	go events.CloseWithError(io.ErrClosedPipe)
	if err := r.read(in, nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read = %v, want %v", err, io.ErrClosedPipe)
	}
}
