package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// raw sends bytes to the gateway and returns its answers, read as those of requests with these
// methods.
func (f *fleet) raw(t *testing.T, text string, methods ...string) (out []reply) {
	t.Helper()
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(f.url, "http://")))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	must.Get(io.WriteString(c, text))(t)
	r := bufio.NewReader(c)
	for len(out) < len(methods) {
		resp, err := http.ReadResponse(r, &http.Request{Method: methods[len(out)]})
		if err != nil {
			t.Fatalf("%v after %d answers to %.100q", err, len(out), text)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatalf("%v in answer %d to %.100q", err, len(out), text)
		}
		if n := len(out); n > 0 && resp.StatusCode == http.StatusContinue && out[n-1].status == http.StatusContinue {
			continue // an engine's own, after more than a second: the client has been told to go on
		}
		out = append(out, reply{resp.StatusCode, resp.Header, resp.Trailer, string(b)})
	}
	return out
}

// echo is an engine that answers with what it was sent.
func echo(t *testing.T) string {
	return fake(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		switch r.Header.Get("X-Do") {
		case "early":
			w.Header().Set("Link", "</style>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
		case "204":
			w.WriteHeader(http.StatusNoContent)
			return
		case "304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(http.StatusNotModified)
			return
		case "empty":
			return
		}
		w.Header().Set("X-Saw", fmt.Sprintf("%s %s len=%d te=%v enc=%s", r.Method, r.RequestURI, r.ContentLength, r.TransferEncoding, r.Header.Get("Content-Encoding")))
		_, _ = w.Write(b)
	})
}

