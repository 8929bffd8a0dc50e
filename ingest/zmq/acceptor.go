package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// acceptor takes connections on a bound endpoint, and has each served by a goroutine of its own.
type acceptor struct {
	filter Filter
	room   int // how many connections there are at a time; more are closed at once
	// refused receives those that find no room or do not pass the filter; it may be nil.
	refused func(nc net.Conn, err error)
	// serve serves a connection, which is closed after it unless it is kept.
	serve func(ctx context.Context, nc net.Conn) (kept bool)

	listener net.Listener
	end      context.CancelFunc
	wg       sync.WaitGroup

	mu    sync.Mutex // protects conns, done
	conns map[net.Conn]struct{}
	done  bool
}

// listen binds the endpoint and accepts until close.
func (a *acceptor) listen(ctx context.Context, to endpoint) error {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, to.network, to.address)
	if err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	ctx, a.end = context.WithCancel(context.WithoutCancel(ctx))
	a.listener, a.conns = l, map[net.Conn]struct{}{}
	a.wg.Go(func() { a.run(ctx) })
	return nil
}

func (a *acceptor) run(ctx context.Context) {
	for {
		nc, err := a.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors or the like: it passes.
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		if err := a.enter(nc); err != nil {
			if a.refused != nil {
				a.refused(nc, err)
			}
			_ = nc.Close()
			continue
		}
		a.wg.Go(func() {
			if !a.serve(ctx, nc) {
				_ = nc.Close()
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.conns, nc)
		})
	}
}

// enter counts a connection, or says why it cannot stay.
func (a *acceptor) enter(nc net.Conn) error {
	if err := admit(a.filter, nc); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done || len(a.conns) >= a.room {
		return ErrPeers
	}
	a.conns[nc] = struct{}{}
	return nil
}

// count returns how many connections there are, those in their handshakes included.
func (a *acceptor) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns)
}

// close ends all connections that are not kept, and waits for what serves them.
func (a *acceptor) close() error {
	if a.listener == nil {
		return nil
	}
	a.end()
	err := a.listener.Close()
	a.mu.Lock()
	a.done = true
	for nc := range a.conns {
		_ = nc.Close()
	}
	a.mu.Unlock()
	a.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
