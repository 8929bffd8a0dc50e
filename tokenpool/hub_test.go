package tokenpool

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// fakeHub serves files as huggingface.co does, and breaks as networks do.
type fakeHub struct {
	t   testing.TB
	srv *httptest.Server
	url string

	mu       sync.Mutex
	files    map[string]string // content by path
	etags    map[string]string // default: from the content
	log      []string          // "METHOD path range"
	cut      int               // bytes after which the connection breaks, per response
	cuts     int               // how many responses break
	status   []int             // of the next requests, before any file
	errCode  string            // X-Error-Code of those
	slow     time.Duration     // before headers
	stall    int               // bytes after which nothing comes any more
	noRange  bool
	token    string // that is required
	auth     []string
	redirect *fakeHub // that large files are at
	hideEtag bool
	chunked  bool // no Content-Length
}

const commit = "0123456789abcdef0123456789abcdef01234567"

func newFakeHub(t testing.TB) *fakeHub {
	h := &fakeHub{t: t, files: map[string]string{}, etags: map[string]string{}}
	h.srv = httptest.NewServer(h)
	h.url = h.srv.URL
	t.Cleanup(h.srv.Close)
	return h
}

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.log = append(h.log, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+r.Header.Get("Range")))
	h.auth = append(h.auth, r.Header.Get("Authorization"))
	content, ok := h.files[r.URL.Path]
	etag := h.etags[r.URL.Path]
	if etag == "" {
		sum := sha256.Sum256([]byte(content))
		etag = hex.EncodeToString(sum[:10])
	}
	status := 0
	if len(h.status) > 0 {
		status, h.status = h.status[0], h.status[1:]
	}
	cut := -1
	if h.cuts > 0 {
		cut, h.cuts = h.cut, h.cuts-1
	}
	slow, stall, noRange, token, redirect, hideEtag, chunked, code := h.slow, h.stall, h.noRange, h.token, h.redirect, h.hideEtag, h.chunked, h.errCode
	h.mu.Unlock()

	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
			return
		}
	}
	if status != 0 {
		w.Header().Set("X-Error-Code", code)
		http.Error(w, "no", status)
		return
	}
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if redirect != nil {
		sum := sha256.Sum256([]byte(content))
		w.Header().Set("X-Linked-Etag", `"`+hex.EncodeToString(sum[:])+`"`)
		http.Redirect(w, r, redirect.url+r.URL.Path+"?signature=secret", http.StatusFound)
		return
	}
	if !hideEtag {
		w.Header().Set("ETag", `"`+etag+`"`)
	}
	start := 0
	status = http.StatusOK
	if rng := r.Header.Get("Range"); rng != "" && !noRange {
		start, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(rng, "bytes="), "-"))
		if start >= len(content) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(content)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(content)-1, len(content)))
	}
	body := content[start:]
	if !chunked {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	flush := func() { _ = http.NewResponseController(w).Flush() }
	if chunked {
		flush()
	}
	switch {
	case cut >= 0 && cut < len(body):
		_, _ = w.Write([]byte(body[:cut]))
		flush()
		panic(http.ErrAbortHandler)
	case stall > 0 && stall < len(body):
		_, _ = w.Write([]byte(body[:stall]))
		flush()
		<-r.Context().Done()
	default:
		_, _ = w.Write([]byte(body))
	}
}

// set changes how the hub behaves, and forgets the log.
func (h *fakeHub) set(f func(h *fakeHub)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log, h.auth = nil, nil
	f(h)
}

// requests is the log of requests for tokenizer.json.
func (h *fakeHub) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, l := range h.log {
		if strings.Contains(l, tokenfile.TokenizerFile) {
			out = append(out, l)
		}
	}
	return out
}

// client is a Hub with a cache of its own that asks h.
func (h *fakeHub) client(cfg HubConfig) *Hub {
	h.t.Helper()
	cfg.Endpoint = h.url + "/"
	if cfg.CacheDir == "" {
		cfg.CacheDir = h.t.TempDir()
	}
	cfg.Backoff = cmp.Or(cfg.Backoff, time.Millisecond)
	c := must.Get(NewHub(cfg))(h.t)
	h.t.Cleanup(c.Close)
	return c
}

