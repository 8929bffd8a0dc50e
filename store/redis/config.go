package redis

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Config says where the index is and how it is used. The zero value of every
// field but URL means its default.
type Config struct {
	// URL is where Redis is; see CheckURL for its forms. It may hold a
	// password and is never printed as a whole.
	URL string
	// Prefix begins the names of all keys; DefaultPrefix by default, 1 to 32 letters,
	// digits and the characters _ . : -. Several indexes may share a server under
	// different prefixes. Longer ones than 3 bytes cost memory in each block.
	Prefix string

	// PoolSize is the number of connections to a server at most; 32 by default.
	PoolSize int
	// DialTimeout bounds the making of a connection; 1 s by default.
	DialTimeout time.Duration
	// Timeout bounds each wait for a server whose caller has no nearer deadline;
	// 2 s by default.
	Timeout time.Duration
	// Protocol is the version of RESP, 2 or 3; 3 by default.
	Protocol int

	// Windows are the numbers of blocks that a lookup reads of a chain in its
	// first, second, ... round trip. Each further one has half as many as were read before it, but no fewer
	// than the last of these. The default is {64, 256, 1024, 1536}. A window takes a rest that is no longer
	// than itself along. Small first windows make misses cheap, large later ones save round trips, and what
	// is read behind the last hit stays in proportion to it.
	Windows []int

	// MaxPods, MaxHolders and MaxModels bound what may be registered; beyond
	// them writes get store.ErrFull. 16384, 131072 and 1024 by default.
	MaxPods, MaxHolders, MaxModels int

	// MapCache is how many bytes of what has been read of maps are kept to be read no
	// more (ReadMap); 64 MiB by default.
	MapCache int

	// TextAge is how old a block's value may become that names pods by text instead of
	// by id. It counts from when the value was last written, give or take the time
	// that a sweep takes. The default is 1 hour. Negative takes such values for
	// garbled.
	TextAge time.Duration

	// Entries lets lookups read what LMCache has written into the same Redis itself
	// (lmcache.EntryNames). Without it such queries are refused.
	Entries bool
	// EntriesURL is where that Redis is, if it is another than the index's.
	EntriesURL string
	// EntryAge is how old such an entry may be that says when it was written, which
	// those of store.EntryOwners do; 0 is any age.
	EntryAge time.Duration

	// NoSweep leaves the sweeping of ended holders to other processes. Without it
	// this process sweeps when no other does.
	NoSweep bool
	// SweepDuty is the part of one connection's time that sweeping may take, 0 to
	// 1; 0.1 by default. Between two steps the sweeper rests.
	SweepDuty float64
	// SweepInterval is how often to see whether there is something to sweep; 10 s
	// by default.
	SweepInterval time.Duration

	// Observer is told what happens.
	Observer Observer

	// compactAt is how many changes of a map are worth a compaction; 0 is the default. Tests
	// have few.
	compactAt int
	// clock is that by which entries age, and their Redis is asked again after a failure;
	// time.Now unless a test has another.
	clock store.Clock
}

// Observer receives reports. Any func may be nil. They are called from the
// goroutine where it happens and must return soon.
type Observer struct {
	// Log is told what an operator may want to read, the Redis client's own
	// messages among it. It never holds a password.
	Log func(msg string)
	// RegistryLoaded receives each reload of the registry, and how many pods
	// and ranks that hold blocks are in it.
	RegistryLoaded func(took time.Duration, pods, ranks int, err error)
	// Swept receives the progress of a sweep, after each step.
	Swept func(SweepProgress)
}

// SweepProgress is how far the sweep of ended holders is.
type SweepProgress struct {
	// Ended is the number of holders whose lives have ended since the last
	// complete sweep began.
	Ended uint64
	// Scanned is the number of keys that this sweep has seen; Keys an estimate of
	// how many there are.
	Scanned, Keys uint64
	// Cleaned is the number of blocks that ended holders were removed from.
	Cleaned uint64
	// Texts is the number of blocks whose values name pods by text and stay.
	Texts uint64
	// Foreign is the number of keys that look like blocks but are no strings.
	Foreign uint64
	// Done is true in the last report of a sweep that has seen all keys.
	Done bool
}

// The limits of Config.
const (
	maxWindow   = 1 << 14
	maxPoolSize = 4096
)

// DefaultPrefix is what the names of all keys begin with unless configured.
const DefaultPrefix = "kva"

// CheckURL returns what is wrong with a URL, nil for one that Config could have. It does no
// I/O but the reading of TLS files that the URL names; redisx.ParseURL has the forms.
func CheckURL(s string) error {
	_, err := redisx.ParseURL(s)
	return err
}

// connection is how to connect to a target.
func (c Config) connection(t *redisx.Target) redisx.Config {
	return redisx.Config{Target: t, Protocol: c.Protocol, PoolSize: c.PoolSize, DialTimeout: c.DialTimeout, Timeout: c.Timeout, Log: c.Observer.Log}
}

// withDefaults returns the config with defaults in, or says what is wrong.
func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.PoolSize = cmp.Or(c.PoolSize, 32)
	c.DialTimeout = cmp.Or(c.DialTimeout, time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	c.Protocol = cmp.Or(c.Protocol, 3)
	c.MaxPods = cmp.Or(c.MaxPods, 1<<14)
	c.MaxHolders = cmp.Or(c.MaxHolders, 1<<17)
	c.MaxModels = cmp.Or(c.MaxModels, 1<<10)
	c.MapCache = cmp.Or(c.MapCache, 64<<20)
	c.compactAt = cmp.Or(c.compactAt, compactEntries)
	if c.clock == nil {
		c.clock = time.Now
	}
	c.TextAge = cmp.Or(c.TextAge, time.Hour)
	c.SweepDuty = cmp.Or(c.SweepDuty, 0.1)
	c.SweepInterval = cmp.Or(c.SweepInterval, 10*time.Second)
	if len(c.Windows) == 0 {
		c.Windows = []int{64, 256, 1024, 1536}
	}

	if err := keyspace.CheckPrefix(c.Prefix); err != nil {
		return c, err
	}
	for _, w := range c.Windows {
		if w < 1 || w > maxWindow {
			return c, fmt.Errorf("redis: a window of %d blocks; it can be 1 to %d", w, maxWindow)
		}
	}
	switch {
	case c.PoolSize < 1 || c.PoolSize > maxPoolSize:
		return c, fmt.Errorf("redis: pool size %d; it can be 1 to %d", c.PoolSize, maxPoolSize)
	case c.DialTimeout < 0 || c.Timeout < 0 || c.SweepInterval < 0:
		return c, errors.New("redis: a timeout or interval is negative")
	case c.Protocol != 2 && c.Protocol != 3:
		return c, fmt.Errorf("redis: protocol %d; it can be 2 or 3", c.Protocol)
	case c.TextAge > 0 && c.TextAge < time.Second:
		return c, fmt.Errorf("redis: a text age of %v; it can be 1 s or more, or negative", c.TextAge)
	case c.EntryAge < 0:
		return c, fmt.Errorf("redis: an entry age of %v; it can be 0 or more", c.EntryAge)
	case c.MaxPods < 1 || c.MaxHolders < 1 || c.MaxModels < 1:
		return c, errors.New("redis: a limit on pods, holders or models is below 1")
	case c.MapCache < 0:
		return c, fmt.Errorf("redis: a map cache of %d bytes", c.MapCache)
	case c.SweepDuty < 0 || c.SweepDuty > 1:
		return c, fmt.Errorf("redis: sweep duty %v; it can be 0 to 1", c.SweepDuty)
	}
	return c, nil
}
