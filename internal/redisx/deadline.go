package redisx

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/rawconn"
)

// lazyConn is a connection whose deadlines seldom reach the network poller. The client sets
// some before each command, each a little later than the last. Each that reaches the poller is a
// timer. One that becomes the earliest of its processor wakes another thread of the process,
// which costs more than the command.
//
// So the poller keeps the deadline that it has where the new one is later or none. When that one
// ends a wait too early, the poller gets the deadline that counts and the wait goes on. A deadline
// sooner than the poller's reaches it at once. Thus deadlines come neither early nor late, for
// waits that are on already too, as [net.Conn] promises. It is safe for concurrent use.
//
// Nor does a command wake the runtime's monitor: reads, writes and the look before a command are
// raw calls (package rawconn). One of them that is not would wake it for all.
type lazyConn struct {
	kernelConn
	raw           syscall.RawConn
	reads, writes lazyDeadline
}

// kernelConn is what a connection of the net package is.
type kernelConn interface {
	net.Conn
	syscall.Conn
}

// newLazyConn wraps a connection that was just made, of TCP or a Unix socket.
func newLazyConn(made net.Conn) (*lazyConn, error) {
	c := rawconn.New(made).(kernelConn) //nolint:forcetypeassert // both kinds are, with raw calls and without
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &lazyConn{kernelConn: c, raw: raw, reads: lazyDeadline{arm: c.SetReadDeadline}, writes: lazyDeadline{arm: c.SetWriteDeadline}}, nil
}

// SetDeadline implements net.Conn.
func (c *lazyConn) SetDeadline(t time.Time) error {
	return errors.Join(c.reads.set(t), c.writes.set(t))
}

// SetReadDeadline implements net.Conn.
func (c *lazyConn) SetReadDeadline(t time.Time) error { return c.reads.set(t) }

// SetWriteDeadline implements net.Conn.
func (c *lazyConn) SetWriteDeadline(t time.Time) error { return c.writes.set(t) }

// Read implements net.Conn.
func (c *lazyConn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.kernelConn.Read(b); err == nil || n > 0 || !c.reads.goesOn(err) {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *lazyConn) Write(b []byte) (n int, err error) {
	for {
		var more int
		more, err = c.kernelConn.Write(b[n:])
		if n += more; err == nil || !c.writes.goesOn(err) {
			return n, err
		}
	}
}

// SyscallConn implements syscall.Conn: the client looks by it before each command whether the
// server has closed the connection or sent something, while it was idle. The poller's deadline
// may have passed by then.
func (c *lazyConn) SyscallConn() (syscall.RawConn, error) { return (*lazyRaw)(c), nil }

// lazyRaw is the raw connection of a lazyConn.
type lazyRaw lazyConn

// Control implements syscall.RawConn.
func (c *lazyRaw) Control(f func(fd uintptr)) error { return c.raw.Control(f) }

// Read implements syscall.RawConn for a look, which does not wait: f is called where something
// has come.
func (c *lazyRaw) Read(f func(fd uintptr) (done bool)) error {
	look := func(fd uintptr) bool { return rawconn.IsQuiet(fd) || f(fd) }
	for {
		if err := c.raw.Read(look); err == nil || !c.reads.goesOn(err) {
			return err
		}
	}
}

// Write implements syscall.RawConn.
func (c *lazyRaw) Write(f func(fd uintptr) (done bool)) error {
	for {
		if err := c.raw.Write(f); err == nil || !c.writes.goesOn(err) {
			return err
		}
	}
}

// lazyDeadline is the deadline of one direction. A zero time is none.
type lazyDeadline struct {
	arm func(time.Time) error // gives it to the poller

	mu     sync.Mutex // protects the rest
	wanted time.Time  // the one that counts
	armed  time.Time  // the one that the poller has: never later than wanted
}

// set changes the deadline.
func (d *lazyDeadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = t
	if t.Equal(d.armed) || !d.armed.IsZero() && (t.IsZero() || t.After(d.armed)) {
		return nil
	}
	return d.give()
}

// goesOn reports whether a wait that err has ended goes on, since the deadline was the poller's
// only. The poller then has the one that counts.
func (d *lazyDeadline) goesOn(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.wanted.IsZero() && !time.Now().Before(d.wanted) {
		return false
	}
	return d.give() == nil
}

func (d *lazyDeadline) give() error {
	err := d.arm(d.wanted)
	if err == nil {
		d.armed = d.wanted
	}
	return err
}
