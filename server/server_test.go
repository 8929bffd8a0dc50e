package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/internal/httploop"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// refusal is the body of an error.
type refusal struct {
	Error struct {
		Code, Message string
		Param         *string
	}
}

// refused checks that an answer is a refusal with a status and a code.
func refused(t *testing.T, w *httptest.ResponseRecorder, status int, code string) refusal {
	t.Helper()
	var r refusal
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	if w.Code != status || r.Error.Code != code || r.Error.Message == "" {
		t.Fatalf("%d %s, want %d %s", w.Code, w.Body, status, code)
	}
	return r
}

func TestConfig(t *testing.T) {
	if _, err := server.New(server.Config{}); err == nil || !strings.Contains(err.Error(), "Scorer") {
		t.Errorf("no scorer: %v", err)
	}
	good := newServer(t, openIndex(t))
	_ = good
	for _, tc := range []struct {
		name string
		edit func(*server.Config)
		want string // "" is valid
	}{
		{"defaults", func(*server.Config) {}, ""},
		{"no index", func(c *server.Config) { c.Index = nil }, "Config.Index"},
		{"block size", func(c *server.Config) { c.BlockSize = -1 }, "Config.BlockSize is -1"},
		{"body", func(c *server.Config) { c.Limits.MaxBodyBytes = -1 }, "MaxBodyBytes is -1"},
		{"tokens", func(c *server.Config) { c.Limits.MaxTokens = 1 << 29 }, "MaxTokens"},
		{"keys", func(c *server.Config) { c.Limits.MaxBlockKeys = -5 }, "MaxBlockKeys"},
		{"prompts", func(c *server.Config) { c.Limits.MaxPrompts = 5000 }, "MaxPrompts"},
		{"pods", func(c *server.Config) { c.Limits.MaxPods = 1 << 17 }, "MaxPods"},
		{"in flight", func(c *server.Config) { c.Limits.MaxInFlight = -1 }, "MaxInFlight"},
		{"bytes in flight", func(c *server.Config) { c.Limits.MaxInFlightBytes = 1 }, "MaxInFlightBytes"},
		{"timeout", func(c *server.Config) { c.Limits.RequestTimeout = time.Hour }, "RequestTimeout is 1h"},
		{"metrics of another", func(c *server.Config) { c.Metrics = good.metrics }, "already another server's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := configOf(t)
			tc.edit(&cfg)
			_, err := server.New(cfg)
			if tc.want == "" {
				must.OK(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// configOf is a valid config.
func configOf(t *testing.T) (cfg server.Config) {
	t.Helper()
	newServer(t, openIndex(t), func(c *server.Config) { cfg = *c })
	cfg.Metrics = nil
	return cfg
}

func TestBodies(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.MaxBodyBytes = 100 })
	long := `{"model":"m","tokens":[` + strings.Repeat("1,", 100) + `1]}`
	refused(t, s.do("POST", "/v1/score", strings.NewReader(long)), 413, "too_large")
	// Without a length, the body is counted as it comes.
	refused(t, s.do("POST", "/v1/score", io.MultiReader(strings.NewReader(long))), 413, "too_large")
	exact := `{"model":"m","tokens":[1]}`
	exact += strings.Repeat(" ", 100-len(exact))
	for _, body := range []io.Reader{strings.NewReader(exact), io.MultiReader(strings.NewReader(exact))} {
		if w := s.do("POST", "/v1/score", body); w.Code != 200 {
			t.Errorf("a body of just the limit: %d %s", w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/score", strings.NewReader(exact))
	r.Header.Set("Content-Encoding", "gzip")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	refused(t, w, 415, "unsupported_encoding")
	refused(t, s.do("POST", "/v1/score", io.MultiReader(strings.NewReader(exact[:10]), brokenReader{})), 400, "invalid_body")
	refused(t, s.do("POST", "/v1/score", strings.NewReader("{\"model\":\"\xff\"}")), 400, "invalid_json")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestSlowBody sends half a body and waits: alone, beside another that began later, and again.
// A client whose body is refused unread is not waited for either.
func TestSlowBody(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.RequestTimeout = 50 * time.Millisecond })
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	begin := func(header string) net.Conn {
		conn := must.Get(net.Dial("tcp", ts.Listener.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "POST /v1/score HTTP/1.1\r\nHost: x\r\n%sContent-Length: 100\r\n\r\n{\"model\":", header)
		return conn
	}
	end := func(conn net.Conn, status int, code string) {
		t.Helper()
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		must.OK(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status || !strings.Contains(string(text), code) {
			t.Errorf("%d %s %v, want %d %s", resp.StatusCode, text, err, status, code)
		}
		if _, err := r.ReadByte(); err == nil {
			t.Error("the connection goes on")
		}
	}
	for range 3 {
		first, refused := begin(""), begin("Content-Encoding: gzip\r\n")
		if resp, err := http.Post(ts.URL+"/v1/score", "application/json", strings.NewReader(`{"model":"m","tokens":[1,2,3,4]}`)); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		second := begin("")
		end(first, http.StatusRequestTimeout, "body_timeout")
		end(second, http.StatusRequestTimeout, "body_timeout")
		end(refused, http.StatusUnsupportedMediaType, "unsupported_encoding")
	}
}

// TestRefusedUnread refuses a request before its body has come. It has its answer, and its connection
// ends, long before the request's time is over.
func TestRefusedUnread(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.RequestTimeout = 10 * time.Minute })
	plain := httptest.NewServer(s.Handler())
	t.Cleanup(plain.Close)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	loop := httploop.New(&http.Server{Handler: s.Handler()}, server.IsShort) //nolint:gosec // timeouts are not what is tried
	go func() { _ = loop.Serve(l) }()
	t.Cleanup(func() { must.OK(t, loop.Close()) })
	for name, at := range map[string]string{"net-http": plain.Listener.Addr().String(), "loop": l.Addr().String()} {
		for _, header := range []string{"Content-Length: 100\r\n", "Content-Length: 100\r\nExpect: 100-continue\r\n", "Transfer-Encoding: chunked\r\n"} {
			for request, status := range map[string]string{"POST /v1/score": "415", "GET /v1/dump": "400", "HEAD /v1/dump": "400"} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					conn := must.Get(net.Dial("tcp", at))(t)
					t.Cleanup(func() { _ = conn.Close() })
					must.OK(t, conn.SetReadDeadline(time.Now().Add(5*time.Minute))) // half of what a request may take
					fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n%s\r\n", request, header)
					all, err := io.ReadAll(conn)
					if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 "+status) || !strings.Contains(string(all), "\r\nConnection: close\r\n") {
						t.Errorf("%s, %q: %s %v", request, header, all, err)
					}
				})
			}
		}
	}
}

// hold begins a request that ends when the returned func is called, and waits
// until the server works on it.
func hold(t *testing.T, s subject) (end func() *httptest.ResponseRecorder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	text, began := fmt.Sprintf("forever %d", rand.Uint64()), make(chan struct{})
	tokenizing.Store(text, began)
	var w *httptest.ResponseRecorder
	var wg sync.WaitGroup
	wg.Go(func() {
		w = httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/score", strings.NewReader(`{"model":"text-model","mode":"sync","prompt":"`+text+`"}`)))
	})
	<-began
	return func() *httptest.ResponseRecorder {
		cancel()
		wg.Wait()
		return w
	}
}

// closeOnRead is an empty reader that tells that it has been read.
type closeOnRead struct{ c chan struct{} }

func (r closeOnRead) Read([]byte) (int, error) {
	close(r.c)
	return 0, io.EOF
}

func TestOverload(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.MaxInFlight = 2 })
	end1, end2 := hold(t, s), hold(t, s)
	for range 3 {
		w := s.do("POST", "/v1/score", strings.NewReader(`{"model":"m","tokens":[1]}`))
		refused(t, w, 503, "overloaded")
		if w.Header().Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", w.Header().Get("Retry-After"))
		}
	}
	for _, probe := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json"} {
		if w := s.do("GET", probe, nil); w.Code != 200 {
			t.Errorf("%s under load: %d", probe, w.Code)
		}
	}
	refused(t, end1(), 499, "client_gone")
	s.post(t, "/v1/score", `{"model":"m","tokens":[1]}`)
	refused(t, end2(), 499, "client_gone")
	want(t, s, `kvatlas_http_overloaded_total 3`, `kvatlas_http_in_flight 0`, `kvatlas_http_requests_total{method="POST",route="/v1/score",status="499"} 2`)
}

