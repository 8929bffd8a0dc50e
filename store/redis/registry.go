package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// snapshot is a registry, and what it has been made of.
type snapshot struct {
	registry *store.Registry
	// loaded is false for the empty registry that an Index begins with.
	loaded bool
	roster roster
	late   map[string]bool // pods whose leases have run out
	clock  serverClock
	// open are the models whose texts count for pods that nobody has registered; nil where
	// there are none.
	open map[blockkey.Model]bool
	// texts are the texts that name pods, made when the first is met; nil where
	// there are none.
	texts func() texts
	// owners are whom entries of LMCache name; nil when they are not read.
	owners *owners
}

// fresh reports whether the snapshot is right for an index at this epoch. An epoch
// that is lost (0) tells nothing, unless there is nobody.
func (s *snapshot) fresh(epoch uint64) bool {
	return s.loaded && s.registry.Epoch == epoch && !s.stale() && (epoch != 0 || len(s.roster.members) == 0)
}

// stale reports whether a lease has run out since.
func (s *snapshot) stale() bool {
	until := s.registry.ValidUntil
	return !until.IsZero() && !time.Now().Before(until)
}

// registryCache holds the last registry, and makes one load serve all who wait
// for it.
type registryCache struct {
	current atomic.Pointer[snapshot]

	mu     sync.Mutex // protects flight and whole
	flight *flight    // the load that is running, if any
	whole  bool       // the next load must read all: somebody waits for it
}

// flight is a running load. Its results may be read when done is closed.
type flight struct {
	done  chan struct{}
	whole bool // reads all, not just what has changed
	snap  *snapshot
	err   error
}

// Cached implements store.Index.
func (x *Index) Cached() *store.Registry { return x.registry.current.Load().registry }

// Registry implements store.Index.
func (x *Index) Registry(ctx context.Context) (*store.Registry, error) {
	if err := x.space.Check(ctx, "registry"); err != nil {
		return nil, err
	}
	s, err := x.loadEither(ctx, true, func(*snapshot) bool { return false })
	if err != nil {
		return nil, err
	}
	return s.registry, nil
}

// load returns a snapshot that is either enough for the caller or has been
// loaded wholly after the call began.
//
// A load that was under way when the caller came may have read before whatever
// made him come:
//
//	A: starts a load, which reads epoch 7
//	B: registers a pod: epoch 8
//	C: reads epoch 8 and wants the registry
//
// so C takes A's result only if it is enough, and else waits for the next.
func (x *Index) load(ctx context.Context, enough func(*snapshot) bool) (*snapshot, error) {
	return x.loadEither(ctx, false, enough)
}

// loadEither is load. whole is for who wants all to be read, not just what has
// changed.
func (x *Index) loadEither(ctx context.Context, whole bool, enough func(*snapshot) bool) (*snapshot, error) {
	s, mine, err := x.await(ctx, whole)
	if mine || ctx.Err() != nil || (err == nil && enough(s)) {
		return s, err
	}
	// The next one begins after this call did, whoever starts it, and reads all if
	// this call wants that.
	s, _, err = x.await(ctx, whole)
	return s, err
}

// await waits for the running load, or starts one, which makes it mine.
func (x *Index) await(ctx context.Context, whole bool) (s *snapshot, mine bool, err error) {
	f, mine := x.join(whole)
	if f == nil {
		return nil, mine, store.ErrClosed
	}
	select {
	case <-f.done:
		return f.snap, mine, f.err
	case <-ctx.Done():
		return nil, mine, keyspace.Failed(ctx, "registry", ctx.Err())
	}
}

// join returns the running load, or starts one, which makes it mine; nil when
// the index is closed.
func (x *Index) join(whole bool) (f *flight, mine bool) {
	c := &x.registry
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		c.whole = c.whole || whole // the running one may have read too early
		return c.flight, false
	}
	f = &flight{done: make(chan struct{}), whole: whole || c.whole}
	if !x.space.Spawn(func() { x.fly(f) }) {
		return nil, false
	}
	c.flight, c.whole = f, false
	return f, true
}

// fly makes the load of f. It has a deadline of its own: whoever waits may
// leave without harm to the others.
func (x *Index) fly(f *flight) {
	ctx, cancel := context.WithTimeout(x.space.Life, x.config.Timeout)
	defer cancel()
	begin := time.Now()
	base := x.registry.current.Load()
	read := x.refresh
	if f.whole {
		read = x.read
	}
	snap, late, err := read(ctx, base)
	f.snap, f.err = snap, keyspace.Failed(ctx, "loading the registry", err)
	x.registry.mu.Lock()
	if err == nil {
		x.registry.current.Store(snap)
	}
	x.registry.flight = nil
	x.registry.mu.Unlock()
	x.registryLoads.Add(1) // before those who wait for it look
	close(f.done)

	if told := x.config.Observer.RegistryLoaded; told != nil {
		r := x.Cached()
		told(time.Since(begin), len(r.Pods), len(r.Slots), f.err)
	}
	// Nobody waits for this: the late pods are not in the snapshot already.
	x.retireNoticed(ctx, late)
}
