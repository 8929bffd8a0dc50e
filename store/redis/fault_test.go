package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// patience is how long a test waits for what must happen soon before it fails.
const patience = 30 * time.Second

// calls are all calls of an index that go to the server.
func calls(x *Index) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"lookup": func(ctx context.Context) error {
			c := &storetest.Collector{Keys: 1}
			err := x.Lookup(ctx, &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: c})
			if c.Registry == nil {
				return errors.New("Begin was not called")
			}
			return err
		},
		"apply": func(ctx context.Context) error { return x.Apply(ctx, batchOf("a", store.Add, 1)) },
		"register": func(ctx context.Context) error {
			_, err := x.Register(ctx, store.Pod{Name: "a", Model: "m"})
			return err
		},
		"retire":   func(ctx context.Context) error { _, err := x.Retire(ctx, "b"); return err },
		"registry": func(ctx context.Context) error { _, err := x.Registry(ctx); return err },
		"model": func(ctx context.Context) error {
			_, err := x.EnsureModel(ctx, store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative})
			return err
		},
		"sweep": func(ctx context.Context) error { _, err := x.Sweep(ctx); return err },
	}
}

// within fails the test when f does not return in time.
func within(t *testing.T, d time.Duration, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		t.Fatalf("%s has not returned after %v", what, d)
		return nil
	}
}

// waitForLease waits until a pod's lease is over by the clock of the server, which no event announces.
func waitForLease(t *testing.T, x *Index, pod string) {
	t.Helper()
	eventually.NoError(t, "the lease of "+pod, func() error {
		now, err := x.space.Client.Time(t.Context()).Result()
		if err != nil {
			return err
		}
		// One that is not there is over.
		if end := x.space.Client.ZScore(t.Context(), x.space.Names.Live, pod).Val(); float64(now.UnixMicro())/1000 <= end {
			return errors.New("it is not over")
		}
		return nil
	})
}

// TestServerDownAtStart opens an index of a server that comes later.
func TestServerDownAtStart(t *testing.T) {
	s := redistest.Prepare(t)
	for _, url := range []string{s.URL(), s.UnixURL()} {
		x := open(t, Config{URL: url, Timeout: time.Minute})
		for name, f := range calls(x) {
			err := within(t, patience, name, func() error { return f(t.Context()) })
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s of a server that is down: got %v, want ErrUnavailable", name, err)
			}
		}
		s.Run()
		for name, f := range calls(x) {
			eventually.NoError(t, name, func() error { return f(t.Context()) })
		}
		wantBlocks(t, x, []blockkey.Key{1}, "a")
		s.Kill()
	}
}

// TestServerRestarts kills the server under an index that is in use.
func TestServerRestarts(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL()})
	for life := range 3 {
		apply(t, x, batchOf("a", store.Add, 1))
		wantBlocks(t, x, []blockkey.Key{1}, "a")
		// Leave idle connections behind, which the kill breaks.
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { find(t, x, 1) })
		}
		wg.Wait()
		s.Kill()
		for name, f := range calls(x) {
			err := within(t, patience, name, func() error { return f(t.Context()) })
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("life %d: %s of a server that is down: got %v, want ErrUnavailable", life, name, err)
			}
		}
		s.Run()
		for name, f := range calls(x) {
			eventually.NoError(t, name, func() error { return f(t.Context()) })
		}
	}
}

// TestServerFreezes stops the server without closing its connections. Calls end
// at their contexts' deadlines, far before the client's own timeout.
func TestServerFreezes(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), Timeout: 10 * patience, NoSweep: true})
	apply(t, x, batchOf("a", store.Add, 1))
	wantBlocks(t, x, []blockkey.Key{1}, "a")
	s.Freeze()
	for name, f := range calls(x) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := within(t, patience, name, func() error { return f(ctx) })
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a frozen server: got %v, want ErrUnavailable and DeadlineExceeded", name, err)
		}
		cancel()
	}
	s.Thaw()
	eventually.NoError(t, "lookup", func() error { return calls(x)["lookup"](t.Context()) })
	wantBlocks(t, x, []blockkey.Key{1}, "a")
}

// TestClientTimeout: without a deadline of the caller the config's counts.
func TestClientTimeout(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), Timeout: 100 * time.Millisecond, NoSweep: true})
	apply(t, x, batchOf("a", store.Add, 1))
	wantBlocks(t, x, []blockkey.Key{1}, "a")
	s.Freeze()
	defer s.Thaw()
	for name, f := range calls(x) {
		err := within(t, patience, name, func() error { return f(t.Context()) })
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s of a frozen server: got %v, want ErrUnavailable", name, err)
		}
	}
}

// TestCloseWhileFrozen: Close does not wait for a server.
func TestCloseWhileFrozen(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), Timeout: 10 * patience, SweepInterval: time.Millisecond})
	apply(t, x, batchOf("a", store.Add, 1), batchOf("a", store.Clear))
	s.Freeze()
	defer s.Thaw()
	errs := make(chan error)
	for name, f := range calls(x) {
		if name != "lookup" && name != "registry" {
			continue
		}
		go func() { errs <- f(context.Background()) }()
	}
	eventually.True(t, "calls in flight", func() bool {
		p := x.space.Client.PoolStats()
		return p.TotalConns > p.IdleConns
	})
	if err := within(t, patience, "Close", x.Close); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range 2 {
		err := within(t, patience, "a call in flight", func() error { return <-errs })
		if err == nil {
			t.Error("a call in flight succeeded")
		}
	}
}

// TestOutOfMemory: a server that refuses writes is unavailable for them, and
// says why.
func TestOutOfMemory(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL()})
	apply(t, x, batchOf("a", store.Add, 1))
	must.OK(t, s.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
	err := x.Apply(t.Context(), batchOf("a", store.Add, 2))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("got %v, want ErrUnavailable that says OOM", err)
	}
	wantBlocks(t, x, []blockkey.Key{1, 2}, "a", "")
}

// TestClientLogsToObserver: what the Redis client logs goes to the observer.
func TestClientLogsToObserver(t *testing.T) {
	stderr := os.Stderr
	r, w, err := os.Pipe()
	must.OK(t, err)
	os.Stderr = w
	defer func() { os.Stderr = stderr }()
	heard := make(chan string, 100)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	_ = l.Close()
	x := open(t, Config{URL: "redis://:secret@" + addr, Observer: Observer{Log: func(m string) {
		select {
		case heard <- m:
		default:
		}
	}}})
	if _, err := x.Registry(t.Context()); !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want ErrUnavailable without the password", err)
	}
	select {
	case m := <-heard:
		if strings.Contains(m, "secret") {
			t.Errorf("the password is in %q", m)
		}
	case <-time.After(patience):
		t.Error("the observer has heard nothing")
	}
	_ = w.Close()
	buf := make([]byte, 1000)
	if n, _ := r.Read(buf); n > 0 {
		t.Errorf("on stderr: %q", buf[:n])
	}
}
