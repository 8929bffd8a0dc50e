package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
	"github.com/kvatlas/kvatlas/store/redis/external"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

// Index is a block index in Redis. It implements store.Index and is safe for
// concurrent use.
type Index struct {
	config Config
	space  *keyspace.Space

	roster     *roster.Cache
	holders    holderCache
	pace       pace
	acks       *ackCache
	views      enginemap.Views
	lists      *mapLogs
	compacting chan struct{} // has an element while a map is compacted
	readOnly   readOnly
	attempts   atomic.Uint64 // numbers the tries at writing in parts

	// textsThere is true when texts have been met since the last sweep began.
	textsThere atomic.Bool

	external *external.Source
	changes  *changelog.Log

	keysRead, duplicates atomic.Uint64
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
	var elsewhere *redisx.Config
	if c.EntriesURL != "" {
		t, err := redisx.ParseURL(c.EntriesURL)
		if err != nil {
			return nil, fmt.Errorf("redis: the Redis of entries: %w", err)
		}
		to := c.connection(t)
		elsewhere = &to
	}
	x := &Index{
		config: c, space: keyspace.Open(c.connection(t), c.Prefix),
		acks: newAckCache(c.MaxHolders), lists: newMapLogs(c.compactAt, c.MaxHolders), compacting: make(chan struct{}, 1),
	}
	x.changes = changelog.New(x.space)
	x.external = external.Open(x.space, elsewhere, c.EntryAge, c.clock)
	x.roster = roster.New(x.space, roster.Config{Texts: c.TextAge >= 0, Entries: c.Entries, Loaded: c.Observer.RegistryLoaded, Late: x.retireNoticed})
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
	return errors.Join(x.external.Close(), x.space.Close())
}

// External is what other programs keep in Redis, where lookups of lmcache.EntryNames read too.
func (x *Index) External() *external.Source { return x.external }

// Stats implements store.Index.
func (x *Index) Stats() store.Stats {
	return store.Stats{
		Blocks: -1, Bytes: -1,
		Garbled: x.space.Garbled.Load(), Texts: x.space.Texts.Load(), UnknownTexts: x.space.UnknownTexts.Load(), RoundTrips: x.space.Trips.Load(), KeysRead: x.keysRead.Load(), RegistryLoads: x.roster.Loads.Load(), Duplicates: x.duplicates.Load(),
	}
}

// Registry implements store.Index.
func (x *Index) Registry(ctx context.Context) (*store.Registry, error) {
	if err := x.space.Check(ctx, "registry"); err != nil {
		return nil, err
	}
	return x.roster.Load(ctx)
}

// Cached implements store.Index.
func (x *Index) Cached() *store.Registry { return x.roster.Current().Registry }

// EntryOwners returns the names of the pods that entries of a model mean by texts, as
// lookups of lmcache.EntryNames find them. They are in order; "" is for a text that means
// no pod. It needs Config.Entries.
func (x *Index) EntryOwners(ctx context.Context, model string, owners []string) ([]string, error) {
	if _, err := x.Registry(ctx); err != nil {
		return nil, err
	}
	s := x.roster.Current()
	named := s.Owners(blockkey.ModelOf(model))
	out := make([]string, len(owners))
	for i, text := range owners {
		id, ok := named.Owner(text)
		if !ok {
			continue
		}
		if slot, _, live := s.Registry.Holder(id); live {
			out[i] = s.Registry.Pods[s.Registry.Slots[slot].Pod].Name
		}
	}
	return out, nil
}

// SetLog switches the log of changes on, or with 0 entries off: see [changelog.Log.Set].
func (x *Index) SetLog(ctx context.Context, entries int) error { return x.changes.Set(ctx, entries) }

// EnsureLog switches the log on unless SetLog has decided before: see [changelog.Log.Ensure].
func (x *Index) EnsureLog(ctx context.Context, entries int) (inForce int, err error) {
	return x.changes.Ensure(ctx, entries)
}

// LogOffsets returns the ids of the last entries: see [changelog.Log.Offsets].
func (x *Index) LogOffsets(ctx context.Context) (map[string]string, error) {
	return x.changes.Offsets(ctx)
}

// Follow starts a feed of the index's blocks and changes, which ends with the index.
func (x *Index) Follow(c changelog.Config) (*changelog.Feed, error) {
	c.Texts = x.config.TextAge >= 0
	return x.changes.Follow(x.roster, c)
}
