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
		for _, name := range []string{"pods", "models", "loads"} {
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
	for name, answer := range map[string]string{"pods": `{"pods":[]}`, "models": `{"models":[],"tokenizers":[]}`, "loads": `{"models":{}}`} {
		if exit, stdout, stderr := look(t, name, 200, answer); exit != cli.ExitOK || stdout != "no "+name+"\n" || stderr != "" {
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
