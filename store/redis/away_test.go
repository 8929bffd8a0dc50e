package redis

import (
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

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
	must.Get(x.Registry(t.Context()))(t)
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
	eventually.NoError(t, "the registry", func() error { _, err := x.Registry(t.Context()); return err })
	if count("again, after") != 1 {
		t.Errorf("no recovery in %q", lines)
	}
}
