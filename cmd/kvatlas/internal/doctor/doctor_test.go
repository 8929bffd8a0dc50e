package doctor

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// operations is the document on what findings mean and which rights users need.
const operations = "../../../../docs/operations.md"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// look looks at what c names, and returns the worst level and the findings by section.
func look(t *testing.T, c Config) (worst check.Level, sections map[string][]check.Finding) {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = 15 * time.Second
	}
	sections = map[string][]check.Finding{}
	for _, s := range Look(t.Context(), c) {
		sections[s.Name] = s.Findings
		worst = max(worst, check.Worst(s.Findings))
	}
	return worst, sections
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

// serve returns the address of a server of version v2 with an index in Redis, whose other paths
// answer what answer returns.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := `{"version":"v2","backend":"redis"}`
		if r.URL.Path != "/healthz" {
			body = answer(w, r)
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestRedis(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret", "--maxmemory", "100mb")
	s.Client().Do(t.Context(), "AUTH", "secret")
	plain := s.Client()
	if err := plain.Do(t.Context(), "PING").Err(); err == nil {
		t.Fatal("the server has no password")
	}
	_, sections := look(t, Config{Redis: redis.Config{URL: "redis://:secret@" + s.Addr}, ScoreBudget: time.Second})
	if f := has(t, sections["redis"], "eviction policy", ""); f.Level != check.OK || f.Found != "noeviction" {
		t.Errorf("got %+v", f)
	}
	worst, sections := look(t, Config{Redis: redis.Config{URL: "redis://:secret@" + s.Addr, Prefix: "a-long-one"}, ScoreBudget: time.Second})
	if f := has(t, sections["redis"], "memory of a block", ""); worst != check.Info || f.Level != check.Info {
		t.Errorf("got %v, %+v", worst, f)
	}
	worst, sections = look(t, Config{Redis: redis.Config{URL: "redis://" + s.Addr}})
	if f := has(t, sections["redis"], "connection", ""); worst != check.Fail || f.Level != check.Fail || !strings.Contains(f.Do, "password") {
		t.Errorf("%v, %+v", worst, f)
	}
}

func TestTokenizers(t *testing.T) {
	root := t.TempDir()
	put := func(model, text string) {
		t.Helper()
		dir := filepath.Join(root, model)
		must.OK(t, os.MkdirAll(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o600))
	}
	worst, sections := look(t, Config{Tokenizers: root})
	if f := has(t, sections["tokenizers"], "directory", ""); worst == check.Fail || f.Level != check.Warn {
		t.Errorf("empty: the worst is %v, %+v", worst, f)
	}
	worst, sections = look(t, Config{Tokenizers: root, HubOffline: true})
	if f := has(t, sections["tokenizers"], "directory", ""); worst != check.Fail || f.Level != check.Fail {
		t.Errorf("empty and offline: the worst is %v, %+v", worst, f)
	}
	good := `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`
	put("org/good", good)
	put("single", good)
	must.OK(t, os.Symlink(filepath.Join(root, "org", "good"), filepath.Join(root, "org", "link")))
	if worst, sections = look(t, Config{Tokenizers: root}); worst == check.Fail || len(sections["tokenizers"]) != 3 {
		t.Errorf("the worst is %v, %+v", worst, sections)
	}
	put("org/cut", good[:40])
	put("org/lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
	put("org/odd", `{"model":"BPE"}`)
	put("org/empty", `{"model":{}}`)
	put(".hidden/no", "no")
	worst, sections = look(t, Config{Tokenizers: root})
	list := sections["tokenizers"]
	if worst != check.Fail || len(list) != 7 {
		t.Errorf("the worst is %v, %d findings: %+v", worst, len(list), list)
	}
	for model, want := range map[string]string{
		"org/good": "BPE", "org/link": "BPE", "single": "BPE",
		"org/cut": "only a part", "org/lfs": "Git LFS", "org/odd": "usual form", "org/empty": "no vocabulary",
	} {
		level := check.Fail
		if want == "BPE" {
			level = check.OK
		}
		if f := has(t, list, "tokenizer", model); f.Level != level || !strings.Contains(f.Found, want) {
			t.Errorf("%s: got %+v, want %v and %q", model, f, level, want)
		}
	}
	worst, sections = look(t, Config{Tokenizers: filepath.Join(root, "no")})
	if f := has(t, sections["tokenizers"], "directory", ""); worst != check.Fail || f.Level != check.Fail {
		t.Errorf("the worst is %v, %+v", worst, f)
	}
}

// A server whose requests have shown that its index is right.
func TestTruthOfTheIndex(t *testing.T) {
	for _, c := range []struct {
		truth string
		level check.Level
		found string
	}{
		{`{"requests":40,"predicted_tokens":4000,"delivered_tokens":3900,"lies":false}`, check.OK, "had cached: 1; none"},
		{`{"requests":40,"predicted_tokens":4000,"delivered_tokens":10,"lies":true}`, check.Warn, "p rank 3 (10 of 4000 tokens)"},
	} {
		at := serve(t, func(_ http.ResponseWriter, r *http.Request) string {
			if r.URL.Path != "/v1/loads" {
				return `{}`
			}
			return `{"models":{"m":[{"pod":"p","rank":3,"truth":` + c.truth + `},{"pod":"q","rank":0}]}}`
		})
		_, sections := look(t, Config{Server: at, Version: "v2"})
		if f := has(t, sections["server"], "truth of the index", ""); f.Level != c.level || !strings.Contains(f.Found, c.found) {
			t.Errorf("%s: %+v", c.truth, f)
		}
	}
}

// A server that is not ready, of another version, and with an index of another kind.
func TestServer(t *testing.T) {
	backend, ready := "redis", true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/healthz":
			_, _ = w.Write([]byte(`{"version":"v2","backend":"` + backend + `"}`))
		case r.URL.Path == "/v1/pods": // TestPodsOfAServer looks at what it lists
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"error":{"code":"forbidden","message":"no"}}`))
		case ready:
			_, _ = w.Write([]byte(`{}`))
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"code":"not_ready","message":"starting","param":"p"}}`))
		}
	}))
	t.Cleanup(s.Close)
	for _, c := range []struct {
		backend string
		ready   bool
		version string
		redis   string
		levels  [4]check.Level
	}{
		{"redis", true, "v2", "", [4]check.Level{}},
		{"redis", false, "v2", "", [4]check.Level{1: check.Warn}},
		{"redis", true, "v1", "", [4]check.Level{2: check.Info}},
		{"memory", true, "v2", "", [4]check.Level{3: check.Info}},
		{"memory", false, "v1", "redis://127.0.0.1:1", [4]check.Level{1: check.Warn, 2: check.Info, 3: check.Warn}},
	} {
		backend, ready = c.backend, c.ready
		_, sections := look(t, Config{Server: s.URL, Version: c.version, Redis: redis.Config{URL: c.redis}})
		list := sections["server"]
		for i, what := range []string{"health", "readiness", "server version", "index"} {
			if f := has(t, list, what, ""); f.Level != c.levels[i] || len(list) != 4 {
				t.Errorf("%+v: got %+v", c, f)
			}
		}
		if f := has(t, list, "readiness", ""); !c.ready && f.Found != "the server at "+s.URL+" answers 503 not_ready: starting" {
			t.Errorf("got %+v", f)
		}
	}
	for _, at := range []string{"http://127.0.0.1:1", "::no", "ftp://x"} {
		worst, sections := look(t, Config{Server: at})
		if f := has(t, sections["server"], "health", ""); worst != check.Fail || f.Level != check.Fail || f.Do == "" {
			t.Errorf("%s: %+v", at, f)
		}
	}
}

