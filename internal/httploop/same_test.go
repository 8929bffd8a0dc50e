package httploop_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/httploop"
	"github.com/kvatlas/kvatlas/internal/must"
)

// plain is what the loop has in the tests.
func plain(_, path string) bool { return strings.HasPrefix(path, "/plain/") }

// handler does what a path says.
func handler(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, body string) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Request-Id", "1")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
	case "refuse": // without a look at the body
		answer(http.StatusRequestEntityTooLarge, "no")
	case "half":
		n, err := io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		answer(http.StatusOK, fmt.Sprint(n, err))
	case "empty":
		w.WriteHeader(http.StatusNoContent)
	case "none":
	case "long":
		answer(http.StatusOK, strings.Repeat("0123456789abcdef", 8192))
	case "lie": // it declares more than it writes
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "short")
	case "more": // it writes more than it declared
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "2")
		n, err := io.WriteString(w, "long")
		if n != 0 || !errors.Is(err, http.ErrContentLength) {
			panic("more was written than declared")
		}
	case "panic":
		panic("as it is asked")
	case "abort":
		panic(http.ErrAbortHandler)
	case "odd":
		w.Header().Set("X-Lines", "a\r\nb")
		answer(599, "<html>")
	default:
		body, err := io.ReadAll(r.Body)
		var all strings.Builder
		fmt.Fprintf(&all, "%s %s %s %s %d %d %x %v %t %s\n", r.Method, r.RequestURI, r.Proto, r.Host, r.ContentLength, len(body), sha256.Sum256(body), err, r.Close, r.URL.RawQuery)
		for _, k := range slices.Sorted(maps.Keys(r.Header)) {
			fmt.Fprintf(&all, "%s: %q\n", k, r.Header[k])
		}
		answer(http.StatusOK, all.String())
	}
}

// start serves on a port of its own until the test ends.
func start(t testing.TB, serve func(net.Listener) error, end func() error) (addr string) {
	t.Helper()
	l := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	done := make(chan error, 1)
	go func() { done <- serve(l) }()
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error("serving ended with", err)
		}
	})
	return l.Addr().String()
}

// twins are the loop and net/http alone, with the same handler.
type twins struct{ loop, alone string }

func startTwins(t testing.TB) twins {
	config := func() *http.Server {
		return &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: time.Minute, ErrorLog: silent}
	}
	s, alone := httploop.New(config(), plain), config()
	return twins{loop: start(t, s.Serve, s.Close), alone: start(t, alone.Serve, alone.Close)}
}

// talk sends parts and then ends its side, and returns all that came back. What had not been
// read when a connection was reset is lost.
func talk(ctx context.Context, addr string, parts ...[]byte) (got []byte, reset bool, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = c.Close() }()
	if d, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(d); err != nil {
			return nil, false, err
		}
	}
	go func() {
		for i, p := range parts {
			if i > 0 {
				time.Sleep(time.Millisecond) // so that they come apart; a comparison needs no more than that they may
			}
			if _, err := c.Write(p); err != nil {
				return // the server has had enough
			}
		}
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}()
	got, err = io.ReadAll(c)
	if reset = err != nil && strings.Contains(err.Error(), "reset"); reset {
		err = nil
	}
	return date.ReplaceAll(got, []byte("Date: now\r\n")), reset, err
}

var date = regexp.MustCompile(`Date: [^\r]*\r\n`)

func (w twins) compare(ctx context.Context, t interface{ Fatalf(string, ...any) }, parts ...[]byte) {
	loop, loopReset, err := talk(ctx, w.loop, parts...)
	alone, aloneReset, otherErr := talk(ctx, w.alone, parts...)
	if err := errors.Join(err, otherErr); err != nil {
		t.Fatalf("%q: %v", bytes.Join(parts, []byte("|")), err)
	}
	if loopReset && bytes.HasPrefix(alone, loop) || aloneReset && bytes.HasPrefix(loop, alone) {
		return
	}
	if !bytes.Equal(loop, alone) {
		t.Fatalf("%q is answered with\n%q\nand by net/http with\n%q", bytes.Join(parts, []byte("|")), loop, alone)
	}
}

