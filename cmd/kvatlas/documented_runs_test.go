package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// notRun are the shell blocks that TestDocumentedRuns does not run, by page and the beginning
// of their first line, and why. All others run; TestDocumentedCommands reads these, too.
var notRun = map[string]string{
	"README.md: kvatlas gateway":                  "engines at these addresses; TestGatewayCommand has some",
	"README.md: make run":                         "builds all; CI times it",
	"README.md: make test":                        "is what runs this",
	"clients/python/README.md: pip install":       "installs; TestPythonClient runs the page's examples",
	"docs/architecture.md: go get":                "the internet; CI builds the example without cgo",
	"docs/cli.md: source":                         "lines of a shell's start file; TestCompletion",
	"docs/events.md: kvatlas inspect events":      "an engine at this address; TestInspectEvents and TestDoctorOfEngine have one",
	"docs/first-steps.md: bin/kvatlas up":         "TestUp, TestCompare",
	"docs/first-steps.md: scripts/fetch-tok":      "Docker",
	"docs/first-steps.md: vllm serve":             "a GPU",
	"docs/first-steps.md: python3 -m sglang":      "a GPU",
	"docs/gateway.md: kvatlas gateway":            "engines at these addresses, Kubernetes",
	"docs/http-api.md:":                           "TestDocumentedExamples of package server runs all of them",
	"docs/operations.md: kvatlas token --role":    "a certificate for a name; TestCredentials, TestServeTLS",
	"docs/sim.md: scripts/fetch-tokenizers.sh":    "the internet; TestSimTokenizer",
	"docs/release.md: make dist":                  "minutes, and cross compilers",
	"docs/release.md: CGO_ENABLED=0 go install":   "the internet; CI builds what needs no cgo without it",
	"examples/writers/README.md: scripts/venv.sh": "the internet; the tests of examples/writers run both writers",
	"real/README.md:":                             "a vLLM",
}

// said is what the blocks of a page must print when they run, beside the JSON that stands
// behind them.
var said = map[string][]string{
	"docs/first-steps.md": {"10.0.0.1:8000  3      3       192", `"pod":"10.0.0.9:8000"`, `"generation":1,"seq":8,"block_keys":{"cpu":[`, `"cached_tokens": 0`, "X-Kvatlas-Pod: 127.0.0.1:", "  3      3       192     gpu 3", `"10.0.0.9:8000":1`, "version"},
	"docs/sim.md":         {`"completion_tokens":20`, "sim-7"},
	"docs/replica.md":     {"on", "off"},
	"docs/lmcache.md":     {`"best":"10.0.0.1:8000"`, `"tiers":{"cpu":4}`},
	"docs/routing.md":     {`"bandwidth":12500000000`},
	"docs/cli.md":         {"no pods", "MODEL", "no loads", "no prefixes"},
	"docs/operations.md":  {},
}

// TestDocumentedRuns runs what the pages have readers type, each page's blocks in turn. It does so
// against a server, a Redis and simulated engines, at other ports and in another folder.
func TestDocumentedRuns(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl", "jq", "seq", "redis-cli"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	used, ran := map[string]bool{}, map[string]bool{}
	for _, p := range pages(t) {
		var script strings.Builder
		var answers []string
		end, mine := 0, false
		for _, m := range fences.FindAllStringSubmatchIndex(p.text, -1) {
			kind, text := p.text[m[2]:m[3]], p.text[m[4]:m[5]]
			if kind == "json" && mine && strings.TrimSpace(p.text[end:m[0]]) == "" && !strings.Contains(text, "...") {
				answers = append(answers, text)
			}
			if mine = false; kind == "sh" || kind == "bash" || kind == "console" {
				if why := whyNotRun(p.name, text); why != "" {
					used[why] = true
					continue
				}
				mine, end = true, m[1]
				script.WriteString(scriptOf(kind, text))
			}
		}
		if script.Len() == 0 {
			continue
		}
		ran[p.name] = true
		wants, known := said[p.name]
		if !known {
			t.Errorf("%s has blocks to run of which this test does not know what they print, nor why they cannot run:\n%s", p.name, script.String())
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			out := newDesk(t).run(script.String())
			for _, want := range wants {
				if !strings.Contains(out, want) {
					t.Errorf("it does not print %q", want)
				}
			}
			for _, answer := range answers {
				var b bytes.Buffer
				if err := json.Compact(&b, []byte(answer)); err != nil || !strings.Contains(out, b.String()) {
					t.Errorf("documented, and not answered (%v): %s", err, &b)
				}
			}
			if strings.Contains(out, `"error"`) || t.Failed() {
				t.Errorf("%s\nprints\n%s", &script, out)
			}
		})
	}
	for name, why := range notRun {
		if !used[name] {
			t.Errorf("there is no block %q any more", name)
		}
		for _, test := range regexp.MustCompile(`\bTest\w+`).FindAllString(why, -1) {
			if !inSource("cmd/kvatlas", "func "+test+"(") && !inSource("server", "func "+test+"(") {
				t.Errorf("%q: there is no %s", name, test)
			}
		}
	}
	for name := range said {
		if !ran[name] {
			t.Errorf("there is nothing to run in %s any more", name)
		}
	}
}

// whyNotRun is the entry of notRun for a block; "" means that the block is run.
func whyNotRun(page, block string) string {
	first := page + ": " + strings.TrimSpace(block)
	for name := range notRun {
		if strings.HasPrefix(first, name) {
			return name
		}
	}
	return ""
}

