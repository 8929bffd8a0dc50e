package zmq

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestPeerPatience: a process that is stopped for a while keeps its connections, since
// the peer is told to wait.
func TestPeerPatience(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	done := make(chan struct{})
	defer close(done)
	go (&conn{net: ours, minor: 1}).beat(100*time.Millisecond, done)
	must.OK(t, theirs.SetReadDeadline(time.Now().Add(30*time.Second)))
	// A command of 7 bytes: the length of its name, the name, 3.0 s.
	want := []byte("\x04\x07\x04PING\x00\x1e")
	got := make([]byte, len(want))
	if _, err := theirs.Read(got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestBeatWhileHandling: nothing is read while a message is being handled, and the peer
// is not to blame for that.
func TestBeatWhileHandling(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	done := make(chan struct{})
	defer close(done)
	c := &conn{net: ours, minor: 1}
	c.handling.Store(true)
	go c.beat(10*time.Millisecond, done)
	must.OK(t, theirs.SetReadDeadline(time.Now().Add(30*time.Second)))
	ping := make([]byte, 9)
	for range 10 {
		if _, err := io.ReadFull(theirs, ping); err != nil {
			t.Fatalf("given up while a message was handled: %v", err)
		}
	}
	c.handling.Store(false)
	if _, err := io.Copy(io.Discard, theirs); err != nil || !c.silent.Load() {
		t.Errorf("a silent peer is kept: %v", err)
	}
}

// TestBeatLeavesTheRest: a peer that has gone is given up where what it has sent ends.
func TestBeatLeavesTheRest(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ours := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer ours.Close()
	theirs := must.Get(l.Accept())(t)
	must.Get(theirs.Write([]byte("the rest")))(t)
	theirs.Close()
	c := &conn{net: ours, minor: 1}
	c.handling.Store(true)
	c.beat(10*time.Millisecond, nil) // until a ping fails
	if got, err := io.ReadAll(ours); string(got) != "the rest" || errors.Is(err, net.ErrClosed) {
		t.Errorf("%q, %v", got, err)
	}
}