func TestBytesInFlight(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) {
		c.Limits.MaxBodyBytes, c.Limits.MaxInFlightBytes = 200<<10, 200<<10
	})
	// One of 180 KiB fits, a second beside it does not; small ones always do.
	big := `{"model":"text-model","mode":"sync","cache_salt":"` + strings.Repeat("s", 180<<10) + `","prompt":"`
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		body := io.MultiReader(strings.NewReader(big+"forever"), closeOnRead{began}, strings.NewReader(`"}`))
		s.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/v1/score", body))
	})
	<-began
	refused(t, s.do("POST", "/v1/score", strings.NewReader(big+`x"}`)), 503, "overloaded")
	s.post(t, "/v1/score", `{"model":"m","tokens":[1]}`)
	cancel()
	wg.Wait()
	s.post(t, "/v1/score", big+`x"}`)
	want(t, s, `kvatlas_http_in_flight_bytes 0`)
}

func TestTimeout(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.RequestTimeout = 500 * time.Millisecond })
	refused(t, s.do("POST", "/v1/score", strings.NewReader(`{"model":"text-model","mode":"sync","prompt":"forever"}`)), 504, "timeout")
	refused(t, s.do("POST", "/v1/tokenize", strings.NewReader(`{"model":"text-model","prompt":"forever"}`)), 504, "timeout")
}

