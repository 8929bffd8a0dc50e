package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// Replica is an index in Redis whose lookups are answered from memory. All other
// methods are those of the index. It is safe for concurrent use.
type Replica struct {
	*redis.Index
	c     Config
	table *table
	feed  *changelog.Feed

	keysRead atomic.Uint64
	lookups  [numModes]atomic.Uint64
	caughtUp atomic.Bool // at some time

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

var (
	_ store.Index     = (*Replica)(nil)
	_ store.Pager     = (*Replica)(nil)
	_ store.Forgetter = (*Replica)(nil)
	_ changelog.Sink  = (*Replica)(nil)
)

// New begins to copy. It does no I/O, and does not need the server to be up.
func New(c Config) (*Replica, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Replica{Index: c.Index, c: c, table: newTable(c.MaxBytes)}
	r.life, r.end = context.WithCancel(context.Background())
	r.feed, err = c.Index.Follow(changelog.Config{Sink: r, Entries: max(c.LogEntries, 0), Verify: c.Verify, Poll: c.Poll, Retry: c.Retry})
	if err != nil {
		r.end()
		return nil, err
	}
	r.running.Go(r.watch)
	return r, nil
}

// Close implements store.Index. It closes the index in Redis, too.
func (r *Replica) Close() error {
	err := r.Index.Close()
	r.end()
	r.running.Wait()
	<-r.feed.Done()
	return err
}

// Anew implements changelog.Sink, and is for the feed alone.
func (r *Replica) Anew(partitions uint64) { r.table.Anew(partitions) }

// Set implements changelog.Sink, and is for the feed alone.
func (r *Replica) Set(keys []blockkey.StoreKey, holders []store.HolderID) error {
	err := r.table.Set(keys, holders)
	if err != nil {
		// The feed begins anew; what does not fit is of no use until then.
		blocks := r.table.blocks.Load()
		r.table.clear()
		return fmt.Errorf("%w: %d blocks took the %d bytes of its limit", err, blocks, r.c.MaxBytes)
	}
	return nil
}

// Whole implements changelog.Sink, and is for the feed alone.
func (r *Replica) Whole(partitions uint64) { r.table.Whole(partitions) }

// CatchUp waits until lookups from memory show all that was written before the
// call.
func (r *Replica) CatchUp(ctx context.Context) error { return r.feed.CatchUp(ctx) }

// Ready returns nil once lookups have been answered from memory, or why that is
// not so yet. It stays nil afterwards: when memory falls behind, Redis answers.
func (r *Replica) Ready() error {
	if r.caughtUp.Load() {
		return nil
	}
	s := r.feed.State()
	switch {
	case s.Whole:
		r.caughtUp.Store(true)
		return nil
	case s.Down != nil:
		return fmt.Errorf("the replica has not caught up: %w", s.Down)
	case errors.Is(s.Why, changelog.ErrCatchingUp):
		return fmt.Errorf("the replica has not caught up: %d blocks so far", r.table.blocks.Load())
	}
	return fmt.Errorf("the replica cannot catch up: %w", s.Why)
}

// Status is how a replica stands.
type Status struct {
	// Mode is where the next lookup is answered from, and Why why not from memory.
	Mode Mode
	Why  error
	// Lag is how old memory may be, Behind how many entries of the log are known to
	// be there that it has not seen.
	Lag    time.Duration
	Behind uint64
	// Blocks and Bytes are what is in memory; MaxBytes is the limit.
	Blocks, Bytes, MaxBytes int64
	// Lookups counts lookups by Mode; Redis counts those that had to ask it.
	Lookups [3]uint64
	// Snapshots, Gaps and Entries are those of changelog.State.
	Snapshots, Gaps, Entries uint64
}

// Status returns how the replica stands. It does no I/O.
func (r *Replica) Status() Status {
	f := r.feed.State()
	s := Status{
		Mode: r.mode(r.feed.Current()), Lag: f.Lag, Behind: f.Behind,
		Blocks: r.table.blocks.Load(), Bytes: r.table.size(), MaxBytes: r.c.MaxBytes,
		Snapshots: f.Snapshots, Gaps: f.Gaps, Entries: f.Entries,
	}
	for m := range s.Lookups {
		s.Lookups[m] = r.lookups[m].Load()
	}
	switch {
	case s.Mode == Memory:
	case f.Down != nil:
		s.Why = f.Down
	case !f.Whole:
		s.Why = f.Why
	default:
		s.Why = fmt.Errorf("replica: it lags by %v", f.Lag.Round(time.Millisecond))
	}
	return s
}

// Stats implements store.Index: the index's, with what is in memory.
func (r *Replica) Stats() store.Stats {
	s := r.Index.Stats()
	s.Blocks, s.Bytes = r.table.blocks.Load(), r.table.size()
	s.KeysRead += r.keysRead.Load()
	return s
}

// mode chooses by the feed's lag, which is below 0 when memory is not whole.
func (r *Replica) mode(lag time.Duration) Mode {
	switch {
	case lag < 0:
		return Redis
	case lag <= r.c.MaxLag:
		return Memory
	case lag <= r.c.MaxStale && r.feed.State().Down != nil:
		return Stale
	}
	return Redis
}

// watch reports changes of the mode.
func (r *Replica) watch() {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	last := Redis
	for {
		select {
		case <-r.life.Done():
			return
		case <-ticker.C:
		}
		_ = r.Ready() // to note when it was the first time
		if s := r.Status(); s.Mode != last {
			if r.c.Changed != nil {
				r.c.Changed(last, s.Mode, s.Why)
			}
			last = s.Mode
		}
	}
}
