package wire

import (
	"sync"
	"time"
)

// clock is an engine's time: so many times faster than the day, and still while it is
// frozen.
type clock struct {
	speed float64
	start time.Time

	mu     sync.Mutex // protects all below
	lost   time.Duration
	frozen time.Time     // since when; zero if it is not
	thawed chan struct{} // closed when it goes on
}

func newClock(speed float64) *clock { return &clock{speed: speed, start: time.Now()} }

// now returns the engine's time.
func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.frozen.IsZero() {
		now = c.frozen
	}
	return time.Duration(float64(now.Sub(c.start)-c.lost) * c.speed)
}

// wait returns how long it is until an engine's time.
func (c *clock) wait(until time.Duration) time.Duration {
	return time.Duration(float64(until-c.now())/c.speed) + 1
}

// freeze has the clock stand still.
func (c *clock) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen.IsZero() {
		c.frozen, c.thawed = time.Now(), make(chan struct{})
	}
}

// thaw has it go on.
func (c *clock) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen.IsZero() {
		c.lost += time.Since(c.frozen)
		c.frozen = time.Time{}
		close(c.thawed)
	}
}

// stopped returns what is closed when the clock goes on, nil if it does.
func (c *clock) stopped() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen.IsZero() {
		return nil
	}
	return c.thawed
}
