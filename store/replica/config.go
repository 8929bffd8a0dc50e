package replica

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// Config says what is copied and what the copy may cost. The zero value of every
// field but Index means its default.
type Config struct {
	// Index is what is copied. The replica closes it. Required.
	Index *redis.Index
	// MaxBytes bounds the memory of blocks and sets of holders; 1 GiB by default, 1
	// MiB at least. An index that does not fit is read from Redis instead. The
	// garbage collector's overhead comes on top.
	MaxBytes int64
	// MaxLag is how old an answer from memory may be; beyond it lookups ask Redis.
	// 1 s by default.
	MaxLag time.Duration
	// MaxStale is how old it may be while Redis cannot be asked. 30 s by default; it
	// is MaxLag at least.
	MaxStale time.Duration
	// LogEntries is the length of the change log that the replica switches on where there is no decision
	// about one. The default is changelog.DefaultEntries; below 0 is never.
	LogEntries int
	// Verify is how often all blocks are read anew; 10 minutes by default, below 0 is
	// never. See changelog.Config.
	Verify time.Duration
	// Poll is how long to rest between reads of the logs of a cluster while nothing
	// changes; 5 ms by default. See changelog.Config.
	Poll time.Duration
	// Retry is how long to wait before an index that did not fit is read again; 1
	// minute by default.
	Retry time.Duration
	// Changed, if not nil, is told when lookups begin to be answered otherwise, and
	// why. It is called from a goroutine of the replica, which waits for it.
	Changed func(from, to Mode, why error)
}

// Mode is where lookups are answered from.
type Mode uint8

// The modes.
const (
	// Redis: the copy cannot be used, Redis is asked.
	Redis Mode = iota
	// Memory: from the copy, without a round trip.
	Memory
	// Stale: from the copy, which is older than MaxLag, since Redis is away.
	Stale
	numModes
)

var modeNames = [numModes]string{"redis", "memory", "stale"}

// String returns the mode's name: redis, memory or stale.
func (m Mode) String() string {
	if m < numModes {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

func (c Config) withDefaults() (Config, error) {
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	c.MaxLag = cmp.Or(c.MaxLag, time.Second)
	c.MaxStale = cmp.Or(c.MaxStale, max(30*time.Second, c.MaxLag))
	c.LogEntries = cmp.Or(c.LogEntries, changelog.DefaultEntries)
	switch {
	case c.Index == nil:
		return c, errors.New("replica: Config.Index is required")
	case c.MaxBytes < 1<<20:
		return c, fmt.Errorf("replica: MaxBytes is %d, the least is 1 MiB", c.MaxBytes)
	case c.MaxLag < 0 || c.Poll < 0 || c.Retry < 0:
		return c, errors.New("replica: a time is negative")
	case c.MaxStale < c.MaxLag:
		return c, fmt.Errorf("replica: MaxStale is %v, less than MaxLag, %v", c.MaxStale, c.MaxLag)
	}
	return c, nil
}
