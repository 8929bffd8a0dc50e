package gateway_test

import (
	"bufio"
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
