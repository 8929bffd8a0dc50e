package httploop

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/rawconn"
)

// freshFor is how long Shutdown waits for the first byte on a connection that has just come,
// as net/http does. Its request is on its way, as a rule.
const freshFor = 5 * time.Second

// headBytes is the longest head of a request that is served here.
const headBytes = 4 << 10

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)

// conn is a connection. All of it is its goroutine's but what the watcher reads: phased and
// what mu protects.
type conn struct {
	s    *Server
	nc   net.Conn
	base context.Context

	phased atomic.Int64  // what it waits for, and since when
	began  time.Duration // when the request that is handled began; counts as phases do

	in   []byte // what was read and not used
	buf  []byte // which in is a part of
	out  []byte
	last known // its last request

	again   bool // it has had a request, and nothing has come of the next one
	post    bool // its last request was a POST
	mu      sync.Mutex
	cancel  context.CancelFunc // of the request that is handled
	request *writer            // its answer
	// Of deadlines that the handler set: which one is not yet in force, since nothing had to
	// be read. Then whether one is in force, and whether one was over.
	wanted            time.Time
	readSet, writeSet bool
	readOver          bool
}

func newConn(base context.Context, s *Server, nc net.Conn) *conn {
	c := &conn{s: s, nc: rawconn.New(nc), base: context.WithValue(base, http.LocalAddrContextKey, nc.LocalAddr())}
	c.buf = make([]byte, headBytes)
	c.enter(fresh)
	return c
}

// A phase is what a connection waits for.
type phase uint8

const (
	fresh     phase = iota // its first byte
	idle                   // the first byte of another request
	heading                // the rest of a head
	handling               // its handler
	reading                // more of a body
	writing                // room for an answer
	phaseBits = 3
)

// enter begins a phase.
func (c *conn) enter(p phase) { c.enterSince(p, time.Since(c.s.began)) }

func (c *conn) enterSince(p phase, since time.Duration) {
	c.phased.Store(int64(since)<<phaseBits | int64(p))
}

// enterRequest begins a phase in which Shutdown waits for the connection. It takes back what
// a Shutdown did that saw it before.
func (c *conn) enterRequest(p phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter(p)
	if c.s.closing.Load() {
		_ = c.nc.SetReadDeadline(time.Time{})
	}
}

// endIdle ends a connection that is without a request.
func (c *conn) endIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p, since := c.phase(); {
	case p == idle, p == fresh && time.Since(since) > freshFor:
		_ = c.nc.SetReadDeadline(longAgo)
	}
}

// phase returns the phase and since when it lasts.
func (c *conn) phase() (phase, time.Time) {
	v := c.phased.Load()
	return phase(v & (1<<phaseBits - 1)), c.s.began.Add(time.Duration(v >> phaseBits))
}

// look ends what has lasted too long. The timeouts are those of net/http.
func (c *conn) look(now time.Time) {
	p, since := c.phase()
	var limit time.Duration
	switch rest := c.s.rest; p {
	case handling:
		if now.Sub(since) > watchEvery && hasGone(c.nc) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.cancel != nil {
				c.cancel()
			}
		}
		return
	case idle:
		limit = cmp.Or(rest.IdleTimeout, rest.ReadTimeout)
	case fresh, heading:
		limit = cmp.Or(rest.ReadHeaderTimeout, rest.ReadTimeout)
	case reading:
		limit = rest.ReadTimeout
	case writing:
		limit = rest.WriteTimeout
	}
	if limit > 0 && now.Sub(since) > limit {
		_ = c.nc.Close()
	}
}

// serve serves requests until the connection ends or goes to net/http.
func (c *conn) serve() {
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler { //nolint:errorlint // net/http compares it the same way
				c.s.logf("http: panic serving %v: %v\n%s", c.nc.RemoteAddr(), v, debug.Stack())
			}
			c.end()
		}
	}()
	for {
		n, err := c.readHead()
		if err != nil {
			c.end()
			return
		}
		r := c.parse(n)
		if r == nil {
			c.giveUp()
			return
		}
		c.in, c.again, c.post = c.in[n:], true, r.Method == http.MethodPost
		if keep := c.handle(r); !keep {
			c.end()
			return
		}
		c.enter(idle)
		// Shutdown ends what it sees idle; this is for a request that it saw.
		if c.s.closing.Load() {
			c.end()
			return
		}
	}
}

// end closes the connection.
func (c *conn) end() {
	_ = c.nc.Close()
	c.s.drop(c)
}

// giveUp gives the connection to net/http. Shutdown waits for it until net/http knows it.
func (c *conn) giveUp() {
	c.enterRequest(handling)
	if !c.s.handOver.put(&begun{rawconn.Unwrap(c.nc), c.in, func() { c.s.drop(c) }}) {
		c.end()
	}
}

