package loadstest

import (
	"sync"
	"time"
)

// Clock is a time that the test moves. Besides it moves by a microsecond whenever it is
// read, as no two calls of a server are at one time.
type Clock struct {
	mu sync.Mutex // protects at
	at time.Time
}

// NewClock returns a clock that stands somewhere.
func NewClock() *Clock { return &Clock{at: time.UnixMicro(1_800_000_000_000_000)} }

// Now is the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(time.Microsecond)
	return c.at
}

// Advance moves it.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}
