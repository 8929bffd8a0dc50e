package memory

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a store.Clock that tests move.
type clock struct {
	mu  sync.Mutex // protects now
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open makes an index that is closed when the test ends.
func open(tb testing.TB, cfg Config) *Index {
	tb.Helper()
	x := must.Get(New(cfg))(tb)
	tb.Cleanup(func() { _ = x.Close() })
	return x
}

func TestIndex(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		c := &clock{now: time.Unix(1000, 0)}
		return storetest.Subject{Index: checked{open(t, Config{Clock: c.Now}), t}, Advance: c.Advance, Now: c.Now}
	})
}
