package zmq

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// deaf takes connections and says nothing on them, like an address that a client has made
// up.
type deaf struct {
	net.Listener
	mu   sync.Mutex // protects all below
	hold bool
	held []net.Conn
}

func (d *deaf) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.held)
}

// accept closes each connection, or keeps it from when hold is set.
func (d *deaf) accept() {
	for {
		c, err := d.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		keep := d.hold
		if keep {
			d.held = append(d.held, c)
		}
		d.mu.Unlock()
		if !keep {
			_ = c.Close()
		}
	}
}

// watched is a Handler that reports the first connection and the first failure.
type watched struct{ connected, failed func() }

func (w watched) Connected(string)   { w.connected() }
func (w watched) Disconnected(error) { w.failed() }
func (watched) Message(Message)      {}
func (watched) Malformed(error)      {}

// TestCaseSmallOnesUnderAttackDials floods a process with addresses that never answer. Few
// connections are being made at once, and an engine that comes then is reached all the same.
func TestCaseSmallOnesUnderAttackDials(t *testing.T) {
	const places, floods = 4, 200
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	d := &deaf{Listener: l}
	var running, failing sync.WaitGroup
	running.Go(d.accept)
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
		for _, c := range d.held {
			_ = c.Close()
		}
	})
	dials := NewDials(places)
	run := func(endpoint string, h Handler) {
		// A held connection stays until the test ends.
		s := must.Get(NewSubscriber(Config{Endpoint: endpoint, Dials: dials, ConnectTimeout: time.Hour, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond}, h))(t)
		running.Go(func() { _ = s.Run(t.Context()) })
	}
	for range floods {
		failing.Add(1)
		run("tcp://"+l.Addr().String(), watched{func() {}, sync.OnceFunc(failing.Done)})
	}
	failing.Wait()
	d.mu.Lock()
	d.hold = true
	d.mu.Unlock()

	live := endpoint4("127.0.0.1", redistest.FreePort(t))
	newPublisher(t, PublisherConfig{Endpoint: live})
	connected := make(chan struct{})
	run(live, watched{sync.OnceFunc(func() { close(connected) }), func() {}})
	<-connected
	eventually.True(t, "the flood's connections", func() bool { return d.count() >= places })
	// Ours are taken after all that came before them.
	for range places {
		before := d.count()
		c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = c.Close() })
		eventually.True(t, "our connection", func() bool { return d.count() > before })
	}
	if n := d.count(); n > 2*places {
		t.Errorf("%d connections were being made at once, %d may", n-places, places)
	}
}
