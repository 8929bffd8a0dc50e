package zmq

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// peerBytes is a connection to a peer that says what it says, and listens to nothing.
type peerBytes struct {
	net.Conn
	r io.Reader
}

func (p peerBytes) Read(b []byte) (int, error)       { return p.r.Read(b) }
func (p peerBytes) Write(b []byte) (int, error)      { return len(b), nil }
func (p peerBytes) Close() error                     { return nil }
func (p peerBytes) SetDeadline(time.Time) error      { return nil }
func (p peerBytes) SetWriteDeadline(time.Time) error { return nil }

// FuzzPeer reads whatever a peer may say, greeting and all: there must be an end to it,
// and no message beyond the limit.
func FuzzPeer(f *testing.F) {
	hello := appendFrame(greeting("NULL"), flagCommand, appendMetadata(newCommand("READY"), "PUB"))
	message := appendFrame(appendFrame(appendFrame(nil, flagMore, []byte("kv")), flagMore, make([]byte, 8)), 0, bytes.Repeat([]byte("x"), 300))
	f.Add(append(bytes.Clone(hello), message...))
	f.Add(append(bytes.Clone(hello), appendFrame(nil, flagCommand, newCommand("PING", []byte{0, 1, 2}))...))
	f.Add(append(bytes.Clone(hello), "\x03\xff\xff\xff\xff\xff\xff\xff\xff"...))
	f.Add(append(greeting("CURVE"), appendFrame(nil, flagCommand, newCommand("WELCOME", make([]byte, curveWelcome)))...))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	const limit = 4096
	f.Fuzz(func(t *testing.T, says []byte) {
		for _, curve := range []*Curve{nil, {}} {
			c, err := shake(t.Context(), peerBytes{r: bytes.NewReader(says)}, "SUB", publishers, curve, limit)
			if err != nil {
				continue
			}
			var frames [][]byte
			for {
				if frames, err = c.message(frames); err != nil {
					break
				}
				n := 0
				for _, b := range frames {
					n += len(b)
				}
				if n > limit || len(frames) > maxFrames {
					t.Fatalf("%d frames of %d bytes", len(frames), n)
				}
			}
		}
	})
}
