package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxFrames is how many frames a message may have unless conn.frames says otherwise:
// engines' have up to four.
const maxFrames = 8

// maxHandshake bounds each frame of a handshake.
const maxHandshake = 4096

// readBuffer is what is read from a socket at once of small messages; the bodies of
// larger ones are read past it. There is one for each rank.
const readBuffer = 16 << 10

// writeTimeout is how long a peer may leave our few bytes unread.
const writeTimeout = 5 * time.Second

// conn is a connection after its handshake.
type conn struct {
	net   net.Conn
	in    *bufio.Reader
	limit int
	// frames is how many frames a message may have, 0 is maxFrames.
	frames int
	minor  byte
	curve  *curveClient

	// reads is raised with each read from the socket: the sign of life.
	reads atomic.Uint64
	// handling is true while a message is being handled and nothing is read, which says
	// nothing of the peer.
	handling atomic.Bool
	// silent is set before the heartbeat closes the connection.
	silent atomic.Bool

	mu sync.Mutex // protects writing and curve.sent
}

// counted counts the reads of a connection.
type counted struct{ c *conn }

func (r counted) Read(p []byte) (int, error) {
	n, err := r.c.net.Read(p)
	r.c.reads.Add(1)
	return n, err
}

// keepAlive finds peers out whose host has died: 5 s, then 3 questions 2 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// dial connects and shakes hands as a socket of a type, with a peer of one of
// others, within the timeout.
func dial(ctx context.Context, to endpoint, socket string, peers []string, curve *Curve, filter Filter, limit int, timeout time.Duration) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive}
	if filter != nil {
		d.Control = func(network, address string, _ syscall.RawConn) error { return filter.Allow(network, address) }
	}
	nc, err := d.DialContext(ctx, to.network, to.address)
	if err != nil {
		return nil, fmt.Errorf("zmq: %w", err)
	}
	return shake(ctx, nc, socket, peers, curve, limit)
}

// admit is nil where a connection that was taken may go on.
func admit(filter Filter, nc net.Conn) error {
	if filter == nil {
		return nil
	}
	return filter.Allow(nc.RemoteAddr().Network(), nc.RemoteAddr().String())
}

// shake makes the handshake on a new connection, until ctx is done, and closes the
// connection if it fails.
func shake(ctx context.Context, nc net.Conn, socket string, peers []string, curve *Curve, limit int) (*conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c := &conn{net: nc, limit: limit}
	c.in = bufio.NewReaderSize(counted{c}, readBuffer)
	err := c.handshake(socket, peers, curve)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		if cause := ctx.Err(); cause != nil {
			err = fmt.Errorf("zmq: handshake: %w", cause)
		}
		return nil, err
	}
	return c, nil
}

// greeting is what both sides begin with: ZMTP 3.1, a mechanism, as client.
func greeting(mechanism string) []byte {
	g := make([]byte, 64)
	g[0], g[8], g[9] = 0xff, 1, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], mechanism)
	return g
}

func (c *conn) handshake(socket string, peers []string, curve *Curve) error {
	mechanism := "NULL"
	if curve != nil {
		mechanism = "CURVE"
		var err error
		if c.curve, err = newCurveClient(curve); err != nil {
			return err
		}
	}
	if err := c.write(greeting(mechanism)); err != nil {
		return err
	}
	theirs, err := readBody(c.in, 64)
	if err != nil {
		return fmt.Errorf("zmq: greeting: %w", err)
	}
	if theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3 {
		return fmt.Errorf("%w: the peer does not greet as ZMTP 3: % x", ErrProtocol, theirs[:12])
	}
	c.minor = theirs[11]
	if theirs[10] > 3 {
		c.minor = 1
	}
	if got := string(bytes.TrimRight(theirs[12:32], "\x00")); got != mechanism {
		return fmt.Errorf("%w: the peer's mechanism is %q, ours is %s", ErrProtocol, got, mechanism)
	}
	var meta metadata
	if c.curve != nil {
		meta, err = c.shakeCurve(socket)
	} else {
		meta, err = c.shakeNull(socket)
	}
	if err != nil {
		return err
	}
	for _, p := range peers {
		if meta["socket-type"] == p {
			return nil
		}
	}
	return fmt.Errorf("%w: the peer's socket is a %q, not a %s", ErrProtocol, meta["socket-type"], peers[0])
}

func (c *conn) shakeNull(socket string) (metadata, error) {
	if err := c.write(appendFrame(nil, flagCommand, appendMetadata(newCommand("READY"), socket))); err != nil {
		return nil, err
	}
	data, err := c.expect("READY")
	if err != nil {
		return nil, err
	}
	return parseMetadata(data)
}

func (c *conn) shakeCurve(socket string) (metadata, error) {
	if err := c.write(appendFrame(nil, flagCommand, c.curve.hello())); err != nil {
		return nil, err
	}
	welcome, err := c.expect("WELCOME")
	if err != nil {
		return nil, err
	}
	initiate, err := c.curve.initiate(welcome, socket)
	if err != nil {
		return nil, err
	}
	if err := c.write(appendFrame(nil, flagCommand, initiate)); err != nil {
		return nil, err
	}
	data, err := c.expect("READY")
	if err != nil {
		return nil, err
	}
	return c.curve.ready(data)
}

