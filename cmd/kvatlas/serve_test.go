package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// tokens are n token ids.
func tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i) * 7919 % 128000
	}
	return out
}

func TestServe(t *testing.T) {
	r := start(t, "--block-size=16", "--max-body-bytes=2MiB", "--strategy=coverage", "--tier-weights=cpu=0.25", "--usage-window=1h")
	c := r.client()
	ctx := t.Context()
	for i, n := range []int{64, 40} {
		must.OK(t, c.RegisterPod(ctx, client.Pod{Name: fmt.Sprintf("p%d", i), Model: "m"}))
		must.Get(c.Blocks(ctx, client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: fmt.Sprintf("p%d", i), Tier: []string{"gpu", "cpu"}[i], Tokens: tokens(n)}))(t)
	}
	var resp *client.ScoreResponse
	for range 2 {
		var err error
		if resp, err = c.Score(ctx, client.ScoreRequest{Model: "m", Tokens: tokens(70)}); err != nil {
			t.Fatal(err)
		}
	}
	// The settings are in force: 16 tokens a block, coverage with a weight of
	// 0.25, counted uses.
	if resp.Blocks != (client.BlockCount{Total: 4, Size: 16}) || resp.Scores["p0"] != 4 || resp.Scores["p1"] != 0.5 || resp.Best != "p0" || len(resp.Frequencies) != 4 {
		t.Errorf("got %+v", resp)
	}
	_, err := c.Score(ctx, client.ScoreRequest{Model: "m", CacheSalt: strings.Repeat("x", 2<<20)})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("max-body-bytes is not in force: %v", err)
	}
	if status, body := get(t, r.url+"/metrics"); status != 200 || !strings.Contains(body, "kvatlas_tokenizer_answers_none_total") || !strings.Contains(body, "kvatlas_prefix_store_") {
		t.Errorf("metrics: %d\n%s", status, body)
	}
	if h, err := c.Health(ctx); err != nil || h.Backend != "memory" || h.Version != versionWord() {
		t.Errorf("got %+v, %v", h, err)
	}
	if err := c.Ready(ctx); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
}

