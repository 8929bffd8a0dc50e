package redisx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds of what is said of dials.
const (
	dialAgain  = time.Minute // between two lines on one address
	maxDialled = 1024        // addresses that are remembered
)

// dialer makes the connections of a client, and tells of those that fail: one line when
// an address cannot be reached any more, one a minute while that lasts, and one when it
// can. A client dials several times a second while its server is away. It is safe for
// concurrent use.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	log  func(string)
	now  func() time.Time
	// dials counts the connections that have been begun.
	dials atomic.Uint64

	mu    sync.Mutex // protects addrs
	addrs map[string]*dialled
}

// dialled is what there is to know of an address.
type dialled struct {
	away  time.Time // since when it cannot be reached, if told
	told  bool
	fails int       // since the last line
	next  time.Time // no line on a failure before
}

// dialError is an error of which the dialer has told.
type dialError struct{ error }

// Unwrap is for errors.Is and errors.As.
func (e dialError) Unwrap() error { return e.error }

// newDialer returns a dialer that connects as go-redis does by itself. A nil log is deaf.
func newDialer(c *Config) *dialer {
	d := &dialer{
		dial: redis.NewDialer(&redis.Options{DialTimeout: c.DialTimeout, TLSConfig: c.Target.tls}),
		log:  c.Log, now: time.Now, addrs: map[string]*dialled{},
	}
	if d.log == nil {
		d.log = func(string) {}
	}
	return d
}

// Dial is the Dialer of go-redis's options.
func (d *dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.dials.Add(1)
	c, err := d.dial(ctx, network, addr)
	switch {
	case err == nil:
		d.reached(addr)
		return c, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, dialError{err} // by who wanted it, which is no fault of the server's
	}
	d.failed(addr, err)
	return nil, dialError{err}
}

func (d *dialer) failed(addr string, err error) {
	now := d.now()
	d.mu.Lock()
	a := d.addrs[addr]
	if a == nil {
		if len(d.addrs) >= maxDialled {
			clear(d.addrs) // a cluster that changes its addresses again and again
		}
		a = &dialled{}
		d.addrs[addr] = a
	}
	a.fails++
	if now.Before(a.next) {
		d.mu.Unlock()
		return
	}
	text := fmt.Sprintf("redis: cannot connect to %s, and goes on trying: %v", addr, err)
	if a.told {
		text = fmt.Sprintf("redis: cannot connect to %s for %v, in %d tries since it was last told: %v", addr, now.Sub(a.away).Round(time.Second), a.fails, err)
	} else {
		a.told, a.away = true, now
	}
	a.fails, a.next = 0, now.Add(dialAgain)
	d.mu.Unlock()
	d.log(text)
}

func (d *dialer) reached(addr string) {
	d.mu.Lock()
	a := d.addrs[addr]
	told := a != nil && a.told
	var away time.Duration
	if told {
		a.told, a.fails = false, 0 // next stays: one that comes and goes is told of once a minute, too
		away = d.now().Sub(a.away)
	}
	d.mu.Unlock()
	if told {
		d.log(fmt.Sprintf("redis: connected to %s again, after %v", addr, away.Round(time.Millisecond)))
	}
}
