package redisx

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what is said of dials.
const (
	dialAgain  = time.Minute // between two lines on one address
	maxDialled = 1024        // addresses that are remembered
)

// dialer makes the connections of a client, and reports those that fail. It reports one
// line when an address cannot be reached any more, one a minute while that lasts, and
// one when it can. A client dials several times a second while its server is away. It
// is safe for concurrent use.
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

// newDialer returns a dialer of connections whose deadlines are lazy. A nil log is deaf.
func newDialer(c *Config) *dialer {
	d := &dialer{dial: dialLazy(c.DialTimeout, c.Target.tls), log: c.Log, now: time.Now, addrs: map[string]*dialled{}}
	if d.log == nil {
		d.log = func(string) {}
	}
	return d
}

// dialLazy returns a func that connects as go-redis does by itself, but to a [lazyConn]. TLS is
// spoken on it where secure is not nil. The whole of it takes at most limit.
func dialLazy(limit time.Duration, secure *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	// As go-redis has it: dead connections are found before balancers and NATs forget idle ones.
	plain := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c, err := plain.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		lazy, err := newLazyConn(c)
		if err != nil {
			return nil, err
		}
		if secure == nil {
			return lazy, nil
		}
		config := secure.Clone()
		config.ServerName = cmp.Or(config.ServerName, hostOf(addr))
		encrypted := tls.Client(lazy, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, lazy.Close())
		}
		return encrypted, nil
	}
}

// hostOf is an address without its port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
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
		return nil, dialError{err} // by its caller, which is no fault of the server's
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
		a.told, a.fails = false, 0 // next stays: one that comes and goes is reported once a minute, too
		away = d.now().Sub(a.away)
	}
	d.mu.Unlock()
	if told {
		d.log(fmt.Sprintf("redis: connected to %s again, after %v", addr, away.Round(time.Millisecond)))
	}
}
