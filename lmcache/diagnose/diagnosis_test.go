package diagnose

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

const model = "meta-llama/Llama-3.1-8B-Instruct"

// tokens are those that the recorded runs of LMCache have hashed.
func tokens() []uint32 {
	out := make([]uint32, 1024)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// keys are the keys that an engine with this config writes.
func keys(t *testing.T, c lmcache.Config, target lmcache.Target) []string {
	t.Helper()
	if target.Model == "" {
		target.Model = model
	}
	if target.WorldSize == 0 {
		target.WorldSize = 1
	}
	out := must.Get(lmcache.Keys(c, target, tokens()))(t)
	return out
}

// owned are strings that name a pod.
func owned(names []string, text string) (out []Entry) {
	for _, n := range names {
		out = append(out, Entry{Name: n, Type: "string", Text: text})
	}
	return out
}

func diagnosed(c Config, entries ...[]Entry) *Diagnosis {
	s := New(c)
	for _, list := range entries {
		for _, e := range list {
			if tell, _ := s.Want(e.Name); tell {
				s.Add(e)
			}
		}
	}
	return s
}

// want fails the test unless there is a finding like that: what, level, and words of it.
func want(t *testing.T, list []check.Finding, what string, level check.Level, words ...string) {
	t.Helper()
	for _, f := range list {
		if f.What != what || f.Level != level {
			continue
		}
		text := strings.Join([]string{f.Where, f.Found, f.Means, f.Do}, " | ")
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
			return
		}
	}
	t.Errorf("no finding %q, %v, with %q in\n%s", what, level, words, show(list))
}

func show(list []check.Finding) string {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%v %s %s: %s | %s | %s\n", f.Level, f.What, f.Where, f.Found, f.Means, f.Do)
	}
	return b.String()
}

func profiles(p ...lmcache.Profile) map[string][]lmcache.Profile {
	return map[string][]lmcache.Profile{model: p}
}

var v031 = lmcache.Config{Version: lmcache.V031}

// owner is a registry of 10.0.0.1:8000.
func ownerOf(m, text string) string {
	if m == model && (text == "10.0.0.1:8000" || text == "10.0.0.1") {
		return "10.0.0.1:8000"
	}
	return ""
}

func TestEntriesThatMatch(t *testing.T) {
	now := time.Unix(1795815068, 0)
	pods := []store.Pod{{Name: "10.0.0.1:8000", Model: model}}
	fork := Entry{Name: keys(t, lmcache.Config{Version: lmcache.VFork}, lmcache.Target{})[0], Type: "hash", Fields: map[string]string{"10.0.0.1": "vllm@1@0@1795815008.5"}}
	blake := lmcache.Config{Version: lmcache.V046, MP: true}
	sha := lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}
	for _, c := range []struct {
		name    string
		mode    lmcache.Mode
		p       lmcache.Profile
		entries []Entry
	}{
		{"0.3.1", lmcache.AutoEntries, lmcache.Profile{Config: v031}, owned(keys(t, v031, lmcache.Target{}), "10.0.0.1:8000")},
		{"decimal", lmcache.SetEntries, lmcache.Profile{Config: lmcache.Config{Version: lmcache.V033}}, owned(keys(t, lmcache.Config{Version: lmcache.V033}, lmcache.Target{}), "10.0.0.1")},
		{"hex", lmcache.AutoEntries, lmcache.Profile{Config: lmcache.Config{Version: lmcache.V036, Python: 12}}, owned(keys(t, lmcache.Config{Version: lmcache.V036, Python: 12}, lmcache.Target{}), "10.0.0.1")},
		{"fork", lmcache.AutoEntries, lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork}}, []Entry{fork}},
		{"redis://", lmcache.AutoEntries, lmcache.Profile{Config: sha, DType: "half", Remote: lmcache.RemoteRedis}, []Entry{
			{Name: keys(t, sha, lmcache.Target{DType: "half"})[0] + "metadata", Type: "string"}, {Name: keys(t, sha, lmcache.Target{DType: "half"})[0] + "kv_bytes", Type: "string"}}},
		{"resp:// of MP", lmcache.AutoEntries, lmcache.Profile{Config: blake, Remote: lmcache.RemoteRESP}, []Entry{{Name: keys(t, blake, lmcache.Target{})[0], Type: "string"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := diagnosed(Config{Profiles: profiles(c.p), Mode: c.mode, Pods: pods, Owner: ownerOf, Now: now, MaxAge: time.Hour}, c.entries)
			list := s.Findings(true)
			want(t, list, "lmcache entries", check.OK)
			want(t, list, "lmcache model", check.OK, model)
			for _, f := range list {
				if f.Level > check.Info {
					t.Errorf("not well: %+v", f)
				}
			}
			// The chain of the profile is found by the prompt, and no other one.
			e := s.Explain(model, tokens())
			there := make([]bool, len(e.Names()))
			for i, n := range e.Names() {
				there[i] = slices.ContainsFunc(c.entries, func(e Entry) bool { return e.Name == n })
			}
			got := e.Findings(nil, there)
			if len(got) != 1 {
				t.Errorf("%d findings\n%s", len(got), show(got))
			}
			want(t, got, "lmcache chain", check.OK, "as configured")
		})
	}
}

