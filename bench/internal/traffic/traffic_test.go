package traffic

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// A connection carries one request after the other, and what is refused is an error.
func TestConn(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusConflict)
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer s.Close()
	c := must.Get(Dial(t.Context(), s.Listener.Addr().String()))(t)
	defer c.Close()
	head, end := []byte("POST /"), []byte(" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
	for range 3 {
		if got := must.Get(c.Ask(head, []byte("x"), end))(t); string(got) != "hi" {
			t.Errorf("%q", got)
		}
	}
	if _, err := c.Ask(head, []byte("no"), end); err == nil || !strings.Contains(err.Error(), "409 Conflict: hi") {
		t.Error(err)
	}
}

func TestQuantile(t *testing.T) {
	all := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := Quantile(all, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
	if got := Quantile(nil, 0.5); got != 0 {
		t.Error(got)
	}
	if got := string(List([]uint32{1, 20})) + " " + Packed([]uint32{1, 256}); got != "1,20 AQAAAAABAAA=" {
		t.Error(got)
	}
}
