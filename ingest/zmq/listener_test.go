package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
)

// inbox keeps what a Listener has received.
type inbox struct {
	mu       sync.Mutex // protects all below
	messages [][][]byte
	peers    map[*Peer]int
	refused  []error
}

func (b *inbox) handle(p *Peer, frames [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.peers == nil {
		b.peers = map[*Peer]int{}
	}
	b.peers[p]++
	b.messages = append(b.messages, frames)
}

func (b *inbox) refuse(_ string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = append(b.refused, err)
}

func (b *inbox) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.messages)
}

func listen(t *testing.T, c ListenerConfig) *Listener {
	t.Helper()
	c.Endpoint = "tcp://127.0.0.1:0"
	l := must.Get(Listen(t.Context(), c))(t)
	must.End(t, l.Close)
	return l
}

// python runs a script of libzmq's until the test ends. Lines that it writes come to
// the channel.
func python(t *testing.T, script string, args ...string) (lines <-chan string, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), enginetest.Python(t), append([]string{"-c", "import sys, time, zmq\nctx = zmq.Context()\n" + script}, args...)...)
	out := must.Get(cmd.StdoutPipe())(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	must.OK(t, cmd.Start())
	c := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c)
		for s := bufio.NewScanner(out); s.Scan(); {
			c <- s.Text()
		}
	}()
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			<-done
			_ = cmd.Wait()
			if t.Failed() {
				t.Log(stderr.String())
			}
		})
	}
	t.Cleanup(kill)
	return c, kill
}

// Messages of libzmq's PUSH sockets come whole and in the order of each peer.
func TestPullFromLibzmq(t *testing.T) {
	var b inbox
	l := listen(t, ListenerConfig{Kind: Pull, Handle: b.handle, Refused: b.refuse, Heartbeat: time.Second})
	_, kill := python(t, `
a, b = ctx.socket(zmq.PUSH), ctx.socket(zmq.PUSH)
for s in (a, b): s.connect(sys.argv[1])
for i in range(2000):
    s = (a, b)[i % 2]
    s.send_multipart([b"%d" % i] + [b"x" * (j * 37) for j in range(i % 50)])
time.sleep(600)
`, "tcp://"+l.Addr().String())
	eventually.True(t, "2000 messages", func() bool { return b.count() == 2000 })
	b.mu.Lock()
	last := [2]int{-2, -1}
	for _, m := range b.messages {
		var i int
		must.Get(fmt.Sscan(string(m[0]), &i))(t)
		if i != last[i%2]+2 || len(m) != 1+i%50 {
			t.Errorf("message %d after %d has %d frames", i, last[i%2], len(m))
		}
		last[i%2] = i
		for j, f := range m[1:] {
			if len(f) != j*37 {
				t.Errorf("frame %d of message %d has %d bytes", j, i, len(f))
			}
		}
	}
	var peers []*Peer
	for p := range b.peers {
		peers = append(peers, p)
	}
	if len(peers) != 2 || len(b.refused) != 0 {
		t.Errorf("%d peers, refused %v", len(peers), b.refused)
	}
	b.mu.Unlock()
	for _, p := range peers {
		before := p.conn.reads.Load()
		eventually.True(t, "answers to heartbeats", func() bool { return p.conn.reads.Load() > before+1 && !p.Closed() })
		if err := p.Reply([]byte("x")); !errors.Is(err, ErrProtocol) {
			t.Errorf("a reply to a PUSH socket: %v", err)
		}
	}
	kill()
	eventually.True(t, "end of the peers", func() bool { return peers[0].Closed() && peers[1].Closed() && l.Peers() == 0 })
}

// DEALER and REQ sockets get the replies to their own questions.
func TestRouterWithLibzmq(t *testing.T) {
	l := listen(t, ListenerConfig{Kind: Router, Handle: func(p *Peer, frames [][]byte) {
		if err := p.Reply([]byte{}, append([]byte("re:"), frames[len(frames)-1]...)); err != nil {
			t.Error(err)
		}
	}})
	lines, _ := python(t, `
for kind in (zmq.DEALER, zmq.REQ):
    socks = [ctx.socket(kind) for _ in range(3)]
    for s in socks: s.connect(sys.argv[1]); s.setsockopt(zmq.RCVTIMEO, 20000)
    for i in range(100):
        for n, s in enumerate(socks):
            s.send_multipart([b"", b"%d.%d" % (n, i)] if kind == zmq.DEALER else [b"%d.%d" % (n, i)])
        for n, s in enumerate(socks):
            got = s.recv_multipart()
            assert got[-1] == b"re:%d.%d" % (n, i) and len(got) == (2 if kind == zmq.DEALER else 1), got
print("well", flush=True)
`, "tcp://"+l.Addr().String())
	if line := <-lines; line != "well" {
		t.Errorf("libzmq says %q", line)
	}
}

// hello is a handshake as a socket of a kind.
func hello(t *testing.T, l *Listener, socket string) *conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := must.Get(dial(ctx, endpoint{"tcp", l.Addr().String()}, socket, []string{"PULL", "ROUTER"}, nil, nil, 1024, 30*time.Second))(t)
	t.Cleanup(func() { _ = c.net.Close() })
	return c
}