func TestEntriesThatNeverMatch(t *testing.T) {
	sha := lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}
	p031 := lmcache.Profile{Config: v031}
	for _, c := range []struct {
		name    string
		mode    lmcache.Mode
		p       []lmcache.Profile
		entries []Entry
		what    string
		level   check.Level
		words   []string
	}{
		{"no profile", lmcache.AutoEntries, nil, owned(keys(t, v031, lmcache.Target{}), "h"), "lmcache entries", check.Warn, []string{"never match", "version 0.3.1"}},
		{"off", lmcache.NoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "h"), "lmcache entries", check.Warn, []string{"is off"}},
		{"newer profile", lmcache.AutoEntries, []lmcache.Profile{{Config: sha}}, owned(keys(t, v031, lmcache.Target{}), "h"), "lmcache entries", check.Warn, []string{"writes no such entries", "version 0.3.1"}},
		{"world size", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{WorldSize: 2}), "h"), "lmcache entries", check.Warn, []string{"world size is 2, and the profile's 1"}},
		{"ints in hex, profile has digests", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, lmcache.Config{Version: lmcache.V036, Python: 12}, lmcache.Target{}), "h"), "lmcache entries", check.Warn, []string{"ints in hex, and the profile's 64 hex digits", "version 0.3.6"}},
		{"decimal, profile has hex", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V036, Python: 12}}}, owned(keys(t, lmcache.Config{Version: lmcache.V033}, lmcache.Target{}), "h"), "lmcache entries", check.Warn, []string{"ints in decimal, and the profile's ints in hex", "0.3.3"}},
		{"dtype", lmcache.AutoEntries, []lmcache.Profile{{Config: sha, DType: "half", Remote: lmcache.RemoteRESP}}, []Entry{{Name: keys(t, sha, lmcache.Target{DType: "bfloat16"})[0], Type: "string"}}, "lmcache entries", check.Info, []string{`dtype is "bfloat16", and the profile's "half"`}},
		{"tag", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V036, Python: 12}}}, owned(keys(t, lmcache.Config{Version: lmcache.V036, Python: 12}, lmcache.Target{Tags: []lmcache.Tag{{Name: "a", Value: "b"}}}), "h"), "lmcache entries", check.Info, []string{"with that tag alone"}},
		{"layer", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Layer: 3, HasLayer: true}), "h"), "lmcache entries", check.Info, []string{"by layer"}},
		{"no store", lmcache.AutoEntries, []lmcache.Profile{p031}, []Entry{{Name: keys(t, lmcache.Config{Version: lmcache.V046, MP: true}, lmcache.Target{})[0], Type: "string"}}, "lmcache entries", check.Info, []string{"remote store"}},
		{"wrong type", lmcache.AutoEntries, []lmcache.Profile{p031}, []Entry{{Name: keys(t, v031, lmcache.Target{})[0], Type: "list"}}, "lmcache entries", check.Warn, []string{"1 are of another type, such as list"}},
		{"path for name", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: "/data/models/Llama-3.1-8B-Instruct"}), "h"), "lmcache model", check.Warn, []string{`call it "` + model + `"`}},
		{"hub's folder", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: "/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/ab12"}), "h"), "lmcache model", check.Warn, []string{`call it "` + model + `"`}},
		{"case", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: strings.ToLower(model)}), "h"), "lmcache model", check.Warn, []string{`call it "` + model + `"`}},
		{"stranger", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: "x"}), "h"), "lmcache model", check.Warn, []string{"no pod is registered for it"}},
		{"registered, no profile", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: "other"}), "h"), "lmcache model", check.Warn, []string{"add a profile"}},
		{"owner that cannot be read", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "10.0.0.1:port"), "lmcache owners", check.Warn, []string{"at this host there is 10.0.0.1:8000"}},
		{"owner of another model", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{Model: "other"}), "10.0.0.1:8000"), "lmcache owners", check.Warn, []string{"no pod is registered at this host"}},
		{"several pods on a host", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "10.0.0.2"), "lmcache owners", check.Warn, []string{"a host of 2 pods"}},
		{"IPv6", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "fd00::7"), "lmcache owners", check.Warn, []string{"IPv6 without a port"}},
		{"no owner", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), ""), "lmcache owners", check.Warn, []string{"none of 4 entries names a pod", "count for no pod"}},
		{"owners of another type", lmcache.AutoEntries, []lmcache.Profile{p031}, []Entry{{Name: keys(t, v031, lmcache.Target{})[0], Type: "list"}}, "lmcache owners", check.Warn, []string{"none of 1 entry names a pod"}},
		{"nobody", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "10.9.9.9:1"), "lmcache owners", check.Warn, []string{"no pod is registered at this host"}},
		{"a worker is missing", lmcache.AutoEntries, []lmcache.Profile{{Config: v031, WorldSizes: []int{2}}}, append(owned(keys(t, v031, lmcache.Target{WorldSize: 2}), "10.0.0.1"), owned(keys(t, v031, lmcache.Target{WorldSize: 2, WorkerID: 1})[:3], "10.0.0.1")...), "lmcache workers", check.Info, []string{"3 of 4 chunks", "worker 1 lacks most, 1"}},
		{"a worker never writes", lmcache.AutoEntries, []lmcache.Profile{{Config: v031, WorldSizes: []int{2}}}, owned(keys(t, v031, lmcache.Target{WorldSize: 2}), "10.0.0.1"), "lmcache workers", check.Warn, []string{"0 of 4 chunks", "save_only_first_rank"}},
		{"no time", lmcache.AutoEntries, []lmcache.Profile{p031}, owned(keys(t, v031, lmcache.Target{}), "10.0.0.1"), "lmcache age", check.Info, []string{"4 entries without a time"}},
		{"old", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.VFork}}}, []Entry{{Name: keys(t, lmcache.Config{Version: lmcache.VFork}, lmcache.Target{})[0], Type: "hash", Fields: map[string]string{"10.0.0.1": "vllm@1@0@1795810000.5", "10.0.0.2:1": "vllm@1@0@1795815000.5"}}}, "lmcache age", check.Info, []string{"1 of 2 fields are older than 1h"}},
		{"a profile that cannot be", lmcache.AutoEntries, []lmcache.Profile{{Config: lmcache.Config{Version: lmcache.V046, VLLM: true}}}, nil, "lmcache profile", check.Fail, []string{"PYTHONHASHSEED"}},
		{"nothing there", lmcache.AutoEntries, []lmcache.Profile{p031}, []Entry{{Name: "x@y", Type: "string"}}, "lmcache entries", check.Info, []string{"none, among 1 names"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := Config{
				Mode: c.mode, Owner: ownerOf, MaxAge: time.Hour, Now: time.Unix(1795815068, 0),
				Pods: []store.Pod{{Name: "10.0.0.1:8000", Model: model}, {Name: "10.0.0.2:8000", Model: model}, {Name: "10.0.0.2:8001", Model: model}, {Name: "o", Model: "other"}},
			}
			if c.p != nil {
				conf.Profiles = profiles(c.p...)
			}
			want(t, diagnosed(conf, c.entries).Findings(true), c.what, c.level, c.words...)
		})
	}
}

