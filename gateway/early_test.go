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