// large is JSON of n bytes whose every part differs.
func large(n int, seed string) string {
	var b strings.Builder
	b.WriteString(`{"x":"`)
	for i := 0; b.Len() < n-2; i++ {
		fmt.Fprintf(&b, "%s%d ", seed, i)
	}
	return b.String()[:n-2] + `"}`
}

const hubPath = "/org/model/resolve/main/tokenizer.json"

func TestHub(t *testing.T) {
	h := newFakeHub(t)
	h.files[hubPath] = large(100_000, "a")
	h.files["/org/model/resolve/main/tokenizer_config.json"] = `{"chat_template":""}`
	h.files["/org/model/resolve/refs%2Fpr%2F1/tokenizer.json"] = `{}`
	h.files["/org/model/resolve/refs/pr/1/tokenizer.json"] = `{"pr":1}`
	h.token = "hf_secret"
	var last string
	c := h.client(HubConfig{Token: "hf_secret", Progress: func(model, file string, done, total int64) {
		if file == tokenfile.TokenizerFile {
			last = fmt.Sprint(model, " ", done, " ", total)
		}
	}})
	if v, err := c.Stat("org/model"); v != "" || err != nil {
		t.Errorf("before: %q, %v", v, err)
	}
	files := must.Get(c.Fetch(t.Context(), "org/model"))(t)
	if string(files.Tokenizer) != h.files[hubPath] || string(files.Config) != `{"chat_template":""}` || files.Revision != commit || files.From != "hub" {
		t.Errorf("files %.100v", files)
	}
	if last != "org/model 100000 100000" {
		t.Errorf("progress %q", last)
	}
	v, err := c.Stat("org/model")
	if v == "" || v != files.Version || err != nil {
		t.Errorf("after: %q, %v, files have %q", v, err, files.Version)
	}
	// Again: one request, no body taken, nothing changed.
	again, err := c.Fetch(t.Context(), "org/model")
	if err != nil || again.Version != v || again.Revision != commit || !bytes.Equal(again.Tokenizer, files.Tokenizer) {
		t.Errorf("again: %v", err)
	}
	// Another content is noticed at the next load.
	h.set(func(h *fakeHub) { h.files[hubPath] = large(100_000, "b") })
	again, err = c.Fetch(t.Context(), "org/model")
	if err != nil || again.Version == v || string(again.Tokenizer) != large(100_000, "b") {
		t.Errorf("changed: version %v, %v", again.Version, err)
	}
	// Another revision has a place of its own.
	pr := h.client(HubConfig{Token: "hf_secret", CacheDir: c.cfg.CacheDir, Revisions: map[string]string{"org/model": "refs/pr/1"}})
	if v, err := pr.Stat("org/model"); v != "" || err != nil {
		t.Errorf("another revision: %q, %v", v, err)
	}
	if files, err := pr.Fetch(t.Context(), "org/model"); err != nil || string(files.Tokenizer) != `{"pr":1}` {
		t.Errorf("another revision: %s, %v", files.Tokenizer, err)
	}
	if got := h.requests(); len(got) != 2 || got[1] != "GET /org/model/resolve/refs%2Fpr%2F1/tokenizer.json" {
		t.Errorf("requests %q", got)
	}
	leftovers, _ := filepath.Glob(filepath.Join(c.cfg.CacheDir, "org", "model", "*", "*.part*"))
	if len(leftovers) != 0 {
		t.Errorf("left over: %v", leftovers)
	}
}