// request is one that the loop serves; headers are whole lines.
func request(what, body string, headers ...string) string {
	return "POST /plain/" + what + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(append(headers, fmt.Sprintf("Content-Length: %d", len(body))), "\r\n") + "\r\n\r\n" + body
}

// repeated is a request, the same again, and one of which only the end is another.
func repeated(end, other string) string {
	const begin = "POST /plain/echo HTTP/1.1\r\nHost: x\r\n"
	return begin + end + begin + end + begin + other + bye
}

const bye = "GET /plain/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// streams are what clients may send on one connection.
var streams = map[string]string{
	"nothing":                         "",
	"one":                             request("echo", "hello"),
	"three":                           request("echo", "a") + request("echo", "") + request("echo", strings.Repeat("b", 9000)) + bye,
	"no body":                         "GET /plain/echo HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"a query":                         "GET /plain/echo?a=b&c HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"an escaped path":                 "GET /plain/a%2Fecho HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"another path":                    request("echo", "a") + "GET /other HTTP/1.1\r\nHost: x\r\n\r\n" + request("echo", "b") + bye,
	"HEAD":                            "HEAD /plain/echo HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"keep-alive":                      request("echo", "a", "Connection: Keep-Alive") + bye,
	"chunked":                         "POST /plain/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + bye,
	"chunked, and a length":           "POST /plain/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + bye,
	"chunked in two lines":            "POST /plain/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + bye,
	"another encoding":                "POST /plain/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
	"two lengths":                     "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd" + bye,
	"the same length twice":           "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + bye,
	"a list of lengths":               "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc" + bye,
	"a signed length":                 "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc" + bye,
	"a negative length":               "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc" + bye,
	"a length with space":             "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length:  3 \r\n\r\nabc" + bye,
	"an empty length":                 "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n" + bye,
	"a huge length":                   "POST /plain/refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"expects 100":                     request("echo", "abc", "Expect: 100-continue") + bye,
	"expects more":                    request("echo", "abc", "Expect: miracles") + bye,
	"upgrade":                         request("echo", "abc", "Connection: Upgrade", "Upgrade: h2c") + bye,
	"HTTP/2":                          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"HTTP/1.0":                        "POST /plain/echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
	"HTTP/1.0, keep-alive":            "POST /plain/echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc" + bye,
	"no host":                         "GET /plain/echo HTTP/1.1\r\n\r\n",
	"two hosts":                       "GET /plain/echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"an empty host":                   "GET /plain/echo HTTP/1.1\r\nHost: \r\n\r\n" + bye,
	"a broken host":                   "GET /plain/echo HTTP/1.1\r\nHost: a b\r\n\r\n" + bye,
	"absolute":                        "GET http://y/plain/echo HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"all":                             "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"connect":                         "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + bye,
	"bare line feeds":                 "GET /plain/echo HTTP/1.1\nHost: x\n\n" + bye,
	"a bare line feed":                "GET /plain/echo HTTP/1.1\r\nHost: x\n\r\nabc\r\n\r\n" + bye,
	"an empty line first":             "\r\n" + request("echo", "a") + bye,
	"a folded header":                 "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n" + bye,
	"a space before a colon":          "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n" + bye,
	"no colon":                        "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA\r\n\r\n" + bye,
	"a name that is none":             "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA(: b\r\n\r\n" + bye,
	"a value with a zero":             "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n" + bye,
	"a value of bytes":                "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA: b\xff\r\n\r\n" + bye,
	"lengths that differ":             strings.Replace(request("echo", "abc")+request("echo", strings.Repeat("b", 2000))+request("echo", "")+request("echo", "ab", "A: b")+request("echo", "abc", "A: b"), "Content-Length", "content-length", 2) + bye,
	"the same heads":                  strings.Repeat(request("echo", "abc", "A: b"), 3) + strings.Repeat("GET /plain/echo HTTP/1.1\r\nHost: x\r\n\r\n", 3) + bye,
	"two lengths, the first changes":  repeated("Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "Content-Length: 4\r\nContent-Length: 3\r\n\r\nabcd"),
	"two lengths, the second changes": repeated("Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "Content-Length: 3\r\nContent-Length: 2\r\n\r\nab"),
	"line ends between":               request("echo", "a") + "\r\n" + request("echo", "b") + "\r\n\r\n" + request("echo", "c") + "\r" + request("echo", "d") + "\n\n\n\n" + bye,
	"many line ends":                  request("echo", "a") + "\r\n\r\n\r\n" + bye,
	"line ends behind GET":            strings.TrimSuffix(bye, "Connection: close\r\n\r\n") + "\r\n\r\n" + bye,
	"line ends at the end":            request("echo", "a") + "\r\n",
	"two at the end":                  request("echo", "a") + "\r\n\r\n",
	"bytes at the end":                request("echo", "a") + "ab",
	"a byte behind GET":               "GET /plain/echo HTTP/1.1\r\nHost: x\r\n\r\n\r",
	"a line end and a byte":           request("echo", "a") + "\r\na",
	"pragma":                          "GET /plain/echo HTTP/1.1\r\nHost: x\r\nPragma: no-cache\r\n\r\n" + bye,
	"a trailer":                       "GET /plain/echo HTTP/1.1\r\nHost: x\r\nTrailer: A\r\n\r\n" + bye,
	"many values":                     "GET /plain/echo HTTP/1.1\r\nHost: x\r\na: 1\r\nA: 2\r\nB:\t3\t\r\n\r\n" + bye,
	"a method that is none":           "G(T /plain/echo HTTP/1.1\r\nHost: x\r\n\r\n",
	"a long head":                     "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("b", 5000) + "\r\n\r\n" + bye,
	"a head that has no end":          "GET /plain/echo HTTP/1.1\r\nHost: x\r\nA: b\r\n",
	"a body that has no end":          "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
	"a long one that has none":        "POST /plain/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc",
	"noise":                           "\x16\x03\x01\x02\x00\x01\x00",
	"refused":                         request("refuse", strings.Repeat("a", 100)) + bye,
	"refused, 100 KB":                 request("refuse", strings.Repeat("a", 100_000)) + bye,
	"half read":                       request("half", strings.Repeat("a", 100_000)) + bye,
	"204":                             request("empty", "abc") + bye,
	"nothing written":                 request("none", "abc") + bye,
	"an answer of 128 KB":             request("long", "abc") + bye,
	"an answer cut short":             request("lie", "abc") + bye,
	"an answer of too much":           request("more", "abc") + bye,
	"a panic":                         request("panic", "abc") + bye,
	"an abort":                        request("abort", "abc") + bye,
	"a status of one's own":           request("odd", "abc") + bye,
}

func TestSameAsNetHTTP(t *testing.T) {
	w := startTwins(t)
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			b := []byte(stream)
			w.compare(ctx, t, b)
			for _, at := range []int{1, len(b) / 3, len(b) / 2, len(b) - 1} {
				if at > 0 && at < len(b) {
					w.compare(ctx, t, b[:at], b[at:])
				}
			}
			if len(b) < 300 {
				w.compare(ctx, t, bytes.SplitAfter(b, nil)...)
			}
		})
	}
}