// TestExplain files a prompt by one chain and configures another.
func TestExplain(t *testing.T) {
	sha := func(f func(*lmcache.Config)) lmcache.Config {
		c := lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}
		f(&c)
		return c
	}
	mine := sha(func(*lmcache.Config) {})
	for _, c := range []struct {
		name  string
		has   lmcache.Config
		mine  lmcache.Config
		words []string
	}{
		{"seed", sha(func(c *lmcache.Config) { c.Seed = "42" }), mine, []string{"your seed differs: theirs is 42, the profile's 0"}},
		{"algorithm", sha(func(c *lmcache.Config) { c.Algorithm, c.Python = lmcache.Builtin, 12 }), mine, []string{"your algorithm differs: theirs is builtin, the profile's sha256_cbor"}},
		{"not in vLLM", lmcache.Config{Version: lmcache.V046}, sha(func(c *lmcache.Config) { c.Algorithm, c.Python = lmcache.Builtin, 12 }), []string{"theirs does not run inside vLLM (vllm=false)", "?version=0.5.6&vllm=false"}},
		{"in vLLM", sha(func(c *lmcache.Config) { c.Algorithm, c.Python = lmcache.Builtin, 12 }), lmcache.Config{Version: lmcache.V046}, []string{"PYTHONHASHSEED, which is 0, and the profile's does not", "?version=0.5.6&seed=0&python=3.12"}},
		{"seed of one", mine, lmcache.Config{Version: lmcache.V046}, []string{"theirs is sha256_cbor, the profile's builtin", "theirs has a seed, 0, and the profile's algorithm has none"}},
		{"chunk size", sha(func(c *lmcache.Config) { c.ChunkSize = 16 }), mine, []string{"your chunk size differs: theirs is 16, the profile's 256"}},
		{"version", sha(func(c *lmcache.Config) { c.Version = lmcache.V041 }), mine, []string{"your version differs: theirs hashes as 0.4.1 to 0.4.5, and the profile's is of 0.4.6 to 0.5.6"}},
		{"MP", lmcache.Config{Version: lmcache.V046, MP: true}, mine, []string{"theirs is MP mode: true", "blake3"}},
		{"Python", sha(func(c *lmcache.Config) { c.Algorithm, c.Python = lmcache.Builtin, 9 }), sha(func(c *lmcache.Config) { c.Algorithm, c.Python = lmcache.Builtin, 12 }), []string{"your Python differs"}},
		{"old chain", v031, mine, []string{"sha256 in a chain of hex", "0.3.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := must.Get(lmcache.New(c.has))(t)
			key := h.Append(nil, tokens()[:h.ChunkSize()])[0].ChunkKey()
			s := diagnosed(Config{Profiles: profiles(lmcache.Profile{Config: c.mine}), Mode: lmcache.AutoEntries})
			e := s.Explain(model, tokens())
			held := make([]bool, len(e.Keys()))
			for i, k := range e.Keys() {
				held[i] = k == key
			}
			list := e.Findings(held, nil)
			want(t, list, "lmcache chain", check.Fail, append(c.words, "never match")...)
			for _, f := range list {
				if strings.Contains(f.Means, "not set") || !seeded(c.has) && strings.Contains(f.Means, "your seed") {
					t.Errorf("a seed that nobody has set is compared: %s", f.Means)
				}
			}

			// Where the profile's own is there too, some engines differ.
			for i, k := range e.Keys() {
				own := must.Get(lmcache.New(c.mine))(t)
				held[i] = held[i] || k == own.Append(nil, tokens()[:own.ChunkSize()])[0].ChunkKey()
			}
			list = e.Findings(held, nil)
			want(t, list, "lmcache chain", check.OK, "as configured")
			want(t, list, "lmcache chain", check.Warn, c.words...)
		})
	}
	s := diagnosed(Config{})
	want(t, s.Explain(model, tokens()).Findings(nil, nil), "lmcache chain", check.Info, "no engine has filed")
	want(t, s.Explain(model, tokens()[:8]).Findings(nil, nil), "lmcache chain", check.Info, "8 tokens are less than")
	e := s.Explain(model, tokens())
	held := make([]bool, len(e.Keys()))
	held[0] = true
	want(t, e.Findings(held, nil), "lmcache chain", check.Warn, "no profile is configured", "configure this one: "+model+"?version=")
}