// expect reads the next command of the handshake, which must have this name.
func (c *conn) expect(want string) ([]byte, error) {
	flags, body, err := readFrame(c.in, maxHandshake)
	if err != nil {
		return nil, fmt.Errorf("zmq: waiting for %s: %w", want, err)
	}
	if flags&flagCommand == 0 {
		return nil, fmt.Errorf("%w: a message where %s should be", ErrProtocol, want)
	}
	name, data, err := command(body)
	switch {
	case err != nil:
		return nil, err
	case name == "ERROR" && len(data) > 0:
		return nil, fmt.Errorf("%w: the peer refuses: %q", ErrProtocol, data[1:])
	case name != want:
		return nil, fmt.Errorf("%w: %q where %s should be", ErrProtocol, name, want)
	}
	return data, nil
}

func (c *conn) write(b []byte) error {
	if err := c.net.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	if _, err := c.net.Write(b); err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	return nil
}

// send writes frames, of which each has its flags and body.
func (c *conn) send(frames ...frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []byte
	for _, f := range frames {
		if c.curve != nil {
			f = frame{body: c.curve.seal(f.flags, f.body)}
		}
		out = appendFrame(out, f.flags, f.body)
	}
	return c.write(out)
}

type frame struct {
	flags byte
	body  []byte
}

// next reads a frame that is not one of the connection's own business, of at most
// limit bytes.
func (c *conn) next(limit int) (flags byte, body []byte, err error) {
	for {
		if c.curve != nil {
			// What CURVE adds: the name MESSAGE, the nonce, the box and the flags.
			if flags, body, err = readFrame(c.in, limit+8+curveMinMessage); err == nil {
				flags, body, err = c.curve.unseal(body)
			}
		} else {
			flags, body, err = readFrame(c.in, limit)
		}
		switch {
		case err != nil:
			if c.silent.Load() {
				err = ErrSilent
			} else if !errors.Is(err, ErrProtocol) {
				err = fmt.Errorf("zmq: %w", err)
			}
			return 0, nil, err
		case flags&flagCommand == 0:
			return flags, body, nil
		}
		if err := c.command(body); err != nil {
			return 0, nil, err
		}
	}
}

// command obeys a command: PING is answered, others need nothing.
func (c *conn) command(body []byte) error {
	name, data, err := command(body)
	if err != nil {
		return err
	}
	switch name {
	case "PING":
		if len(data) < 2 || len(data) > 2+16 {
			return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(data))
		}
		return c.send(frame{flagCommand, newCommand("PONG", data[2:])})
	case "ERROR":
		return fmt.Errorf("%w: the peer says %q", ErrProtocol, data)
	}
	return nil
}

// message reads a message whose frames have at most limit bytes together. The
// slice is valid until the next call, the frames belong to the caller.
func (c *conn) message(frames [][]byte) ([][]byte, error) {
	frames = frames[:0]
	most := c.frames
	if most == 0 {
		most = maxFrames
	}
	for room := c.limit; ; {
		flags, body, err := c.next(room)
		if err != nil {
			return nil, err
		}
		room -= len(body)
		if len(frames) == most {
			return nil, fmt.Errorf("%w: a message of more than %d frames", ErrProtocol, most)
		}
		frames = append(frames, body)
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// peerPatience is after how many intervals without a sign of us a peer may close the
// connection.
const peerPatience = 30

// beat pings the peer and closes the connection when nothing has come for three
// intervals in which we were reading, until done is closed.
func (c *conn) beat(interval time.Duration, done <-chan struct{}) {
	if interval < 0 || c.minor == 0 {
		return
	}
	// When the peer may give us up, in tenths of seconds. That is ten times as late as
	// we do. A process that was stopped for some seconds finds what was published
	// meanwhile in its connection. Without it, and without a replay socket, all that
	// the engine has told would be lost.
	ttl := binary.BigEndian.AppendUint16(nil, uint16(min(max(peerPatience*interval/(100*time.Millisecond), 1), 0xffff)))
	ping := frame{flagCommand, newCommand("PING", ttl)}
	// All connections ping at the same times: a process that is idle wakes once for all of
	// them, and not once for each.
	first := time.NewTimer(interval - time.Duration(time.Now().UnixNano())%interval)
	defer first.Stop()
	select {
	case <-done:
		return
	case <-first.C:
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last, missed := c.reads.Load(), 0
	for {
		if err := c.send(ping); err != nil {
			// A peer that has gone is found by reading, behind all that it has sent. One
			// that leaves pings unread is not.
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_ = c.net.Close()
			}
			return
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
		now := c.reads.Load()
		if now == last && !c.handling.Load() {
			missed++
		} else {
			last, missed = now, 0
		}
		if missed > 3 {
			c.silent.Store(true)
			_ = c.net.Close()
			return
		}
	}
}
