package redisx

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

func TestDialsAreToldOnce(t *testing.T) {
	var lines []string
	now := time.Unix(1, 0)
	var fails error
	d := newDialer(&Config{Target: &Target{}, Log: func(m string) { lines = append(lines, m) }})
	d.now = func() time.Time { return now }
	d.dial = func(context.Context, string, string) (net.Conn, error) { return nil, fails }
	dial := func(addr string) {
		if _, err := d.Dial(t.Context(), "tcp", addr); !errors.Is(err, fails) {
			t.Fatalf("got %v, want %v", err, fails)
		}
	}
	said := func(n int, words ...string) {
		t.Helper()
		text := strings.Join(lines, "\n")
		if len(lines) != n {
			t.Errorf("%d lines, want %d:\n%s", len(lines), n, text)
		}
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in:\n%s", w, text)
			}
		}
		lines = nil
	}
	dial("a:1")
	said(0)
	fails = errors.New("connection refused")
	for range 8 * 150 { // 150 s
		dial("a:1")
		now = now.Add(time.Second / 8)
	}
	said(3, "cannot connect to a:1, and goes on", "for 2m0s, in 480 tries", "connection refused")
	dial("b:1")
	said(1, "b:1")
	fails = nil
	dial("a:1")
	dial("a:1")
	said(1, "connected to a:1 again, after 2m30s")
	// One that comes and goes.
	for range 120 {
		fails = errors.New("reset")
		dial("a:1")
		fails = nil
		dial("a:1")
		now = now.Add(time.Second)
	}
	said(4)

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	fails = context.Canceled
	if _, err := d.Dial(canceled, "tcp", "c:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	said(0)

	fails = errors.New("no route")
	for i := range 3 * maxDialled {
		dial(strings.Repeat("x", i))
	}
	if len(d.addrs) > maxDialled {
		t.Errorf("%d addresses are remembered", len(d.addrs))
	}
}

func TestLinesOfAKindPassOnceAMinute(t *testing.T) {
	var l limiter
	now := time.Unix(1, 0)
	passed, dropped := 0, 0
	for range 120 {
		if n, ok := l.pass("a %d", now); ok {
			passed++
			dropped += n
		}
		now = now.Add(time.Second)
	}
	if passed != 2 || dropped != 59 {
		t.Errorf("%d passed after %d dropped, want 2 and 59", passed, dropped)
	}
	if _, ok := l.pass("b", now); !ok {
		t.Error("another kind does not pass")
	}
}
