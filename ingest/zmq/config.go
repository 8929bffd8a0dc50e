package zmq

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
)

// Errors.
var (
	// ErrEndpoint says that an endpoint cannot be right; the message says why.
	ErrEndpoint = errors.New("zmq: invalid endpoint")
	// ErrConfig says that a setting cannot be right.
	ErrConfig = errors.New("zmq: invalid config")
	// ErrProtocol says that the peer does not speak ZMTP 3 as it should. It is also
	// for a peer that is the wrong kind of socket, or went beyond a limit.
	ErrProtocol = errors.New("zmq: protocol error")
	// ErrSilent says that the peer did not answer heartbeats.
	ErrSilent = errors.New("zmq: the peer is silent")
)

// Config says how to subscribe. The zero value of each field but Endpoint is its
// default.
type Config struct {
	// Endpoint is tcp://host:port or ipc://path. With Bind a host of * is all
	// addresses of this machine.
	Endpoint string
	// Bind listens for the publisher instead of connecting to it. The newest
	// connection is the one that is read; those before it are closed.
	Bind bool
	// Topic is the prefix that topics must have.
	Topic string
	// Curve are the keys of a publisher that takes CURVE, nil for none.
	Curve *Curve
	// MaxMessage bounds the bytes of a message, 32 MiB. A peer that sends more is
	// disconnected.
	MaxMessage int
	// Heartbeat is how often the peer is pinged, 1 s; when nothing has come for
	// three times as long the connection is given up. Below 0 is never. Peers of
	// ZMTP 3.0 have no heartbeats: there TCP's keepalive finds out, after 11 s.
	Heartbeat time.Duration
	// ConnectTimeout bounds connection and handshake together, 5 s.
	ConnectTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before the next try, 50 ms and 2 s.
	// It doubles; a random half of it is taken off.
	MinBackoff, MaxBackoff time.Duration
	// Filter says which addresses may be connected to, or may connect; nil is all.
	Filter Filter
	// Dials bounds the connections that are being made at once, together with all that share it; nil is no
	// bound. It says nothing of Bind.
	Dials *Dials
}

// Filter says which peers a socket has. It is asked before each connection is made, with the
// address that a name was resolved to, and after each that was taken. It must be safe for
// concurrent use.
type Filter interface {
	// Allow is nil, or why there is to be no connection. The network is tcp, tcp4, tcp6 or unix.
	Allow(network, address string) error
}

// Curve are the keys for CURVE, 32 bytes each. The engine, or the proxy before it,
// is CURVE's server.
type Curve struct {
	// Server is the server's public key.
	Server [32]byte
	// Public and Secret are our own.
	Public, Secret [32]byte
}

// Message is one message of an engine.
type Message struct {
	// Topic is the engine's.
	Topic string
	// Seq is the engine's number of the message.
	Seq uint64
	// Payload is the batch of events. It belongs to the receiver of the message.
	Payload []byte
}

// Validate returns ErrEndpoint or ErrConfig with the reason for a subscription that cannot be made.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	if _, err := parseEndpoint(c.Endpoint, c.Bind); err != nil {
		return c, err
	}
	if c.Bind && c.Curve != nil {
		return c, fmt.Errorf("%w: CURVE works towards a publisher that listens, not with Bind", ErrConfig)
	}
	if len(c.Topic) > 255 {
		return c, fmt.Errorf("%w: the topic has %d bytes, the limit is 255", ErrConfig, len(c.Topic))
	}
	err := cmp.Or(
		defaults.Within("MaxMessage", &c.MaxMessage, 32<<20, 1024, 1<<30),
		defaults.Within("ConnectTimeout", &c.ConnectTimeout, 5*time.Second, time.Millisecond, time.Hour),
		defaults.Within("MinBackoff", &c.MinBackoff, 50*time.Millisecond, time.Millisecond, time.Hour),
		defaults.Within("MaxBackoff", &c.MaxBackoff, 2*time.Second, time.Millisecond, time.Hour),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if c.MaxBackoff < c.MinBackoff {
		return c, fmt.Errorf("%w: MaxBackoff is %v and MinBackoff %v", ErrConfig, c.MaxBackoff, c.MinBackoff)
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, time.Second)
	if c.Heartbeat > 0 && (c.Heartbeat < 10*time.Millisecond || c.Heartbeat > time.Hour) {
		return c, fmt.Errorf("%w: Heartbeat is %v, it can be 10 ms to 1 h, or below 0 for none", ErrConfig, c.Heartbeat)
	}
	return c, nil
}

// ReplayConfig says how to ask a replay socket. The zero value of each field but
// Endpoint is its default.
type ReplayConfig struct {
	// Endpoint is tcp://host:port or ipc://path.
	Endpoint string
	// Curve are the keys of an engine that takes CURVE, nil for none.
	Curve *Curve
	// Filter says which addresses may be connected to; nil is all.
	Filter Filter
	// MaxMessage bounds the bytes of a message, 32 MiB.
	MaxMessage int
	// ConnectTimeout bounds connection and handshake together, 5 s.
	ConnectTimeout time.Duration
	// Idle is how long to wait for the next message, 2 s. Engines look at their
	// replay sockets up to 0.1 s late, and cut a replay without a word.
	Idle time.Duration
	// Timeout bounds the whole of it, 1 minute.
	Timeout time.Duration
}

// Validate returns ErrEndpoint or ErrConfig with the reason for a question that cannot be asked.
func (c ReplayConfig) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c ReplayConfig) withDefaults() (ReplayConfig, error) {
	wire, err := Config{Endpoint: c.Endpoint, Curve: c.Curve, MaxMessage: c.MaxMessage, ConnectTimeout: c.ConnectTimeout}.withDefaults()
	if err != nil {
		return c, err
	}
	c.MaxMessage, c.ConnectTimeout = wire.MaxMessage, wire.ConnectTimeout
	c.Idle, c.Timeout = cmp.Or(c.Idle, 2*time.Second), cmp.Or(c.Timeout, time.Minute)
	if c.Idle < time.Millisecond || c.Timeout < c.Idle || c.Timeout > time.Hour {
		return c, fmt.Errorf("%w: Idle is %v and Timeout %v; they ascend and can be 1 ms to 1 h", ErrConfig, c.Idle, c.Timeout)
	}
	return c, nil
}