func TestHubResumes(t *testing.T) {
	content := large(300_000, "a")
	for _, c := range []struct {
		name    string
		prepare func(h *fakeHub)
		want    []string // ranges asked for
	}{
		{"cut twice", func(h *fakeHub) { h.cut, h.cuts = 100_000, 2 }, []string{"", "bytes=100000-", "bytes=200000-"}},
		{"no length", func(h *fakeHub) { h.cut, h.cuts, h.chunked = 100_000, 1, true }, []string{"", "bytes=100000-"}},
		{"no ranges", func(h *fakeHub) { h.cut, h.cuts, h.noRange = 100_000, 1, true }, []string{"", "bytes=100000-"}},
		{"no etag", func(h *fakeHub) { h.cut, h.cuts, h.hideEtag = 100_000, 1, true }, []string{"", ""}},
		{"errors between", func(h *fakeHub) { h.status = []int{500, 503, 429} }, []string{"", "", "", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHub(t)
			h.files[hubPath] = content
			c.prepare(h)
			hub := h.client(HubConfig{})
			files, err := hub.Fetch(t.Context(), "org/model")
			if err != nil || string(files.Tokenizer) != content {
				t.Fatalf("%d bytes, %v", len(files.Tokenizer), err)
			}
			var want []string
			for _, r := range c.want {
				want = append(want, strings.TrimSpace("GET "+hubPath+" "+r))
			}
			if got := h.requests(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("requests\n%q, want\n%q", got, want)
			}
		})
	}
}

// TestHubResumesLater: what one process has begun, another one ends.
func TestHubResumesLater(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(h *fakeHub)
		content   string
		second    []string // ranges asked for by the second
	}{
		{"same", func(h *fakeHub) {}, large(300_000, "a"), []string{"bytes=100000-"}},
		{"other content", func(h *fakeHub) { h.files[hubPath] = large(300_000, "b") }, large(300_000, "b"), []string{"bytes=100000-", ""}},
		{"shorter content", func(h *fakeHub) { h.files[hubPath] = large(50_000, "b") }, large(50_000, "b"), []string{"bytes=100000-", ""}},
		{"other content, no ranges", func(h *fakeHub) { h.files[hubPath], h.noRange = large(300_000, "b"), true }, large(300_000, "b"), []string{"bytes=100000-"}},
		{"other length, same etag", func(h *fakeHub) {
			h.files[hubPath], h.etags[hubPath] = large(200_000, "b"), h.etags["old"]
		}, large(200_000, "b"), []string{"bytes=100000-", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHub(t)
			h.files[hubPath] = large(300_000, "a")
			h.cut, h.cuts = 100_000, 1
			first := h.client(HubConfig{Attempts: 1})
			if _, err := first.Fetch(t.Context(), "org/model"); !errors.Is(err, tokenfile.ErrLoad) || !strings.Contains(err.Error(), "broke off after 100000 bytes") {
				t.Fatalf("cut: %v", err)
			}
			if v, err := first.Stat("org/model"); v != "" || err != nil {
				t.Errorf("half a file is taken for one: %q, %v", v, err)
			}
			sum := sha256.Sum256([]byte(h.files[hubPath]))
			h.etags["old"] = hex.EncodeToString(sum[:10])
			h.set(c.meanwhile)
			second := h.client(HubConfig{CacheDir: first.cfg.CacheDir})
			files, err := second.Fetch(t.Context(), "org/model")
			if err != nil || string(files.Tokenizer) != c.content {
				t.Fatalf("%d bytes, %v", len(files.Tokenizer), err)
			}
			var want []string
			for _, r := range c.second {
				want = append(want, strings.TrimSpace("GET "+hubPath+" "+r))
			}
			if got := h.requests(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("requests\n%q, want\n%q", got, want)
			}
		})
	}
}

