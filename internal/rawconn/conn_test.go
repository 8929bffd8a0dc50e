package rawconn_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/rawconn"
)

// both runs a test with a connection of each kind.
func both(t *testing.T, test func(t *testing.T, network string)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { test(t, network) })
	}
}

// pair returns both ends of a connection, the first one with raw calls.
func pair(t *testing.T, network string) (raw, peer net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = filepath.Join(t.TempDir(), "s")
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, at)
	must.OK(t, err)
	defer func() { _ = l.Close() }()
	c := must.Get((&net.Dialer{}).DialContext(t.Context(), network, l.Addr().String()))(t)
	if peer, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	raw = rawconn.New(c)
	if raw == c && runtime.GOOS == "linux" {
		t.Fatal("the connection has no raw calls")
	}
	if rawconn.Unwrap(raw) != c {
		t.Fatal("Unwrap returns another connection")
	}
	t.Cleanup(func() { _, _ = raw.Close(), peer.Close() })
	for _, c := range []net.Conn{raw, peer} {
		must.OK(t, c.SetDeadline(time.Now().Add(time.Minute)))
	}
	return raw, peer
}

// TestBytes: what is written arrives, in both directions at once and in pieces of any length.
func TestBytes(t *testing.T) { both(t, testBytes) }

func testBytes(t *testing.T, network string) {
	raw, peer := pair(t, network)
	sent := make([]byte, 5<<20)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	send := func(c net.Conn, done chan<- error) {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(300_000))
			m, err := c.Write(rest[:n])
			if err != nil || m != n {
				done <- errors.Join(err, io.ErrShortWrite)
				return
			}
			rest = rest[n:]
		}
		done <- c.(interface{ CloseWrite() error }).CloseWrite()
	}
	receive := func(c net.Conn, done chan<- error) {
		var got bytes.Buffer
		for b := make([]byte, 100_000); ; {
			n, err := c.Read(b[:1+rand.IntN(len(b))])
			got.Write(b[:n])
			switch {
			case err == nil:
			case !errors.Is(err, io.EOF):
				done <- err
				return
			case !bytes.Equal(got.Bytes(), sent):
				done <- errors.New("other bytes came than were sent")
				return
			default:
				done <- nil
				return
			}
		}
	}
	done := make(chan error, 4)
	for _, c := range []net.Conn{raw, peer} {
		go send(c, done)
		go receive(c, done)
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n, err := raw.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
}

// TestWaits: deadlines and Close end a wait as they do on other connections. A deadline that is
// over does no harm once another one is set.
func TestWaits(t *testing.T) { both(t, testWaits) }

func testWaits(t *testing.T, network string) {
	raw, peer := pair(t, network)
	buf := make([]byte, 1<<20)
	check := func(what string, err, want error) {
		t.Helper()
		var e *net.OpError
		if !errors.Is(err, want) || !errors.As(err, &e) || e.Net != network {
			t.Errorf("%s: got %v, want %v in a net.OpError of %s", what, err, want, network)
		}
	}
	set := func(err error) {
		t.Helper()
		must.OK(t, err)
	}
	set(raw.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	_, err := raw.Read(buf)
	check("a read", err, os.ErrDeadlineExceeded)
	set(raw.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)))
	for err = nil; err == nil; {
		_, err = raw.Write(buf)
	}
	check("a write", err, os.ErrDeadlineExceeded)
	set(raw.SetDeadline(time.Now().Add(time.Minute)))
	must.Get(peer.Write([]byte("x")))(t)
	if n, err := raw.Read(buf); n != 1 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	ended := make(chan error)
	go func() {
		_, err := raw.Read(buf)
		ended <- err
	}()
	_ = raw.Close()
	check("a read of what is closed", <-ended, net.ErrClosed)
	_, err = raw.Write(buf)
	check("a write to what is closed", err, net.ErrClosed)
}

// TestPeerGone: errors of the calls are those that other connections have.
func TestPeerGone(t *testing.T) {
	raw, peer := pair(t, "tcp")
	must.OK(t, peer.(*net.TCPConn).SetLinger(0))
	_ = peer.Close()
	if _, err := raw.Read(make([]byte, 8)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reading: %v", err)
	}
	var err error
	for range 10 {
		if _, err = raw.Write([]byte("x")); err != nil {
			break
		}
	}
	var call *os.SyscallError
	if !errors.Is(err, syscall.EPIPE) || !errors.As(err, &call) {
		t.Errorf("writing: %v", err)
	}
}

// TestOthers: other connections stay as they are.
func TestOthers(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if rawconn.New(a) != a || rawconn.Unwrap(a) != a {
		t.Error("a pipe was wrapped")
	}
}