// TestNamesThatDiffer files a prompt by the profile's own chain, under names that are
// not those that are asked for.
func TestNamesThatDiffer(t *testing.T) {
	sha := lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}
	other := sha
	other.Seed = "42"
	const path = "/data/models/Llama-3.1-8B-Instruct"
	for _, c := range []struct {
		name   string
		p      lmcache.Profile
		has    lmcache.Config
		target lmcache.Target
		suffix string
		level  check.Level
		words  []string
	}{
		{"model", lmcache.Profile{Config: v031}, v031, lmcache.Target{Model: path}, "", check.Fail, []string{"as configured", "the names never match", "their model is " + strconv.Quote(path), "&name=%2Fdata"}},
		{"world size", lmcache.Profile{Config: v031}, v031, lmcache.Target{WorldSize: 2}, "", check.Fail, []string{"world size is 2, and the profile's 1", "&world_size=2"}},
		{"model and chain", lmcache.Profile{Config: sha, DType: "half", Remote: lmcache.RemoteRESP}, other, lmcache.Target{Model: path, DType: "half"}, "", check.Fail, []string{"your seed differs", "the model name differs: theirs is " + strconv.Quote(path), "&seed=42&name=%2Fdata%2Fmodels%2FLlama-3.1-8B-Instruct&dtype=half&remote=resp"}},
		{"no store", lmcache.Profile{Config: sha, DType: "half"}, sha, lmcache.Target{DType: "half"}, "kv_bytes", check.Info, []string{"as configured", "no profile says that engines share such a store"}},
		{"the profile's name", lmcache.Profile{Config: v031, Model: path}, v031, lmcache.Target{Model: path}, "", check.OK, []string{"as configured"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var entries []Entry
			for _, n := range keys(t, c.has, c.target) {
				entries = append(entries, Entry{Name: n + c.suffix, Type: "string"})
				if c.suffix != "" {
					entries = append(entries, Entry{Name: n + "metadata", Type: "string"})
				}
			}
			e := diagnosed(Config{Profiles: profiles(c.p), Mode: lmcache.AutoEntries}, entries).Explain(model, tokens())
			there := make([]bool, len(e.Names()))
			for i, n := range e.Names() {
				there[i] = slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == n })
			}
			list := e.Findings(nil, there)
			want(t, list, "lmcache chain", c.level, c.words...)
			if len(list) != 1 {
				t.Errorf("%d findings\n%s", len(list), show(list))
			}
		})
	}
}