// Odd requests are passed on or refused, and the connection is left so that the next one on it
// is answered.
func TestOddRequests(t *testing.T) {
	f := newFleet(t, gateway.Config{}, echo(t))
	body := chat(3, "")
	head := func(line, more string) string { return line + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n" }
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, body)
	_ = z.Close()
	post := "POST /v1/chat/completions"
	for _, x := range []struct {
		what, text string
		methods    []string
		check      func(r []reply) bool
	}{
		{"an unknown method", head("BREW /pot?a;b=%zz", ""), []string{"BREW"}, func(r []reply) bool {
			return r[0].status == 200 && strings.HasPrefix(r[0].header.Get("X-Saw"), "BREW /pot?a;b=%zz ")
		}},
		{"OPTIONS *", head("OPTIONS *", ""), []string{"OPTIONS"}, func(r []reply) bool { return r[0].status == 200 }},
		{"CONNECT", head("CONNECT example.com:443", ""), []string{"CONNECT"}, func(r []reply) bool { return r[0].status == 405 }},
		{"TRACE", head("TRACE /v1/chat/completions", ""), []string{"TRACE"}, func(r []reply) bool { return r[0].status == 200 }},
		{"HEAD", head("HEAD /v1/models", ""), []string{"HEAD"}, func(r []reply) bool { return r[0].status == 200 && r[0].body == "" }},
		{"two slashes", head("GET //v1//models/a%2Fb", ""), []string{"GET"}, func(r []reply) bool { return strings.HasPrefix(r[0].header.Get("X-Saw"), "GET //v1//models/a%2Fb ") }},
		{"an absolute address", head("GET http://elsewhere.example/x", ""), []string{"GET"}, func(r []reply) bool { return strings.HasPrefix(r[0].header.Get("X-Saw"), "GET /x ") }},
		{"a body in chunks", head(post, "Transfer-Encoding: chunked\r\n") + chunked, []string{"POST"}, func(r []reply) bool {
			return r[0].status == 200 && r[0].body == body && r[0].header.Get("X-Kvatlas-Why") == "eta"
		}},
		{"chunks with trailers", head(post, "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n") + fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n", len(body), body), []string{"POST"}, func(r []reply) bool { return r[0].status == 200 && r[0].body == body }},
		{"a body that is packed", head(post, fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n", zipped.Len())) + zipped.String(), []string{"POST"}, func(r []reply) bool {
			return r[0].status == 200 && r[0].body == zipped.String() && strings.Contains(r[0].header.Get("X-Saw"), "enc=gzip") && strings.HasPrefix(r[0].header.Get("X-Kvatlas-Why"), "unread")
		}},
		{"no body where one belongs", head(post, "Content-Length: 0\r\n"), []string{"POST"}, func(r []reply) bool {
			return r[0].status == 200 && r[0].body == "" && strings.Contains(r[0].header.Get("X-Saw"), " len=0 te=[] ")
		}},
		{"no body in chunks", head(post, "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", []string{"POST"}, func(r []reply) bool {
			return r[0].status == 200 && r[0].body == "" && strings.Contains(r[0].header.Get("X-Saw"), " len=0 te=[] ")
		}},
		{"length and chunks", head(post, fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n", 3)) + chunked, []string{"POST"}, func(r []reply) bool { return r[0].status == 400 || r[0].status == 200 && r[0].body == body }},
		{"two lengths", head(post, "Content-Length: 3\r\nContent-Length: 4\r\n") + "abcd", []string{"POST"}, func(r []reply) bool { return r[0].status == 400 }},
		{"a broken chunk", head(post, "Transfer-Encoding: chunked\r\n") + "zz\r\n", []string{"POST"}, func(r []reply) bool { return r[0].status == 400 }},
		{"a header too long", head("GET /v1/models", "X: "+strings.Repeat("a", 2<<20)+"\r\n"), []string{"GET"}, func(r []reply) bool { return r[0].status == 431 }},
		{"two thousand headers", head(post, strings.Repeat("X-A: 1\r\n", 2000)+fmt.Sprintf("Content-Length: %d\r\n", len(body))) + body, []string{"POST"}, func(r []reply) bool { return r[0].status == 200 && r[0].body == body }},
		{"one behind the other", head(post, fmt.Sprintf("Content-Length: %d\r\n", len(body))) + body + head("GET /x", "") + head(post, "Transfer-Encoding: chunked\r\n") + chunked, []string{"POST", "GET", "POST"}, func(r []reply) bool {
			return r[0].body == body && strings.HasPrefix(r[1].header.Get("X-Saw"), "GET /x") && r[2].body == body
		}},
		{"204 and what comes next", head(post, fmt.Sprintf("X-Do: 204\r\nContent-Length: %d\r\n", len(body))) + body + head("GET /x", ""), []string{"POST", "GET"}, func(r []reply) bool { return r[0].status == 204 && r[1].status == 200 }},
		{"304", head("GET /x", "X-Do: 304\r\n") + head("GET /x", ""), []string{"GET", "GET"}, func(r []reply) bool {
			return r[0].status == 304 && r[0].header.Get("Etag") == `"x"` && r[1].status == 200
		}},
		{"an answer that is empty", head(post, fmt.Sprintf("X-Do: empty\r\nContent-Length: %d\r\n", len(body))) + body + head("GET /x", ""), []string{"POST", "GET"}, func(r []reply) bool { return r[0].status == 200 && r[0].body == "" && r[1].status == 200 }},
		{"early hints", head(post, fmt.Sprintf("X-Do: early\r\nContent-Length: %d\r\n", len(body))) + body, []string{"POST", "POST"}, func(r []reply) bool {
			return r[0].status == 103 && r[0].header.Get("Link") != "" && r[1].status == 200 && r[1].body == body && r[1].header.Get("Link") == ""
		}},
		{"100-continue", head(post, fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n", len(body))) + body, []string{"POST", "POST"}, func(r []reply) bool { return r[0].status == 100 && r[1].status == 200 && r[1].body == body }},
		{"100-continue, not understood", head("POST /v1/audio", "Expect: 100-continue\r\nContent-Length: 5\r\n") + "words", []string{"POST", "POST"}, func(r []reply) bool { return r[0].status == 100 && r[1].status == 200 && r[1].body == "words" }},
		{"another expectation", head("POST /v1/audio", "Expect: tea\r\nContent-Length: 5\r\n") + "words", []string{"POST"}, func(r []reply) bool { return r[0].status == 417 }},
		{"HTTP/2 in clear", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"PRI"}, func(r []reply) bool { return r[0].status == 405 }},
		{"an upgrade that the engine does not want", head("GET /x", "Connection: Upgrade\r\nUpgrade: h2c\r\n"), []string{"GET"}, func(r []reply) bool { return r[0].status == 200 }},
		{"headers of the gateway's own", head(post, fmt.Sprintf("X-Kvatlas-Pod: evil\r\nX-Session-Id: %s\r\nContent-Length: %d\r\n", strings.Repeat("s", 5000), len(body))) + body, []string{"POST"}, func(r []reply) bool { return r[0].status == 200 && r[0].header.Get("X-Kvatlas-Pod") != "evil" }},
	} {
		if r := f.raw(t, x.text, x.methods...); !x.check(r) {
			for i := range r {
				r[i].body = fmt.Sprintf("%.200s", r[i].body)
			}
			t.Errorf("%s: %+v", x.what, r)
		}
	}
	f.idle()
	// A client has its answer a moment before the request has ended.
	eventually.True(t, "end of all requests", func() bool { s := f.g.Stats(); return s.Requests == 0 && s.Buffered == 0 })
}

// brokenStatus is an engine whose answers begin with a status line that net/http reads and cannot
// write.
func brokenStatus(t *testing.T, code string) (address string) {
	return fake(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 " + code + " Foo\r\nContent-Length: 2\r\n\r\n{}")
		_ = rw.Flush()
	})
}

// An engine whose status HTTP does not have is one that has not answered. The request goes to
// another, and where there is none the client is told so.
func TestStatusThatIsNone(t *testing.T) {
	for _, code := range []string{"000", "007", "099"} {
		var retried []string
		bad := brokenStatus(t, code)
		f := newFleet(t, gateway.Config{Observer: gateway.Observer{Retried: func(pod string, why error) { retried = append(retried, fmt.Sprint(pod, " ", why)) }}}, bad)
		if r := f.post("/v1/chat/completions", chat(30, "")); r.status != http.StatusBadGateway || !strings.Contains(r.body, "engine_unavailable") {
			t.Errorf("status %s of the only engine: %d %s", code, r.status, r.body)
		}
		if s := f.last(); s.Status != http.StatusBadGateway || s.Pod != bad || len(retried) != 0 {
			t.Errorf("status %s of the only engine: %+v, retried %q", code, s, retried)
		}
		f.idle()

		good := echo(t)
		f.register(store.Pod{Name: good, Model: model, Approximate: true})
		f.post("/v1/chat/completions", chat(30, "")) // the first one is held by the broken engine
		if s := f.last(); s.Status != http.StatusOK || s.Pod != good || s.Attempts != 2 {
			t.Errorf("status %s of one of two engines: %+v", code, s)
		}
		if len(retried) != 1 || !strings.HasPrefix(retried[0], bad) || !strings.Contains(retried[0], `"`+code+` Foo"`) {
			t.Errorf("status %s: retried, as %q", code, retried)
		}
	}
}

// An upgrade that both sides want is a connection from one to the other, in both directions,
// until one of them ends it.
func TestUpgrade(t *testing.T) {
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "words" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n")
		_ = rw.Flush()
		for s := bufio.NewScanner(rw); s.Scan(); {
			_, _ = rw.WriteString(strings.ToUpper(s.Text()) + "\n")
			_ = rw.Flush()
		}
	})
	f := newFleet(t, gateway.Config{Idle: 50 * time.Millisecond, Header: 50 * time.Millisecond}, address)
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(f.url, "http://")))(t)
	defer c.Close()
	_, _ = io.WriteString(c, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err == nil {
		defer resp.Body.Close()
	}
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-Kvatlas-Pod") != address {
		t.Fatalf("%+v, %v", resp, err)
	}
	pause := time.NewTimer(150 * time.Millisecond) // longer than the clocks of answers
	for _, word := range []string{"one", "two"} {
		_, _ = io.WriteString(c, word+"\n")
		if line, err := r.ReadString('\n'); err != nil || line != strings.ToUpper(word)+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if word == "one" {
			<-pause.C
		}
	}
	_ = c.Close()
	if s := f.last(); s.Status != http.StatusSwitchingProtocols {
		t.Errorf("%+v", s)
	}
	eventually.True(t, "end of the request", func() bool { return f.g.Stats().Requests == 0 })
}

