package zmq

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
)

// PublisherConfig says how to publish as engines do. The zero value of each field
// but Endpoint is its default.
type PublisherConfig struct {
	// Endpoint is where subscribers connect to, tcp://host:port or ipc://path; a
	// host of * is all addresses of this machine. Replay is that of the replay
	// socket, "" for none.
	Endpoint, Replay string
	// Queue bounds the messages that wait for one subscriber, 10,000; what finds no
	// room is lost for it, as PUB sockets have it.
	Queue int
	// Keep bounds the messages that can be replayed, 10,000, and KeepBytes their
	// bytes, 256 MiB.
	Keep      int
	KeepBytes int64
	// Peers bounds the connections of either socket, 64; further ones are closed.
	Peers int
	// OldReplay leaves the topic out of what the replay socket answers, as vLLM before
	// 0.26 and SGLang before 0.5.22 do.
	OldReplay bool
}

func (c PublisherConfig) withDefaults() (PublisherConfig, error) {
	err := cmp.Or(
		defaults.AtLeast("Queue", &c.Queue, 10_000, 1),
		defaults.AtLeast("Keep", &c.Keep, 10_000, 1),
		defaults.AtLeast("Peers", &c.Peers, 64, 1),
		defaults.AtLeast("KeepBytes", &c.KeepBytes, 256<<20, 1),
	)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, err
}

// Publisher is a PUB socket with a replay socket beside it, as engines have them:
// for players of records, simulated engines and tests. Its methods are safe for
// concurrent use.
type Publisher struct {
	config  PublisherConfig
	wg      sync.WaitGroup
	sockets []*acceptor

	mu    sync.Mutex // protects all below
	subs  map[*subscription]struct{}
	kept  []Message
	bytes int64
	lost  uint64
}

// subscription is one subscriber.
type subscription struct {
	conn   *conn
	topics [][]byte // protected by Publisher.mu
	queue  chan []byte
}

// maxTopics is how many subscriptions one peer may have.
const maxTopics = 1024

// NewPublisher binds the sockets. Close ends it.
func NewPublisher(c PublisherConfig) (*Publisher, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{config: c, subs: map[*subscription]struct{}{}}
	if err := p.bind(c.Endpoint, "PUB", []string{"SUB", "XSUB"}, p.subscriber); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if c.Replay != "" {
		if err := p.bind(c.Replay, "ROUTER", []string{"DEALER", "REQ"}, p.replay); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// bind listens and gives each connection that has shaken hands to serve.
func (p *Publisher) bind(endpoint, socket string, peers []string, serve func(context.Context, *conn)) error {
	to, err := parseEndpoint(endpoint, true)
	if err != nil {
		return err
	}
	a := &acceptor{room: p.config.Peers, serve: func(ctx context.Context, nc net.Conn) (kept bool) {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		c, err := shake(within, nc, socket, peers, nil, maxHandshake)
		cancel()
		if err == nil && ctx.Err() == nil {
			serve(ctx, c)
		}
		return false
	}}
	p.sockets = append(p.sockets, a)
	return a.listen(context.Background(), to)
}

// subscriber serves one subscriber.
func (p *Publisher) subscriber(ctx context.Context, c *conn) {
	s := &subscription{conn: c, queue: make(chan []byte, p.config.Queue)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	}()
	p.wg.Go(func() { s.write(ctx) })
	for {
		flags, body, err := readFrame(c.in, maxHandshake)
		if err != nil || !p.subscribed(s, flags, body) {
			return
		}
	}
}

// maxWrite is how many bytes of messages are written at once.
const maxWrite = 64 << 10

// write writes what is queued. A subscriber that leaves it unread keeps its connection, as
// with libzmq, and loses what its queue has no room for.
func (s *subscription) write(ctx context.Context) {
	var out []byte
	for {
		select {
		case b := <-s.queue:
			out = append(out[:0], b...)
		case <-ctx.Done():
			return
		}
		for more := true; more && len(out) < maxWrite; {
			select {
			case b := <-s.queue:
				out = append(out, b...)
			default:
				more = false
			}
		}
		s.conn.mu.Lock()
		err := s.conn.net.SetWriteDeadline(time.Time{})
		if err == nil {
			_, err = s.conn.net.Write(out)
		}
		s.conn.mu.Unlock()
		if err != nil {
			_ = s.conn.net.Close()
			return
		}
		if cap(out) > 16*maxWrite {
			out = nil
		}
	}
}

// subscribed obeys a frame of a subscriber: from ZMTP 3.1 on subscriptions are
// commands, before they are messages.
func (p *Publisher) subscribed(s *subscription, flags byte, body []byte) bool {
	add := false
	switch {
	case flags&flagCommand != 0:
		name, data, err := command(body)
		if err != nil {
			return false
		}
		switch name {
		case "SUBSCRIBE":
			add = true
		case "CANCEL":
		default:
			return s.conn.command(body) == nil
		}
		body = data
	case len(body) > 0 && body[0] <= 1:
		add, body = body[0] == 1, body[1:]
	default:
		return true // a message of no subscriber
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if add {
		s.topics = append(s.topics, bytes.Clone(body))
		return len(s.topics) <= maxTopics
	}
	for i, t := range s.topics {
		if bytes.Equal(t, body) {
			s.topics = slices.Delete(s.topics, i, i+1)
			break
		}
	}
	return true
}

// Subscribers returns how many peers have subscribed to something.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		if len(s.topics) > 0 {
			n++
		}
	}
	return n
}