// Pods that are missing are told, and models of pods whose texts a server cannot read.
func TestPodsOfAServer(t *testing.T) {
	var pods string
	at := serve(t, func(w http.ResponseWriter, r *http.Request) string {
		switch r.URL.Path {
		case "/v1/pods":
			return `{"pods":[` + pods + `]}`
		case "/v1/tokenize":
			if asked, _ := io.ReadAll(r.Body); !strings.Contains(string(asked), `"model":"no"`) {
				return `{"tokens":[1]}`
			}
			w.WriteHeader(http.StatusBadGateway)
			return `{"error":{"code":"tokenizer_unavailable","message":"the hub is away","param":"model"}}`
		}
		return `{}`
	})
	worst, sections := look(t, Config{Server: at, Version: "v2"})
	if f := has(t, sections["server"], "pods", ""); worst != check.Warn || f.Level != check.Warn || f.Found != "none are registered" || f.Do == "" {
		t.Errorf("%v, %+v", worst, f)
	}
	pods = `{"name":"a","model":"yes"},{"name":"b","model":"no"},{"name":"c","model":"yes"},{"name":"d","model":"part","part_of":{"pod":"a"}}`
	_, sections = look(t, Config{Server: at, Version: "v2"})
	list := sections["server"]
	if f := has(t, list, "pods", ""); f.Level != check.OK || f.Found != "4, of 2 models" {
		t.Errorf("%+v", f)
	}
	if f := has(t, list, "tokenizer of a pod", "yes"); f.Level != check.OK {
		t.Errorf("%+v", f)
	}
	if f := has(t, list, "tokenizer of a pod", "no"); f.Level != check.Warn || !strings.Contains(f.Found, "the hub is away") || f.Do == "" {
		t.Errorf("%+v", f)
	}
}

