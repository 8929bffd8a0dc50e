package enginetest

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Link is a port of this machine behind which another one is: its connections can be held up
// and cut. It is safe for concurrent use.
type Link struct {
	// Port is where it listens.
	Port int

	mu    sync.Mutex // protects open and passes
	open  []net.Conn
	where string
	// passes is closed while bytes pass.
	passes chan struct{}
}

// NewLink has a link to a port of this machine until the test ends.
func NewLink(tb testing.TB, target int) *Link {
	tb.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(tb)
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		tb.Fatalf("listens at %v", l.Addr())
	}
	k := &Link{Port: addr.Port, where: fmt.Sprintf("127.0.0.1:%d", target), passes: make(chan struct{})}
	close(k.passes)
	var wg sync.WaitGroup
	tb.Cleanup(func() {
		_ = l.Close() // it ends the loop below
		k.Release()
		k.Cut()
		wg.Wait()
	})
	ctx := tb.Context()
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(ctx, "tcp", k.where)
			if err != nil {
				_ = in.Close() // its client dials again
				continue
			}
			k.mu.Lock()
			k.open = append(k.open, in, out)
			k.mu.Unlock()
			wg.Go(func() { k.pipe(out, in) })
			wg.Go(func() { k.pipe(in, out) })
		}
	})
	return k
}

// pipe passes bytes on until either connection ends, and ends both.
func (k *Link) pipe(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }() // either may have ended
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		k.mu.Lock()
		passes := k.passes
		k.mu.Unlock()
		<-passes
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Hold keeps all bytes back until Release.
func (k *Link) Hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passes = make(chan struct{})
}

// Release lets bytes pass that Hold has kept back.
func (k *Link) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.passes:
	default:
		close(k.passes)
	}
}

// Cut ends all connections. What is held is lost with them.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.open {
		_ = c.Close() // it may have ended
	}
	k.open = nil
}