// A stream that an engine cuts within a character reaches the client as far as it came, and the
// client sees that it was cut.
func TestStreamCutWithinACharacter(t *testing.T) {
	const part = "data: {\"choices\":[{\"text\":\"w\u00f6rd\"}]}\n\n"
	cut := strings.Index(part, "\u00f6") + 1
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, part+part[:cut])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	f := newFleet(t, gateway.Config{}, address)
	for _, more := range []string{`,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true}`} {
		resp, err := http.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(2, more)))
		must.OK(t, err)
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || string(b) != part+part[:cut] {
			t.Errorf("%s: %q, %v", more, b, err)
		}
		if s := f.last(); !s.Cut || s.Status != http.StatusOK {
			t.Errorf("%s: %+v", more, s)
		}
	}
	f.idle()
}

// Clients that send nothing of their body, or take nothing of their answer, are given up.
func TestClientsThatStall(t *testing.T) {
	var later atomic.Int64
	gone := make(chan struct{})
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			c, rw, err := http.NewResponseController(w).Hijack() // a server of Go's would read the body first
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = rw.WriteString("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
			_ = rw.Flush()
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for chunk := bytes.Repeat([]byte("data: {}\n\n"), 1000); ; {
			if _, err := w.Write(chunk); err != nil {
				close(gone)
				return
			}
		}
	})
	f := newFleet(t, gateway.Config{
		Now:  func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
		Idle: 24 * time.Hour, FirstToken: 24 * time.Hour, Header: 24 * time.Hour,
	}, address)
	for _, x := range []struct {
		what, text string
		status     int
	}{
		{"rest of a body that the engine does not want", "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", http.StatusNotFound},
		{"body that is passed on", "POST /v1/audio HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", http.StatusRequestTimeout},
		{"body", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", http.StatusRequestTimeout},
		{"answer", fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(chat(2, `,"stream":true`)), chat(2, `,"stream":true`)), http.StatusOK},
	} {
		c := must.Get(net.Dial("tcp", strings.TrimPrefix(f.url, "http://")))(t)
		must.Get(io.WriteString(c, x.text))(t)
		var s gateway.Served
		eventually.True(t, x.what+" that is given up", func() bool {
			later.Add(int64(time.Minute))
			select {
			case s = <-f.served:
				return true
			default:
				return false
			}
		})
		if s.Status != x.status || s.Cut != (x.status == http.StatusOK) {
			t.Errorf("%s: %+v", x.what, s)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != x.status {
			t.Errorf("%s: the client sees %+v, %v", x.what, resp, err)
		}
		_ = c.Close()
		if err == nil {
			_ = resp.Body.Close()
		}
	}
	<-gone
	f.idle()
}

