// Package roster has the registry as it is read: pods, holders and models as of an epoch, and
// the texts that name pods. One load serves all that wait for it.
package roster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Snapshot is a registry, and what it has been made of.
type Snapshot struct {
	Registry *store.Registry
	// loaded is false for the empty registry that an Index begins with.
	loaded bool
	roster roster
	late   map[string]bool // pods whose leases have run out
	clock  serverClock
	// open are the models whose texts count for pods that are not registered; nil where
	// there are none.
	open map[blockkey.Model]bool
	// texts are the texts that name pods, made when the first is met; nil where
	// there are none.
	texts func() texts
	// owners are the pods that entries of LMCache name; nil when they are not read.
	owners *owners
}

// fresh reports whether the snapshot is right for an index at this epoch. An epoch
// that is lost (0) tells nothing, unless there are no pods.
func (s *Snapshot) fresh(epoch uint64) bool {
	return s.loaded && s.Registry.Epoch == epoch && !s.stale() && (epoch != 0 || len(s.roster.members) == 0)
}

// Usable reports whether the snapshot has been loaded, and no lease has run out since.
func (s *Snapshot) Usable() bool { return s.loaded && !s.stale() }

// AllSwept reports whether nothing is left in the index of lives that have ended.
func (s *Snapshot) AllSwept() bool { return s.roster.swept == s.roster.ended }

// Opens reports whether texts in blocks of a model count for pods that are not registered.
func (s *Snapshot) Opens(m blockkey.Model) bool { return s.open[m] }

// OpensAny reports whether those of any model do.
func (s *Snapshot) OpensAny() bool { return s.open != nil }

// AppendTexts appends the holders that a value of texts stands for, ascending, and reports
// whether each text names a pod that counts.
func (s *Snapshot) AppendTexts(ids []store.HolderID, v []byte) (_ []store.HolderID, all bool) {
	if s.texts == nil {
		return ids, false
	}
	return s.texts().append(ids, v)
}

// EachPod calls f with each registration as it is written, and the lease in it.
func (s *Snapshot) EachPod(f func(name, text string, lease time.Duration)) {
	for _, m := range s.roster.members {
		f(m.name, m.text, time.Duration(m.pod.Lease))
	}
}

// stale reports whether a lease has run out since.
func (s *Snapshot) stale() bool {
	until := s.Registry.ValidUntil
	return !until.IsZero() && !time.Now().Before(until)
}

// Config says what is read besides the registry.
type Config struct {
	// Texts says that values may name pods by text, Entries that entries of LMCache are read.
	Texts, Entries bool
	// Loaded receives each load, and how many pods and ranks are in it.
	Loaded func(took time.Duration, pods, ranks int, err error)
	// Late receives pods whose leases a load has found to have run out, in the background.
	Late func(ctx context.Context, pods []string)
}

// Cache holds the last registry, and makes one load serve all that wait for it. It is safe
// for concurrent use.
type Cache struct {
	space *keyspace.Space
	c     Config
	// Loads counts loads of the registry.
	Loads   atomic.Uint64
	current atomic.Pointer[Snapshot]

	mu     sync.Mutex // protects flight and whole
	flight *flight    // the load that is running, if any
	whole  bool       // the next load must read all: a lookup waits for it

	guestMu sync.Mutex // protects guests
	guests  []guestSet
}

// New returns the cache of a registry that has not been read.
func New(space *keyspace.Space, config Config) *Cache {
	c := &Cache{space: space, c: config}
	c.current.Store(&Snapshot{Registry: store.NewRegistry(0, nil, nil, nil, time.Time{})})
	return c
}

// Current returns the last snapshot, without any I/O. It is never nil.
func (c *Cache) Current() *Snapshot { return c.current.Load() }

// flight is a running load. Its results may be read when done is closed.
type flight struct {
	done  chan struct{}
	whole bool // reads all, not just what has changed
	snap  *Snapshot
	err   error
}

// Load reads the whole registry, and returns it as it stood after the call began.
func (c *Cache) Load(ctx context.Context) (*store.Registry, error) {
	if err := c.space.Check(ctx, "registry"); err != nil {
		return nil, err
	}
	s, err := c.loadEither(ctx, true, func(*Snapshot) bool { return false })
	if err != nil {
		return nil, err
	}
	return s.Registry, nil
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
func (c *Cache) load(ctx context.Context, enough func(*Snapshot) bool) (*Snapshot, error) {
	return c.loadEither(ctx, false, enough)
}

// loadEither is load. whole is for a caller that wants all to be read, not just what has
// changed.
func (c *Cache) loadEither(ctx context.Context, whole bool, enough func(*Snapshot) bool) (*Snapshot, error) {
	s, mine, err := c.await(ctx, whole)
	if mine || ctx.Err() != nil || (err == nil && enough(s)) {
		return s, err
	}
	// The next one begins after this call did, and reads all if this call wants that.
	s, _, err = c.await(ctx, whole)
	return s, err
}

// await waits for the running load, or starts one, which makes it mine.
func (c *Cache) await(ctx context.Context, whole bool) (s *Snapshot, mine bool, err error) {
	f, mine := c.join(whole)
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
func (c *Cache) join(whole bool) (f *flight, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		c.whole = c.whole || whole // the running one may have read too early
		return c.flight, false
	}
	f = &flight{done: make(chan struct{}), whole: whole || c.whole}
	if !c.space.Spawn(func() { c.fly(f) }) {
		return nil, false
	}
	c.flight, c.whole = f, false
	return f, true
}

// fly makes the load of f. It has a deadline of its own: a waiter may leave without harm to the others.
func (c *Cache) fly(f *flight) {
	ctx, cancel := context.WithTimeout(c.space.Life, c.space.Timeout)
	defer cancel()
	begin := time.Now()
	base := c.current.Load()
	read := c.refresh
	if f.whole {
		read = c.Read
	}
	snap, late, err := read(ctx, base)
	f.snap, f.err = snap, keyspace.Failed(ctx, "loading the registry", err)
	c.mu.Lock()
	if err == nil {
		c.current.Store(snap)
	}
	c.flight = nil
	c.mu.Unlock()
	c.Loads.Add(1) // before those that wait for it look
	close(f.done)

	if told := c.c.Loaded; told != nil {
		r := c.Current().Registry
		told(time.Since(begin), len(r.Pods), len(r.Slots), f.err)
	}
	// No caller waits for this: the late pods are not in the snapshot already.
	if c.c.Late != nil {
		c.c.Late(ctx, late)
	}
}

// RegistryAt returns the registry for blocks that were read at an epoch. With
// an error it returns the last one known.
func (c *Cache) RegistryAt(ctx context.Context, epoch uint64, known *store.Registry) (*store.Registry, error) {
	s, err := c.At(ctx, epoch, nil)
	if err != nil {
		return known, err
	}
	return s.Registry, nil
}

// At is RegistryAt with what the registry has been made of.
func (c *Cache) At(ctx context.Context, epoch uint64, known *Snapshot) (*Snapshot, error) {
	if s := c.current.Load(); s.fresh(epoch) {
		return s, nil
	}
	s, err := c.load(ctx, func(s *Snapshot) bool { return s.fresh(epoch) })
	if err != nil {
		return known, err
	}
	return s, nil
}
