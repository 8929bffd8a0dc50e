package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// fill adds blocks of a pod.
func fill(t testing.TB, x store.Index, pod, model string, blocks int) {
	t.Helper()
	for i := 0; i < blocks; i += 4096 {
		var keys []blockkey.Key
		for j := i; j < min(i+4096, blocks); j++ {
			keys = append(keys, blockkey.Key(uint64(j+1)*0x9e3779b97f4a7c15))
		}
		must.OK(t, x.Apply(t.Context(), store.Batch{Pod: pod, Model: model, Ops: []store.Op{{Kind: store.Add, Keys: keys}}}))
	}
}

// listenTimeout is the timeout of servers over TCP.
const listenTimeout = time.Second

// listen serves over TCP.
func (s subject) listen(t testing.TB) string {
	t.Helper()
	ts := httptest.NewUnstartedServer(s.Handler())
	// What a stream must live with, and a request that is no stream live within.
	ts.Config.ReadTimeout, ts.Config.WriteTimeout = listenTimeout, listenTimeout
	ts.Start()
	t.Cleanup(ts.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return ts.URL
}

// outlast waits for longer than listenTimeout: until a server of listen cuts off one that has begun a
// request by now.
func outlast(url string) error {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\n"); err != nil {
		return err
	}
	_, err = io.ReadAll(conn)
	return err
}

var moments = regexp.MustCompile(`"(created|time|sum)":"[^"]*"|"epoch":\d+`)