// What is beyond a limit ends its peer's connection and no other.
func TestListenerLimits(t *testing.T) {
	var b inbox
	l := listen(t, ListenerConfig{Kind: Pull, Peers: 3, MaxMessage: 2048, MaxFrames: 4, ConnectTimeout: time.Hour, Handle: b.handle, Refused: b.refuse})
	good := hello(t, l, "PUSH")
	refused := func(n int) func() bool {
		return func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.refused) == n }
	}
	for i, bad := range [][]byte{
		newMessage(make([]byte, 2049)),
		newMessage(make([]byte, 2000), make([]byte, 2000)),
		newMessage(nil, nil, nil, nil, nil, nil),
		binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<60),
		{0xf8, 0},
	} {
		c := hello(t, l, "PUSH")
		must.OK(t, c.write(bad))
		eventually.True(t, fmt.Sprint("refusal of message ", i), refused(i+1))
		eventually.True(t, "end of the peer", func() bool { return l.Peers() == 1 })
	}
	// A peer of the wrong kind, and one that speaks something else.
	if nc, err := net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	} else if _, err := nc.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10))); err != nil {
		t.Fatal(err)
	} else {
		defer nc.Close()
	}
	eventually.True(t, "refusal of HTTP", refused(6))
	wrong := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer wrong.Close()
	must.Get(wrong.Write(append(greeting("NULL"), appendFrame(nil, flagCommand, appendMetadata(newCommand("READY"), "SUB"))...)))(t)
	eventually.True(t, "refusal of a SUB", refused(7))
	eventually.True(t, "end of the peers", func() bool { return l.Peers() == 1 })
	// Those that say nothing take the room there is, and no more.
	for range 2 {
		nc := must.Get(net.Dial("tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = nc.Close() })
	}
	eventually.True(t, "silent peers", func() bool { return l.Peers() == 3 })
	nc := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer nc.Close()
	eventually.True(t, "refusal of one peer more", refused(8))
	b.mu.Lock()
	if err := b.refused[7]; !errors.Is(err, ErrPeers) {
		t.Errorf("refused for %v", err)
	}
	b.mu.Unlock()
	must.OK(t, good.write(newMessage([]byte("well"))))
	eventually.True(t, "the message of the peer that does nothing wrong", func() bool { return b.count() == 1 })
}

// A peer whose messages are not handled is not read; the others go on, and
// Close waits for the handler.
func TestListenerPushesBack(t *testing.T) {
	release := make(chan struct{})
	var handled, held atomic.Int64
	l := listen(t, ListenerConfig{Kind: Pull, Handle: func(_ *Peer, frames [][]byte) {
		if string(frames[0]) == "stay" {
			held.Add(1)
			<-release
		}
		handled.Add(1)
	}})
	slow, fast := hello(t, l, "PUSH"), hello(t, l, "PUSH")
	must.OK(t, slow.write(append(newMessage([]byte("stay")), newMessage([]byte("stay"))...)))
	eventually.True(t, "a message that is held", func() bool { return held.Load() == 1 })
	for range 100 {
		must.OK(t, fast.write(newMessage([]byte("go"))))
	}
	eventually.True(t, "the others' messages", func() bool { return handled.Load() == 100 })
	if held.Load() != 1 {
		t.Errorf("%d messages are held", held.Load())
	}
	close(release)
	eventually.True(t, "the rest", func() bool { return handled.Load() == 102 })
}

// A peer that does not answer heartbeats is closed.
func TestListenerHeartbeat(t *testing.T) {
	var b inbox
	l := listen(t, ListenerConfig{Kind: Pull, Handle: b.handle, Heartbeat: 500 * time.Millisecond})
	c := hello(t, l, "PUSH")
	must.OK(t, c.write(newMessage([]byte("x"))))
	eventually.True(t, "a message", func() bool { return b.count() == 1 })
	eventually.True(t, "end of the silent peer", func() bool { return l.Peers() == 0 })
}

func TestListenerConfig(t *testing.T) {
	none := func(*Peer, [][]byte) {}
	for _, c := range []ListenerConfig{
		{Endpoint: "tcp://*:0", Handle: none},
		{Endpoint: "tcp://*:0", Kind: "SUB", Handle: none},
		{Endpoint: "tcp://*:0", Kind: Pull},
		{Endpoint: "tcp://*:0", Kind: Pull, Handle: none, Peers: -1},
		{Endpoint: "tcp://*:0", Kind: Pull, Handle: none, MaxFrames: -1},
		{Endpoint: "tcp://*:0", Kind: Pull, Handle: none, MaxMessage: 3},
		{Endpoint: "tcp://*:0", Kind: Pull, Handle: none, Heartbeat: 1},
		{Endpoint: "tcp://*:0", Kind: Pull, Handle: none, ConnectTimeout: 1},
	} {
		if l, err := Listen(t.Context(), c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
			if err == nil {
				_ = l.Close()
			}
		}
	}
	if _, err := Listen(t.Context(), ListenerConfig{Endpoint: "8300", Kind: Pull, Handle: none}); !errors.Is(err, ErrEndpoint) {
		t.Errorf("an endpoint without a transport: %v", err)
	}
}
