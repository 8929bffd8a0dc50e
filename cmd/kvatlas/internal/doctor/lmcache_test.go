package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// lookAtLMCache looks as kvatlas doctor lmcache does without settings, in the ways of
// profiles.
func lookAtLMCache(t *testing.T, l LMCache, profiles ...string) []check.Finding {
	t.Helper()
	l.Profiles, l.Mode, l.Learns, l.Keys = map[string][]lmcache.Profile{}, lmcache.AutoEntries, true, 100_000
	for _, text := range profiles {
		model, p, err := config.ParseLMCacheProfile(text)
		must.OK(t, err)
		l.Profiles[model] = append(l.Profiles[model], p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	return LookAtLMCache(ctx, l).Findings
}

func TestLMCache(t *testing.T) {
	const model = "meta-llama/Llama-3.1-8B-Instruct"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	x := must.Get(redis.Open(redis.Config{URL: "redis://" + s.Addr, NoSweep: true}))(t)
	t.Cleanup(func() { _ = x.Close() })
	must.Get(x.Register(t.Context(), store.Pod{Name: "10.0.0.1:8000", Model: model}))(t)
	old := lmcache.Config{Version: lmcache.V031}
	names := must.Get(lmcache.Keys(old, lmcache.Target{Model: model, WorldSize: 1}, tokens))(t)
	for i, name := range names {
		owner := "10.0.0.1:8000"
		if i == 3 {
			owner = "10.0.0.9"
		}
		must.OK(t, c.Set(t.Context(), name, owner, 0).Err())
	}

	profile := func(params string) string { return model + "?" + params }
	report := func(profile string) (check.Level, []check.Finding) {
		t.Helper()
		list := lookAtLMCache(t, LMCache{Redis: redis.Config{URL: "redis://" + s.Addr}, Model: model, Tokens: tokens}, profile)
		return check.Worst(list), list
	}
	pattern := "vllm@" + model + "@1@*@<64 hex digits>"

	worst, list := report(profile("version=0.3.1"))
	if f := has(t, list, "lmcache entries", pattern); worst != check.Warn || f.Level != check.OK || !strings.HasPrefix(f.Found, "4 entries of 4 chunks") {
		t.Errorf("the worst is %v: %+v", worst, f)
	}
	if f := has(t, list, "lmcache owners", pattern); f.Level != check.Warn || !strings.Contains(f.Found, `"10.0.0.9" (no pod`) {
		t.Errorf("%+v", f)
	}
	if f := has(t, list, "lmcache chain", model); f.Level != check.OK || !strings.Contains(f.Found, "as configured") {
		t.Errorf("%+v", f)
	}

	// A profile of another version never matches, and it says so.
	sha := profile("version=0.5.6&algorithm=sha256_cbor&vllm=true&seed=0")
	worst, list = report(sha)
	if f := has(t, list, "lmcache chain", model); worst != check.Fail || !strings.Contains(f.Means, "your algorithm differs") {
		t.Errorf("the worst is %v: %+v", worst, f)
	}
	if f := has(t, list, "lmcache entries", pattern); f.Level != check.Warn || !strings.Contains(f.Means, "never match") {
		t.Errorf("%+v", f)
	}

	// What a controller's worker holds is in the index alone.
	must.OK(t, c.Del(t.Context(), names...).Err())
	worker := store.Pod{Name: lmcache.WorkerName("i", "", 0), Model: model, PartOf: &store.PartOf{Pod: "10.0.0.1:8000", Workers: 1}}
	must.Get(x.Register(t.Context(), worker))(t)
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "42"}))(t)
	var chunks []blockkey.Key
	for _, hash := range h.Append(nil, tokens) {
		chunks = append(chunks, hash.ChunkKey())
	}
	must.OK(t, x.Apply(t.Context(), store.Batch{Pod: worker.Name, Model: model, Ops: []store.Op{{Kind: store.Add, Tier: store.CPU, Keys: chunks}}}))
	worst, list = report(sha)
	if f := has(t, list, "lmcache chain", model); worst != check.Fail || !strings.Contains(f.Means, "your seed differs: theirs is 42, the profile's 0") {
		t.Errorf("the worst is %v: %+v", worst, f)
	}
	has(t, list, "lmcache controller", "")
	if list := lookAtLMCache(t, LMCache{Redis: redis.Config{URL: "redis://127.0.0.1:1"}}); len(list) != 1 || list[0].What != "connection" || list[0].Level != check.Fail {
		t.Errorf("without a server: %+v", list)
	}
}

