package redis

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Index is a block index in Redis. It implements store.Index and is safe for
// concurrent use.
type Index struct {
	config Config
	space  *keyspace.Space

	registry registryCache
	holders  holderCache
	pace     pace
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

	keysRead, registryLoads, duplicates atomic.Uint64
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
		config: c, space: keyspace.Open(c.connection(t), c.Prefix),
		acks: newAckCache(c.MaxHolders), lists: newMapLogs(c.compactAt, c.MaxHolders), folding: make(chan struct{}, 1),
	}
	if x.source, err = c.openEntries(); err != nil {
		return nil, errors.Join(fmt.Errorf("redis: the Redis of entries: %w", err), x.space.Close())
	}
	x.registry.current.Store(&snapshot{registry: store.NewRegistry(0, nil, nil, nil, time.Time{})})
	if !c.NoSweep {
		x.space.Spawn(x.sweepLoop)
	}
	return x, nil
}

// String says where the index is, without the password.
func (x *Index) String() string { return x.space.Conn.Target.String() + " prefix " + x.config.Prefix }

// Close implements store.Index. Calls in flight end with an error. Later calls of it wait
// until the first is done with what runs in the background.
func (x *Index) Close() error {
	var err error
	if x.source != nil {
		err = x.source.close()
	}
	return errors.Join(x.space.Close(), err)
}

// Stats implements store.Index.
func (x *Index) Stats() store.Stats {
	return store.Stats{
		Blocks: -1, Bytes: -1,
		Garbled: x.space.Garbled.Load(), Texts: x.texts.Load(), UnknownTexts: x.unknownTexts.Load(), RoundTrips: x.space.Trips.Load(), KeysRead: x.keysRead.Load(), RegistryLoads: x.registryLoads.Load(), Duplicates: x.duplicates.Load(),
	}
}