// TestRefusedProfile compares nothing with a profile that kvatlas serve does not start
// with, and says what a right one is.
func TestRefusedProfile(t *testing.T) {
	refused := lmcache.Profile{Config: lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true}} // no seed
	has := refused.Config
	has.Seed = "42"
	h := must.Get(lmcache.New(has))(t)
	s := diagnosed(Config{Profiles: profiles(refused), Mode: lmcache.AutoEntries}, owned(keys(t, v031, lmcache.Target{}), "h"))
	list := s.Findings(true)
	want(t, list, "lmcache profile", check.Fail, "PYTHONHASHSEED")
	want(t, list, "lmcache entries", check.Warn, "never match: the profile is refused")
	e := s.Explain(model, tokens())
	key := h.Append(nil, tokens()[:h.ChunkSize()])[0].ChunkKey()
	held := make([]bool, len(e.Keys()))
	for i, k := range e.Keys() {
		held[i] = k == key
	}
	list = e.Findings(held, nil)
	want(t, list, "lmcache chain", check.Warn, "the model's profile is refused", "correct the profile: "+model+"?version=0.5.6&algorithm=sha256_cbor&seed=42")
	if len(list) != 1 || strings.Contains(show(list), "differs") {
		t.Errorf("it is compared all the same\n%s", show(list))
	}
}

// TestReleases holds the releases of each line against package lmcache.
func TestReleases(t *testing.T) {
	for v := lmcache.V01; !strings.HasPrefix(v.String(), "version("); v++ {
		r, ok := releases[v]
		if !ok || r[0] != v.String() {
			t.Errorf("%v begins with %q", v, r[0])
		}
		for _, release := range r {
			if got, err := lmcache.VersionOf(release); err != nil || got != v {
				t.Errorf("%s is of the line %v, %v, and not of %v", release, got, err, v)
			}
		}
	}
}