// TestHubLargeFiles are redirected to another server, which must not see the
// token, and whose content must have the SHA-256 that the hub has named.
func TestHubLargeFiles(t *testing.T) {
	h, cdn := newFakeHub(t), newFakeHub(t)
	content := large(200_000, "a")
	h.files[hubPath], cdn.files[hubPath] = content, content
	h.redirect, h.token = cdn, "hf_secret"
	// Another name for the same host is another host.
	cdn.url = strings.Replace(cdn.url, "127.0.0.1", "localhost", 1)
	cdn.cut, cdn.cuts = 100_000, 1
	hub := h.client(HubConfig{Token: "hf_secret"})
	files, err := hub.Fetch(t.Context(), "org/model")
	if err != nil || string(files.Tokenizer) != content || files.Revision != commit {
		t.Fatalf("%d bytes, revision %s, %v", len(files.Tokenizer), files.Revision, err)
	}
	if got := cdn.requests(); len(got) != 2 || !strings.HasSuffix(got[1], "bytes=100000-") {
		t.Errorf("requests %q", got)
	}
	for _, a := range cdn.auth {
		if a != "" {
			t.Error("the file server sees the token")
		}
	}
	// Again: known by the redirect alone.
	if _, err := hub.Fetch(t.Context(), "org/model"); err != nil {
		t.Error(err)
	}

	cdn.set(func(h *fakeHub) { h.files[hubPath] = large(200_000, "b") })
	hub = h.client(HubConfig{Token: "hf_secret", Attempts: 2})
	if _, err := hub.Fetch(t.Context(), "org/model"); !errors.Is(err, tokenfile.ErrLoad) || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("wrong content: %v", err)
	}
	if v, _ := hub.Stat("org/model"); v != "" {
		t.Error("wrong content is in the cache")
	}
	cdn.srv.Close()
	if _, err := hub.Fetch(t.Context(), "org/model"); !errors.Is(err, tokenfile.ErrLoad) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestHubRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(h *fakeHub)
		cfg     HubConfig
		is      error
		says    string
		asks    int
	}{
		{"404", func(h *fakeHub) { delete(h.files, hubPath) }, HubConfig{}, ErrUnknownModel, "has no such model, or no tokenizer.json in revision main", 1},
		{"404 entry", func(h *fakeHub) { h.status, h.errCode = []int{404}, "EntryNotFound" }, HubConfig{}, ErrUnknownModel, "has the model, but no tokenizer.json", 1},
		{"404 revision", func(h *fakeHub) { h.status, h.errCode = []int{404}, "RevisionNotFound" }, HubConfig{}, ErrUnknownModel, "no revision main", 1},
		{"401", func(h *fakeHub) { h.token = "other" }, HubConfig{Token: "hf_secret"}, ErrUnknownModel, "private and the token does not open it (401)", 1},
		{"401, no token", func(h *fakeHub) { h.token = "other" }, HubConfig{}, ErrUnknownModel, "no token is set (HF_TOKEN)", 1},
		{"401 gated", func(h *fakeHub) { h.status, h.errCode = []int{401}, "GatedRepo" }, HubConfig{}, tokenfile.ErrLoad, "granted access", 1},
		{"403", func(h *fakeHub) { h.status = []int{403} }, HubConfig{Token: "hf_secret"}, tokenfile.ErrLoad, "access to the model has to be granted", 1},
		{"418", func(h *fakeHub) { h.status = []int{418} }, HubConfig{}, tokenfile.ErrLoad, "answered 418", 1},
		{"500 for ever", func(h *fakeHub) { h.status = []int{500, 500, 500, 500} }, HubConfig{Attempts: 3}, tokenfile.ErrLoad, "attempt 3: the hub", 3},
		{"cut for ever", func(h *fakeHub) { h.cut, h.cuts = 10, 100 }, HubConfig{Attempts: 3}, tokenfile.ErrLoad, "broke off after 30 bytes", 3},
		{"slow", func(h *fakeHub) { h.slow = time.Minute }, HubConfig{Attempts: 2, ResponseTimeout: 500 * time.Millisecond}, tokenfile.ErrLoad, "attempt 2: nothing came for 500ms", 2},
		{"stalls", func(h *fakeHub) { h.stall = 10 }, HubConfig{Attempts: 2, ResponseTimeout: 500 * time.Millisecond}, tokenfile.ErrLoad, "attempt 2: nothing came for 500ms", 2},
		{"too large", func(h *fakeHub) {}, HubConfig{MaxFileBytes: 999}, tokenfile.ErrLoad, "1000 bytes, the limit is 999", 1},
		{"too large, no length", func(h *fakeHub) { h.chunked = true }, HubConfig{MaxFileBytes: 999}, tokenfile.ErrLoad, "more than 999 bytes", 1},
		{"not JSON", func(h *fakeHub) { h.files[hubPath] = "<html>sign in</html>" }, HubConfig{Attempts: 2}, tokenfile.ErrLoad, "web page", 2},
		{"offline", func(h *fakeHub) {}, HubConfig{Offline: true}, ErrUnknownModel, "offline", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHub(t)
			h.files[hubPath] = large(1000, "a")
			c.prepare(h)
			hub := h.client(c.cfg)
			_, err := hub.Fetch(t.Context(), "org/model")
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v with %q", err, c.is, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "hf_secret") {
				t.Errorf("the error holds the token: %v", err)
			}
			if got := h.requests(); len(got) != c.asks {
				t.Errorf("%d requests, want %d", len(got), c.asks)
			}
			if matches, _ := filepath.Glob(filepath.Join(hub.cfg.CacheDir, "org", "model", "@main", tokenfile.TokenizerFile)); len(matches) != 0 {
				t.Errorf("in the cache: %v", matches)
			}
		})
	}
}

