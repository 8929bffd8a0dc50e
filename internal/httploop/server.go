// Package httploop serves plain HTTP/1.1 requests to chosen paths on one goroutine a
// connection, and leaves everything else to net/http.
//
// net/http starts a goroutine beside each request, which reads on to see the client go away,
// and sets deadlines around each. Each of these can wake another thread, which costs more than
// most requests of that length do (docs/performance.md, "What HTTP costs").
// Here one goroutine reads, handles and writes. One watcher looks after all connections ten
// times a second: after those whose time is over, and after clients that have gone.
//
// A request is plain if net/http's own parser reads it and its head came within 4 KiB. It must
// have nothing of a connection's in it but keep-alive. A head is not parsed again where it is
// the one before but for the digits of Content-Length. With the first request that is not plain,
// or is for another path, its connection goes to net/http for good. Every byte that was read
// goes along. So nothing odd is decided here: not what is malformed, nor what is chunked, nor
// what is HTTP/1.0 or an upgrade. A fuzz test compares both, byte by byte.
package httploop

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// watchEvery is how often the watcher looks at all connections. A limit of time is kept to
// within that, and that long does a request run at the least whose client is looked after.
const watchEvery = 100 * time.Millisecond

// Server serves one listener. Its methods are safe for concurrent use.
type Server struct {
	rest  *http.Server
	plain func(method, path string) bool
	began time.Time // phases count from it

	closing atomic.Bool

	mu       sync.Mutex // protects what follows
	listener net.Listener
	handOver *handOver
	conns    map[*conn]struct{}
	watched  bool // the watcher runs
}

// New returns a server of what rest serves, and has its handler, timeouts, contexts and log.
// The server rest needs a Handler, and says nothing without an ErrorLog. Requests for which
// plain returns true are served here. Their handler finds a ResponseWriter that has deadlines
// and Flush. It must declare the length of its answer unless the connection is to end with
// it.
func New(rest *http.Server, plain func(method, path string) bool) *Server {
	return &Server{rest: rest, plain: plain, began: time.Now(), conns: map[*conn]struct{}{}}
}

// Serve takes connections from l until Shutdown or Close, and returns http.ErrServerClosed
// then. It is called once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return errors.Join(http.ErrServerClosed, l.Close())
	}
	rest := newHandOver(l.Addr())
	s.listener, s.handOver = l, rest
	s.mu.Unlock()

	go func() { _ = s.rest.Serve(rest) }() // ends when rest is closed, with nothing to say
	base := context.Background()
	if s.rest.BaseContext != nil {
		base = s.rest.BaseContext(l)
	}
	base = context.WithValue(base, http.ServerContextKey, s.rest)
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.add(base, nc)
		case s.closing.Load():
			return http.ErrServerClosed
		case !isTemporary(err):
			return errors.Join(err, rest.Close())
		default: // too many open files, as a rule
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.logf("http: Accept error: %v; retrying in %v", err, pause)
			time.Sleep(pause)
		}
	}
}

// isTemporary reports whether accepting may work again soon, as net/http sees it.
func isTemporary(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Temporary() //nolint:staticcheck // there is no other word for it
}

func (s *Server) logf(format string, args ...any) {
	if s.rest.ErrorLog != nil {
		s.rest.ErrorLog.Printf(format, args...)
	}
}

// add serves a new connection.
func (s *Server) add(base context.Context, nc net.Conn) {
	c := newConn(base, s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	if !s.watched {
		s.watched = true
		go s.watch()
	}
	go c.serve()
}

// drop forgets a connection that has ended or was handed over.
func (s *Server) drop(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// watch looks after the connections while there are any.
func (s *Server) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for now := range tick.C {
		s.mu.Lock()
		if len(s.conns) == 0 {
			s.watched = false
			s.mu.Unlock()
			return
		}
		for c := range s.conns {
			c.look(now)
		}
		s.mu.Unlock()
	}
}

// Shutdown ends as http.Server.Shutdown does: it takes no more connections, closes those
// without a request, and waits for those with one until ctx is done. Then it shuts down the
// http.Server that has all others.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.stop()
	s.rest.SetKeepAlivesEnabled(false)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.endIdle() > 0 {
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-tick.C:
		}
	}
	return errors.Join(err, s.rest.Shutdown(ctx))
}

// Close ends at once: connections are cut off amid their requests.
func (s *Server) Close() error {
	err := s.stop()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.nc.Close()
	}
	s.mu.Unlock()
	return errors.Join(err, s.rest.Close())
}

// stop takes no more connections.
func (s *Server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Swap(true) || s.listener == nil {
		return nil
	}
	return s.listener.Close()
}

// endIdle ends connections without a request, and returns how many are left.
func (s *Server) endIdle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.endIdle()
	}
	return len(s.conns)
}