// TestPanic checks that a panic is answered, counted and logged, without what
// it says.
func TestPanic(t *testing.T) {
	s := newServer(t, openIndex(t))
	for range 2 {
		refused(t, s.do("POST", "/v1/score", strings.NewReader(`{"model":"text-model","prompt":"panic SECRET"}`)), 500, "internal")
	}
	s.post(t, "/v1/score", `{"model":"m","tokens":[1]}`)
	want(t, s, `kvatlas_http_panics_total 2`, `kvatlas_http_in_flight 0`)
	if log := s.log.String(); strings.Contains(log, "SECRET") || !strings.Contains(log, `"panic":"a *errors.errorString"`) || !strings.Contains(log, "bytewise") {
		t.Errorf("log: %s", log)
	}
}

func TestReady(t *testing.T) {
	index := &faulty{Index: openIndex(t)}
	cfg := configOf(t)
	cfg.Index = index
	s, err := server.New(cfg)
	must.OK(t, err)
	sub := subject{Server: s}
	message := func() string { return refused(t, sub.do("GET", "/readyz", nil), 503, "not_ready").Error.Message }
	if m := message(); m != "starting" {
		t.Errorf("at first: %q", m)
	}
	s.SetReady(errors.New("the replica catches up"))
	if m := message(); m != "the replica catches up" {
		t.Errorf("later: %q", m)
	}
	s.SetReady(nil)
	index.set(store.ErrUnavailable)
	if w := sub.do("GET", "/readyz", nil); w.Code != 200 {
		t.Errorf("without Redis: %d", w.Code)
	}
	s.Drain()
	if m := message(); m != "draining" {
		t.Errorf("at the end: %q", m)
	}
	if w := sub.do("GET", "/healthz", nil); w.Code != 200 {
		t.Errorf("healthz while draining: %d", w.Code)
	}
	sub.post(t, "/v1/score", `{"model":"m","tokens":[1]}`)

	cfg.StrictReady, cfg.Metrics = true, nil
	if s, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	sub.Server = s
	s.SetReady(nil)
	if m := message(); m != "the index cannot be reached" {
		t.Errorf("strict: %q", m)
	}
	index.set(fmt.Errorf("%w: %w: WRONGPASS invalid", store.ErrUnavailable, store.ErrRefused))
	if m := message(); !strings.Contains(m, "refuses this process") || !strings.Contains(m, "WRONGPASS") {
		t.Errorf("strict, and refused: %q", m)
	}
	index.set(nil)
	if w := sub.do("GET", "/readyz", nil); w.Code != 200 {
		t.Errorf("strict, with Redis: %d", w.Code)
	}
}

// faulty is an index that fails when told to.
type faulty struct {
	store.Index
	mu  sync.Mutex // protects err
	err error
}

func (x *faulty) set(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = err
}

