package rawconn

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// mostAtOnce is how many bytes one call moves at most: copying more would keep the scheduler
// waiting that does not know of it.
const mostAtOnce = 64 << 10

// conn is a connection whose Read and Write are raw. As of a net.Conn, its methods are safe for
// concurrent use.
type conn struct {
	stream
	raw     syscall.RawConn
	in, out call
}

// stream is what connections of TCP and Unix sockets are.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// call is one direction: what is asked for and what came of it.
type call struct {
	mu   sync.Mutex // held for the whole of a Read or Write
	trap uintptr
	p    []byte
	n    int
	err  syscall.Errno
	step func(fd uintptr) (done bool) // try, bound once
}

// New returns c with raw calls if it is a connection of TCP or a Unix socket, else c.
func New(c net.Conn) net.Conn {
	var s stream
	switch c := c.(type) {
	case *net.TCPConn:
		s = c
	case *net.UnixConn:
		s = c
	default:
		return c
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return c
	}
	r := &conn{stream: s, raw: raw}
	r.in.trap, r.out.trap = syscall.SYS_READ, syscall.SYS_WRITE
	r.in.step, r.out.step = r.in.try, r.out.try
	return r
}

// Unwrap returns the connection that New got.
func Unwrap(c net.Conn) net.Conn {
	if r, ok := c.(*conn); ok {
		return r.stream
	}
	return c
}

// try makes the call, and reports whether it need not be made again when the poller says so.
func (c *call) try(fd uintptr) (done bool) {
	for {
		n, _, err := syscall.RawSyscall(c.trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(c.p))), uintptr(len(c.p)))
		switch err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		case 0:
			c.n = int(n)
			return true
		default:
			c.err = err
			return true
		}
	}
}

// begin takes what is asked for, end returns what came of it.
func (c *call) begin(p []byte) { c.p, c.n, c.err = p[:min(len(p), mostAtOnce)], 0, 0 }

func (c *call) end(err error) (int, error) {
	c.p = nil
	if err == nil && c.err != 0 {
		err = c.err
	}
	return c.n, err
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.begin(p)
	n, err := c.in.end(c.raw.Read(c.in.step))
	switch {
	case err != nil:
		return 0, c.failed("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (n int, err error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	for n < len(p) {
		c.out.begin(p[n:])
		m, err := c.out.end(c.raw.Write(c.out.step))
		n += m
		if err != nil {
			return n, c.failed("write", err)
		}
	}
	return n, nil
}

// failed is an error as package net has it.
func (c *conn) failed(op string, err error) error {
	if e, ok := err.(*net.OpError); ok { //nolint:errorlint // it is net's own
		err = e.Err
	}
	if e, ok := err.(syscall.Errno); ok { //nolint:errorlint // it is the call's own
		err = os.NewSyscallError(op, e)
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// IsQuiet reports whether a socket has nothing to read, neither bytes nor their end. Elsewhere
// than on Linux it says no.
func IsQuiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), uintptr(len(b)), syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return err == syscall.EAGAIN
}
