package lmcachetest

import (
	"bufio"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Socket is the least of a ZMTP 3.0 peer (https://rfc.zeromq.org/spec/23).
type Socket struct {
	t  testing.TB
	nc net.Conn
	in *bufio.Reader
}

// Connect connects a socket of a kind, such as PUSH, from a host of this machine to host:port,
// until the test ends.
func Connect(t testing.TB, host, to, kind string) *Socket {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	nc := must.Get(d.DialContext(t.Context(), "tcp", to))(t)
	s := &Socket{t: t, nc: nc, in: bufio.NewReader(nc)}
	t.Cleanup(func() { _ = nc.Close() })
	hello := make([]byte, 64)
	hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
	copy(hello[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type\x00\x00\x00"), byte(len(kind)))
	ready = append(ready, kind...)
	must.Get(nc.Write(slices.Concat(hello, []byte{4, byte(len(ready))}, ready)))(t)
	must.Get(io.ReadFull(s.in, hello))(t)
	if flags, _ := s.frame(); flags != 4 {
		t.Fatalf("a frame with the flags %d, want READY", flags)
	}
	return s
}

func (s *Socket) frame() (flags byte, body []byte) {
	s.t.Helper()
	must.OK(s.t, s.nc.SetReadDeadline(time.Now().Add(30*time.Second)))
	head := make([]byte, 2)
	must.Get(io.ReadFull(s.in, head))(s.t)
	size := int(head[1])
	if head[0]&2 != 0 {
		more := make([]byte, 7)
		must.Get(io.ReadFull(s.in, more))(s.t)
		for _, b := range more {
			size = size<<8 | int(b)
		}
	}
	body = make([]byte, size)
	must.Get(io.ReadFull(s.in, body))(s.t)
	return head[0], body
}

// Send sends one message of these frames.
func (s *Socket) Send(frames ...[]byte) {
	s.t.Helper()
	var out []byte
	for i, f := range frames {
		flags := byte(3)
		if i == len(frames)-1 {
			flags = 2
		}
		out = append(out, flags, 0, 0, 0, 0, byte(len(f)>>24), byte(len(f)>>16), byte(len(f)>>8), byte(len(f)))
		out = append(out, f...)
	}
	must.Get(s.nc.Write(out))(s.t)
}

// Ask sends a message as DEALER does and returns the reply.
func (s *Socket) Ask(b []byte) []byte {
	s.t.Helper()
	s.Send(nil, b)
	if flags, empty := s.frame(); flags&1 == 0 || len(empty) > 0 {
		s.t.Fatalf("the reply begins with %x, flags %d", empty, flags)
	}
	_, body := s.frame()
	return body
}

// Addr is where the socket connects from.
func (s *Socket) Addr() net.Addr { return s.nc.LocalAddr() }

// Close ends the connection.
func (s *Socket) Close() { _ = s.nc.Close() }
