package redisx

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// counted is a context that counts who waits for it.
type counted struct {
	context.Context
	waits atomic.Int32
}

func (c *counted) Done() <-chan struct{} {
	c.waits.Add(1)
	return c.Context.Done()
}

// openServer connects to a server with one connection.
func openServer(t *testing.T, s *redistest.Server) *Conn {
	t.Helper()
	target := must.Get(ParseURL(s.URL()))(t)
	c := Open(Config{Target: target, Protocol: 3, PoolSize: 1, DialTimeout: time.Minute, Timeout: time.Minute})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestGlances: a command on a connection that is there waits for no context, in a pipeline or not.
// One whose context is over is not sent.
func TestGlances(t *testing.T) {
	c := openServer(t, redistest.Start(t))
	pipe := func(ctx context.Context) error {
		_, err := c.Client.Pipelined(ctx, func(p redis.Pipeliner) error { p.Incr(ctx, "n"); return nil })
		return err
	}
	incr := func(ctx context.Context) error { return c.Client.Incr(ctx, "n").Err() }
	must.OK(t, incr(t.Context()))
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	ctx := &counted{Context: within}
	must.OK(t, incr(ctx), pipe(ctx))
	if n := ctx.waits.Load(); n != 0 {
		t.Errorf("%d waits for the context, want none", n)
	}
	cancel()
	if err := errors.Join(incr(ctx), pipe(ctx)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if n, err := c.Client.Get(t.Context(), "n").Int(); n != 3 || err != nil {
		t.Errorf("%d commands were made (%v), want 3", n, err)
	}
}

// TestFrozenServer: a caller waits for a server that has stopped, for a turn behind others, or for a
// connection. It does so for as long as its own budget, and no shorter.
func TestFrozenServer(t *testing.T) {
	s := redistest.Start(t)
	c := openServer(t, s)
	const budget = 40 * time.Millisecond
	outlast := func(what string) {
		t.Helper()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), budget)
		defer cancel()
		err := c.Client.Get(ctx, "x").Err()
		if timeout, is := errors.AsType[net.Error](err); !is || !timeout.Timeout() { // context.DeadlineExceeded is one
			t.Errorf("%s: got %v, want a timeout", what, err)
		}
		if took := time.Since(began); took < budget {
			t.Errorf("%s: it ended after %v, within a budget of %v", what, took, budget)
		}
	}
	for _, wait := range []time.Duration{time.Hour, budget, time.Hour} { // what the poller has from before
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		must.OK(t, c.Client.Set(ctx, "y", 1, 0).Err())
		cancel()
	}
	s.Freeze()
	outlast("the server has stopped")
	s.Thaw()
	must.OK(t, c.Client.Ping(t.Context()).Err())

	s.Freeze()
	first := make(chan error)
	go func() { first <- c.Client.Ping(t.Context()).Err() }()
	for c.Client.PoolStats().IdleConns > 0 { // until it has the connection
		runtime.Gosched()
	}
	outlast("another has the connection")
	canceled, cancel := context.WithCancel(t.Context())
	second := make(chan error)
	go func() { second <- c.Client.Ping(canceled).Err() }()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	s.Thaw()
	must.OK(t, <-first)

	release := make(chan struct{})
	away := openServer(t, s)
	away.dialer.dial = func(context.Context, string, string) (net.Conn, error) {
		<-release
		return nil, errors.New("away")
	}
	c = away
	outlast("no connection can be made")
	close(release)
}