func TestAdminListener(t *testing.T) {
	r := start(t, "--admin-listen=127.0.0.1:0")
	for path, want := range map[string][2]int{"/metrics": {404, 200}, "/healthz": {200, 200}, "/readyz": {200, 200}, "/v1/pods": {200, 404}} {
		api, _ := get(t, r.url+path)
		admin, _ := get(t, r.admin+path)
		if got := [2]int{api, admin}; got != want {
			t.Errorf("%s: got %v of API and admin, want %v", path, got, want)
		}
	}
	// A name that needs escapes reaches the API whole.
	name := "a//b/../c"
	c := r.client()
	must.OK(t, c.RegisterPod(t.Context(), client.Pod{Name: name, Model: "m"}))
	if p, err := c.Pod(t.Context(), name); err != nil || p.Name != name {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestPortIsTaken(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	taken := l.Addr().String()
	for _, args := range [][]string{{"--listen=" + taken}, {"--listen=127.0.0.1:0", "--admin-listen=" + taken}} {
		status, _, stderr := call(t, "", append([]string{"serve", "--hub-offline", "--hub-cache=" + t.TempDir()}, args...)...)
		flag, _, _ := strings.Cut(args[len(args)-1], "=")
		if want := "something else listens on " + taken + " already: stop it, or choose another address with " + flag; status != cli.ExitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%v: ends with %d\n%s\nwant %s", args, status, stderr, want)
		}
	}
}

// A request that is on its way when the signal comes is answered. In the drain delay
// new ones are too, while /readyz turns load balancers away.
func TestDrain(t *testing.T) {
	r := start(t, "--drain-delay=3s", "--drain-timeout=1m", "--request-timeout=1m")
	finish, answered := slowRequest(t, r.url)

	r.stop()
	r.await(func() map[string]any { return r.logged("draining") })
	if status, body := get(t, r.url+"/readyz"); status != 503 || !strings.Contains(body, "draining") {
		t.Errorf("/readyz while draining: %d %s", status, body)
	}
	if status, _ := get(t, r.url+"/v1/pods"); status != 200 {
		t.Errorf("a request within the delay: %d", status)
	}
	r.await(func() map[string]any { // the listener is closed at the end of the delay
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			return map[string]any{}
		}
		_ = conn.Close()
		return nil
	})
	select {
	case <-r.done:
		t.Fatal("it did not wait for the request under way")
	default:
	}
	finish()
	if got := <-answered; got != "200 OK" {
		t.Errorf("the request under way got %q", got)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
	if r.logged("drained") == nil {
		t.Errorf("no line of the drain's end\n%s", r.stderr)
	}
}

func TestDrainTimeout(t *testing.T) {
	r := start(t, "--drain-timeout=50ms")
	finish, answered := slowRequest(t, r.url)
	if status := r.end(); status != cli.ExitFailed || !strings.Contains(r.stderr.String(), errCutOff.Error()) {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
	finish()
	if got := <-answered; strings.HasPrefix(got, "200") {
		t.Errorf("the request that was cut off got %q", got)
	}
}

// slowRequest sends the first half of a request and waits until the server
// works on it. Func finish sends the rest; answered then gives the status, or
// the error.
func slowRequest(t *testing.T, url string) (finish func(), answered <-chan string) {
	t.Helper()
	const body = `{"model":"m","tokens":[1]}`
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	// The server asks for the body when it reads it.
	fmt.Fprintf(conn, "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	answer := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	if _, err := io.ReadFull(conn, answer); err != nil || !strings.Contains(string(answer), "100 Continue") {
		t.Fatalf("%q, %v", answer, err)
	}
	_, _ = io.WriteString(conn, body[:10])
	out := make(chan string, 1)
	go func() {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			out <- err.Error()
			return
		}
		_ = resp.Body.Close()
		out <- resp.Status
	}()
	return func() { _, _ = io.WriteString(conn, body[10:]) }, out
}

// With Redis down the service starts, and answers degraded; it is ready unless
// that is to be strict.
func TestRedisIsDown(t *testing.T) {
	url := fmt.Sprintf("--redis=redis://127.0.0.1:%d", redistest.FreePort(t))
	r := start(t, url)
	c := r.client()
	resp, err := c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens(100)})
	if err != nil || resp.Degraded == nil || !strings.HasPrefix(resp.Degraded.Reason, "index_") {
		t.Fatalf("got %+v, %v", resp, err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
	status, stdout, stderr := call(t, "", "score", "--server", r.url, "--model=m", "--tokens=1,2")
	if status != cli.ExitFailed || !strings.Contains(stdout, "incomplete") || !strings.Contains(stdout, "index") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	strict := start(t, url, "--strict-ready")
	var e *client.Error
	if err := strict.client().Ready(t.Context()); !errors.As(err, &e) || e.Status != 503 {
		t.Errorf("strict readiness: %v", err)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
}

// The same requests to an index in memory and to one in Redis get the same
// bytes.
func TestMemoryAndRedisAgree(t *testing.T) {
	redis := redistest.Start(t)
	answers := map[string][]string{}
	for name, args := range map[string][]string{"memory": nil, "redis": {"--redis=" + redis.URL(), "--score-budget=5s"}} {
		r := start(t, args...)
		c := r.client()
		for i, n := range []int{640, 200, 64} {
			for _, salt := range []string{"", "s"} {
				must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: fmt.Sprint("p", i), CacheSalt: salt, Tokens: tokens(n)}))(t)
			}
		}
		must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpClear, Model: "m", Pod: "p2"}))(t)
		for _, q := range []client.ScoreRequest{
			{Model: "m", Tokens: tokens(1000)},
			{Model: "m", Tokens: tokens(500), CacheSalt: "s", Pods: []string{"p2", "p1", "nobody"}},
			{Model: "m", Tokens: tokens(500), LoRA: "x"},
			{Model: "other", Tokens: tokens(500), Strategy: "highest_block"},
		} {
			var raw json.RawMessage
			must.OK(t, c.Call(t.Context(), http.MethodPost, "/v1/score", q, &raw))
			answers[name] = append(answers[name], string(raw))
		}
	}
	for i, m := range answers["memory"] {
		if r := answers["redis"][i]; r != m {
			t.Errorf("request %d\nmemory %s\nredis  %s", i, m, r)
		}
	}
	if !strings.Contains(answers["memory"][0], `"best":"p0"`) {
		t.Errorf("got %s", answers["memory"][0])
	}
}

