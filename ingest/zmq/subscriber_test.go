package zmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// tape writes down what a Subscriber tells.
type tape struct {
	mu        sync.Mutex // protects all below
	seqs      []uint64
	topics    []string
	bytes     int
	connected int
	on        bool // there is a connection
	ended     []error
	malformed []error
	changed   chan struct{}
}

func newTape() *tape { return &tape{changed: make(chan struct{}, 1)} }

func (r *tape) note(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *tape) Connected(string) { r.note(func() { r.connected, r.on = r.connected+1, true }) }
func (r *tape) Message(m Message) {
	r.note(func() {
		r.seqs, r.topics, r.bytes = append(r.seqs, m.Seq), append(r.topics, m.Topic), r.bytes+len(m.Payload)
	})
}
func (r *tape) Malformed(err error) { r.note(func() { r.malformed = append(r.malformed, err) }) }
func (r *tape) Disconnected(err error) {
	r.note(func() { r.ended, r.on = append(r.ended, err), false })
}

// until waits for what the tape must come to say.
func (r *tape) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.mu.Lock()
			t.Cleanup(r.mu.Unlock)
			t.Fatalf("waited for %s: %d messages, %d connections, ended by %v, malformed %v", what, len(r.seqs), r.connected, r.ended, r.malformed)
		}
	}
}

// run runs a Subscriber until the test ends.
func run(t *testing.T, c Config) *tape {
	t.Helper()
	r := newTape()
	s := must.Get(NewSubscriber(c, r))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return r
}

// tellOne publishes a batch that says nothing, until the subscriber has had one: a PUB
// drops what is published before it knows of the subscription.
func tellOne(t *testing.T, p *enginetest.Publisher, r *tape) {
	t.Helper()
	r.mu.Lock()
	had := len(r.seqs)
	r.mu.Unlock()
	eventually.True(t, "a message of the publisher", func() bool {
		p.Publish(1)
		p.Flush()
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.seqs) > had
	})
}

func endpoint4(host string, port int) string { return fmt.Sprintf("tcp://%s:%d", host, port) }

func TestSubscriberWithLibzmq(t *testing.T) {
	server, secret := curveKeys(t)
	own, ownSecret := curveKeys(t)
	socket := filepath.Join(t.TempDir(), "s")
	cases := map[string]struct {
		o enginetest.Options
		c Config
	}{
		"dial":  {enginetest.Options{Endpoint: "tcp://*:%d"}, Config{Endpoint: "tcp://127.0.0.1:%d"}},
		"bind":  {enginetest.Options{Endpoint: "tcp://127.0.0.1:%d"}, Config{Endpoint: "tcp://*:%d", Bind: true}},
		"ipc":   {enginetest.Options{Endpoint: "ipc://" + socket}, Config{Endpoint: "ipc://" + socket}},
		"topic": {enginetest.Options{Endpoint: "tcp://*:%d", Topic: "kv@pod@model"}, Config{Endpoint: "tcp://127.0.0.1:%d", Topic: "kv@pod"}},
		"CURVE": {enginetest.Options{Endpoint: "tcp://*:%d", CurveSecret: z85(secret)}, Config{Endpoint: "tcp://localhost:%d", Curve: &Curve{Server: server, Public: own, Secret: ownSecret}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := redistest.FreePort(t)
			for _, e := range []*string{&c.o.Endpoint, &c.c.Endpoint} {
				if strings.Contains(*e, "%d") {
					*e = fmt.Sprintf(*e, port)
				}
			}
			c.c.Heartbeat = time.Second
			r := run(t, c.c)
			p := enginetest.Start(t, c.o)
			tellOne(t, p, r)
			next := p.Flush()
			// Sizes around that of a short frame, and of a megabyte.
			for n := range 300 {
				p.Publish(1, enginetest.Event{"x": strings.Repeat("x", n)})
			}
			p.Publish(1, enginetest.Event{"x": strings.Repeat("x", 1<<20)})
			want := p.Flush()
			r.until(t, "all messages", func() bool { return len(r.seqs) > 0 && r.seqs[len(r.seqs)-1] == want-1 })
			// Some heartbeats long, in which nothing must happen.
			time.Sleep(3500 * time.Millisecond)
			p.Publish(1)
			p.Flush()
			r.until(t, "one more", func() bool { return r.seqs[len(r.seqs)-1] == want })
			r.mu.Lock()
			defer r.mu.Unlock()
			for i, seq := range r.seqs[len(r.seqs)-302:] {
				if seq != next+uint64(i) {
					t.Fatalf("message %d has sequence %d, not %d", i, seq, next+uint64(i))
				}
			}
			if r.topics[0] != c.o.Topic || r.connected != 1 || r.bytes < 1<<20+300*150 || len(r.malformed) > 0 {
				t.Errorf("topic %q, %d connections, %d bytes, malformed %v, ended by %v", r.topics[0], r.connected, r.bytes, r.malformed, r.ended)
			}
		})
	}
}

