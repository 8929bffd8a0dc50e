package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/redistest"
)

func TestDialsAreToldOnce(t *testing.T) {
	var lines []string
	now := time.Unix(1, 0)
	var fails error
	d := newDialer(&target{}, &Config{Observer: Observer{Log: func(m string) { lines = append(lines, m) }}})
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

// TestServerThatIsAwayIsToldOnce hears all of a client whose server is away, go-redis's
// own lines included.
func TestServerThatIsAwayIsToldOnce(t *testing.T) {
	s := redistest.Start(t)
	var mu sync.Mutex
	var lines []string
	x := open(t, Config{URL: s.URL(), NoSweep: true, Observer: Observer{Log: func(m string) { mu.Lock(); defer mu.Unlock(); lines = append(lines, m) }}})
	count := func(part string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range lines {
			if strings.Contains(l, part) {
				n++
			}
		}
		return n
	}
	if _, err := x.Registry(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	for range 50 {
		if _, err := x.Registry(t.Context()); err == nil {
			t.Fatal("the registry of a server that is away")
		}
	}
	if n := count("dial"); n != 1 || count("cannot connect to") != 1 {
		t.Errorf("%d lines: %q", n, lines)
	}
	s.Run()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := x.Registry(t.Context()); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if count("again, after") != 1 {
		t.Errorf("no recovery in %q", lines)
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
