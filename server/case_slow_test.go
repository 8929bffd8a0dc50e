package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server"
)

// slowClients opens connections that send the header of a request and the first bytes of its body.
// It waits until the server has each of them.
func slowClients(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		c := must.Get(net.Dial("tcp", address))(t)
		t.Cleanup(func() { _ = c.Close() })
		// The server asks for the body when it reads it: then the request is where it waits.
		must.Get(io.WriteString(c, "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n"))(t)
		answer := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
		if _, err := io.ReadFull(c, answer); err != nil || !strings.Contains(string(answer), "100 Continue") {
			t.Fatalf("%q, %v", answer, err)
		}
		must.Get(io.WriteString(c, `{"model":`))(t)
	}
}

// TestCaseSlowBodies has more bodies on their way than requests may be in flight. Others are
// answered all the same, since a request counts when its body has come.
func TestCaseSlowBodies(t *testing.T) {
	const inFlight = 4
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.MaxInFlight = inFlight })
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	address := h.Listener.Addr().String()
	ask := func() (int, string) {
		resp, err := http.Post(h.URL+"/v1/score", "application/json", strings.NewReader(`{"model":"m","tokens":[1,2,3,4]}`))
		must.OK(t, err)
		defer func() { _ = resp.Body.Close() }()
		body := must.Get(io.ReadAll(resp.Body))(t)
		return resp.StatusCode, string(body)
	}
	slowClients(t, address, 5*inFlight)
	for range 40 {
		if status, body := ask(); status != http.StatusOK {
			t.Fatalf("beside slow bodies: %d %s", status, body)
		}
	}
	if w := s.do(http.MethodGet, "/metrics", nil); !strings.Contains(w.Body.String(), "kvatlas_http_in_flight 0\n") {
		t.Error("bodies that are coming count as requests in flight")
	}
}

// TestCaseMemoryByDefault counts what is made of a body, and not the body alone.
func TestCaseMemoryByDefault(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) {
		c.Limits.MaxBodyBytes, c.Limits.MaxInFlightBytes = 1<<20, 1<<20
	})
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	c := must.Get(net.Dial("tcp", h.Listener.Addr().String()))(t)
	defer func() { _ = c.Close() }()
	// A body of 800 KB is on its way: as it comes it takes what it has.
	must.Get(fmt.Fprintf(c, "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n%s", strings.Repeat(" ", 800_000)))(t)
	awaitMetric(t, s, func(n int) bool { return n >= 800_000-16<<10 })
	// One of 100 KB takes 400 KB, which is more than there is room for.
	body := `{"model":"m","tokens":[1` + strings.Repeat(",1", 50_000) + `]}`
	resp, err := http.Post(h.URL+"/v1/score", "application/json", strings.NewReader(body))
	must.OK(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", resp.StatusCode)
	}
	// A small one is answered.
	resp, err = http.Post(h.URL+"/v1/score", "application/json", strings.NewReader(`{"model":"m","tokens":[1,2,3,4]}`))
	must.OK(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d of a small one", resp.StatusCode)
	}
}

// awaitMetric waits until the bytes in flight are as they should be.
func awaitMetric(t *testing.T, s subject, ok func(n int) bool) {
	t.Helper()
	var n int
	for range 100_000 {
		text := s.do(http.MethodGet, "/metrics", nil).Body.String()
		_, rest, _ := strings.Cut(text, "\nkvatlas_http_in_flight_bytes ")
		var v float64
		must.Get(fmt.Sscan(rest, &v))(t)
		if n = int(v); ok(n) {
			return
		}
	}
	t.Fatalf("%d bytes in flight", n)
}