func TestDump(t *testing.T) {
	index := openIndex(t)
	s := newServer(t, index)
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"p","tokens":[1,2,3,4]}`)
	w := s.do(http.MethodGet, "/v1/dump", nil)
	got := moments.ReplaceAllStringFunc(w.Body.String(), func(s string) string {
		name, _, _ := strings.Cut(s, ":")
		return name + ":..."
	})
	const want = `{"kvatlas":"dump","version":1,"schema":1,"partitions":64,"created":...,"epoch":...,"true_at":{"time":...,"epoch":...}}
{"model":{"name":"m","block_size":4,"scheme":"native"}}
{"pod":{"name":"p","model":"m"}}
{"holder":{"id":1,"pod":"p","rank":0,"tier":"gpu"}}
{"k":["a3f72a19e0f0b8c7"],"h":[1]}
{"page":1,"blocks":1,"sum":...,"next":""}
{"kvatlas":"end","models":1,"pods":1,"holders":1,"blocks":1,"pages":1,"sum":...,"next":""}
`
	key := regexp.MustCompile(`"k":\["[0-9a-f]{16}"\]`)
	if mask := func(s string) string { return key.ReplaceAllString(s, `"k":[...]`) }; mask(got) != mask(want) || w.Code != 200 || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("got %d %v\n%s", w.Code, w.Header(), got)
	}
	h := s.do(http.MethodHead, "/v1/dump", nil)
	if h.Code != 200 || h.Body.Len() != 0 || h.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("HEAD: %d %v %q", h.Code, h.Header(), h.Body)
	}

	// What comes out goes into another server and gives the same answers.
	other := newServer(t, openIndex(t))
	other.post(t, "/v1/restore", w.Body.String())
	const q = `{"model":"m","tokens":[1,2,3,4,5]}`
	if a, b := s.post(t, "/v1/score", q), other.post(t, "/v1/score", q); a != b || !strings.Contains(a, `"best":"p"`) {
		t.Errorf("got %s and %s", a, b)
	}
	if got := s.log.String(); !strings.Contains(got, `"route":"/v1/dump"`) {
		t.Errorf("no line of the dump: %s", got)
	}
}

// A dump in parts, each by a request of its own, is a dump.
func TestDumpInParts(t *testing.T) {
	index := openIndex(t)
	fill(t, index, "a", "m", 50_000)
	url := newServer(t, index).listen(t)
	var whole bytes.Buffer
	cursor, parts := "", 0
	for parts == 0 || cursor != "" {
		resp, err := http.Get(url + "/v1/dump?limit=1&model=m&cursor=" + cursor)
		if parts == 0 {
			_ = resp.Body.Close()
			resp, err = http.Get(url + "/v1/dump?limit=1&model=m")
		}
		must.OK(t, err)
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s %v", resp.StatusCode, text, err)
		}
		whole.Write(text)
		r := snapshot.NewReader(bytes.NewReader(text))
		for err == nil {
			_, err = r.Next()
		}
		_, cursor = r.Resume()
		parts++
	}
	if _, blocks, err := snapshot.Verify(&whole); err != nil || blocks != 50_000 || parts < 3 {
		t.Errorf("%d blocks in %d parts, %v", blocks, parts, err)
	}
}

// slow is an index whose pages wait for leave, from the second on.
type slow struct {
	*memory.Index
	leave chan struct{}
	fail  error
}

func (s slow) Page(ctx context.Context, cursor string, limit int) (store.Page, error) {
	if cursor != "" {
		if s.fail != nil {
			return store.Page{}, s.fail
		}
		select {
		case <-s.leave:
		case <-ctx.Done():
			return store.Page{}, ctx.Err()
		}
	}
	return s.Index.Page(ctx, cursor, limit)
}

func openSlow(t *testing.T) slow {
	t.Helper()
	x, ok := openIndex(t).(*memory.Index)
	if !ok {
		t.Fatal("another index")
	}
	fill(t, x, "a", "m", 50_000)
	return slow{Index: x, leave: make(chan struct{})}
}

// begin begins a dump and returns once its first page has come.
func begin(t *testing.T, url string) (rest *bufio.Reader, end func()) {
	t.Helper()
	resp := must.Get(http.Get(url + "/v1/dump"))(t) //nolint:bodyclose // end closes it
	rest = bufio.NewReader(resp.Body)
	if line, err := rest.ReadString('\n'); err != nil || !strings.Contains(line, `"kvatlas":"dump"`) {
		t.Fatalf("%q, %v", line, err)
	}
	return rest, func() { _ = resp.Body.Close() }
}

// A dump outlives the timeouts of the http.Server, counts against a limit of its
// own, and makes room when its client leaves.
func TestStreams(t *testing.T) {
	index := openSlow(t)
	s := newServer(t, index, func(c *server.Config) { c.Limits.MaxStreams = 2; c.Limits.MaxInFlight = 1 })
	url := s.listen(t)
	rest, end := begin(t, url)
	defer end()
	_, end2 := begin(t, url)
	for _, req := range [][2]string{{"GET", "/v1/dump"}, {"POST", "/v1/restore"}, {"POST", "/v1/reset"}} {
		if w := s.do(req[0], req[1], strings.NewReader(`{"all":true}`)); w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "dumps, restores and resets") {
			t.Errorf("%v: %d %s", req, w.Code, w.Body)
		}
	}
	s.post(t, "/v1/score", `{"model":"m","tokens":[1]}`) // other work goes on
	if m := s.do("GET", "/metrics", nil).Body.String(); !strings.Contains(m, "kvatlas_http_streams 2\n") {
		t.Error("the metric is another")
	}
	end2()
	// The server learns from the connection that a client has left, which has no other sign.
	for poll := time.NewTicker(time.Millisecond); s.do("HEAD", "/v1/dump", nil).Code != 200; {
		<-poll.C
	}
	must.OK(t, outlast(url))
	close(index.leave)
	text, err := io.ReadAll(rest)
	if err != nil || !bytes.Contains(text, []byte(`{"kvatlas":"end"`)) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// A dump that cannot go on says so in its last line, and can be gone on with.
func TestDumpEndsEarly(t *testing.T) {
	index := openSlow(t)
	s := newServer(t, index)
	rest, end := begin(t, s.listen(t))
	defer end()
	s.Drain()
	text := must.Get(io.ReadAll(rest))(t)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if got, want := string(lines[len(lines)-1]), `{"error":{"code":"closing","message":"the server is shutting down, try another","param":null}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	for err, code := range map[error]string{fmt.Errorf("%w: secret.host:1", store.ErrUnavailable): "index_unavailable", errors.New("secret"): "internal"} {
		index.fail = err
		s := newServer(t, index, func(c *server.Config) { c.Limits.StreamStall = 10 * time.Millisecond })
		w := s.do("GET", "/v1/dump", nil)
		_, _, verr := snapshot.Verify(w.Body)
		if !errors.Is(verr, snapshot.ErrCut) || !strings.Contains(verr.Error(), code) || strings.Contains(verr.Error(), "secret") {
			t.Errorf("got %v", verr)
		}
		if !strings.Contains(s.log.String(), "dump ended early") || !strings.Contains(s.log.String(), `"code":"`+code+`"`) {
			t.Errorf("log %s", s.log)
		}
	}
	// Before the first page it is an error as any other.
	x := must.Get(memory.New(memory.Config{}))(t)
	_ = x.Close()
	if w := newServer(t, x).do("GET", "/v1/dump", nil); w.Code != 503 || !strings.Contains(w.Body.String(), "closing") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A restore takes as long as its client goes on sending, and no longer.
func TestRestoreStreams(t *testing.T) {
	from := openIndex(t)
	fill(t, from, "a", "m", 40_000)
	var text bytes.Buffer
	must.Get(snapshot.Dump(t.Context(), &text, from, snapshot.Options{}))(t)
	index := openIndex(t)
	s := newServer(t, index, func(c *server.Config) {
		c.Limits.MaxBodyBytes = 64 << 10 // does not count here
		c.Limits.RequestTimeout = 200 * time.Millisecond
	})
	url := s.listen(t)
	send := func(url string, parts ...[]byte) (int, string) {
		t.Helper()
		r, w := io.Pipe()
		go func() {
			for i, p := range parts {
				if i > 0 {
					if err := outlast(url); err != nil {
						_ = w.CloseWithError(err)
						return
					}
				}
				if _, err := w.Write(p); err != nil {
					return
				}
			}
			_ = w.Close()
		}()
		resp, err := http.Post(url+"/v1/restore", "application/x-ndjson", r)
		must.OK(t, err)
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		must.OK(t, err)
		return resp.StatusCode, string(body)
	}
	b := text.Bytes()
	if code, body := send(url, b[:1000], b[1000:400_000], b[400_000:]); code != 200 || !strings.Contains(body, `"blocks":40000,`) {
		t.Errorf("%d %s", code, body)
	}
	if n := index.Stats().Blocks; n != 40_000 {
		t.Errorf("%d blocks", n)
	}
	// A part stays, and is told.
	if code, body := send(url, b[:len(b)-1000]); code != 400 || !strings.Contains(body, "invalid_dump") || !strings.Contains(body, "blocks of the pages before stay loaded") {
		t.Errorf("%d %s", code, body)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/v1/restore", bytes.NewReader(b))
	r.Header.Set("Content-Encoding", "gzip")
	if s.Handler().ServeHTTP(w, r); w.Code != 415 {
		t.Errorf("%d %s", w.Code, w.Body)
	}

	stalled := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.StreamStall = 100 * time.Millisecond }).listen(t)
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(stalled, "http://")))(t)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/restore HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(b), b[:10])
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must.OK(t, err)
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), "body_timeout") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}