func TestHubFallsBackOnCache(t *testing.T) {
	h := newFakeHub(t)
	content := large(1000, "a")
	h.files[hubPath] = content
	first := h.client(HubConfig{})
	must.Get(first.Fetch(t.Context(), "org/model"))(t)
	for name, prepare := range map[string]func(h *fakeHub){
		"500":     func(h *fakeHub) { h.status = []int{500} },
		"401":     func(h *fakeHub) { h.status = []int{401} },
		"404":     func(h *fakeHub) { h.status = []int{404} },
		"slow":    func(h *fakeHub) { h.slow = time.Minute },
		"changed": func(h *fakeHub) { h.slow, h.files[hubPath], h.cut, h.cuts = 0, large(1000, "b"), 10, 1 },
		"offline": func(h *fakeHub) {},
	} {
		h.set(func(h *fakeHub) { h.slow, h.status, h.cuts, h.files[hubPath] = 0, nil, 0, content })
		h.set(prepare)
		hub := h.client(HubConfig{CacheDir: first.cfg.CacheDir, ResponseTimeout: time.Second, Offline: name == "offline"})
		files, err := hub.Fetch(t.Context(), "org/model")
		if err != nil || string(files.Tokenizer) != content || files.Revision != commit {
			t.Errorf("%s: %d bytes, revision %q, %v", name, len(files.Tokenizer), files.Revision, err)
		}
		want := 1
		if name == "offline" {
			want = 0
		}
		if got := h.requests(); len(got) != want {
			t.Errorf("%s: requests %q", name, got)
		}
	}
	h.srv.Close()
	if files, err := first.Fetch(t.Context(), "org/model"); err != nil || string(files.Tokenizer) != content {
		t.Errorf("nobody there: %v", err)
	}
}

// TestHubPinned: a commit does not change, so it is asked for once; nor does it
// get a file that it did not have.
func TestHubPinned(t *testing.T) {
	h := newFakeHub(t)
	h.files["/org/model/resolve/"+commit+"/tokenizer.json"] = `{}`
	hub := h.client(HubConfig{Revision: commit})
	for range 3 {
		if files, err := hub.Fetch(t.Context(), "org/model"); err != nil || files.Revision != commit || files.Config != nil {
			t.Errorf("%+v, %v", files, err)
		}
	}
	// tokenizer.json, its configuration, and five files beside them.
	if len(h.log) != 7 {
		t.Errorf("requests %q", h.log)
	}
}

