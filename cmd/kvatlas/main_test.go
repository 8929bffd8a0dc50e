package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestMain is the program itself when the test binary is started with this
// variable, for what only a process of its own can show.
const runAsProgram = "KVATLAS_TEST_RUN_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(runAsProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must come. It is no measure.
const patience = 2 * time.Minute

// output is a buffer that can be read while it is written.
type output struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// call runs one command to its end.
func call(t *testing.T, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	p := &program{&cli.Program{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Name: "kvatlas"}}
	status = p.run(t.Context(), args)
	return status, out.String(), errs.String()
}

// running is kvatlas serve in this process.
type running struct {
	t              *testing.T
	url            string
	admin          string
	stdout, stderr *output
	stop           context.CancelFunc // what a signal does
	done           chan struct{}
	status         int // once done
}

// start starts kvatlas serve on a free port, with an empty environment and
// without a hub, and waits until it listens. A score takes as long as a busy machine needs.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{t: t, stdout: &output{}, stderr: &output{}, stop: stop, done: make(chan struct{})}
	p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: r.stdout, Stderr: r.stderr, Name: "kvatlas"}}
	base := []string{"serve", "--listen=127.0.0.1:0", "--log-format=json", "--log-level=info", "--hub-offline", "--hub-cache=" + t.TempDir(), "--drain-delay=0s", "--score-budget=5s"}
	go func() {
		defer close(r.done)
		r.status = p.run(ctx, append(base, args...))
	}()
	t.Cleanup(func() { r.end() })
	line := r.await(func() map[string]any { return r.logged("listening") })
	r.url = "http://" + line["address"].(string)
	if a := line["admin_address"].(string); a != "" {
		r.admin = "http://" + a
	}
	return r
}

// await polls until f gives something other than nil.
func (r *running) await(f func() map[string]any) map[string]any {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if v := f(); v != nil {
			return v
		}
		select {
		case <-r.done:
			if v := f(); v != nil {
				return v
			}
			r.t.Fatalf("kvatlas serve ended with %d\n%s%s", r.status, r.stdout, r.stderr)
		case <-time.After(5 * time.Millisecond):
		}
	}
	r.t.Fatalf("it did not come\n%s%s", r.stdout, r.stderr)
	return nil
}

// logged is the first log line with the message.
func (r *running) logged(message string) map[string]any {
	for line := range strings.Lines(r.stderr.String()) {
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) == nil && v["message"] == message {
			return v
		}
	}
	return nil
}

// awaitOutput waits until the text is on stdout.
func (r *running) awaitOutput(text string) {
	r.t.Helper()
	r.await(func() map[string]any {
		if strings.Contains(r.stdout.String(), text) {
			return map[string]any{}
		}
		return nil
	})
}

// end ends the server as a signal would and returns the exit status.
func (r *running) end() int {
	r.t.Helper()
	r.stop()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatalf("kvatlas serve does not end\n%s", r.stderr)
	}
	return r.status
}

func (r *running) client() *client.Client {
	r.t.Helper()
	c := must.Get(client.New(client.Config{URL: r.url, Timeout: 5 * time.Minute}))(r.t)
	r.t.Cleanup(c.Close)
	return c
}

// get fetches a page with a connection of its own.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	must.OK(t, err)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(b)
}