func TestSubscriberFilters(t *testing.T) {
	port := redistest.FreePort(t)
	r := run(t, Config{Endpoint: endpoint4("127.0.0.1", port), Topic: "other"})
	all := run(t, Config{Endpoint: endpoint4("127.0.0.1", port)})
	p := enginetest.Start(t, enginetest.Options{Endpoint: endpoint4("*", port), Topic: "kv"})
	tellOne(t, p, all)
	r.until(t, "a connection", func() bool { return r.connected == 1 })
	for range 10 {
		p.Publish(1)
	}
	want := p.Flush()
	all.until(t, "the last", func() bool { return all.seqs[len(all.seqs)-1] == want-1 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seqs) != 0 {
		t.Errorf("%d messages of another topic", len(r.seqs))
	}
}

func TestSubscriberReconnects(t *testing.T) {
	for _, bind := range []bool{false, true} {
		t.Run(fmt.Sprintf("bind=%v", bind), func(t *testing.T) {
			port := redistest.FreePort(t)
			o, c := enginetest.Options{Endpoint: endpoint4("*", port)}, Config{Endpoint: endpoint4("127.0.0.1", port)}
			if bind {
				o.Endpoint, c.Endpoint, c.Bind = endpoint4("127.0.0.1", port), endpoint4("*", port), true
			}
			// Not there yet.
			r := run(t, c)
			if !bind {
				r.until(t, "two refusals", func() bool { return len(r.ended) >= 2 })
			}
			for life := 1; life <= 3; life++ {
				p := enginetest.Start(t, o)
				tellOne(t, p, r)
				r.until(t, "a connection", func() bool { return r.connected == life })
				r.mu.Lock()
				ended := len(r.ended)
				r.mu.Unlock()
				p.Kill()
				r.until(t, "the end", func() bool { return len(r.ended) > ended })
			}
		})
	}
}

// TestSubscriberSilentPublisher stops the publisher's process: the connection stays,
// and nothing comes over it any more, as when its host has died.
func TestSubscriberSilentPublisher(t *testing.T) {
	port := redistest.FreePort(t)
	r := run(t, Config{Endpoint: endpoint4("127.0.0.1", port), Heartbeat: 10 * time.Second})
	link := enginetest.NewLink(t, port)
	through := run(t, Config{Endpoint: endpoint4("127.0.0.1", link.Port), Heartbeat: 500 * time.Millisecond})
	p := enginetest.Start(t, enginetest.Options{Endpoint: endpoint4("*", port)})
	tellOne(t, p, r)
	through.until(t, "a connection", func() bool { return through.on })
	through.mu.Lock()
	ended := len(through.ended)
	through.mu.Unlock()
	link.Hold()
	through.until(t, "silence", func() bool { return len(through.ended) > ended })
	through.mu.Lock()
	if err := through.ended[ended]; !errors.Is(err, ErrSilent) {
		t.Errorf("the silent connection ended by %v", err)
	}
	through.mu.Unlock()
	link.Release()
	through.until(t, "another connection", func() bool { return through.on })
	tellOne(t, p, through)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected != 1 {
		t.Errorf("the link that was not touched was connected %d times", r.connected)
	}
}

// TestBoundSubscriberSilentPeers connects peers that say nothing, or rubbish, to the
// bound port: they must not keep the engine out.
func TestBoundSubscriberSilentPeers(t *testing.T) {
	port := redistest.FreePort(t)
	r := run(t, Config{Endpoint: endpoint4("*", port), Bind: true, Heartbeat: -1})
	dialled := func() (c net.Conn) {
		eventually.NoError(t, "the bound port", func() (err error) {
			c, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			return err
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i := range 3 + maxShaking/2 {
		c := dialled()
		if i%2 == 1 {
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%0100d", 0)
		}
	}
	p := enginetest.Start(t, enginetest.Options{Endpoint: endpoint4("127.0.0.1", port)})
	tellOne(t, p, r)
	for range 500 {
		p.Publish(1)
	}
	want := p.Flush()
	r.until(t, "500 messages", func() bool { return r.seqs[len(r.seqs)-1] == want-1 })
}

func TestSubscriberRefuses(t *testing.T) {
	server, _ := curveKeys(t)
	greet := func(minor byte, mechanism string) string {
		g := greeting(mechanism)
		g[11] = minor
		return string(g)
	}
	ready := func(socket string) string {
		return string(appendFrame(nil, flagCommand, appendMetadata(newCommand("READY"), socket)))
	}
	cases := map[string]struct {
		says  string
		curve *Curve
		want  string
	}{
		"HTTP":              {says: "HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat(" ", 64), want: "does not greet as ZMTP 3"},
		"ZMTP 2":            {says: "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01" + strings.Repeat("\x00", 64), want: "does not greet as ZMTP 3"},
		"another mechanism": {says: greet(1, "PLAIN"), want: `the peer's mechanism is "PLAIN", ours is NULL`},
		"CURVE wanted":      {says: greet(1, "NULL"), curve: &Curve{Server: server}, want: `the peer's mechanism is "NULL", ours is CURVE`},
		"another socket":    {says: greet(0, "NULL") + ready("ROUTER"), want: `the peer's socket is a "ROUTER"`},
		"an error":          {says: greet(0, "NULL") + string(appendFrame(nil, flagCommand, newCommand("ERROR", []byte("\x02no")))), want: `the peer refuses: "no"`},
		"no READY":          {says: greet(0, "NULL") + string(appendFrame(nil, flagCommand, newCommand("HELLO", []byte("x")))), want: `"HELLO" where READY should be`},
		"a long READY":      {says: greet(0, "NULL") + "\x06\x00\x00\x00\x00\x00\x00\xff\xff", want: "a frame of 65535 bytes, the limit is 4096"},
		"cut property":      {says: greet(0, "NULL") + string(appendFrame(nil, flagCommand, newCommand("READY", []byte("\x0bSocket-Type\x00\x00\x00\x09PUB")))), want: "states 9 bytes and has 3"},
		"not our WELCOME":   {says: greet(0, "CURVE") + string(appendFrame(nil, flagCommand, newCommand("WELCOME", make([]byte, curveWelcome)))), curve: &Curve{Server: server}, want: "another key than the one set"},
		"huge frame":        {says: greet(0, "NULL") + ready("PUB") + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff", want: "a frame of 9223372036854775807 bytes, the limit is 65536"},
		"huge message":      {says: greet(0, "NULL") + ready("XPUB") + strings.Repeat("\x03\x00\x00\x00\x00\x00\x00\x60\x00"+strings.Repeat("x", 0x6000), 3), want: "the limit is 16384"},
		"many frames":       {says: greet(0, "NULL") + ready("PUB") + strings.Repeat("\x01\x01x", 20), want: "more than 8 frames"},
		"strange flags":     {says: greet(0, "NULL") + ready("PUB") + "\x10\x01x", want: "a frame has the flags 0x10"},
		"bad PING":          {says: greet(0, "NULL") + ready("PUB") + string(appendFrame(nil, flagCommand, newCommand("PING", []byte("x")))), want: "a PING of 1 bytes"},
		"nameless command":  {says: greet(0, "NULL") + ready("PUB") + "\x04\x01\x05", want: "a command of 1 bytes without a name"},
		"nothing":           {says: "", want: "EOF"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer l.Close()
			go func() {
				for {
					peer, err := l.Accept()
					if err != nil {
						return
					}
					io.WriteString(peer, c.says)
					if c.says != "" {
						io.Copy(io.Discard, peer)
					} else {
						io.ReadFull(peer, make([]byte, 64))
					}
					peer.Close()
				}
			}()
			r := run(t, Config{Endpoint: "tcp://" + l.Addr().String(), Curve: c.curve, MaxMessage: 64 << 10, Heartbeat: -1})
			r.until(t, "an end", func() bool { return len(r.ended) > 0 })
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.ended[0]; !strings.Contains(err.Error(), c.want) || (c.says != "") != errors.Is(err, ErrProtocol) {
				t.Errorf("it ended by %v, not by %q", err, c.want)
			}
		})
	}
}

func TestSubscriberMalformed(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		peer, err := l.Accept()
		if err != nil {
			return
		}
		defer peer.Close()
		out := greeting("NULL")
		out[11] = 0
		out = appendFrame(out, flagCommand, appendMetadata(newCommand("READY"), "PUB"))
		for _, m := range [][]string{{"t", "12345678"}, {"t", "1234", "x"}, {"t", "\x00\x00\x00\x00\x00\x00\x00\x05", "payload"}} {
			for i, f := range m {
				flags := byte(flagMore)
				if i == len(m)-1 {
					flags = 0
				}
				out = appendFrame(out, flags, []byte(f))
			}
		}
		peer.Write(out)
		io.Copy(io.Discard, peer)
	}()
	r := run(t, Config{Endpoint: "tcp://" + l.Addr().String(), Heartbeat: -1})
	r.until(t, "the good one", func() bool { return len(r.seqs) == 1 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seqs[0] != 5 || r.topics[0] != "t" || len(r.malformed) != 2 {
		t.Errorf("sequence %v of topic %v, malformed %v", r.seqs, r.topics, r.malformed)
	}
}

func TestConfigValidate(t *testing.T) {
	cases := []struct {
		c    Config
		want string
	}{
		{Config{}, "not of the form"},
		{Config{Endpoint: "tcp://*:1"}, "no host to connect to"},
		{Config{Endpoint: "tcp://a:0"}, `the port is "0"`},
		{Config{Endpoint: "tcp://a:99999"}, `the port is "99999"`},
		{Config{Endpoint: "tcp://a"}, "missing port"},
		{Config{Endpoint: "inproc://a"}, `transport "inproc"`},
		{Config{Endpoint: "ipc://"}, "a path has"},
		{Config{Endpoint: "ipc://@"}, "no name"},
		{Config{Endpoint: "tcp://*:1", Bind: true, Curve: &Curve{}}, "not with Bind"},
		{Config{Endpoint: "tcp://a:1", Topic: strings.Repeat("x", 256)}, "the topic has 256 bytes"},
		{Config{Endpoint: "tcp://a:1", MaxMessage: 5}, "MaxMessage is 5"},
		{Config{Endpoint: "tcp://a:1", MinBackoff: time.Minute, MaxBackoff: time.Second}, "MaxBackoff is 1s"},
		{Config{Endpoint: "tcp://a:1", MaxBackoff: -1}, "MaxBackoff is -1ns"},
		{Config{Endpoint: "tcp://a:1", Heartbeat: time.Microsecond}, "Heartbeat is 1µs"},
		{Config{Endpoint: "tcp://[::1]:5557"}, ""},
		{Config{Endpoint: "tcp://*:5557", Bind: true}, ""},
		{Config{Endpoint: "ipc:///tmp/a", Heartbeat: -1}, ""},
	}
	for _, c := range cases {
		switch err := c.c.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.c, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, not %q", c.c, err, c.want)
		}
	}
	if err := (ReplayConfig{Endpoint: "tcp://a:1", Idle: time.Hour}).Validate(); !errors.Is(err, ErrConfig) {
		t.Errorf("an Idle longer than Timeout: %v", err)
	}
}