// TestLMCacheIsRefused takes one right after the other from the user that is
// documented, and has the doctor name it.
func TestLMCacheIsRefused(t *testing.T) {
	const model = "m"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 256)
	x := must.Get(redis.Open(redis.Config{URL: "redis://" + s.Addr, NoSweep: true}))(t)
	t.Cleanup(func() { _ = x.Close() })
	must.Get(x.Register(t.Context(), store.Pod{Name: "10.0.0.1:8000", Model: model}))(t)
	// A string of 0.3.1, and a hash of the fork.
	names := must.Get(lmcache.Keys(lmcache.Config{Version: lmcache.V031}, lmcache.Target{Model: model, WorldSize: 1}, tokens))(t)
	fork := must.Get(lmcache.Keys(lmcache.Config{Version: lmcache.VFork}, lmcache.Target{Model: model, WorldSize: 1}, tokens))(t)
	must.OK(t, c.Set(t.Context(), names[0], "10.0.0.1:8000", 0).Err())
	must.OK(t, c.HSet(t.Context(), fork[0], "10.0.0.1:8000", "vllm@1@0@1795815008.5").Err())
	do := func(words ...string) {
		t.Helper()
		redistest.Do(t, c, words...)
	}
	doctor := func() []check.Finding {
		t.Helper()
		to := redis.Config{URL: "redis://kvatlas-doctor:DOCTOR_PASSWORD@" + s.Addr}
		return lookAtLMCache(t, LMCache{Redis: to, Model: model, Tokens: tokens}, model+"?version=0.3.1")
	}
	own := redistest.DocumentedACL(t, operations, "acl-doctor-lmcache")
	if len(own) != 1 || !slices.Equal(own[0][3:], lmcacheRules) {
		t.Errorf("documented is\n%v\nand the doctor names\n%v", own, lmcacheRules)
	}
	for _, without := range append([]string{"", "+scan", "+hlen"}, lmcacheRules...) {
		for _, line := range append(redistest.DocumentedACL(t, operations, "acl-doctor"), own...) {
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

// TestLMCacheAsReader gives a reader all that the doctor asks for at once.
func TestLMCacheAsReader(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	do := func(words ...string) {
		t.Helper()
		redistest.Do(t, c, words...)
	}
	for _, key := range []string{"vllm@m@1@0@00000000000000000000000000000001@half", "vllm@m@1@0@0000000000000000000000000000000000000000000000000000000000000002"} {
		must.OK(t, c.Set(t.Context(), key, "10.0.0.1:8000", 0).Err())
	}
	for _, line := range redistest.DocumentedACL(t, operations, "acl") {
		do(line...)
	}
	access := func() (do string) {
		t.Helper()
		to := redis.Config{URL: "redis://kvatlas-reader:READER_PASSWORD@" + s.Addr}
		for _, f := range lookAtLMCache(t, LMCache{Redis: to}, "m?version=0.3.1") {
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

// TestLMCacheSuggests takes the profile that the doctor spells when another one is
// configured, and has it find the same prompt as configured.
func TestLMCacheSuggests(t *testing.T) {
	const model = "org/a model"
	s := redistest.Start(t)
	c := s.Client()
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	chain := func(profile string) check.Finding {
		t.Helper()
		list := lookAtLMCache(t, LMCache{Redis: redis.Config{URL: "redis://" + s.Addr}, Model: model, Tokens: tokens}, profile)
		return has(t, list, "lmcache chain", model)
	}
	// Profiles without a pod here: one that cannot be, and one of a chunk size that no engine has.
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
			must.OK(t, err)
			for _, n := range names {
				if e.c.Version == lmcache.VFork {
					err = c.HSet(t.Context(), n, "10.0.0.1", "vllm@1@0@1795815008.5").Err()
				} else {
					for _, suffix := range e.suffixes {
						err = errors.Join(err, c.Set(t.Context(), n+suffix, "x", 0).Err())
					}
				}
				must.OK(t, err)
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