// A request that is answered while its body has not come whole ends its connection: the server
// waits for the rest only for a moment.
func TestRestOfABody(t *testing.T) {
	release, here := make(chan struct{}), make(chan struct{})
	f := newFleet(t, gateway.Config{MaxBody: 4096, MaxBuffered: 4096, MaxRequests: 1}, fake(t, func(http.ResponseWriter, *http.Request) {
		close(here)
		<-release
	}))
	send := func(what, line string, length, status int) {
		t.Helper()
		c := must.Get(net.Dial("tcp", strings.TrimPrefix(f.url, "http://")))(t)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute)) // a failure, not a bound
		must.Get(fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", line, length))(t)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		must.OK(t, err)
		defer resp.Body.Close()
		must.Get(io.Copy(io.Discard, resp.Body))(t)
		if _, err := r.ReadByte(); resp.StatusCode != status || !errors.Is(err, io.EOF) {
			t.Errorf("%s: status %d, and then %v", what, resp.StatusCode, err)
		}
	}
	send("too long a body", "POST /v1/completions", 5000, http.StatusRequestEntityTooLarge)
	send("health", "GET /health", 10, http.StatusOK)
	done := make(chan reply)
	go func() { done <- f.post("/v1/completions", `{"model":"sim/model","prompt":"x"}`) }()
	<-here
	send("too many requests", "POST /v1/completions", 10, http.StatusServiceUnavailable)
	close(release)
	<-done
}

// What is wrong with a client's body is no fault of the engine that it was to go to.
func TestWrongBodiesEjectNoEngine(t *testing.T) {
	f := newFleet(t, gateway.Config{MaxBody: 4096}, echo(t))
	const head = "POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for text, status := range map[string]int{
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 5000, strings.Repeat("x", 5000)): http.StatusRequestEntityTooLarge, "1\r\nx\r\nzz\r\n": http.StatusBadRequest,
	} {
		for range 4 { // three in a row that are not answered eject an engine
			if r := f.raw(t, head+text, "POST"); r[0].status != status {
				t.Errorf("%.20q: %+v", text, r)
			}
			f.last()
		}
	}
	if n := f.g.Stats().Ejected; n != 0 {
		t.Errorf("%d engines are ejected", n)
	}
}
