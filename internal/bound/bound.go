// Package bound makes contexts with a deadline that cost nothing until something waits for
// them. One of context.WithDeadline starts a timer and enters itself in its parent at once.
// Most requests ask only whether their time is over, and are done before anything waits.
package bound

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// WithTimeout returns a context that behaves as that of context.WithTimeout does. Its timer
// starts with the first call of Done; until then Err and Deadline compare times. The context
// and cancel are safe for concurrent use. Call cancel when what the context bounds has ended.
func WithTimeout(parent context.Context, d time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	at := time.Now().Add(d)
	if earlier, ok := parent.Deadline(); ok && earlier.Before(at) {
		at = earlier
	}
	c := &bounded{parent: parent, at: at}
	return c, c.cancel
}

// bounded is a context with a deadline.
type bounded struct {
	parent context.Context
	at     time.Time

	armed atomic.Pointer[armed] // nil until something waits
	ended atomic.Bool           // by cancel
	mu    sync.Mutex            // is held where either is set
}

// armed is a context of package context, which has the timer.
type armed struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline implements context.Context.
func (c *bounded) Deadline() (time.Time, bool) { return c.at, true }

// Done implements context.Context.
func (c *bounded) Done() <-chan struct{} { return c.arm().Done() }

// Err implements context.Context. Once it is not nil, an armed context keeps it.
func (c *bounded) Err() error {
	if a := c.armed.Load(); a != nil {
		return a.Err()
	}
	if !c.ended.Load() && c.parent.Err() == nil && time.Now().Before(c.at) {
		return nil
	}
	return c.arm().Err()
}

// Value implements context.Context. Of an armed context it also finds the one that has the
// timer. By that package context enters children there without a goroutine for each.
func (c *bounded) Value(key any) any {
	if a := c.armed.Load(); a != nil {
		return a.Value(key)
	}
	return c.parent.Value(key)
}

// arm returns the context with the timer.
func (c *bounded) arm() *armed {
	if a := c.armed.Load(); a != nil {
		return a
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.armed.Load(); a != nil {
		return a
	}
	a := &armed{}
	if c.ended.Load() { // by cancel, whatever has ended since
		a.Context, a.cancel = context.WithCancel(context.WithoutCancel(c.parent))
		a.cancel()
	} else {
		a.Context, a.cancel = context.WithDeadline(c.parent, c.at)
	}
	c.armed.Store(a)
	return a
}

// cancel ends the context.
func (c *bounded) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended.Store(true)
	if a := c.armed.Load(); a != nil {
		a.cancel()
	}
}
