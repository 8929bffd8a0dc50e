package zmq

import (
	"bytes"
	"net"
	"testing"
	"time"
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
	if err := theirs.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// A command of 7 bytes: the length of its name, the name, 3.0 s.
	want := []byte("\x04\x07\x04PING\x00\x1e")
	got := make([]byte, len(want))
	if _, err := theirs.Read(got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