// Lost returns how many messages found no room in a subscriber's queue.
func (p *Publisher) Lost() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Waiting returns how many messages wait in the longest queue of a subscriber.
func (p *Publisher) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		n = max(n, len(s.queue))
	}
	return n
}

// Publish sends a message to all subscribers of its topic, and keeps it for
// the replay socket. It never waits. The payload must not be changed after.
func (p *Publisher) Publish(m Message) {
	encoded := newMessage([]byte(m.Topic), binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(m)
	for s := range p.subs {
		for _, t := range s.topics {
			if !bytes.HasPrefix([]byte(m.Topic), t) {
				continue
			}
			select {
			case s.queue <- encoded:
			default:
				p.lost++
			}
			break
		}
	}
}

// Keep keeps a message for the replay socket and does not send it, as if it were lost on
// its way. The payload must not be changed after.
func (p *Publisher) Keep(m Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(m)
}

// keep is Keep with the lock held.
func (p *Publisher) keep(m Message) {
	if p.config.Replay == "" {
		return
	}
	p.kept = append(p.kept, m)
	p.bytes += int64(len(m.Payload))
	for len(p.kept) > p.config.Keep || p.bytes > p.config.KeepBytes {
		p.bytes -= int64(len(p.kept[0].Payload))
		p.kept[0] = Message{}
		p.kept = p.kept[1:]
	}
}

// newMessage is a message of these frames as it is sent.
func newMessage(frames ...[]byte) []byte {
	var dst []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		dst = appendFrame(dst, flags, f)
	}
	return dst
}

// replay serves one peer of the replay socket: to each ["", sequence] it answers
// with the messages from there on, and then with the end.
func (p *Publisher) replay(ctx context.Context, c *conn) {
	var frames [][]byte
	for ctx.Err() == nil {
		var err error
		if frames, err = c.message(frames); err != nil {
			return
		}
		last := frames[len(frames)-1]
		if len(last) != 8 {
			continue
		}
		from := binary.BigEndian.Uint64(last)
		p.mu.Lock()
		kept := slices.Clone(p.kept)
		p.mu.Unlock()
		for _, m := range kept {
			if m.Seq < from {
				continue
			}
			if err := p.answer(c, m); err != nil {
				return
			}
		}
		if err := p.answer(c, Message{Seq: math.MaxUint64}); err != nil {
			return
		}
	}
}

// answer sends a message to a peer of the replay socket.
func (p *Publisher) answer(c *conn, m Message) error {
	seq := binary.BigEndian.AppendUint64(nil, m.Seq)
	frames := [][]byte{nil, []byte(m.Topic), seq, m.Payload}
	if p.config.OldReplay {
		frames = [][]byte{nil, seq, m.Payload}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(newMessage(frames...))
}

// Close closes the sockets and waits for all that serves them. What waits in queues
// is lost.
func (p *Publisher) Close() error {
	for _, a := range p.sockets {
		_ = a.close()
	}
	p.wg.Wait()
	return nil
}
