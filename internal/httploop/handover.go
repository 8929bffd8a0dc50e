package httploop

import (
	"net"
	"net/http"
	"sync"
)

// handOver is the listener through which net/http gets connections.
type handOver struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newHandOver(addr net.Addr) *handOver {
	return &handOver{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// put gives a connection to net/http, and reports whether that takes any more.
func (h *handOver) put(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements net.Listener.
func (h *handOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, http.ErrServerClosed
	}
}

// Close implements net.Listener.
func (h *handOver) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handOver) Addr() net.Addr { return h.addr }

// begun is a connection of which some bytes have been read, one at the least.
type begun struct {
	net.Conn
	read  []byte
	taken func() // is called with the first Read: net/http knows the connection by then
}

// Read implements net.Conn.
func (c *begun) Read(p []byte) (int, error) {
	if c.taken != nil {
		c.taken()
		c.taken = nil
	}
	if len(c.read) > 0 {
		n := copy(p, c.read)
		c.read = c.read[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite has net/http end its side alone, so that a client can read the last answer.
func (c *begun) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite ends this side of a connection, where it has sides.
func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