var foreground = regexp.MustCompile(`^kvatlas (sim|serve)\b[^#]*`)

// scriptOf is a block as a script has it. Answers are left out, and what a reader would give a
// terminal of its own runs beside the rest.
func scriptOf(kind, block string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if kind == "console" {
			var ok bool
			if line, ok = strings.CutPrefix(line, "$ "); !ok {
				continue
			}
		}
		line = strings.ReplaceAll(line, "bin/kvatlas", "kvatlas")
		line = strings.ReplaceAll(line, "--retry 20 --retry-connrefused", "") // see run
		if m := foreground.FindString(line); m != "" && !strings.HasSuffix(strings.TrimSpace(m), "&") {
			line = strings.TrimSpace(m) + " > sim.log 2>&1 &"
		}
		if strings.HasPrefix(line, "kvatlas doctor") {
			line += " || [ $? = 1 ]" // it has found something
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// desk is a folder like the checkout, with a server, a Redis and ports of its own.
type desk struct {
	t     *testing.T
	dir   string
	ports map[string]string // documented ports and addresses, and what they are here
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dir: t.TempDir(), ports: map[string]string{}}
	root := must.Get(filepath.Abs("../.."))(t)
	entries := must.Get(os.ReadDir(root))(t)
	for _, e := range entries {
		if name := e.Name(); name != "bin" && name != ".git" {
			must.OK(t, os.Symlink(filepath.Join(root, name), filepath.Join(d.dir, name)))
		}
	}
	r := start(t, "--tokenizers="+tokenizers(t), "--preload="+demo.Model) // as make run has it, which has asked before
	r.await(func() map[string]any {
		if status, _ := get(t, r.url+"/readyz"); status != 200 {
			return nil
		}
		return map[string]any{}
	})
	d.ports["8080"] = portOf(t, r.url)
	d.ports["6379"] = portOf(t, redistest.Start(t).URL())
	sim := freeRow(t, 8+1+8+8)
	for i := range 8 {
		d.ports[strconv.Itoa(8000+i)] = strconv.Itoa(sim + i)
	}
	d.ports["7999"] = strconv.Itoa(sim + 8)
	self := must.Get(os.Executable())(t)
	must.OK(t, os.MkdirAll(filepath.Join(d.dir, "bin"), 0o700))
	// The program, with ports of its own where the page leaves them at their defaults. A score is
	// asked for until there is one, as the page says.
	wrapper := fmt.Sprintf(`#!/bin/bash
export %[1]s=1
case $1 in
pods | models | loads | prefixes) set -- "$@" --server 127.0.0.1:%[8]s ;;
sim) set -- "$@" --port %[3]d --control 127.0.0.1:%[4]d --events-port %[5]d --replay-port %[6]d ;;
serve)
	case "$*" in *--pods*) set -- "$@" --preload %[7]s ;; esac
	set -- "$@" --hub-offline --hub-cache hub --drain-delay 0s --score-budget 5s ;;
score)
	for i in {1..200}; do
		out=$(%[2]q "$@") || exit $?
		case $out in *gpu*) break ;; esac
		sleep 0.5
	done
	printf '%%s\n' "$out"
	exit ;;
esac
exec %[2]q "$@"
`, runAsProgram, self, sim, sim+8, sim+9, sim+17, demo.Model, d.ports["8080"])
	if err := os.WriteFile(filepath.Join(d.dir, "bin", "kvatlas"), []byte(wrapper), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	return d
}

var documentedPort = regexp.MustCompile(`(127\.0\.0\.1|localhost):(\d{4,5})\b`)

// run runs a script and returns what it prints.
func (d *desk) run(script string) string {
	d.t.Helper()
	script = documentedPort.ReplaceAllStringFunc(script, func(at string) string {
		host, port, _ := strings.Cut(at, ":")
		if d.ports[port] == "" {
			d.ports[port] = strconv.Itoa(freeRow(d.t, 1))
		}
		return host + ":" + d.ports[port]
	})
	script = strings.ReplaceAll(script, "/tmp/", d.dir+"/")
	script = strings.ReplaceAll(script, "--redis URL", "--redis redis://127.0.0.1:"+d.ports["6379"])
	script = strings.ReplaceAll(script, "redis-cli ", "redis-cli -p "+d.ports["6379"]+" ")
	script = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" +
		"K=http://127.0.0.1:" + d.ports["8080"] + "\ncurl() { command curl --retry 200 --retry-delay 1 --retry-connrefused \"$@\"; echo; }\n" + script
	ctx, cancel := context.WithTimeout(d.t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script) //nolint:gosec // the pages are ours
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(d.dir, "bin")+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		d.t.Errorf("it ends with %v", err)
	}
	return strings.ReplaceAll(out.String(), "\n ", "") // an answer over several lines
}

func portOf(t *testing.T, url string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(url[strings.LastIndex(url, "/")+1:])
	must.OK(t, err)
	return port
}

// nextRow is where freeRow looks next.
var nextRow atomic.Int64

// freeRow is the first of n ports in a row that are free. It looks below those that the kernel
// gives to connections and to other tests.
func freeRow(t *testing.T, n int) int {
	t.Helper()
	nextRow.CompareAndSwap(0, int64(12000+os.Getpid()*37%16000))
	for range 1000 {
		at := int(nextRow.Add(int64(n))) - n
		if at+n > 30000 {
			nextRow.Store(12000)
			continue
		}
		free := 0
		for free < n {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(at+free))
			if err != nil {
				break
			}
			_ = l.Close()
			free++
		}
		if free == n {
			return at
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}
