package redisx

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestLazyDeadline: the poller gets a deadline that is sooner than the one it has, and no other.
func TestLazyDeadline(t *testing.T) {
	var given []time.Duration // from at on; -1 is none
	at := time.Now()
	d := lazyDeadline{arm: func(t time.Time) error {
		if t.IsZero() {
			given = append(given, -1)
		} else {
			given = append(given, t.Sub(at))
		}
		return nil
	}}
	const hour = time.Hour
	for _, c := range []struct {
		set  time.Duration // -1 is none
		want []time.Duration
	}{
		{-1, nil}, {5 * hour, []time.Duration{5 * hour}}, {5 * hour, nil}, {6 * hour, nil}, {-1, nil}, {7 * hour, nil},
		{2 * hour, []time.Duration{2 * hour}}, {3 * hour, nil}, {-hour, []time.Duration{-hour}}, {-1, nil}, {9 * hour, nil},
	} {
		given = nil
		when := at.Add(c.set)
		if c.set == -1 {
			when = time.Time{}
		}
		if err := d.set(when); err != nil || !slices.Equal(given, c.want) {
			t.Errorf("set %v: the poller got %v (%v), want %v", c.set, given, err, c.want)
		}
	}
	given = nil
	if !d.goesOn(os.ErrDeadlineExceeded) || !slices.Equal(given, []time.Duration{9 * hour}) {
		t.Errorf("the poller got %v after its own has passed, want 9h", given)
	}
	if d.goesOn(io.EOF) {
		t.Error("goes on after the end of the stream")
	}
	if err := d.set(at); err != nil || d.goesOn(os.ErrDeadlineExceeded) {
		t.Errorf("goes on after the deadline that counts (%v)", err)
	}
	failed := errors.New("closed")
	d.arm = func(time.Time) error { return failed }
	if err := d.set(at.Add(-hour)); !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
}

// lazyPair returns both ends of a connection. It also returns a channel that hears each time when a
// side's poller gets a deadline while the test waits for that.
func lazyPair(t *testing.T) (lazy *lazyConn, peer net.Conn, rearmed chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	if peer, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	if lazy, err = newLazyConn(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = lazy.Close(), peer.Close() })
	rearmed = make(chan struct{}, 1)
	for _, d := range []*lazyDeadline{&lazy.reads, &lazy.writes} {
		arm := d.arm
		d.arm = func(t time.Time) error {
			select {
			case rearmed <- struct{}{}:
			default:
			}
			return arm(t)
		}
	}
	return lazy, peer, rearmed
}

// TestLazyReads: a wait ends with the deadline that counts, or with what is read before it.
func TestLazyReads(t *testing.T) {
	c, peer, rearmed := lazyPair(t)
	began := time.Now()
	must.OK(t, c.SetReadDeadline(began.Add(5*time.Millisecond)), c.SetReadDeadline(began.Add(60*time.Millisecond)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if took := time.Since(began); took < 60*time.Millisecond {
		t.Errorf("the wait ended after %v, before its deadline", took)
	}

	// One that is put off, and then taken away, does not end the wait.
	must.OK(t, c.SetDeadline(time.Now().Add(5*time.Millisecond)), c.SetDeadline(time.Time{}))
	<-rearmed
	go func() {
		<-rearmed
		_, _ = peer.Write([]byte("x"))
	}()
	if n, err := c.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}

	// A sooner one ends a wait that is on.
	must.OK(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
	ended := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	must.OK(t, c.SetReadDeadline(time.Now()))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
	}
	must.OK(t, c.SetDeadline(time.Time{}), peer.Close())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want %v", err, io.EOF)
	}
}

// TestLazyWrites: a write that the poller's deadline has cut goes on where it was cut.
func TestLazyWrites(t *testing.T) {
	c, peer, rearmed := lazyPair(t)
	text := bytes.Repeat([]byte("0123456789"), 1<<20) // more than the kernel takes
	must.OK(t, c.SetWriteDeadline(time.Now().Add(5*time.Millisecond)), c.SetWriteDeadline(time.Now().Add(time.Hour)))
	<-rearmed
	got := make(chan []byte)
	go func() {
		<-rearmed
		b := make([]byte, len(text))
		_, _ = io.ReadFull(peer, b)
		got <- b
	}()
	if n, err := c.Write(text); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes of %d: %v", n, len(text), err)
	}
	if !bytes.Equal(<-got, text) {
		t.Error("other bytes came than were sent")
	}
	must.OK(t, c.SetWriteDeadline(time.Now().Add(time.Millisecond)))
	if n, err := c.Write(text); n == len(text) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("wrote %d bytes, %v, to a peer that does not read", n, err)
	}
}

// TestLazyLook: a connection that has been idle for longer than the poller's deadline can be
// looked at. On Linux that is no call of its own where nothing has come.
func TestLazyLook(t *testing.T) {
	c, peer, _ := lazyPair(t)
	must.OK(t, c.SetDeadline(time.Now().Add(-time.Second)), c.SetDeadline(time.Time{}))
	quiet := must.Get(c.SyscallConn())(t)
	must.OK(t, quiet.Read(func(uintptr) bool {
		if runtime.GOOS == "linux" {
			t.Error("looked at a connection on which nothing has come")
		}
		return true
	}))
	must.Get(peer.Write([]byte("x")))(t)
	comes(t, c)
	must.OK(t, c.SetDeadline(time.Now().Add(-time.Second)), c.SetDeadline(time.Time{}))
	raw := must.Get(c.SyscallConn())(t)
	looks := 0
	look := func(uintptr) bool { looks++; return true }
	must.OK(t, raw.Read(look), raw.Write(look), raw.Control(func(uintptr) { looks++ }))
	if looks != 3 {
		t.Errorf("%d looks, want 3", looks)
	}
	must.OK(t, c.SetDeadline(time.Now().Add(-time.Second)))
	if err := errors.Join(raw.Read(look), raw.Write(look)); !errors.Is(err, os.ErrDeadlineExceeded) || looks != 3 {
		t.Errorf("got %v after %d looks, want %v", err, looks, os.ErrDeadlineExceeded)
	}
	must.OK(t, c.SetDeadline(time.Time{}))
	must.Get(c.Read(make([]byte, 8)))(t)
	must.OK(t, peer.Close())
	comes(t, c)
	if must.OK(t, raw.Read(look)); looks != 4 {
		t.Error("the end was not looked at")
	}
}

// comes waits until something has come on a connection, without reading it.
func comes(t *testing.T, c *lazyConn) {
	t.Helper()
	must.OK(t, c.raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		return !errors.Is(err, syscall.EAGAIN)
	}))
}
