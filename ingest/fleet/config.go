package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/store"
)

// Config is what a Fleet is made of. The zero value of each field but Index, Leases
// and Read is its default.
type Config struct {
	// Index has the registry of pods, and the generations' fences.
	Index store.Index
	// Leases are the index's too: most often the same value.
	Leases store.Leases
	// Read reads a rank under a fence until ctx is done; it is Ingester.Read.
	Read func(ctx context.Context, s ingest.Source, fence uint64) error
	// Name is the replica's own in this one life of it; by default the machine's
	// name with something random.
	Name string
	// TTL is how long a replica can be silent before the others take its ranks, 2 s.
	TTL time.Duration
	// Beat is how often each replica calls, 500 ms; at most a third of TTL.
	Beat time.Duration
	// MaxRanks is how many ranks this replica reads at most, 10,000. What does not
	// find room in any replica stays unread; Stats.Unread has it.
	MaxRanks int
	// HandOver is how many ranks change hands in a beat for the sake of an even
	// spread, 16.
	HandOver int
	// Stop is how long the reading of a rank may take to end before it is given up
	// all the same, 5 s. The fence keeps what it may still write away.
	Stop time.Duration
	// Wiring is how engines are reached.
	Wiring Wiring
	// Observer is told what happens.
	Observer Observer
}

// Observer is told what happens. Any func may be nil. They are called from the
// goroutines that do the work and must not block.
type Observer struct {
	// Started says that this replica reads a rank, under a fence. took is the rank's last reader; "" means
	// none.
	Started func(s ingest.Source, fence uint64, took string)
	// Stopped says that it does not any more, and why: nil when it was to end.
	Stopped func(s ingest.Source, fence uint64, err error)
	// Readers tells the replicas that live, when they have changed.
	Readers func(living []store.Reader)
	// Lapsed says that the others must have thought this replica dead.
	Lapsed func(silent time.Duration)
	// Unreadable says that a pod's registration has no endpoints that could be read.
	// It is told once for each registration.
	Unreadable func(pod string, err error)
	// Failed says that the index could not be asked.
	Failed func(err error)
}

var errConfig = errors.New("fleet: invalid config")

func (c Config) withDefaults() (Config, error) {
	if c.Index == nil || c.Leases == nil || c.Read == nil {
		return c, fmt.Errorf("%w: Index, Leases and Read are needed", errConfig)
	}
	defaults.Funcs(&c.Observer)
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			host = "replica"
		}
		host = strings.ReplaceAll(host, " ", "-")
		c.Name = host[:min(len(host), 96)] + "-" + rand.Text()[:12]
	}
	c.TTL = cmp.Or(c.TTL, 2*time.Second)
	c.Beat = cmp.Or(c.Beat, min(500*time.Millisecond, c.TTL/3))
	c.MaxRanks = cmp.Or(c.MaxRanks, 10_000)
	c.HandOver = cmp.Or(c.HandOver, 16)
	c.Stop = cmp.Or(c.Stop, 5*time.Second)
	switch {
	case c.TTL < 30*time.Millisecond || c.TTL > store.MaxLeaseTTL:
		return c, fmt.Errorf("%w: TTL is %v, it can be 30 ms to %v", errConfig, c.TTL, store.MaxLeaseTTL)
	case c.Beat < 10*time.Millisecond || c.Beat > c.TTL/3:
		return c, fmt.Errorf("%w: Beat is %v, it can be 10 ms to a third of TTL (%v)", errConfig, c.Beat, c.TTL)
	case c.MaxRanks < 1 || c.MaxRanks > 1<<20:
		return c, fmt.Errorf("%w: MaxRanks is %d, it can be 1 to %d", errConfig, c.MaxRanks, 1<<20)
	case c.HandOver < 1 || c.HandOver > store.MaxLeaseRanks:
		return c, fmt.Errorf("%w: HandOver is %d, it can be 1 to %d", errConfig, c.HandOver, store.MaxLeaseRanks)
	case c.Stop < 0:
		return c, fmt.Errorf("%w: Stop is %v", errConfig, c.Stop)
	}
	if err := c.Wiring.Validate(); err != nil {
		return c, err
	}
	call := store.LeaseCall{Reader: store.Reader{Name: c.Name}, TTL: c.TTL}
	return c, call.Validate()
}
