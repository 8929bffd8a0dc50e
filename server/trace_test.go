package server_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

var rewrite = flag.Bool("rewrite", false, "write what the server answers into testdata/traces")

// stages are a part of an answer that no two runs share.
var stages = regexp.MustCompile(`("stages_us":\{)[^}]*\}`)

// renderIDs are the other one.
var renderIDs = regexp.MustCompile(`("request_id":"(?:cmpl-|chatcmpl-|resp_))[0-9a-f]+`)

// runTrace sends the requests of a trace file to a fresh server over index and
// returns the file with the answers that came. A file holds entries: a line
// METHOD PATH, the body, a line ----, the answer's status and headers of
// interest, its body, an empty line. Lines with # before an entry are comments.
func runTrace(t *testing.T, file string, index store.Index) (got, want string) {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	s := newServer(t, index)
	var out strings.Builder
	for entry := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		for strings.HasPrefix(entry, "#") {
			comment, rest, _ := strings.Cut(entry, "\n")
			out.WriteString(comment + "\n")
			entry = rest
		}
		request, _, _ := strings.Cut(entry, "\n----")
		line, body, _ := strings.Cut(request, "\n")
		method, path, ok := strings.Cut(line, " ")
		if !ok {
			t.Fatalf("%s: %q is no METHOD PATH", file, line)
		}
		w := s.do(method, path, strings.NewReader(body))
		out.WriteString(request + "\n----\n" + strconv.Itoa(w.Code))
		for _, h := range []string{"Allow", "Retry-After"} {
			if v := w.Header().Get(h); v != "" {
				out.WriteString(" " + h + ": " + v)
			}
		}
		out.WriteString("\n" + renderIDs.ReplaceAllString(stages.ReplaceAllString(w.Body.String(), "$1}"), "${1}ID") + "\n")
		if n := w.Header().Get("Content-Length"); n != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%s: Content-Length is %s of %d bytes", line, n, w.Body.Len())
		}
		if ct := w.Header().Get("Content-Type"); ct != "application/json" {
			t.Errorf("%s: Content-Type is %s", line, ct)
		}
		if w.Header().Get("X-Request-Id") == "" {
			t.Errorf("%s: no request id", line)
		}
	}
	return strings.TrimSpace(out.String()) + "\n", string(text)
}

// eachTrace runs check for each trace file.
func eachTrace(t *testing.T, check func(t *testing.T, file string)) {
	t.Helper()
	files, err := filepath.Glob("testdata/traces/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no traces", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { check(t, file) })
	}
}

// TestTraces holds the answers against those in testdata, byte for byte.
func TestTraces(t *testing.T) {
	eachTrace(t, func(t *testing.T, file string) {
		got, want := runTrace(t, file, openIndex(t))
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // test data is for all to read
				t.Fatal(err)
			}
			return
		}
		if got != want {
			t.Errorf("answers differ from %s (see -rewrite):\n%s", file, diff(want, got))
		}
	})
}

// TestTracesRedis holds the answers of a server over Redis against the same
// files: they must be the bytes that the index in memory gives.
func TestTracesRedis(t *testing.T) {
	rs := redistest.Start(t)
	eachTrace(t, func(t *testing.T, file string) {
		index := must.Get(redis.Open(redis.Config{URL: rs.URL(), Prefix: strings.TrimSuffix(filepath.Base(file), ".txt"), Timeout: time.Minute}))(t)
		must.End(t, index.Close)
		if got, want := runTrace(t, file, index); got != want {
			t.Errorf("Redis answers otherwise than memory:\n%s", diff(want, got))
		}
	})
}

// diff shows the first line that differs.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return "line " + strconv.Itoa(i+1) + "\n want " + w[i] + "\n got  " + g[i]
		}
	}
	return "one ends after the other: " + strconv.Itoa(len(w)) + " and " + strconv.Itoa(len(g)) + " lines"
}
