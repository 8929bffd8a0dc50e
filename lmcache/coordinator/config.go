package coordinator

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// ErrConfig says that a setting cannot be right.
var ErrConfig = errors.New("coordinator: invalid config")

// Config is what a Coordinator is made of. The zero value of each field but Index is its
// default.
type Config struct {
	// Index is what is written to and asked.
	Index store.Index
	// Pods finds the pods of instances.
	Pods feed.Pods
	// Hashers recompute the chunks of a model's tokens. A model that is not there has
	// LMCache's defaults: blake3, chunks of 256 tokens.
	Hashers map[string]*lmcache.Hasher

	// Lease is how long an instance that is silent keeps its blocks, 30 s; its
	// heartbeats come every 5 s.
	Lease time.Duration
	// Timeout bounds a call of the index, 1.5 s; LMCache waits 2 s for the answer to
	// its events.
	Timeout time.Duration

	// MaxInstances bounds the instances, 1,024.
	MaxInstances int
	// MaxRegistrations bounds the workers of all instances, 4,096: of this process, and of the index from all
	// processes. It leaves room for engines, since each worker is a registration of the index.
	MaxRegistrations int
	// MaxBody bounds a body, 64 MiB: an entry with its tokens takes about 1.5 KiB.
	MaxBody int64
	// MaxBatches bounds the batches of a body, 4,096, and MaxEntries the entries of all of
	// them, 131,072: about 150 bytes each.
	MaxBatches, MaxEntries int
	// MaxInFlight bounds the bytes that the bodies of all requests take at a time, 256 MiB or
	// twice MaxBody, whichever is more. What would go beyond is refused with 503.
	MaxInFlight int64
	// ReadTimeout bounds the time in which a body must have come, 5 s.
	ReadTimeout time.Duration
	// MaxBodies bounds the bodies that are decoded at a time, 16; further ones wait until
	// their clients give up.
	MaxBodies int
	// MaxTokens bounds the tokens, and MaxKeys the keys, of a lookup: 1,048,576 and
	// 16,384.
	MaxTokens, MaxKeys int

	// Heard receives the hash of each chunk that is stored, before its key goes to
	// Index. It may be nil, and must not block.
	Heard func(lmcache.Hash)
	// Observer receives what happens.
	Observer Observer
}

// Observer receives what happens. Any func may be nil. They are called by the goroutines
// that do the work and must not block.
type Observer struct {
	// Unmapped says that no pod is known for an instance: nothing is kept of what it
	// says. It is told once for each reason.
	Unmapped func(instance string, err error)
	// Shared says that several servers use the id of an instance, and names them.
	Shared func(instance string, by []string)
	// Lost says that something of an instance may be missing, so that its credit ends.
	Lost func(instance, why string)
	// Began says that an incarnation of an instance is heard first.
	Began func(instance string, incarnation uint64)
	// Refused says that a request was not understood.
	Refused func(addr string, err error)
	// Failed says that the index has not taken something.
	Failed func(instance string, err error)
}

func (c Config) withDefaults() (Config, error) {
	if c.Index == nil {
		return c, fmt.Errorf("%w: an Index is needed", ErrConfig)
	}
	defaults.Funcs(&c.Observer)
	err := cmp.Or(
		defaults.Within("Lease", &c.Lease, 30*time.Second, 100*time.Millisecond, store.MaxLease),
		defaults.Within("Timeout", &c.Timeout, 1500*time.Millisecond, time.Millisecond, time.Hour),
		defaults.Within("ReadTimeout", &c.ReadTimeout, 5*time.Second, time.Millisecond, time.Hour),
		defaults.AtLeast("MaxBody", &c.MaxBody, 64<<20, 1024),
		defaults.Within("MaxInstances", &c.MaxInstances, 1024, 1, 1<<20),
		defaults.Within("MaxRegistrations", &c.MaxRegistrations, 4096, 1, 1<<20),
		defaults.Within("MaxBodies", &c.MaxBodies, 16, 1, 1<<16),
		defaults.Within("MaxBatches", &c.MaxBatches, 4096, 1, 1<<20),
		defaults.Within("MaxEntries", &c.MaxEntries, 1<<17, 1, 1<<24),
		defaults.Within("MaxTokens", &c.MaxTokens, 1<<20, 1, 1<<26),
		defaults.Within("MaxKeys", &c.MaxKeys, 1<<14, 1, 1<<20),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c.MaxInFlight = cmp.Or(c.MaxInFlight, max(256<<20, 2*c.MaxBody))
	if c.MaxInFlight < c.MaxBody {
		return c, fmt.Errorf("%w: MaxInFlight is %d, less than MaxBody, %d", ErrConfig, c.MaxInFlight, c.MaxBody)
	}
	return c, nil
}
