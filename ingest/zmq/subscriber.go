package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// maxShaking is how many connections to a bound subscriber may be in their
// handshakes; more are closed at once.
const maxShaking = 64

// Handler is told what a Subscriber receives, by one goroutine. While Message does not
// return, no more is read of the connection, and the publisher's queue fills; the other
// methods must not block.
type Handler interface {
	// Connected reports a new connection, which may be to another process than the
	// one before. Whatever the peer publishes from now on will be received.
	Connected(peer string)
	// Message gives a message.
	Message(Message)
	// Malformed reports a message that has not the three frames of an event.
	Malformed(err error)
	// Disconnected tells that the connection has ended or that none could be made.
	Disconnected(err error)
}

// Subscriber is a SUB socket with one publisher.
type Subscriber struct {
	config  Config
	to      endpoint
	handler Handler
	failed  bool // the last try to connect; of Run's goroutine
}

// NewSubscriber returns a Subscriber that tells the handler what it receives once
// it runs.
func NewSubscriber(c Config, h Handler) (*Subscriber, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	to, err := parseEndpoint(c.Endpoint, c.Bind)
	if err != nil {
		return nil, err
	}
	return &Subscriber{config: c, to: to, handler: h}, nil
}

// publishers are the types of socket that a SUB takes.
var publishers = []string{"PUB", "XPUB"}

// Run receives until ctx is done, and returns its error. It is to be called once.
func (s *Subscriber) Run(ctx context.Context) error {
	next, stop := s.dial, func() {}
	if s.config.Bind {
		b := &binder{Subscriber: s, ready: make(chan *conn)}
		next, stop = b.accept, func() { _ = b.peers.close() }
	}
	defer stop()
	pause := s.config.MinBackoff
	for ctx.Err() == nil {
		c, err := next(ctx)
		if err == nil {
			var replaced *conn
			began := time.Now()
			replaced, err = s.serve(ctx, c, next)
			for replaced != nil {
				// A peer that connects is served at once.
				s.handler.Disconnected(err)
				replaced, err = s.serve(ctx, replaced, next)
			}
			if time.Since(began) > s.config.MaxBackoff {
				pause = s.config.MinBackoff
			}
		}
		if ctx.Err() != nil {
			break
		}
		s.handler.Disconnected(err)
		sleep(ctx, pause/2+rand.N(pause/2+1))
		pause = min(2*pause, s.config.MaxBackoff)
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// connector returns the next connection.
type connector func(context.Context) (*conn, error)

func (s *Subscriber) dial(ctx context.Context) (*conn, error) {
	leave, err := s.config.Dials.enter(ctx, s.failed)
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := dial(ctx, s.to, "SUB", publishers, s.config.Curve, s.config.Filter, s.config.MaxMessage, s.config.ConnectTimeout)
	s.failed = err != nil
	return c, err
}

// errReplaced says that the publisher has connected anew.
var errReplaced = errors.New("zmq: another connection has come to the bound endpoint")

// serve reads a connection until it ends, and returns why. Where peers come to us
// it ends when another one comes, which is returned as well.
func (s *Subscriber) serve(ctx context.Context, c *conn, next connector) (replaced *conn, err error) {
	defer c.net.Close()
	if err := s.subscribe(c); err != nil {
		return nil, err
	}
	s.handler.Connected(peerName(c.net))

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { c.beat(s.config.Heartbeat, done) })
	if s.config.Bind {
		wg.Go(func() {
			if n, err := next(ctx); err == nil {
				replaced = n
				_ = c.net.Close()
			}
		})
	}
	stop := context.AfterFunc(ctx, func() { _ = c.net.Close() })
	err = s.read(c)
	stop()
	close(done)
	cancel()
	wg.Wait()
	if replaced != nil {
		err = errReplaced
	}
	return replaced, err
}

func peerName(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil && a.String() != "" {
		return a.String()
	}
	return c.LocalAddr().String()
}

// subscribe says which topics are wanted: by a command from ZMTP 3.1 on, by a
// message before.
func (s *Subscriber) subscribe(c *conn) error {
	if c.minor >= 1 {
		return c.send(frame{flagCommand, newCommand("SUBSCRIBE", []byte(s.config.Topic))})
	}
	return c.send(frame{0, append([]byte{1}, s.config.Topic...)})
}

func (s *Subscriber) read(c *conn) error {
	var frames [][]byte
	var err error
	topic := ""
	for {
		if frames, err = c.message(frames); err != nil {
			return err
		}
		if len(frames) != 3 || len(frames[1]) != 8 {
			s.handler.Malformed(malformed(frames))
			continue
		}
		seq := binary.BigEndian.Uint64(frames[1])
		if seq == endSeq {
			s.handler.Malformed(fmt.Errorf("%w: an event with the number that ends a replay", ErrProtocol))
			continue
		}
		if string(frames[0]) != topic { // nearly always the same
			topic = string(frames[0])
		}
		m := Message{Topic: topic, Seq: seq, Payload: frames[2]}
		c.handling.Store(true)
		s.handler.Message(m)
		c.handling.Store(false)
	}
}

// malformed says what is wrong with a message.
func malformed(frames [][]byte) error {
	if len(frames) != 3 {
		return fmt.Errorf("%w: a message of %d frames, an event has topic, sequence and payload", ErrProtocol, len(frames))
	}
	return fmt.Errorf("%w: a sequence of %d bytes, it has 8", ErrProtocol, len(frames[1]))
}

// binder takes connections on a bound endpoint. Peers that say nothing do not hold others up: each shakes
// hands in a goroutine of its own.
type binder struct {
	*Subscriber
	ready chan *conn
	peers acceptor
}

// accept waits for the next connection that has shaken hands.
func (b *binder) accept(ctx context.Context) (*conn, error) {
	if b.peers.listener == nil {
		b.peers = acceptor{filter: b.config.Filter, room: maxShaking, serve: b.shake}
		if err := b.peers.listen(ctx, b.to); err != nil {
			return nil, err
		}
	}
	select {
	case c := <-b.ready:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// shake makes the handshake on a connection, and keeps it for accept.
func (b *binder) shake(ctx context.Context, nc net.Conn) (kept bool) {
	within, cancel := context.WithTimeout(ctx, b.config.ConnectTimeout)
	defer cancel()
	c, err := shake(within, nc, "SUB", publishers, nil, b.config.MaxMessage)
	if err != nil {
		return false
	}
	select {
	case b.ready <- c:
		return true
	case <-ctx.Done():
		return false
	}
}
