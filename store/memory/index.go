package memory

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Index is an in-memory [store.Index]. It is made by [New]. All methods are
// safe for concurrent use.
type Index struct {
	// What lookups read. None of it is written by a lookup, but for counters of
	// their own cache lines.
	tables   [numShards]atomic.Pointer[table]
	log      blockLog
	closed   atomic.Bool
	touching atomic.Bool   // lookups renew the age of what they find
	age      atomic.Uint32 // the present age, of which slots keep the lower 6 bits
	seed     uint64        // keeps others from choosing which blocks share a bucket
	factor   uint64        // odd, for the same reason
	sets     sets
	registry registry
	leases   leases

	_       [64]byte
	read    counter
	evicted atomic.Uint64
	// duplicates counts guarded batches that were skipped.
	duplicates atomic.Uint64
	blocks     atomic.Int64
	bytes      atomic.Int64 // of chunks and tables

	// gate is held shared to change slots, for one op at a time. It is held alone to free sets or to know
	// that all changes have arrived.
	gate sync.RWMutex

	maxBlocks, maxBytes int64
	shards              [numShards]shard
	lanes               [lanes]lane

	janitor janitor
}

var _ store.Index = (*Index)(nil)

// New makes an empty index. It must be closed, to end the goroutine that
// gives memory back.
func New(cfg Config) (*Index, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	x := &Index{
		seed: rand.Uint64(), factor: rand.Uint64() | 1,
		maxBlocks: int64(cfg.MaxBlocks), maxBytes: cfg.MaxBytes,
	}
	x.empty()
	x.bytes.Store(numShards * bucketBytes)
	x.log.init(cfg.MaxBytes)
	x.sets.init(cfg.MaxBytes / 2)
	x.registry.init(cfg, &x.sets)
	x.janitor.start(x)
	return x, nil
}

// empty gives every shard an empty table.
func (x *Index) empty() {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		t := make(table, 1)
		s.t, s.live = t, 0
		x.tables[i].Store(&t)
		s.mu.Unlock()
	}
}

// hash mixes a store key, one to one. Keys are hashes already, most of them;
// but anyone may write any key.
func (x *Index) hash(k blockkey.StoreKey) uint64 {
	h := (uint64(k) ^ x.seed) * x.factor
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}

// Register implements [store.Index].
func (x *Index) Register(ctx context.Context, p store.Pod) (created bool, err error) {
	if err := x.enter(ctx); err != nil {
		return false, err
	}
	if err := p.Validate(); err != nil {
		return false, err
	}
	created, err = x.registry.register(p)
	x.janitor.wake()
	return created, err
}

// Retire implements [store.Index].
func (x *Index) Retire(ctx context.Context, pod string) (known bool, err error) {
	if err := x.enter(ctx); err != nil {
		return false, err
	}
	if err := store.CheckPodName(pod); err != nil {
		return false, err
	}
	known = x.registry.retire(pod)
	x.janitor.wake()
	return known, nil
}

// EnsureModel implements [store.Index].
func (x *Index) EnsureModel(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	if err := x.enter(ctx); err != nil {
		return store.ModelInfo{}, err
	}
	if err := want.Validate(); err != nil {
		return store.ModelInfo{}, err
	}
	return x.registry.ensure(want)
}

// Registry implements [store.Index].
func (x *Index) Registry(ctx context.Context) (*store.Registry, error) {
	if err := x.enter(ctx); err != nil {
		return nil, err
	}
	return x.registry.current(), nil
}

// Cached implements [store.Index].
func (x *Index) Cached() *store.Registry { return x.registry.current() }

// Stats implements [store.Index]. Blocks counts those of ended lives until they
// have been swept.
func (x *Index) Stats() store.Stats {
	return store.Stats{
		Blocks:        x.blocks.Load(),
		Bytes:         x.bytes.Load() + x.sets.size.Load(),
		Evicted:       x.evicted.Load(),
		Duplicates:    x.duplicates.Load(),
		KeysRead:      x.read.sum(),
		RegistryLoads: x.registry.loads.Load(),
	}
}

// Close implements [store.Index]. It waits for writes that have begun and gives
// all blocks back.
func (x *Index) Close() error {
	x.gate.Lock()
	if !x.closed.Swap(true) {
		x.empty()
		for i := range x.log.root {
			x.log.root[i].Store(nil)
		}
		for i := range x.lanes {
			x.lanes[i].c = nil
		}
	}
	x.gate.Unlock()
	x.janitor.stop()
	return nil
}

func (x *Index) enter(ctx context.Context) error {
	if x.closed.Load() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// counter counts without a line that all cores write to.
type counter struct {
	lanes [16]struct {
		n atomic.Uint64
		_ [56]byte
	}
}

func (c *counter) add(n uint64) { c.lanes[rand.Uint32()%16].n.Add(n) }

func (c *counter) sum() (n uint64) {
	for i := range c.lanes {
		n += c.lanes[i].n.Load()
	}
	return n
}