func (x *faulty) get() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

func (x *faulty) Lookup(ctx context.Context, qs ...*store.Query) error {
	if err := x.get(); err != nil {
		for _, q := range qs {
			q.Fold.Begin(x.Cached())
		}
		return err
	}
	return x.Index.Lookup(ctx, qs...)
}

func (x *faulty) Apply(ctx context.Context, bs ...store.Batch) error {
	return errors.Join(x.get(), x.Index.Apply(ctx, bs...))
}

func (x *faulty) Register(ctx context.Context, p store.Pod) (bool, error) {
	if err := x.get(); err != nil {
		return false, err
	}
	return x.Index.Register(ctx, p)
}

func (x *faulty) Retire(ctx context.Context, p string) (bool, error) {
	if err := x.get(); err != nil {
		return false, err
	}
	return x.Index.Retire(ctx, p)
}

func (x *faulty) EnsureModel(ctx context.Context, m store.ModelInfo) (store.ModelInfo, error) {
	if err := x.get(); err != nil {
		return store.ModelInfo{}, err
	}
	return x.Index.EnsureModel(ctx, m)
}

func (x *faulty) Registry(ctx context.Context) (*store.Registry, error) {
	if err := x.get(); err != nil {
		return nil, err
	}
	return x.Index.Registry(ctx)
}

// TestIndexFaults sends every request that needs the index while it fails.
func TestIndexFaults(t *testing.T) {
	index := &faulty{Index: openIndex(t)}
	s := newServer(t, index)
	index.set(fmt.Errorf("%w: dial tcp SECRET:6379: refused", store.ErrUnavailable))
	body := s.post(t, "/v1/score", `{"model":"m","tokens":[1,2,3,4],"pods":["a"]}`)
	if !strings.Contains(body, `"scores":{"a":0},"best":null`) || !strings.Contains(body, `"degraded":{"reason":"index_unavailable"}`) {
		t.Errorf("score: %s", body)
	}
	for _, tc := range []struct{ method, path, body string }{
		{"POST", "/v1/blocks", `{"op":"add","model":"m","pod":"p","tokens":[1,2,3,4]}`},
		{"POST", "/v1/blocks", `{"op":"remove","model":"m","pod":"p","tokens":[1,2,3,4]}`},
		{"POST", "/v1/blocks", `{"op":"clear","model":"m","pod":"p"}`},
		{"POST", "/v1/pods", `{"name":"p","model":"m"}`},
		{"GET", "/v1/pods", ""}, {"GET", "/v1/pods/p", ""}, {"DELETE", "/v1/pods/p", ""}, {"GET", "/v1/models", ""},
	} {
		for _, f := range []struct {
			err    error
			status int
			code   string
		}{
			{fmt.Errorf("%w: dial tcp SECRET:6379: refused", store.ErrUnavailable), 503, "index_unavailable"},
			{fmt.Errorf("%w: %w: OOM of SECRET", store.ErrUnavailable, store.ErrNoMemory), 507, "index_full"},
			{fmt.Errorf("%w: %w: READONLY SECRET", store.ErrUnavailable, store.ErrRefused), 503, "index_unavailable"},
			{store.ErrFenced, 503, "index_unavailable"},
			{fmt.Errorf("SECRET: %w", store.ErrEnded), 503, "index_unavailable"},
			{store.ErrClosed, 503, "closing"},
			{fmt.Errorf("x: %w", store.ErrFull), 507, "index_full"},
			{errors.New("SECRET"), 500, "internal"},
		} {
			index.set(f.err)
			w := s.do(tc.method, tc.path, strings.NewReader(tc.body))
			if e := refused(t, w, f.status, f.code); strings.Contains(e.Error.Message, "SECRET") {
				t.Errorf("%s %s tells what is inside: %s", tc.method, tc.path, w.Body)
			}
		}
	}
	want(t, s, `kvatlas_scored_prompts_total{degraded="index_unavailable"} 1`, `kvatlas_index_failed_lookups_total 1`)
}

