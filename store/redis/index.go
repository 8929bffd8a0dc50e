package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
)

// Index is a block index in Redis. It implements store.Index and is safe for
// concurrent use.
type Index struct {
	config  Config
	conn    *redisx.Conn
	client  redis.UniversalClient
	cluster bool
	names   *names

	registry registryCache
	holders  holderCache
	pace     pace
	clocks   clocks
	acks     *ackCache
	views    enginemap.Views
	lists    *mapLogs
	folding  chan struct{} // has an element while a map is folded
	readOnly readOnly
	attempts atomic.Uint64 // numbers the tries at writing in parts

	texts, unknownTexts atomic.Uint64
	// textsThere is true when texts have been met since the last sweep began.
	textsThere atomic.Bool

	guestMu sync.Mutex // protects guests
	guests  []guestSet

	entriesRefused sync.Once    // for the log
	source         *entrySource // nil where entries are in the index's Redis
	said           *onceLog

	garbled, roundTrips, keysRead, registryLoads, duplicates atomic.Uint64

	// life ends at Close; what runs in the background heeds it.
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex // protects closed, and running from growing after it
	closed  bool
}

var _ store.Index = (*Index)(nil)

// Open opens the index at the config's URL. It fails on a config that cannot
// be right, never because the server cannot be reached: it does no I/O.
func Open(c Config) (*Index, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	t, err := redisx.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	x := &Index{
		config: c, conn: redisx.Open(c.connection(t)), cluster: t.Topology == redisx.Cluster, names: newNames(c.Prefix),
		acks: newAckCache(c.MaxHolders), lists: newMapLogs(foldEntries, c.MaxHolders), folding: make(chan struct{}, 1),
		said: newOnceLog(onceLimit),
	}
	if x.source, err = c.openEntries(); err != nil {
		return nil, errors.Join(fmt.Errorf("redis: the Redis of entries: %w", err), x.conn.Close())
	}
	x.life, x.end = context.WithCancel(context.Background())
	x.registry.current.Store(&snapshot{registry: store.NewRegistry(0, nil, nil, nil, time.Time{})})
	x.client = x.conn.Client
	if !c.NoSweep {
		x.spawn(x.sweepLoop)
	}
	return x, nil
}

// String says where the index is, without the password.
func (x *Index) String() string { return x.conn.Target.String() + " prefix " + x.config.Prefix }

// spawn runs f in the background until Close, unless the index is closed.
func (x *Index) spawn(f func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return false
	}
	x.running.Go(f)
	return true
}

// Close implements store.Index. Calls in flight end with an error. Later calls of it wait
// until the first is done with what runs in the background.
func (x *Index) Close() error {
	x.mu.Lock()
	was := x.closed
	x.closed = true
	x.mu.Unlock()
	if was {
		x.running.Wait()
		return nil
	}
	x.end()
	err := x.conn.Close()
	if x.source != nil {
		err = errors.Join(err, x.source.conn.Close())
	}
	x.running.Wait()
	return err
}

// begin refuses what is called too late.
func (x *Index) begin(ctx context.Context, doing string) error {
	if x.life.Err() != nil {
		return store.ErrClosed
	}
	return failed(ctx, doing, ctx.Err())
}

// Stats implements store.Index.
func (x *Index) Stats() store.Stats {
	return store.Stats{
		Blocks: -1, Bytes: -1,
		Garbled: x.garbled.Load(), Texts: x.texts.Load(), UnknownTexts: x.unknownTexts.Load(), RoundTrips: x.roundTrips.Load(), KeysRead: x.keysRead.Load(), RegistryLoads: x.registryLoads.Load(), Duplicates: x.duplicates.Load(),
	}
}

func (x *Index) log(msg string) {
	if x.config.Observer.Log != nil {
		x.config.Observer.Log(msg)
	}
}