// TestAnsweredAtOnce: an odd head is answered when net/http has read what it needs, and not
// when the client sends more or ends its side.
func TestAnsweredAtOnce(t *testing.T) {
	w := startTwins(t)
	for _, stream := range []string{
		"GET /plain/echo HTTP/1.1\nHost: x\n\n",
		"GET /plain/echo HTTP/1.1\r\nHost: x\n\r\n",
		"GET /plain/echo HTTP/1.1\r\nHost: x\r\n\n",
		"POST /plain/echo HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc",
		"GET /plain/echo HTTP/1.0\r\nno colon\r\n",
		"GET /plain/echo HTTP/1.1\r\nno colon\r\n",
		"hello\r\n",
		"\r\n",
	} {
		for name, before := range map[string]string{"first": "", "behind another": request("echo", "abc")} {
			if stream == "\r\n" && before != "" {
				continue // crumbs, to which net/http says nothing
			}
			var answers []string
			for _, addr := range []string{w.loop, w.alone} {
				c := dial(t, addr)
				if before != "" {
					c.send(before)
					c.receive()
				}
				c.send(stream)
				status, body, ends := c.receive()
				answers = append(answers, fmt.Sprint(status, body, ends))
			}
			if answers[0] != answers[1] {
				t.Errorf("%s: %q is answered with\n%s\nand by net/http with\n%s", name, stream, answers[0], answers[1])
			}
		}
	}
}