// TestModelSettings adds blocks of models that are indexed otherwise.
func TestModelSettings(t *testing.T) {
	index := openIndex(t)
	s := newServer(t, index)
	for _, m := range []store.ModelInfo{{Name: "two", BlockSize: 2, Scheme: store.SchemeNative}, {Name: "other", BlockSize: 4, Scheme: "vllm"}} {
		must.Get(index.EnsureModel(t.Context(), m))(t)
	}
	if body := s.post(t, "/v1/blocks", `{"op":"add","model":"two","pod":"p","tokens":[1,2,3,4,5]}`); body != "{\"blocks\":2}\n" {
		t.Errorf("blocks of 2: %s", body)
	}
	if body := s.post(t, "/v1/score", `{"model":"two","tokens":[1,2,3,4,5]}`); !strings.Contains(body, `"scores":{"p":2}`) || !strings.Contains(body, `"blocks":{"total":2,"size":2}`) {
		t.Errorf("blocks of 2: %s", body)
	}
	// A process that has not seen the model or the pod asks before it removes.
	fresh := newServer(t, unaware{index})
	if body := fresh.post(t, "/v1/blocks", `{"op":"remove","model":"two","pod":"p","tokens":[1,2,3,4,5]}`); body != "{\"blocks\":2}\n" {
		t.Errorf("remove: %s", body)
	}
	if body := s.post(t, "/v1/score", `{"model":"two","tokens":[1,2,3,4,5]}`); !strings.Contains(body, `"scores":{}`) {
		t.Errorf("after the remove: %s", body)
	}
	w := s.do("POST", "/v1/blocks", strings.NewReader(`{"op":"add","model":"other","pod":"p","tokens":[1,2,3,4]}`))
	if e := refused(t, w, 409, "model_conflict"); *e.Error.Param != "model" {
		t.Errorf("%s", w.Body)
	}
}

// unaware is the index of a process that has seen nothing of it yet.
type unaware struct{ store.Index }

func (unaware) Cached() *store.Registry { return store.NewRegistry(0, nil, nil, nil, time.Time{}) }

// TestManyKeys adds and removes more keys than one op can carry.
func TestManyKeys(t *testing.T) {
	s := newServer(t, openIndex(t))
	n := 2*store.MaxOpKeys + 5
	var tokens strings.Builder
	for i := range 4 * n {
		fmt.Fprintf(&tokens, "%d,", i)
	}
	list := strings.TrimSuffix(tokens.String(), ",")
	for _, op := range []string{"add", "remove"} {
		body := s.post(t, "/v1/blocks", `{"op":"`+op+`","model":"m","pod":"p","tokens":[`+list+`]}`)
		if body != fmt.Sprintf("{\"blocks\":%d}\n", n) {
			t.Errorf("%s: %s", op, body)
		}
		held := map[string]int{"add": n, "remove": 0}[op]
		if body = s.post(t, "/v1/score", `{"model":"m","pods":["p"],"tokens":[`+list+`]}`); !strings.HasPrefix(body, fmt.Sprintf(`{"scores":{"p":%d}`, held)) {
			t.Errorf("after %s: %.100s", op, body)
		}
	}
}

func TestNoTokenizer(t *testing.T) {
	cfg := configOf(t)
	cfg.Tokenizer = nil
	s := must.Get(server.New(cfg))(t)
	refused(t, subject{Server: s}.do("POST", "/v1/tokenize", strings.NewReader(`{"model":"m","prompt":"x"}`)), 501, "no_tokenizer")
}

func TestRequestIDs(t *testing.T) {
	s := newServer(t, openIndex(t))
	send := func(id string) string {
		r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
		r.Header.Set("X-Request-Id", id)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w.Header().Get("X-Request-Id")
	}
	for _, id := range []string{"abc-123", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", strings.Repeat("x", 128)} {
		if got := send(id); got != id {
			t.Errorf("%q became %q", id, got)
		}
	}
	seen := map[string]bool{}
	for _, id := range []string{"", "two words", "a\"b", "a\\b", "é", strings.Repeat("x", 129), "a\tb"} {
		got := send(id)
		if got == id || len(got) != 16 || seen[got] {
			t.Errorf("%q became %q", id, got)
		}
		seen[got] = true
	}
}