// tokenizers is a directory with the demo's tokenizer, which the module of the
// tokenizer library carries as test data.
func tokenizers(t *testing.T) string {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/daulet/tokenizers").Output()
	if err != nil {
		t.Fatalf("where is the module github.com/daulet/tokenizers: %v", err)
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, filepath.FromSlash(demo.Model))
	must.OK(t, os.MkdirAll(folder, 0o777))
	for from, to := range map[string]string{
		"Meta-Llama-3-8B-Instruct.json":                  "tokenizer.json",
		"meta-llama-3-8b-instruct/tokenizer_config.json": "tokenizer_config.json",
	} {
		must.OK(t, os.Symlink(filepath.Join(strings.TrimSpace(string(module)), "test", "data", from), filepath.Join(folder, to)))
	}
	return dir
}

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		{nil, 2, "", "kvatlas serve       answer over HTTP"},
		{[]string{"help"}, 0, "kvatlas serve       answer over HTTP", ""},
		{[]string{"--help"}, 0, "kvatlas serve       answer over HTTP", ""},
		{[]string{"version"}, 0, "kvatlas ", ""},
		{[]string{"version", "x"}, 2, "", "takes no arguments"},
		{[]string{"srve"}, 2, "", `"srve" is no command (did you mean serve?)`},
		{[]string{"unlike"}, 2, "", `kvatlas: "unlike" is no command` + "\n"},
		{[]string{"--listen=x", "serve"}, 2, "", `"--listen=x" comes before a command: flags stand behind it`},
		{[]string{"inspect", "evnts"}, 2, "", `kvatlas inspect: "evnts" is no command (did you mean events?)`},
		{[]string{"inspect", "help"}, 0, "kvatlas inspect events  print", ""},
		{[]string{"help", "inspect"}, 0, "kvatlas inspect events  print", ""},
		{[]string{"inspect"}, 2, "", "kvatlas inspect events  print"},
		{[]string{"doctor", "lmcahe"}, 2, "", `kvatlas doctor: "lmcahe" is no command (did you mean lmcache?)`},
		{[]string{"up", "--policy", "round-robin"}, 2, "", "(did you mean round_robin?)"},
		{[]string{"up", "--compare", "eta,dynamoo"}, 2, "", "(did you mean dynamo?)"},
		{[]string{"sim", "--engine", "vlm"}, 2, "", "--engine: \"vlm\" is not one of vllm, sglang, trtllm (did you mean vllm?)"},
		{[]string{"serve", "--roles", "scores"}, 2, "", "(did you mean score?)"},
		{[]string{"serve", "--strategy", "longest-prefix"}, 2, "", "(did you mean longest_prefix?)"},
		{[]string{"token", "--role", "wirte", "n"}, 2, "", "(did you mean write?)"},
		{[]string{"restore", "--mode", "replce", "f"}, 2, "", "(did you mean replace?)"},
		{[]string{"completion", "zhs"}, 2, "", "(did you mean zsh?)"},
		{[]string{"score", "--moodel", "m", "x"}, 2, "", "--moodel: no such flag (did you mean --model?)"},
		{[]string{"serve", "--help"}, 0, "--score-budget DURATION", ""},
		{[]string{"serve", "--lisen=x"}, 2, "", "--lisen: no such flag (did you mean --listen?)"},
		{[]string{"serve", "now"}, 2, "", `"now": it takes flags only`},
		{[]string{"serve", "--block-size=0", "--listen=x"}, 2, "", "--block-size: 0 is out of range"},
		{[]string{"serve", "--tokenizers=/nowhere", "--hub-cache=" + t.TempDir()}, 1, "", "tokenizers (from --tokenizers): tokenpool: tokenizer directory: stat /nowhere"},
		{[]string{"serve", "--demo", "--redis=redis://h"}, 2, "", "leave redis out"},
		{[]string{"serve", "--demo", "--tokenizers=" + t.TempDir(), "--hub-cache=" + t.TempDir()}, 1, "", "scripts/fetch-tokenizers.sh prepares"},
		{[]string{"serve", "--print-config", "--redis=redis://u:secret@h"}, 0, "redis: redis://u:***@h", ""},
	} {
		status, stdout, stderr := call(t, "", tc.args...)
		if status != tc.status || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) ||
			(tc.stdout == "") != (stdout == "") || (tc.stderr == "") != (stderr == "") {
			t.Errorf("%q: status %d, want %d\nstdout %.300s\nwant   %s\nstderr %.300s\nwant   %s", tc.args, status, tc.status, stdout, tc.stdout, stderr, tc.stderr)
		}
	}
}

func TestEnvironmentIsRead(t *testing.T) {
	var out, errs output
	p := &program{&cli.Program{Stdout: &out, Stderr: &errs, Env: []string{"KVATLAS_LISTEN=:1", "HF_TOKEN=hf_secret"}}}
	if status := p.run(t.Context(), []string{"serve", "--print-config"}); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, errs.String())
	}
	got := out.String()
	if !strings.Contains(got, "# KVATLAS_LISTEN\n") || !strings.Contains(got, "# HF_TOKEN\n") || strings.Contains(got, "hf_secret") {
		t.Errorf("got\n%s", got)
	}
}