// TestRandomSame puts streams together out of pieces, and breaks some.
func TestRandomSame(t *testing.T) {
	w := startTwins(t)
	names := slices.Sorted(maps.Keys(streams))
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 4).Draw(t, "streams") {
			b = append(b, strings.TrimSuffix(streams[name], bye)...)
		}
		if len(b) > 1 {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				at := rapid.IntRange(0, min(len(b), 400)-1).Draw(t, "at")
				piece := rapid.SampledFrom([]string{"", "\r", "\n", "\r\n", ":", " ", "\t", "\x00", "0", "9", "-", ",", "%", "/", "chunked", "close", "Content-Length: 1\r\n", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "\r\n\r\n"}).Draw(t, "piece")
				cut := rapid.IntRange(0, min(2, len(b)-at)).Draw(t, "cut")
				b = slices.Concat(b[:at], []byte(piece), b[at+cut:])
			}
		}
		parts := [][]byte{b}
		if len(b) > 1 {
			at := rapid.IntRange(1, len(b)-1).Draw(t, "apart")
			parts = [][]byte{b[:at], b[at:]}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.compare(ctx, t, parts...)
	})
}

// TestRepeatedHeads sends heads that differ in their lengths, or in nothing.
func TestRepeatedHeads(t *testing.T) {
	w := startTwins(t)
	heads := []string{
		"Host: x\r\nContent-Length: %s\r\n",
		"Host: x\r\ncontent-length:%s\r\nA: 3\r\n",
		"A: 3\r\nContent-Length:\t%s \r\nHost: x\r\n",
		"Host: x\r\nContent-Length: %s\r\nContent-Length: 3\r\n",
		"Host: x\r\nContent-Length: 3\r\nContent-Length: %s\r\n",
		"Host: x\r\nContent-Length: %s, 3\r\n",
		"Host: x\r\nA: b\r\n Content-Length: %s\r\nContent-Length: 3\r\n",
		"Host: x\nContent-Length: %s\n",
		"Host: %s\r\nContent-Length: 3\r\n",
		"Host: x\r\nA: %s\r\n",
		"Host: x\r\nContent-Length: %s\r\nTransfer-Encoding: chunked\r\n",
	}
	lengths := []string{"0", "2", "3", "3", "03", "10", "+3", "-3", "", "3 ", " 3", "3,3", "3\r\nContent-Length: 3", "3\r\nContent-Length: 4", "000000000000000003", "0000000000000000003", "99999999999999999999"}
	rapid.Check(t, func(t *rapid.T) {
		head := rapid.SampledFrom(heads).Draw(t, "head")
		var b strings.Builder
		for _, length := range rapid.SliceOfN(rapid.SampledFrom(lengths), 2, 5).Draw(t, "lengths") {
			fmt.Fprintf(&b, "POST /plain/echo HTTP/1.1\r\n"+head+"\r\nabc", length)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.compare(ctx, t, []byte(b.String()))
	})
}

// FuzzSame looks for bytes that the loop answers otherwise than net/http.
func FuzzSame(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s), 0)
		f.Add([]byte(s), len(s)/2)
	}
	w := startTwins(f)
	f.Fuzz(func(t *testing.T, b []byte, apart int) {
		parts := [][]byte{b}
		if apart > 0 && apart < len(b) {
			parts = [][]byte{b[:apart], b[apart:]}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		w.compare(ctx, t, parts...)
	})
}