// TestLog checks that there is one line a request, with what it should have
// and nothing of what it must not have.
func TestLog(t *testing.T) {
	s := newServer(t, openIndex(t))
	for _, tc := range []struct{ method, path, body, route, want string }{
		{"POST", "/v1/score?q=SECRET", `{"model":"m","tokens":[777001,777002],"cache_salt":"SECRET"}`, "/v1/score", `"model":"m"`},
		{"POST", "/v1/score", `{"model":"text-model","prompt":"slow SECRET"}`, "/v1/score", `"degraded":"tokenization_budget"`},
		{"POST", "/v1/score", `{"model":"text-model","prompt":"broken SECRET"}`, "/v1/score", `"code":"tokenizer_failed"`},
		{"POST", "/v1/score", `{"model":"text-model","prompt":"SECRET` + "\\u0000" + `"}`, "/v1/score", `"code":"invalid_text"`},
		{"POST", "/v1/score", `{"model":"m","SECRET":1}`, "/v1/score", `"code":"unknown_field"`},
		{"POST", "/v1/score", `{"model":"m","prompt":SECRET}`, "/v1/score", `"code":"invalid_json"`},
		{"POST", "/v1/tokenize", `{"model":"text-model","prompt":"SECRET"}`, "/v1/tokenize", `"status":200`},
		{"GET", "/SECRET", "", "unknown", `"code":"not_found"`},
		{"SECRETSECRETSECRETSECRET", "/v1/pods", "", "unknown", `"status":405`},
		{"GET", "/v1/pods/p", "", "/v1/pods/{name}", `"code":"unknown_pod"`},
	} {
		s.log.Reset()
		r := httptest.NewRequest(http.MethodPost, tc.path, strings.NewReader(tc.body))
		r.Method = tc.method
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		log := s.log.String()
		var last string
		count := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"message":"request"`) {
				count, last = count+1, line
			}
		}
		if count != 1 || strings.Contains(strings.ReplaceAll(log, `"method":"SECRETSECRETSECR"`, ""), "SECRET") || strings.Contains(log, "777001") {
			t.Errorf("%s %s %s: %s", tc.method, tc.path, tc.body, log)
		}
		for _, part := range []string{`"route":"` + tc.route + `"`, fmt.Sprintf(`"status":%d`, w.Code), fmt.Sprintf(`"bytes":%d`, w.Body.Len()), `"request_id":"` + w.Header().Get("X-Request-Id") + `"`, `"took":`, tc.want} {
			if !strings.Contains(last, part) {
				t.Errorf("%s %s: no %s in %s", tc.method, tc.path, part, last)
			}
		}
	}
}

// TestWhichRequestsAreLogged: at level info a request has a line if it failed or is about a whole
// index, and else only where each has one.
func TestWhichRequestsAreLogged(t *testing.T) {
	x := openIndex(t)
	for every, want := range map[bool]map[string]bool{
		false: {"score": false, "refused": true, "probe": false, "dump": true},
		true:  {"score": true, "refused": true, "probe": false, "dump": true},
	} {
		s := newServer(t, x, func(c *server.Config) { c.Log, c.LogEveryRequest = c.Log.Level(zerolog.InfoLevel), every })
		for name, ask := range map[string]func(){
			"score":   func() { s.post(t, "/v1/score", `{"model":"m","tokens":[1,2,3,4]}`) },
			"refused": func() { s.do("POST", "/v1/score", strings.NewReader(`{`)) },
			"probe":   func() { s.do("GET", "/healthz", nil) },
			"dump":    func() { s.do("GET", "/v1/dump", nil) },
		} {
			s.log.Reset()
			ask()
			if got := strings.Contains(s.log.String(), `"message":"request"`); got != want[name] {
				t.Errorf("%s, every %v: a line %v, want %v: %s", name, every, got, want[name], s.log)
			}
		}
	}
}

// want checks lines of the metrics.
func want(t *testing.T, s subject, lines ...string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, l := range lines {
		if !strings.Contains(w.Body.String(), "\n"+l+"\n") {
			t.Errorf("no %s in the metrics:\n%s", l, grep(w.Body, l[:strings.IndexAny(l, "{ ")]))
		}
	}
}

func grep(text *bytes.Buffer, name string) string {
	var out strings.Builder
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, name) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// pool is a tokenizer with figures, as *tokenpool.Pool is one.
type pool struct{}

func (pool) Tokens(ctx context.Context, r prompt.Request) (prompt.Result, error) {
	return bytewise(ctx, r)
}
func (pool) Stats() tokenpool.Stats    { return tokenpool.Stats{Whole: 7, Queued: 3} }
func (pool) Models() []tokenpool.Model { return nil }

func TestMetrics(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Tokenizer, c.Tokenizers = pool{}, pool{} })
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"a","tokens":[1,2,3,4]}`)
	s.post(t, "/v1/score", `{"model":"m","tokens":[1,2,3,4,5,6,7,8,9]}`)
	s.post(t, "/v1/score", `{"model":"text-model","prompts":["slow","x"]}`)
	refused(t, s.do("POST", "/v1/score", strings.NewReader(`{`)), 400, "invalid_json")
	s.do("BREW", "/nowhere", nil)
	s.metrics.Tokenizer().Tokenized(tokenpool.TokenizedEvent{Took: time.Millisecond, Err: tokenpool.ErrTokenizer})
	s.metrics.Scorer().Scored("m", &scorer.Response{Degraded: scorer.Multimodal})
	want(t, s,
		`kvatlas_scored_prompts_total{degraded="multimodal"} 1`, `kvatlas_scored_prompts_total{degraded="other"} 0`,
		`kvatlas_build_info{backend="memory",version="v1.2.3"} 1`,
		`kvatlas_http_requests_total{method="POST",route="/v1/score",status="200"} 2`,
		`kvatlas_http_requests_total{method="POST",route="/v1/score",status="400"} 1`,
		`kvatlas_http_requests_total{method="other",route="unknown",status="404"} 1`,
		`kvatlas_http_request_seconds_count{method="POST",route="/v1/score"} 3`,
		`kvatlas_scored_prompts_total{degraded="none"} 2`,
		`kvatlas_scored_prompts_total{degraded="tokenization_budget"} 1`,
		`kvatlas_scored_tokens_total{source="tokens"} 9`,
		`kvatlas_scored_tokens_total{source="tokenizer"} 2`,
		`kvatlas_matched_blocks_ratio_count 1`,
		`kvatlas_matched_blocks_ratio_sum 0.5`,
		`kvatlas_score_stage_seconds_count{stage="lookup"} 2`,
		`kvatlas_index_blocks 1`, `kvatlas_index_pods 1`, `kvatlas_index_models 1`,
		`kvatlas_tokenizer_answers_stored_total 7`, `kvatlas_tokenizer_queued 3`,
		`kvatlas_tokenizer_run_seconds_count 1`, `kvatlas_tokenizer_failed_runs_total 1`,
	)
	w := s.do("GET", "/metrics", nil)
	if w.Code != 200 || !strings.Contains(w.Body.String(), "go_goroutines") || w.Header().Get("X-Request-Id") == "" {
		t.Errorf("/metrics: %d", w.Code)
	}
	if strings.Contains(w.Body.String(), "text-model") {
		t.Error("a name that a client chose is in the metrics")
	}
}

// TestHead checks that probes may use HEAD.
func TestHead(t *testing.T) {
	s := newServer(t, openIndex(t))
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	resp, err := http.Head(ts.URL + "/healthz")
	must.OK(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("HEAD /healthz: %d", resp.StatusCode)
	}
	ts.Client().CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}

// TestFrequencies checks that uses are told when they are counted.
func TestFrequencies(t *testing.T) {
	index := openIndex(t)
	usage := must.Get(scorer.NewUsage(time.Hour, 1000))(t)
	sc := must.Get(scorer.New(scorer.Config{Index: index, BlockSize: 4, Usage: usage}))(t)
	s := newServer(t, index, func(c *server.Config) { c.Scorer = sc })
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"a","tokens":[1,2,3,4,5,6,7,8]}`)
	for _, tc := range []struct{ tokens, want string }{
		{"1,2,3,4", "[]"}, {"1,2,3,4,5,6,7,8", "[1]"}, {"1,2,3,4,5,6,7,8", "[2,1]"},
	} {
		body := s.post(t, "/v1/score", `{"model":"m","tokens":[`+tc.tokens+`]}`)
		if !strings.HasSuffix(body, `"exact":true},"frequencies":`+tc.want+"}\n") {
			t.Errorf("%s: %s, want %s", tc.tokens, body, tc.want)
		}
	}
}
