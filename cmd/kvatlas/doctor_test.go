package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// doctorReport calls kvatlas doctor --json.
func doctorReport(t *testing.T, args ...string) (status int, worst check.Level, sections map[string][]check.Finding) {
	t.Helper()
	status, stdout, stderr := call(t, "", append(append([]string{"doctor"}, args...), "--json")...)
	var report struct {
		Worst    check.Level
		Sections []doctor.Section
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("ends with %d\n%s%s\n%v", status, stdout, stderr, err)
	}
	sections = map[string][]check.Finding{}
	for _, s := range report.Sections {
		sections[s.Name] = s.Findings
	}
	return status, report.Worst, sections
}

// has returns the finding of a name, about a place where one is given.
func has(t *testing.T, list []check.Finding, what, where string) check.Finding {
	t.Helper()
	i := slices.IndexFunc(list, func(f check.Finding) bool { return f.What == what && f.Where == where })
	if i < 0 {
		t.Fatalf("nothing is said about %s %s: %+v", what, where, list)
	}
	return list[i]
}

func TestDoctorOfRedis(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret", "--maxmemory", "100mb")
	url := "redis://:secret@" + s.Addr
	status, stdout, stderr := call(t, "", "doctor", "--redis="+url)
	if status != cli.ExitOK || strings.Contains(stdout+stderr, "secret") {
		t.Errorf("ends with %d\n%s%s", status, stdout, stderr)
	}
	for _, want := range []string{"redis  redis://:***@" + s.Addr, "  ok    eviction policy    noeviction", "-> ", "fail: 0, warn: 0, "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	for line := range strings.Lines(stdout) {
		if len(line) > reportWidth+8 {
			t.Errorf("too long: %s", line)
		}
	}
	status, worst, sections := doctorReport(t, "--redis=redis://"+s.Addr)
	if f := has(t, sections["redis"], "connection", ""); status != cli.ExitFailed || worst != check.Fail || f.Level != check.Fail {
		t.Errorf("ends with %d, %v, %+v", status, worst, f)
	}
}

// The flags reach what they are about.
func TestDoctorOfTokenizers(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		args   []string
		status int
		level  check.Level
		says   string
	}{
		{[]string{"--tokenizers=" + root}, cli.ExitOK, check.Warn, ""},
		{[]string{"--tokenizers=" + root, "--hub-endpoint=https://hub.example"}, cli.ExitOK, check.Warn, "https://hub.example"},
		{[]string{"--tokenizers=" + root, "--hub-offline"}, cli.ExitFailed, check.Fail, ""},
		{[]string{"--tokenizers=" + filepath.Join(root, "no")}, cli.ExitFailed, check.Fail, "correct --tokenizers"},
	} {
		status, _, sections := doctorReport(t, c.args...)
		if f := has(t, sections["tokenizers"], "directory", ""); status != c.status || f.Level != c.level || !strings.Contains(f.Means+f.Do, c.says) {
			t.Errorf("%v: ends with %d, %+v", c.args, status, f)
		}
	}
}

func TestDoctorOfServer(t *testing.T) {
	r := start(t)
	status, worst, sections := doctorReport(t, "--server="+r.url)
	list := sections["server"]
	if f := has(t, list, "pods", ""); f.Level != check.Warn || f.Do == "" {
		t.Errorf("without pods: %+v", f)
	}
	if status != cli.ExitOK || worst != check.Warn || len(list) != 5 {
		t.Errorf("ends with %d, %v, %+v", status, worst, list)
	}
	if f := has(t, list, "server version", ""); f.Level != check.OK || f.Found != versionWord() {
		t.Errorf("got %+v", f)
	}
	redis := redistest.Start(t, "--maxmemory", "100mb")
	_, worst, sections = doctorReport(t, "--server="+r.url, "--redis="+redis.URL())
	if f := has(t, sections["server"], "index", ""); worst != check.Warn || f.Level != check.Warn || len(sections) != 2 {
		t.Errorf("got %v, %+v", worst, f)
	}
	status, _, sections = doctorReport(t, fmt.Sprintf("--server=http://127.0.0.1:%d", redistest.FreePort(t)))
	if f := has(t, sections["server"], "health", ""); status != cli.ExitFailed || f.Level != check.Fail {
		t.Errorf("ends with %d, %+v", status, f)
	}
}

func TestDoctorOfEngine(t *testing.T) {
	replay := redistest.FreeEndpoint(t, 1)
	p, endpoint := engine(t, replay)
	for _, m := range steps() {
		p.Publish(m)
	}
	status, worst, sections := doctorReport(t, "--engine-events="+endpoint, "--engine-replay="+replay, "--engine-seed=0")
	if f := has(t, sections["engine"], "hash seed", ""); status != cli.ExitOK || worst != check.Warn || !strings.HasSuffix(f.Found, "your seed differs") {
		t.Errorf("ends with %d, %v, %+v", status, worst, f)
	}
	if f := has(t, sections["engine"], "replay", replay); f.Found != "3 messages from 0 on" {
		t.Errorf("%+v", f)
	}
}

func TestDoctorIsMisused(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "nothing to look at"},
		{"more", "flags only"},
		{"--timeout=0s", "must be positive"},
		{"--redis=http://a", "the configuration is wrong"},
		{"--rediss=x", "redis"},
		{"--engine-seed=0", "are for --engine-events"},
		{"--engine-replay=tcp://a:1", "are for --engine-events"},
	} {
		status, _, stderr := call(t, "", append([]string{"doctor"}, strings.Fields(c.args)...)...)
		if status != cli.ExitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: ends with %d\n%s\nwant %q", c.args, status, stderr, c.want)
		}
	}
	if status, stdout, _ := call(t, "", "doctor", "--help"); status != cli.ExitOK || !strings.HasPrefix(stdout, doctorUsage+"  --engine-events ENDPOINT\n") {
		t.Errorf("help: ends with %d\n%s", status, stdout)
	}
}

// What a server depends on is written into its log, once, also when it comes
// later than the server.
func TestServeSaysWhatIsWrong(t *testing.T) {
	t.Parallel() // it waits for seconds that no setting shortens
	s := redistest.Prepare(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	r := start(t, "--redis="+s.URL())
	const down = "redis: connection: "
	r.await(func() map[string]any { return r.loggedPrefix(down) })
	s.Run()
	const policy = "redis: eviction policy: allkeys-lru"
	line := r.await(func() map[string]any { return r.loggedPrefix(policy) })
	if line["level"] != "error" || line["do"] == "" || line["check"] != "eviction policy" {
		t.Errorf("got %v", line)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d", status)
	}
	for _, what := range []string{down, policy} {
		if n := strings.Count(r.stderr.String(), `"`+what); n != 1 {
			t.Errorf("%q is said %d times\n%s", what, n, r.stderr)
		}
	}
	if strings.Contains(r.stderr.String(), "redis: keys") {
		t.Errorf("what is in order is said too\n%s", r.stderr)
	}
}

// loggedPrefix returns the first log line whose message begins so.
func (r *running) loggedPrefix(prefix string) map[string]any {
	for line := range strings.Lines(r.stderr.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil {
			if msg, _ := m["message"].(string); strings.HasPrefix(msg, prefix) {
				return m
			}
		}
	}
	return nil
}