// A server that cannot read its index, and one that is not connected to engines.
func TestServerWithoutIndexOrEngines(t *testing.T) {
	status, figures := http.StatusServiceUnavailable, ""
	at := serve(t, func(w http.ResponseWriter, r *http.Request) string {
		switch r.URL.Path {
		case "/v1/pods":
			w.WriteHeader(status)
			return `{"error":{"code":"index_unavailable","message":"the index cannot be reached"}}`
		case "/metrics":
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			return "# TYPE kvatlas_ingest_connected gauge\n" + figures
		}
		return `{}`
	})
	worst, sections := look(t, Config{Server: at, Version: "v2"})
	if f := has(t, sections["server"], "pods", ""); worst != check.Fail || !strings.Contains(f.Found, "503 index_unavailable") || f.Do == "" {
		t.Errorf("without an index: %v, %+v", worst, f)
	}
	status = http.StatusForbidden // a token that may not list pods
	for _, c := range []struct {
		figures string
		level   check.Level
		found   string
	}{
		{`kvatlas_ingest_connected{pod="a",rank="0"} 1` + "\n", check.OK, "reads: 1; it is connected to all"},
		{`kvatlas_ingest_connected{pod="b",rank="0"} 0` + "\n" + `kvatlas_ingest_connected{pod="a",rank="1"} 0` + "\n" + `kvatlas_ingest_connected{pod="a",rank="0"} 1` + "\n", check.Warn, "not connected to 2 of 3: a rank 1, b rank 0"},
	} {
		figures = c.figures
		worst, sections = look(t, Config{Server: at, Version: "v2"})
		if f := has(t, sections["server"], "events of engines", ""); worst != c.level || !strings.HasSuffix(f.Found, c.found) {
			t.Errorf("%s: %v, %+v", c.figures, worst, f)
		}
	}
}

// Requests that a process of another version has booked are told.
func TestFormsOfLoads(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "100mb")
	url := "redis://" + s.Addr
	x := must.Get(redis.Open(redis.Config{URL: url}))(t)
	t.Cleanup(func() { _ = x.Close() })
	must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m"}))(t)
	for form, want := range map[string]check.Level{"": check.Warn, "2": check.Warn, "3": check.OK} {
		key := keyspace.ModelKeys(redis.DefaultPrefix, "m")("t" + form)
		must.OK(t, s.Client().ZAdd(t.Context(), key, goredis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: "r"}).Err())
		_, sections := look(t, Config{Redis: redis.Config{URL: url}, ScoreBudget: time.Second})
		if f := has(t, sections["redis"], "forms of loads", ""); f.Level != want || want == check.Warn && (!strings.HasSuffix(f.Found, ": m") || f.Do == "") {
			t.Errorf("form %q: %+v", form, f)
		}
		must.OK(t, s.Client().Del(t.Context(), key).Err())
	}
}

// What is not named is not looked at, and what takes no time is not waited for.
func TestNothing(t *testing.T) {
	if report := Look(t.Context(), Config{Timeout: time.Second}); report == nil || len(report) > 0 {
		t.Errorf("got %+v", report)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report := Look(ctx, Config{Timeout: time.Hour, Server: "127.0.0.1:1", Redis: redis.Config{URL: "redis://127.0.0.1:1"}, Engine: Engine{Endpoint: "tcp://127.0.0.1:1"}})
	for _, s := range report {
		if check.Worst(s.Findings) != check.Fail {
			t.Errorf("got %+v", s)
		}
	}
	if len(report) != 3 {
		t.Errorf("got %+v", report)
	}
}