func TestDemo(t *testing.T) {
	r := start(t, "--demo", "--tokenizers="+tokenizers(t))
	r.awaitOutput("Try in another terminal")
	out := r.stdout.String()
	for _, want := range []string{
		`\[1/5\] kvatlas .* serves on ` + r.url + `, index in memory\n`,
		`\[2/5\] .*Meta-Llama-3-8B-Instruct.* \.\.\. (\n +the tokenizer is still loading, .* \.\.\. )?[0-9.]+ ms\n`, // that on a busy machine
		`\[3/5\] registering 3 pods \.\.\. [0-9.]+ ms\n`,
		`\[4/5\] .* \.\.\. [0-9.]+ ms\n`,
		`\[5/5\] .* \.\.\. [0-9.]+ ms\n`,
		// The longest prefix first, and all of it but a last part block.
		`(?s)pod +score +blocks +tokens +of the prompt\n +10\.0\.0\.3:8000 +(\d+) +\d+ .*10\.0\.0\.2:8000 .*10\.0\.0\.1:8000 `,
		`cold +[0-9.]+ ms +tokens from tokenizer\n +hot +[0-9.]+ ms +tokens from prefix_store\n`,
		`best: 10\.0\.0\.3:8000, which recomputes \d{1,3} of \d{4} tokens`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the output lacks %s\n%s", want, out)
		}
	}

	// The lines to try work as they stand.
	m := regexp.MustCompile(`curl -s (\S+) -H '([^:]+): ([^']+)' --data @(\S+)\n`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no curl line\n%s", out)
	}
	f := must.Get(os.Open(m[4]))(t)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(m[1], m[3], f)
	must.OK(t, err)
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"best":"10.0.0.3:8000"`) {
		t.Errorf("curl gets %d %s, %v", resp.StatusCode, body, err)
	}
	m = regexp.MustCompile(`\n  kvatlas (score .*)\n`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no score line\n%s", out)
	}
	status, stdout, stderr := call(t, "", strings.Fields(m[1])...)
	if status != 0 || !strings.Contains(stdout, "10.0.0.1:8000, 10.0.0.2:8000, 10.0.0.3:8000") {
		t.Errorf("score ends with %d\n%s%s", status, stdout, stderr)
	}

	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
	if _, err := os.Stat(f.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the demo's files stay: %v", err)
	}
}

// A process ends in order on SIGTERM, and at once on a second signal.
func TestSignals(t *testing.T) {
	process := func(args ...string) (*exec.Cmd, *output) {
		out := &output{}
		cmd := exec.Command(os.Args[0], append([]string{"serve", "--listen=127.0.0.1:0", "--log-level=info", "--hub-offline", "--hub-cache=" + t.TempDir()}, args...)...)
		cmd.Env = []string{runAsProgram + "=1"}
		cmd.Stderr = out
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it is gone unless the test failed
		return cmd, out
	}
	await := func(out *output, text string) {
		t.Helper()
		awaitThat(t, text, out, func() bool { return strings.Contains(out.String(), text) })
	}

	cmd, out := process("--drain-delay=0s")
	await(out, `"listening"`)
	must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), `"drained"`) {
		t.Errorf("after SIGTERM: %v\n%s", err, out)
	}

	cmd, out = process("--drain-delay=10m")
	await(out, `"listening"`)
	// Not SIGINT: a parent that runs in the background may have it ignored, and
	// a process inherits that.
	must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	await(out, `"draining"`)
	must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("after a second SIGTERM: %v\n%s", err, out)
	}
}