// TestHubDamagedCache: files beside the content may be lost or garbled.
func TestHubDamagedCache(t *testing.T) {
	h := newFakeHub(t)
	content := large(1000, "a")
	h.files[hubPath] = content
	hub := h.client(HubConfig{})
	dir := filepath.Join(hub.cfg.CacheDir, "org", "model", "@main")
	for name, damage := range map[string]func(){
		"no meta":               func() { _ = os.Remove(filepath.Join(dir, tokenfile.TokenizerFile+".meta")) },
		"garbled meta":          func() { writeFile(t, "{", dir, tokenfile.TokenizerFile+".meta") },
		"content of other size": func() { writeFile(t, "{}", dir, tokenfile.TokenizerFile) },
		"part without meta": func() {
			writeFile(t, "old", dir, tokenfile.TokenizerFile+".part")
			_ = os.Remove(filepath.Join(dir, tokenfile.TokenizerFile))
		},
		"part with garbled meta": func() {
			writeFile(t, "x", dir, tokenfile.TokenizerFile+".part")
			writeFile(t, "x", dir, tokenfile.TokenizerFile+".part.meta")
		},
		"part longer than it should be": func() {
			writeFile(t, "xxx", dir, tokenfile.TokenizerFile+".part")
			writeFile(t, `{"etag":"e","size":2}`, dir, tokenfile.TokenizerFile+".part.meta")
			_ = os.Remove(filepath.Join(dir, tokenfile.TokenizerFile))
		},
	} {
		must.Get(hub.Fetch(t.Context(), "org/model"))(t)
		damage()
		files, err := hub.Fetch(t.Context(), "org/model")
		if err != nil || string(files.Tokenizer) != content {
			t.Errorf("%s: %q, %v", name, files.Tokenizer, err)
		}
	}
}

// TestHubShared: many that share a cache download a file once.
func TestHubShared(t *testing.T) {
	h := newFakeHub(t)
	content := large(500_000, "a")
	h.files[hubPath] = content
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		hub := h.client(HubConfig{CacheDir: dir, Revision: "main"})
		wg.Go(func() {
			files, err := hub.Fetch(t.Context(), "org/model")
			if err != nil || string(files.Tokenizer) != content {
				t.Errorf("%d bytes, %v", len(files.Tokenizer), err)
			}
		})
	}
	wg.Wait()
	// A lock that is not given up ends with the context.
	hub := h.client(HubConfig{CacheDir: dir})
	unlock := must.Get(lockDir(t.Context(), hub.dir("org/model")))(t)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := hub.Fetch(ctx, "org/model"); !errors.Is(err, tokenfile.ErrLoad) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked: %v", err)
	}
}

func TestHubNames(t *testing.T) {
	h := newFakeHub(t)
	hub := h.client(HubConfig{})
	for _, model := range []string{"", "..", "../x", "a/b/c", "a/..", "-a", "a b", "a?b", "a#b", "a%2fb", "a/b@c", "ü", "a/" + strings.Repeat("b", 97), "/a", `a\b`} {
		if _, err := hub.Stat(model); !errors.Is(err, ErrUnknownModel) {
			t.Errorf("Stat(%q): %v", model, err)
		}
		if _, err := hub.Fetch(t.Context(), model); !errors.Is(err, ErrUnknownModel) {
			t.Errorf("Fetch(%q): %v", model, err)
		}
	}
	if len(h.log) != 0 {
		t.Errorf("requests %q", h.log)
	}
}

func TestHubConfig(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c := HubConfig{Endpoint: "https://mirror.example/hf/"}
	if err := c.validate(); err != nil || c.Endpoint != "https://mirror.example/hf" || c.Revision != "main" {
		t.Errorf("%+v, %v", c, err)
	}
	for name, c := range map[string]HubConfig{
		"Endpoint":        {Endpoint: "ftp://x"},
		"...@host":        {Endpoint: "https://user:secret@host"},
		"Token":           {Token: "a\nb"},
		"Revision":        {Revision: "../x"},
		"Revisions":       {Revisions: map[string]string{"m": "a b"}},
		"MaxDownloads":    {MaxDownloads: 65},
		"MaxFileBytes":    {MaxFileBytes: 1 << 40},
		"Attempts":        {Attempts: -1},
		"ResponseTimeout": {ResponseTimeout: time.Hour},
		"Backoff":         {Backoff: time.Hour},
	} {
		if _, err := NewHub(c); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
