package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/must"
)

// opened sends bytes to the gateway, and returns the connection on which the answer comes.
func (f *fleet) opened(t *testing.T, text string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(f.url, "http://")))(t).(*net.TCPConn)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a failure; the clock of a body that stalls is longer
	must.Get(io.WriteString(c, text))(t)
	return c, bufio.NewReader(c)
}

// final reads an answer, and no 100 before it.
func final(r *bufio.Reader) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusContinue {
			return resp, err
		}
	}
}

// A client whose body ends early, and that still reads, is told so.
func TestBodyThatEndsEarly(t *testing.T) {
	f := newFleet(t, gateway.Config{}, echo(t))
	for _, path := range []string{"/x", "/v1/chat/completions"} {
		for _, rest := range []string{"Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\nabc"} {
			c, r := f.opened(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%s", path, rest))
			must.OK(t, c.CloseWrite())
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Errorf("%s, %q: %v", path, rest, err)
				f.last()
				continue
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), `"code":"invalid_body"`) {
				t.Errorf("%s, %q: %d %s, %v", path, rest, resp.StatusCode, b, err)
			}
			if s := f.last(); s.Status != http.StatusBadRequest || s.Cut {
				t.Errorf("%s, %q: %+v", path, rest, s)
			}
		}
	}
	if n := f.g.Stats().Ejected; n != 0 {
		t.Errorf("%d engines are ejected", n)
	}
}

// early is an engine that answers before it has read a body. By the path that is a 401, or a stream
// of which the second part waits for leave, or an answer that is cut.
func early(t *testing.T, second <-chan struct{}) string {
	return fake(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack() // a server of Go's would read the body
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		switch r.URL.Path {
		case "/401":
			_, _ = rw.WriteString("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		case "/stream":
			_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
			_ = rw.Flush()
			<-second
			_, _ = rw.WriteString("3\r\ntwo\r\n0\r\n\r\n")
		case "/cut":
			_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\none")
			_ = rw.Flush()
			<-second
			return
		}
		_ = rw.Flush()
		_, _ = io.Copy(io.Discard, rw)
	})
}

// A client that waits for leave to send its body, and is refused by the engine, does not keep the
// connection.
func TestAnswerInPlaceOfContinue(t *testing.T) {
	f := newFleet(t, gateway.Config{}, early(t, nil))
	for _, body := range []string{"Content-Length: 100\r\n\r\n", "Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		_, r := f.opened(t, "POST /401 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"+body)
		resp, err := final(r)
		must.OK(t, err)
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusUnauthorized || string(b) != "no" || !resp.Close {
			t.Errorf("%q: %+v, %q, %v", body, resp, b, err)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%q: the connection ends with %v", body, err)
		}
	}
}

// A client has what an engine answers before the body has come whole, and the connection ends with
// the answer. What it sends behind that is no request.
func TestAnswerBeforeTheBody(t *testing.T) {
	second := make(chan struct{})
	f := newFleet(t, gateway.Config{}, early(t, second))
	for _, x := range []struct {
		path, first, rest string
		status            int
		cut               bool
	}{{"/401", "no", "", 401, false}, {"/stream", "one", "two", 200, false}, {"/cut", "one", "", 200, true}} {
		for _, body := range []string{"Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
			c, r := f.opened(t, "POST "+x.path+" HTTP/1.1\r\nHost: x\r\n"+body)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%s, %q: %v", x.path, body, err)
			}
			first := make([]byte, len(x.first))
			if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != x.first || resp.StatusCode != x.status || !resp.Close {
				t.Errorf("%s, %q: %+v, %q, %v", x.path, body, resp, first, err)
			}
			if x.path != "/401" {
				second <- struct{}{}
			}
			_, _ = io.WriteString(c, "GET /401 HTTP/1.1\r\nHost: x\r\n\r\n") // of the body, by its length
			rest, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(rest) != x.rest || (err != nil) != x.cut {
				t.Errorf("%s, %q: then %q, %v", x.path, body, rest, err)
			}
			if more, err := io.ReadAll(r); err != nil || len(more) > 0 {
				t.Errorf("%s, %q: behind the answer %q, %v", x.path, body, more, err)
			}
			if s := f.last(); s.Path != x.path || s.Status != x.status || s.Cut != x.cut {
				t.Errorf("%s, %q: %+v", x.path, body, s)
			}
		}
	}
}

// Where an engine answers while it reads, both go on at the same time, and the connection stays if
// the body has come whole.
func TestAnswerWhileTheBodyComes(t *testing.T) {
	f := newFleet(t, gateway.Config{}, fake(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/at-its-end" {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		for b := make([]byte, 3); ; {
			n, err := r.Body.Read(b)
			_, _ = w.Write(b[:n])
			_ = rc.Flush()
			if err != nil {
				return
			}
		}
	}))
	const whole = "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
	for _, body := range []string{"Content-Length: 6\r\n\r\nonetwo", whole} {
		c, r := f.opened(t, "POST /at-its-end HTTP/1.1\r\nHost: x\r\n"+body)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.Close || resp.StatusCode != http.StatusOK {
			t.Fatalf("%q: %+v, %v", body, resp, err)
		}
		must.Get(io.Copy(io.Discard, resp.Body))(t)
		_ = resp.Body.Close()

		at := strings.Index(whole, "3\r\ntwo")
		must.Get(io.WriteString(c, "POST /both HTTP/1.1\r\nHost: x\r\n"+whole[:at]))(t)
		resp, err = http.ReadResponse(r, nil)
		must.OK(t, err)
		first := make([]byte, 3)
		must.Get(io.ReadFull(resp.Body, first))(t)
		must.Get(io.WriteString(c, whole[at:]))(t)
		rest, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(first) != "one" || string(rest) != "two" || err != nil {
			t.Errorf("%q and %q, %v", first, rest, err)
		}
	}
}