// readHead reads until a head is there, and returns how long it is. It is 0 where there is
// none in as many bytes as one may have, or as came.
func (c *conn) readHead() (n int, err error) {
	for looked := 0; ; {
		if c.again && len(c.in) >= firstBytes {
			c.beginNext()
		}
		if i := bytes.Index(c.in[looked:], headEnd); i >= 0 {
			return looked + i + len(headEnd), nil
		}
		looked = max(0, len(c.in)-len(headEnd)+1)
		if len(c.in) == headBytes {
			return 0, nil
		}
		if len(c.in) > 0 {
			if p, _ := c.phase(); p != heading {
				c.enterRequest(heading)
			}
			if c.isHalfHead() && !mayBePlain(c.in) {
				return 0, nil
			}
		}
		copy(c.buf, c.in)
		c.in = c.buf[:len(c.in)]
		m, err := c.nc.Read(c.buf[len(c.in):])
		c.in = c.buf[:len(c.in)+m]
		switch {
		case m > 0 || err == nil:
		case errors.Is(err, io.EOF) && c.isHalfHead():
			return 0, nil // net/http has an answer to half a head
		default:
			return 0, err
		}
	}
}

// isHalfHead reports whether what came is half a head, to which net/http has an answer.
func (c *conn) isHalfHead() bool { return !c.again && len(c.in) > 0 }

// firstBytes is how many bytes must come behind a request before net/http looks at them.
const firstBytes = 4

// beginNext begins another request with the first bytes of it. Behind a POST net/http leaves
// line ends among them out, which old clients send.
func (c *conn) beginNext() {
	c.again = false
	if first := c.in[:firstBytes]; c.post {
		c.in = c.in[firstBytes-len(bytes.TrimLeft(first, "\r\n")):]
	}
}

var (
	headEnd   = []byte("\r\n\r\n")
	lineEnd   = []byte("\n")
	firstEnd  = []byte(" HTTP/1.1\r")
	headerEnd = []byte("\r")
)

// mayBePlain reports whether the lines of half a head can be a plain one's. The package
// net/http answers others when it has read them, and takes some as the head's end that are
// not headEnd.
func mayBePlain(in []byte) bool {
	for end, colon := firstEnd, false; ; end, colon = headerEnd, true {
		line, rest, whole := bytes.Cut(in, lineEnd)
		switch {
		case !whole:
			return true
		case !bytes.HasSuffix(line, end), colon && bytes.IndexByte(line, ':') < 0:
			return false
		}
		in = rest
	}
}

// handle has a request handled, and reports whether the connection can have another.
func (c *conn) handle(r *http.Request) (keep bool) {
	ctx, cancel := context.WithCancel(c.base)
	defer cancel()
	r = r.WithContext(ctx)
	// The handler may change what it gets: the next request may be known by this one's head.
	url := *r.URL
	r.URL, r.Header = &url, maps.Clone(r.Header)
	b := body{c: c, left: r.ContentLength}
	r.Body = &b
	if b.left == 0 {
		r.Body = http.NoBody
	}
	w := writer{c: c, body: &b, header: http.Header{}}
	c.enterRequest(handling)
	c.began = time.Duration(c.phased.Load() >> phaseBits)
	c.mu.Lock()
	c.cancel, c.request = cancel, &w
	c.mu.Unlock()
	c.s.rest.Handler.ServeHTTP(&w, r)
	err := errors.Join(w.finish(), c.forgetRequest())
	if w.ends && b.left > 0 {
		c.letRead()
	}
	return err == nil && !w.ends
}

// forgetRequest takes back what was set for a request.
func (c *conn) forgetRequest() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel, c.request = nil, nil
	if c.readSet {
		err = c.nc.SetReadDeadline(time.Time{})
	}
	if c.writeSet {
		err = errors.Join(err, c.nc.SetWriteDeadline(time.Time{}))
	}
	c.wanted, c.readSet, c.writeSet, c.readOver = time.Time{}, false, false, false
	return err
}

// letRead waits, as long as net/http does, until a client has read the last answer, whose
// request was not read to its end. A connection that is closed with something unread is
// reset, and what the client has not read is lost.
func (c *conn) letRead() {
	_ = closeWrite(c.nc)
	time.Sleep(500 * time.Millisecond)
}

// body is a request's.
type body struct {
	c    *conn
	left int64
	err  error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	switch {
	case b.left == 0:
		return 0, io.EOF
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	p = p[:min(int64(len(p)), b.left)]
	if c := b.c; len(c.in) > 0 {
		n = copy(p, c.in)
		c.in = c.in[n:]
	} else {
		n, err = c.readBody(p)
	}
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	b.err = err
	return n, err
}

// Close implements io.Closer. The rest is the connection's business.
func (b *body) Close() error { return nil }

// readBody reads from the client, with the deadline that the handler wants.
func (c *conn) readBody(p []byte) (int, error) {
	c.mu.Lock()
	if !c.wanted.IsZero() && !c.readOver {
		_ = c.nc.SetReadDeadline(c.wanted)
		c.wanted, c.readSet = time.Time{}, true
	}
	c.mu.Unlock()
	c.enterSince(reading, c.began) // ReadTimeout is for all of a body
	defer c.enter(handling)
	return c.nc.Read(p)
}
