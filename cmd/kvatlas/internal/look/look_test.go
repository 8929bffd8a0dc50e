package look

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
)

// look runs a command at a server that answers so.
func look(t *testing.T, name string, status int, answer string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	var out, errs bytes.Buffer
	p := &cli.Program{Stdout: &out, Stderr: &errs}
	for _, c := range Commands(p) {
		if c.Name == name {
			exit = c.Run(context.Background(), append(args, "--server", s.URL))
		}
	}
	return exit, out.String(), errs.String()
}

// JSON of something else than kvatlas is no empty server.
func TestAnswersOfOthers(t *testing.T) {
	for _, c := range []struct {
		status int
		answer string
	}{
		{200, `{}`}, {200, `null`}, {200, `[]`}, {200, `"pods"`}, {200, `{"object":"list","data":[{"id":"m"}]}`},
		{200, `{"pods":null,"models":null}`}, {204, ``}, {200, `{"pods":7,"models":7}`},
	} {
		for _, name := range []string{"pods", "models", "loads", "prefixes"} {
			for _, args := range [][]string{nil, {"--json"}} {
				if c.answer == `{"pods":7,"models":7}` && args != nil {
					continue // written as it is
				}
				exit, stdout, stderr := look(t, name, c.status, c.answer, args...)
				if exit != cli.ExitFailed || stdout != "" || !strings.Contains(stderr, "answer of") {
					t.Errorf("%s %v of %d %s: ends with %d\n%s%s", name, args, c.status, c.answer, exit, stdout, stderr)
				}
			}
		}
	}
	for name, answer := range map[string]string{"pods": `{"pods":[]}`, "models": `{"models":[],"tokenizers":[]}`, "loads": `{"models":{}}`, "prefixes": `{"models":{"m":{"prefixes":[]}}}`} {
		if exit, stdout, stderr := look(t, name, 200, answer); exit != cli.ExitOK || !strings.HasPrefix(stdout, "no "+name+": ") || strings.Count(stdout, "\n") != 1 || stderr != "" {
			t.Errorf("%s of an empty server: ends with %d\n%s%s", name, exit, stdout, stderr)
		}
	}
}

// What is said of a pod is shown without what would steer the terminal, and a lease only if it is one.
func TestOddPods(t *testing.T) {
	for lease, want := range map[string]string{"1e300": "-", "-5": "-", "9223372037": "-", "0": "until deleted", "90.5": "1m30.5s", "31536000": "8760h0m0s"} {
		exit, stdout, stderr := look(t, "pods", 200, fmt.Sprintf(`{"pods":[{"name":"a\u202eb","model":"m","lease_s":%s}]}`, lease))
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if exit != cli.ExitOK || stderr != "" || len(lines) != 2 || !strings.HasPrefix(lines[1], "a?b ") || !strings.HasSuffix(lines[1], "  "+want) {
			t.Errorf("a lease of %s: ends with %d\n%s%s", lease, exit, stdout, stderr)
		}
	}
}

// A prefix has its holders beside it; what is not known is a dash.
func TestPrefixes(t *testing.T) {
	const answer = `{"models":{"m":{"requests":4,"block_size":16,"prefixes":[
		{"key":"445502a8048d6688","blocks":2,"tokens":32,"requests":3.25,"share":0.75,"missed":1,"sent":[],"held_by":[{"pod":"a","rank":0,"tier":"gpu"},{"pod":"b","rank":1,"tier":"cpu"}],"copies":3,"should_hold":[{"pod":"c","rank":0}]},
		{"key":"0000000000000001","blocks":1,"tokens":16,"requests":1,"share":0.25,"missed":0,"sent":[],"copies":1}]},"other":{"prefixes":[{"key":"2"}]}}}`
	const want = `MODEL  KEY               TOKENS  REQUESTS  SHARE  MISSED  HOLD                    SHOULD HOLD
m      445502a8048d6688  32      3.2       75%    1.0     a#0 (gpu), b#1 (cpu)    c#0
m      0000000000000001  16      1.0       25%    0.0     -                       -
`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if exit, stdout, stderr := look(t, "prefixes", 200, answer, "--model=m"); exit != cli.ExitOK || squeeze(stdout) != squeeze(want) || stderr != "" {
		t.Errorf("ends with %d\n%s%s", exit, stdout, stderr)
	}
	if _, stdout, _ := look(t, "prefixes", 200, answer, "--model=n"); !strings.HasPrefix(stdout, "no prefixes of model n: ") {
		t.Error(stdout)
	}
}
