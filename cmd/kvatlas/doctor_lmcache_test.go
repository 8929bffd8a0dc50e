package main

import (
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

func TestDoctorOfLMCache(t *testing.T) {
	const model = "meta-llama/Llama-3.1-8B-Instruct"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	file := filepath.Join(t.TempDir(), "tokens.json")
	text, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := redis.Open(redis.Config{URL: "redis://" + s.Addr, NoSweep: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if _, err := x.Register(t.Context(), store.Pod{Name: "10.0.0.1:8000", Model: model}); err != nil {
		t.Fatal(err)
	}
	old := lmcache.Config{Version: lmcache.V031}
	names, err := lmcache.Keys(old, lmcache.Target{Model: model, WorldSize: 1}, tokens)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		owner := "10.0.0.1:8000"
		if i == 3 {
			owner = "10.0.0.9"
		}
		if err := c.Set(t.Context(), name, owner, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}

	profile := func(params string) string { return "--profile=" + model + "?" + params }
	base := []string{"--json", "--redis=redis://" + s.Addr}
	report := func(args ...string) (int, check.Level, []check.Finding) {
		t.Helper()
		status, stdout, stderr := call(t, "", append(append([]string{"doctor", "lmcache"}, base...), args...)...)
		var r struct {
			Worst    check.Level
			Sections []section
		}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Sections) != 1 {
			t.Fatalf("ends with %d\n%s%s\n%v", status, stdout, stderr, err)
		}
		return status, r.Worst, r.Sections[0].Findings
	}
	pattern := "vllm@" + model + "@1@*@<64 hex digits>"

	status, worst, list := report(profile("version=0.3.1"), "--model="+model, "--tokens-file="+file)
	if f := has(t, list, "lmcache entries", pattern); status != exitOK || f.Level != check.OK || !strings.HasPrefix(f.Found, "4 entries of 4 chunks") {
		t.Errorf("ends with %d, %v: %+v", status, worst, f)
	}
	if f := has(t, list, "lmcache owners", pattern); f.Level != check.Warn || !strings.Contains(f.Found, `"10.0.0.9" (no pod`) {
		t.Errorf("%+v", f)
	}
	if f := has(t, list, "lmcache chain", model); f.Level != check.OK || !strings.Contains(f.Found, "as configured") {
		t.Errorf("%+v", f)
	}

	// A profile of another version never matches, and it says so.
	sha := profile("version=0.5.6&algorithm=sha256_cbor&vllm=true&seed=0")
	status, worst, list = report(sha, "--model="+model, "--tokens-file="+file)
	if f := has(t, list, "lmcache chain", model); status != exitFailed || worst != check.Fail || !strings.Contains(f.Means, "your algorithm differs") {
		t.Errorf("ends with %d, %v: %+v", status, worst, f)
	}
	if f := has(t, list, "lmcache entries", pattern); f.Level != check.Warn || !strings.Contains(f.Means, "never match") {
		t.Errorf("%+v", f)
	}

	// What a controller's worker holds is in the index alone.
	if err := c.Del(t.Context(), names...).Err(); err != nil {
		t.Fatal(err)
	}
	worker := store.Pod{Name: lmcache.WorkerName("i", "", 0), Model: model, PartOf: &store.PartOf{Pod: "10.0.0.1:8000", Workers: 1}}
	if _, err := x.Register(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	h, err := lmcache.New(lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "42"})
	if err != nil {
		t.Fatal(err)
	}
	var chunks []blockkey.Key
	for _, hash := range h.Append(nil, tokens) {
		chunks = append(chunks, hash.ChunkKey())
	}
	if err := x.Apply(t.Context(), store.Batch{Pod: worker.Name, Model: model, Ops: []store.Op{{Kind: store.Add, Tier: store.CPU, Keys: chunks}}}); err != nil {
		t.Fatal(err)
	}
	status, _, list = report(sha, "--model="+model, "--tokens-file="+file)
	if f := has(t, list, "lmcache chain", model); status != exitFailed || !strings.Contains(f.Means, "your seed differs: theirs is 42, the profile's 0") {
		t.Errorf("ends with %d: %+v", status, f)
	}
	has(t, list, "lmcache controller", "")

	// As text, and as people call it.
	status, stdout, _ := call(t, "", "doctor", "lmcache", "--redis=redis://"+s.Addr, sha)
	if status != exitOK || !strings.Contains(stdout, "lmcache controller") || !strings.Contains(stdout, "fail: 0") {
		t.Errorf("ends with %d\n%s", status, stdout)
	}
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
		if status, _, stderr := call(t, "", append([]string{"doctor", "lmcache"}, c.args...)...); status != exitUsage || !strings.Contains(stderr, c.says) {
			t.Errorf("%q ends with %d, without %q\n%s", c.args, status, c.says, stderr)
		}
	}
	if status, stdout, _ := call(t, "", "doctor", "lmcache", "--help"); status != exitOK || !strings.Contains(stdout, "--tokens-file") {
		t.Errorf("--help ends with %d\n%s", status, stdout)
	}
	gone := (&url.URL{Scheme: "redis", Host: "127.0.0.1:1"}).String()
	if status, stdout, _ := call(t, "", "doctor", "lmcache", "--redis="+gone, "--timeout=2s"); status != exitFailed || !strings.Contains(stdout, "connection") {
		t.Errorf("without a server it ends with %d\n%s", status, stdout)
	}
}

// acls are the lines of docs/operations.md between two marks, as words.
func acls(t *testing.T, mark string) (lines [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(text), "<!-- "+mark+": begin -->\n```\n")
	block, _, ok2 := strings.Cut(rest, "```\n<!-- "+mark+": end -->")
	if !ok1 || !ok2 {
		t.Fatalf("docs/operations.md has no block of %s", mark)
	}
	for line := range strings.Lines(block) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// TestDoctorOfLMCacheIsRefused takes one right after the other from the user that is
// documented, and has the doctor name it.
func TestDoctorOfLMCacheIsRefused(t *testing.T) {
	const model = "m"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 256)
	list, err := json.Marshal(make([]int, len(tokens)))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := redis.Open(redis.Config{URL: "redis://" + s.Addr, NoSweep: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if _, err := x.Register(t.Context(), store.Pod{Name: "10.0.0.1:8000", Model: model}); err != nil {
		t.Fatal(err)
	}
	// A string of 0.3.1, and a hash of the fork.
	names, err := lmcache.Keys(lmcache.Config{Version: lmcache.V031}, lmcache.Target{Model: model, WorldSize: 1}, tokens)
	if err != nil {
		t.Fatal(err)
	}
	fork, err := lmcache.Keys(lmcache.Config{Version: lmcache.VFork}, lmcache.Target{Model: model, WorldSize: 1}, tokens)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Set(t.Context(), names[0], "10.0.0.1:8000", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.HSet(t.Context(), fork[0], "10.0.0.1:8000", "vllm@1@0@1795815008.5").Err(); err != nil {
		t.Fatal(err)
	}
	do := func(words ...string) {
		t.Helper()
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	doctor := func() []check.Finding {
		t.Helper()
		status, stdout, stderr := call(t, "", "doctor", "lmcache", "--json", "--redis=redis://kvatlas-doctor:DOCTOR_PASSWORD@"+s.Addr,
			"--profile="+model+"?version=0.3.1", "--model="+model, "--tokens-file="+file)
		var r struct{ Sections []section }
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Sections) != 1 {
			t.Fatalf("ends with %d\n%s%s\n%v", status, stdout, stderr, err)
		}
		return r.Sections[0].Findings
	}
	own := acls(t, "acl-doctor-lmcache")
	if len(own) != 1 || !slices.Equal(own[0][3:], lmcacheRules) {
		t.Errorf("documented is\n%v\nand the doctor names\n%v", own, lmcacheRules)
	}
	for _, without := range append([]string{"", "+scan", "+hlen"}, lmcacheRules...) {
		for _, line := range append(acls(t, "acl-doctor"), own...) {
			do(slices.DeleteFunc(slices.Clone(line), func(w string) bool { return w == without && w != "" })...)
		}
		list := doctor()
		i := slices.IndexFunc(list, func(f check.Finding) bool { return f.What == "access" })
		switch {
		case without == "" && i >= 0:
			t.Errorf("with all rights: %+v", list[i])
		case without == "":
			for _, f := range list {
				if f.What == "lmcache owners" && f.Level != check.OK {
					t.Errorf("with all rights: %+v", f)
				}
			}
		case i < 0:
			t.Errorf("without %s nothing is missing: %+v", without, list)
		case without == "+hlen": // of a script, for which Redis does not say it
			if !strings.Contains(list[i].Do, "the rights of kvatlas doctor") {
				t.Errorf("without %s: %+v", without, list[i])
			}
		case !strings.HasPrefix(list[i].Do, "ACL SETUSER kvatlas-doctor "+without+"; ") || list[i].Level < check.Warn:
			t.Errorf("without %s: %+v", without, list[i])
		}
		do("ACL", "DELUSER", "kvatlas-doctor")
	}
}

// TestDoctorOfLMCacheAsReader gives a reader all that the doctor asks for at once.
func TestDoctorOfLMCacheAsReader(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	do := func(words ...string) {
		t.Helper()
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	for _, key := range []string{"vllm@m@1@0@00000000000000000000000000000001@half", "vllm@m@1@0@0000000000000000000000000000000000000000000000000000000000000002"} {
		if err := c.Set(t.Context(), key, "10.0.0.1:8000", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range acls(t, "acl") {
		if len(line) > 0 { // between the users
			do(line...)
		}
	}
	access := func() (do string) {
		t.Helper()
		_, stdout, stderr := call(t, "", "doctor", "lmcache", "--json", "--redis=redis://kvatlas-reader:READER_PASSWORD@"+s.Addr, "--profile=m?version=0.3.1")
		var r struct{ Sections []section }
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Sections) != 1 {
			t.Fatalf("%s%s\n%v", stdout, stderr, err)
		}
		for _, f := range r.Sections[0].Findings {
			if f.What == "access" {
				return f.Do
			}
		}
		return ""
	}
	_, all, ok := strings.Cut(access(), "; all that this check needs beside the rights of a reader is ")
	if !ok {
		t.Fatalf("it says %q", access())
	}
	do(strings.Fields(all)...)
	if more := access(); more != "" {
		t.Errorf("after %s it wants %s", all, more)
	}
}

// TestDoctorOfLMCachePrompt asks a server that has no tokenizer of the model.
func TestDoctorOfLMCachePrompt(t *testing.T) {
	s := redistest.Start(t)
	r := start(t)
	status, _, stderr := call(t, "", "doctor", "lmcache", "--redis=redis://"+s.Addr, "--model=no/such", "--prompt=Hello", "--server="+r.url)
	if status != exitFailed || !strings.Contains(stderr, "the server at "+r.url+" answers 404") || strings.Contains(stderr, "(model)") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}

// TestDoctorOfLMCacheSuggests takes the profile that the doctor spells when another one is
// configured, and has it find the same prompt as configured.
func TestDoctorOfLMCacheSuggests(t *testing.T) {
	const model = "org/a model"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	chain := func(profile string) check.Finding {
		t.Helper()
		status, stdout, stderr := call(t, "", "doctor", "lmcache", "--json", "--redis=redis://"+s.Addr, "--profile="+profile, "--model="+model, "--tokens-file="+file)
		var r struct{ Sections []section }
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Sections) != 1 {
			t.Fatalf("ends with %d\n%s%s\n%v", status, stdout, stderr, err)
		}
		return has(t, r.Sections[0].Findings, "lmcache chain", model)
	}
	// Profiles of nobody here: one that cannot be, and one of a chunk size that nobody has.
	remote := []string{"kv_bytes", "metadata"} // what redis:// puts behind a key
	wrong := []string{"org/a%20model?version=0.5.6&algorithm=sha256_cbor", "org/a%20model?version=0.5.6&mp=true&chunk_size=2048"}
	for name, e := range map[string]struct {
		c        lmcache.Config
		t        lmcache.Target
		suffixes []string
	}{
		"0.1":                  {c: lmcache.Config{Version: lmcache.V01}},
		"a path, two workers":  {c: lmcache.Config{Version: lmcache.V031}, t: lmcache.Target{Model: "/data/models/m", WorldSize: 2}},
		"the fork":             {c: lmcache.Config{Version: lmcache.VFork}},
		"of SGLang":            {c: lmcache.Config{Version: lmcache.V031}, t: lmcache.Target{Fmt: "sglang"}},
		"decimal":              {c: lmcache.Config{Version: lmcache.V034, Python: 12}},
		"hex, inside vLLM":     {c: lmcache.Config{Version: lmcache.V036, VLLM: true, Seed: "42", Python: 12}},
		"0.3.10":               {c: lmcache.Config{Version: lmcache.V0310, Python: 12}, t: lmcache.Target{DType: "half"}, suffixes: remote},
		"0.3.13, bytes":        {c: lmcache.Config{Version: lmcache.V0313, Algorithm: lmcache.XXHashCBOR, VLLM: true, Seed: "1"}, t: lmcache.Target{DType: "half"}},
		"0.5.6 in its default": {c: lmcache.Config{Version: lmcache.V046, VLLM: true, Seed: "0", Python: 10}, t: lmcache.Target{DType: "bfloat16"}, suffixes: remote},
		"0.5.6 by itself":      {c: lmcache.Config{Version: lmcache.V046}, t: lmcache.Target{DType: "bfloat16"}, suffixes: remote},
		"0.5.6, small chunks":  {c: lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0", ChunkSize: 16}, t: lmcache.Target{DType: "bfloat16"}},
		"MP":                   {c: lmcache.Config{Version: lmcache.V046, MP: true}},
		"MP by vLLM's":         {c: lmcache.Config{Version: lmcache.V046, MP: true, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "42"}, t: lmcache.Target{WorldSize: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if e.t.Model == "" {
				e.t.Model = model
			}
			if e.t.WorldSize == 0 {
				e.t.WorldSize = 1
			}
			if e.suffixes == nil {
				e.suffixes = []string{""}
			}
			names, err := lmcache.Keys(e.c, e.t, tokens)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				if e.c.Version == lmcache.VFork {
					err = c.HSet(t.Context(), n, "10.0.0.1", "vllm@1@0@1795815008.5").Err()
				} else {
					for _, suffix := range e.suffixes {
						err = errors.Join(err, c.Set(t.Context(), n+suffix, "x", 0).Err())
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			defer func() {
				if err := c.FlushAll(t.Context()).Err(); err != nil {
					t.Error(err)
				}
			}()
			for _, w := range wrong {
				f := chain(w)
				_, profile, ok := strings.Cut(f.Do, ": ")
				if f.Level < check.Warn || !ok {
					t.Errorf("with %s: %+v", w, f)
					continue
				}
				if again := chain(profile); again.Level != check.OK || !strings.Contains(again.Found, "as configured") {
					t.Errorf("with %s it suggests %s, and with that it finds\n%+v", w, profile, again)
				}
			}
		})
	}
}