// TestDecimalThatLooksLikeHex has decimal hashes of which some could be hex.
func TestDecimalThatLooksLikeHex(t *testing.T) {
	s := diagnosed(Config{Profiles: profiles(lmcache.Profile{Config: lmcache.Config{Version: lmcache.V033}}), Mode: lmcache.AutoEntries, Owner: ownerOf},
		owned([]string{"vllm@" + model + "@1@0@-3056368036007599741", "vllm@" + model + "@1@0@123456789012345"}, "10.0.0.1"))
	list := s.Findings(true)
	want(t, list, "lmcache entries", check.OK, "2 entries of 2 chunks", "<decimal>")
	for _, f := range list {
		if f.Level >= check.Warn {
			t.Errorf("%+v", f)
		}
	}
}

func TestController(t *testing.T) {
	worker := func(name, m, pod string, n, of int) store.Pod {
		return store.Pod{Name: lmcache.WorkerName(name, "", n), Model: m, PartOf: &store.PartOf{Pod: pod, Worker: n, Workers: of}}
	}
	labelled := func(instance string, n int, pod, ip, shared string) store.Pod {
		p := store.Pod{Name: lmcache.WorkerName(instance, pod, n), Model: model, PartOf: &store.PartOf{Pod: pod, Worker: n, Workers: 1}, Labels: map[string]string{feed.LabelInstance: instance}}
		for label, v := range map[string]string{feed.LabelIP: ip, feed.LabelShared: shared} {
			if v != "" {
				p.Labels[label] = v
			}
		}
		return p
	}
	s := diagnosed(Config{
		Profiles: profiles(lmcache.Profile{Config: v031}), Mode: lmcache.AutoEntries,
		Pods: []store.Pod{
			{Name: "p", Model: model}, {Name: "q", Model: "other"},
			worker("whole", model, "p", 0, 2), worker("whole", model, "p", 1, 2), worker("half", model, "p", 1, 2), worker("unasked", "other", "q", 0, 1), worker("orphan", model, "gone", 0, 1),
			labelled("a", 0, "p", "10.0.0.1", ""), labelled("a", 0, "q", "10.0.0.2", ""), labelled("b", 0, "p", "", "10.0.0.3:9000 and 10.0.0.4:9000"), labelled("c", 0, "p", "10.0.0.1", ""), labelled("c", 0, "q", "10.0.0.1", ""),
		},
	})
	list := s.Findings(true)
	want(t, list, "lmcache controller", check.OK, "10 workers of 9 instances")
	want(t, list, "lmcache controller", check.Warn, "1 ids of workers are used by several processes: b/0 by 10.0.0.3:9000 and 10.0.0.4:9000")
	want(t, list, "lmcache controller", check.Warn, "1 ids of workers are used at several addresses: a/0 at 10.0.0.1 and 10.0.0.2")
	want(t, list, "lmcache controller", check.Warn, "unasked/lmcache/0", "never asked for")
	want(t, list, "lmcache controller", check.Warn, "orphan/lmcache/0", "counts for no pod")
	want(t, list, "lmcache controller", check.Warn, "1 instances lack workers: half/lmcache/* (1 of 2)")
}

// TestBounds feeds more than is remembered.
func TestBounds(t *testing.T) {
	s := New(Config{Owner: ownerOf})
	for i := range maxGroups + 7 {
		s.Add(Entry{Name: fmt.Sprintf("vllm@model-%d@1@0@ab", i), Type: "string", Text: "x"})
	}
	for i := range maxOwners + 7 {
		s.Add(Entry{Name: fmt.Sprintf("vllm@model-0@1@0@%x", i+1), Type: "string", Text: fmt.Sprint("pod", i)})
	}
	s.Add(Entry{Name: "vllm@model-0@60000@59999@ab", Type: "string"})
	list := s.Findings(false)
	want(t, list, "lmcache entries", check.Info, "8 more of other patterns")
	want(t, list, "lmcache owners", check.Warn, "1000 texts")
}

func TestNamesAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	for _, n := range Names {
		if !strings.Contains(string(text), "\n### "+n+"\n") {
			t.Errorf("docs/operations.md has no paragraph %q", n)
		}
	}
}
