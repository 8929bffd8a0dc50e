package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// The flags reach what they are about: a prompt that was filed is found as configured.
func TestDoctorOfLMCache(t *testing.T) {
	const model = "meta-llama/Llama-3.1-8B-Instruct"
	s := redistest.Start(t)
	tokens := make([]uint32, 1024)
	text := must.Get(json.Marshal(tokens))(t)
	file := filepath.Join(t.TempDir(), "tokens.json")
	must.OK(t, os.WriteFile(file, text, 0o600))
	names := must.Get(lmcache.Keys(lmcache.Config{Version: lmcache.V031}, lmcache.Target{Model: model, WorldSize: 1}, tokens))(t)
	for _, name := range names {
		must.OK(t, s.Client().Set(t.Context(), name, "10.0.0.1:8000", 0).Err())
	}
	report := func(version string) (int, check.Level, []check.Finding) {
		t.Helper()
		args := []string{"lmcache", "--redis=redis://" + s.Addr, "--model=" + model, "--tokens-file=" + file, "--profile=" + model + "?version=" + version}
		status, worst, sections := doctorReport(t, args...)
		return status, worst, sections["lmcache"]
	}
	status, worst, list := report("0.3.1")
	if f := has(t, list, "lmcache chain", model); status != cli.ExitOK || worst != check.Warn || f.Level != check.OK || !strings.Contains(f.Found, "as configured") {
		t.Errorf("ends with %d, %v: %+v", status, worst, list)
	}
	if status, worst, list = report("0.5.6&algorithm=sha256_cbor&vllm=true&seed=0"); status != cli.ExitFailed || worst != check.Fail {
		t.Errorf("ends with %d, %v: %+v", status, worst, list)
	}

	// As text, and as people call it.
	status, stdout, _ := call(t, "", "doctor", "lmcache", "--redis=redis://"+s.Addr, "--profile="+model+"?version=0.3.1", "--keys=2")
	if status != cli.ExitOK || !strings.Contains(stdout, "2 entries") || !strings.Contains(stdout, "fail: 0") {
		t.Errorf("ends with %d\n%s", status, stdout)
	}
}

func TestDoctorOfLMCacheIsMisused(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "there is none"},
		{[]string{"--redis=redis://x", "--model=m"}, "is for a prompt"},
		{[]string{"--redis=redis://x", "--prompt=m"}, "needs --model"},
		{[]string{"--redis=redis://x", "--model=m", "--prompt=m"}, "needs --server"},
		{[]string{"--redis=redis://x", "--model=m", "--prompt=m", "--tokens-file=f"}, "two prompts"},
		{[]string{"--redis=redis://x", "--keys=0"}, "--keys is 0"},
		{[]string{"--redis=redis://x", "--timeout=0s"}, "--timeout is 0s"},
		{[]string{"--redis=redis://x", "--profile=m?version=9"}, "no release"},
		{[]string{"--redis=redis://x", "--profile=m?colour=red"}, "there are algorithm"},
		{[]string{"--redis=redis://x", "more"}, "it takes flags only"},
	} {
		if status, _, stderr := call(t, "", append([]string{"doctor", "lmcache"}, c.args...)...); status != cli.ExitUsage || !strings.Contains(stderr, c.says) {
			t.Errorf("%q ends with %d, without %q\n%s", c.args, status, c.says, stderr)
		}
	}
	if status, stdout, _ := call(t, "", "doctor", "lmcache", "--help"); status != cli.ExitOK || !strings.Contains(stdout, "--tokens-file") {
		t.Errorf("--help ends with %d\n%s", status, stdout)
	}
}

// TestDoctorOfLMCachePrompt asks a server that has no tokenizer of the model.
func TestDoctorOfLMCachePrompt(t *testing.T) {
	s := redistest.Start(t)
	r := start(t)
	status, _, stderr := call(t, "", "doctor", "lmcache", "--redis=redis://"+s.Addr, "--model=no/such", "--prompt=Hello", "--server="+r.url)
	if status != cli.ExitFailed || !strings.Contains(stderr, "the server at "+r.url+" answers 404") || strings.Contains(stderr, "(model)") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}
