package zmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
)

// Kind is a kind of bound socket that takes messages from many peers.
type Kind string

// The kinds.
const (
	// Pull takes messages of PUSH sockets, which get no reply.
	Pull Kind = "PULL"
	// Router takes messages of DEALER and REQ sockets, which it can reply to.
	Router Kind = "ROUTER"
)

var kindPeers = map[Kind][]string{
	Pull:   {"PUSH"},
	Router: {"DEALER", "REQ", "ROUTER"},
}

// ListenerConfig says how to listen. The zero value of each field but Endpoint and Kind
// is its default.
type ListenerConfig struct {
	// Endpoint is tcp://host:port or ipc://path; a host of * is all addresses of this
	// machine, and port 0 takes a free one.
	Endpoint string
	// Kind is what the socket is.
	Kind Kind
	// Peers bounds the connections, 4,096; further ones are closed at once. Of those
	// that are in their handshakes there can be as many.
	Peers int
	// MaxMessage bounds the bytes of a message, 32 MiB, and MaxFrames its frames, 64. A
	// peer that sends more is disconnected.
	MaxMessage, MaxFrames int
	// Heartbeat is how often each peer is pinged, 5 s; one of which nothing has come for
	// three times as long is disconnected. Below 0 is never.
	Heartbeat time.Duration
	// ConnectTimeout bounds a handshake, 5 s.
	ConnectTimeout time.Duration
	// Handle is given each message, by a goroutine for each peer and in the order in
	// which the peer has sent them. While it does not return no more is read of that
	// peer. The frames belong to it. For Router they are without the identity, which is
	// the Peer, and so begin with the empty frame that DEALER and REQ send.
	Handle func(p *Peer, frames [][]byte)
	// Filter says which peers may connect; nil is all. The others are refused.
	Filter Filter
	// Refused receives peers that were disconnected for what they sent, and those that found no room; it may
	// be nil. It must not block.
	Refused func(addr string, err error)
}

// ErrPeers says that there are as many peers as there can be.
var ErrPeers = errors.New("zmq: as many peers as there can be")

func (c ListenerConfig) withDefaults() (ListenerConfig, error) {
	if kindPeers[c.Kind] == nil {
		return c, fmt.Errorf("%w: Kind is %q, it can be PULL or ROUTER", ErrConfig, c.Kind)
	}
	if c.Handle == nil {
		return c, fmt.Errorf("%w: no handler of the messages", ErrConfig)
	}
	err := cmp.Or(
		defaults.Within("Peers", &c.Peers, 4096, 1, 1<<20),
		defaults.Within("MaxMessage", &c.MaxMessage, 32<<20, 1024, 1<<30),
		defaults.Within("MaxFrames", &c.MaxFrames, 64, 1, 1<<16),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c.ConnectTimeout, c.Heartbeat = cmp.Or(c.ConnectTimeout, 5*time.Second), cmp.Or(c.Heartbeat, 5*time.Second)
	if c.ConnectTimeout < time.Millisecond || c.Heartbeat > 0 && c.Heartbeat < 10*time.Millisecond || c.Heartbeat > time.Hour {
		return c, fmt.Errorf("%w: ConnectTimeout is %v, at least 1 ms, and Heartbeat %v, 10 ms to 1 h or below 0", ErrConfig, c.ConnectTimeout, c.Heartbeat)
	}
	return c, nil
}

// Listener is a bound PULL or ROUTER socket. It keeps no queue: what is not handled yet
// stays with the peers.
type Listener struct {
	config ListenerConfig
	peers  acceptor
}

// Peer is one connection to a Listener. It is safe for concurrent use.
type Peer struct {
	conn   *conn
	kind   Kind
	closed atomic.Bool
}

// Kind is what the socket is that the peer has reached.
func (p *Peer) Kind() Kind { return p.kind }

// Addr is where the peer is.
func (p *Peer) Addr() string { return peerName(p.conn.net) }

// Local is where the peer has reached us.
func (p *Peer) Local() string { return p.conn.net.LocalAddr().String() }

// Closed reports whether the connection is over: the peer has gone, or does not answer
// heartbeats any more.
func (p *Peer) Closed() bool { return p.closed.Load() }

// Reply sends frames to the peer of a Router. A peer that leaves them unread for five
// seconds is disconnected.
func (p *Peer) Reply(frames ...[]byte) error {
	if p.kind != Router {
		return fmt.Errorf("%w: a %s sends nothing", ErrProtocol, p.kind)
	}
	p.conn.mu.Lock()
	defer p.conn.mu.Unlock()
	err := p.conn.write(newMessage(frames...))
	if err != nil {
		_ = p.conn.net.Close()
	}
	return err
}

// Listen binds a socket and takes messages until Close.
func Listen(ctx context.Context, c ListenerConfig) (*Listener, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	// Elsewhere port 0 is a mistake.
	text, free := strings.CutSuffix(c.Endpoint, ":0")
	if free {
		text += ":1"
	} else {
		text = c.Endpoint
	}
	to, err := parseEndpoint(text, true)
	if err != nil {
		return nil, err
	}
	if free && to.network == "tcp" {
		to.address = strings.TrimSuffix(to.address, "1") + "0"
	}
	l := &Listener{config: c}
	l.peers = acceptor{filter: c.Filter, room: c.Peers, refused: l.refuse, serve: l.serve}
	if err := l.peers.listen(ctx, to); err != nil {
		return nil, err
	}
	return l, nil
}

// Addr is what the socket is bound to.
func (l *Listener) Addr() net.Addr { return l.peers.listener.Addr() }

// Peers returns how many connections there are, those in their handshakes included.
func (l *Listener) Peers() int { return l.peers.count() }

// Close ends all connections and waits for what handles their messages.
func (l *Listener) Close() error { return l.peers.close() }

func (l *Listener) refuse(nc net.Conn, err error) {
	if l.config.Refused != nil {
		l.config.Refused(peerName(nc), err)
	}
}

// serve handles the messages of a connection until it ends.
func (l *Listener) serve(ctx context.Context, nc net.Conn) (kept bool) {
	within, cancel := context.WithTimeout(ctx, l.config.ConnectTimeout)
	c, err := shake(within, nc, string(l.config.Kind), kindPeers[l.config.Kind], nil, l.config.MaxMessage)
	cancel()
	if err != nil {
		if errors.Is(err, ErrProtocol) {
			l.refuse(nc, err)
		}
		return false
	}
	c.frames = l.config.MaxFrames
	p := &Peer{conn: c, kind: l.config.Kind}
	done := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() { c.beat(l.config.Heartbeat, done) })
	defer func() {
		p.closed.Store(true)
		close(done)
		beating.Wait()
	}()
	for ctx.Err() == nil {
		// The frames are the handler's, and so is the slice.
		frames, err := c.message(nil)
		if err != nil {
			if errors.Is(err, ErrProtocol) {
				l.refuse(nc, err)
			}
			return false
		}
		c.handling.Store(true)
		l.config.Handle(p, frames)
		c.handling.Store(false)
	}
	return false
}
