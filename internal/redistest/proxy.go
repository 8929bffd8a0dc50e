package redistest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Proxy stands between clients and a server, and can hold up what clients send, as a
// network does that delivers it later. Its methods are safe for concurrent use.
type Proxy struct {
	// Addr is where it listens, host:port.
	Addr string

	tb       testing.TB
	server   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex // protects what follows
	holding bool
	closed  bool
	lines   map[*line]bool
}

// line is a connection of a client, and the one to the server that belongs to it.
type line struct {
	client net.Conn
	server *net.TCPConn
	done   chan struct{} // closed when the server has closed it
	held   bytes.Buffer  // protected by the proxy's mu, like cut
	cut    bool
}

// StartProxy starts a proxy of a server's address. It ends with the test.
func StartProxy(tb testing.TB, server string) *Proxy {
	tb.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(tb)
	p := &Proxy{Addr: l.Addr().String(), tb: tb, server: server, listener: l, lines: map[*line]bool{}}
	p.running.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// URL is the redis:// URL of the server behind the proxy.
func (p *Proxy) URL() string { return "redis://" + p.Addr }

// Hold holds up what clients send from now on.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = true
}

// Pass holds up nothing more on connections of which nothing is held up.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = false
}

// Held returns what is held up.
func (p *Proxy) Held() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []byte
	for l := range p.lines {
		all = append(all, l.held.Bytes()...)
	}
	return all
}

// Cut ends the connections of clients whose bytes are held up, which stay held up, and
// returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.lines {
		if l.held.Len() > 0 && !l.cut {
			l.cut = true
			n++
			_ = l.client.Close()
		}
	}
	return n
}

// Release lets what was held up go on to the server, whose clients may have given it up.
// It returns when the server has done all of it. The connections with bytes that were
// held up end; others, and new ones, go on.
func (p *Proxy) Release() {
	p.tb.Helper()
	p.mu.Lock()
	p.holding = false
	var late []*line
	for l := range p.lines {
		if l.held.Len() > 0 {
			late = append(late, l)
		}
	}
	p.mu.Unlock()
	for _, l := range late {
		if err := p.deliver(l); err != nil {
			p.tb.Errorf("redistest: the proxy cannot deliver what it has held up: %v", err)
		}
	}
}

// deliver sends the held bytes of a line and waits until the server has closed it. The
// server does that when it has read and done all that came before the end.
func (p *Proxy) deliver(l *line) error {
	defer p.drop(l)
	if _, err := l.server.Write(l.held.Bytes()); err != nil {
		return err
	}
	if err := l.server.CloseWrite(); err != nil {
		return err
	}
	<-l.done
	return nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &line{client: client, server: server.(*net.TCPConn), done: make(chan struct{})}
		p.mu.Lock()
		closed := p.closed
		p.lines[l] = true
		p.mu.Unlock()
		if closed {
			p.drop(l)
			continue
		}
		p.running.Go(func() { p.toServer(l) })
		p.running.Go(func() { p.toClient(l) })
	}
}

// toClient passes on what the server sends, and reads it when the client has gone, too.
func (p *Proxy) toClient(l *line) {
	defer close(l.done)
	if _, err := io.Copy(l.client, l.server); err != nil {
		_, _ = io.Copy(io.Discard, l.server)
	}
	_ = l.client.Close()
}

// toServer passes on what the client sends, or holds it up. Once something of a line is
// held up all that follows is.
func (p *Proxy) toServer(l *line) {
	buf := make([]byte, 1<<16)
	for {
		n, err := l.client.Read(buf)
		p.mu.Lock()
		held := p.holding || l.held.Len() > 0
		if held {
			l.held.Write(buf[:n])
		}
		keep := l.held.Len() > 0
		p.mu.Unlock()
		if !held && n > 0 {
			if _, failed := l.server.Write(buf[:n]); failed != nil {
				err = failed
			}
		}
		switch {
		case err == nil:
			continue
		case !keep:
			p.drop(l)
		}
		return
	}
}

func (p *Proxy) drop(l *line) {
	_, _ = l.client.Close(), l.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lines, l)
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	lines := make([]*line, 0, len(p.lines))
	for l := range p.lines {
		lines = append(lines, l)
	}
	p.mu.Unlock()
	for _, l := range lines {
		p.drop(l)
	}
	p.running.Wait()
}
