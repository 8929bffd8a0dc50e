// Package external reads and writes what other programs keep in Redis. That is entries of
// LMCache, which lookups read in the round trips of the blocks, and keys of any kind, which it
// walks. Values are bounded, and nothing is changed but what Write is told to.
package external

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Source is the Redis that other programs write to: the index's, or another one. It is safe
// for concurrent use.
type Source struct {
	space   *keyspace.Space
	client  redis.UniversalClient
	cluster bool
	age     time.Duration
	now     store.Clock
	apart   *apart    // nil where it is the index's Redis
	refused sync.Once // for the log
}

// Open returns the source beside an index, which is another server if c is not nil. Entries
// that say when they were written count for no longer than age by the clock, 0 is any age. It
// does no I/O.
func Open(space *keyspace.Space, c *redisx.Config, age time.Duration, clock store.Clock) *Source {
	s := &Source{space: space, client: space.Client, cluster: space.Cluster, age: age, now: clock}
	if c != nil {
		conn := redisx.Open(*c)
		s.apart = &apart{conn: conn, timeout: c.Timeout, now: clock, log: c.Log}
		s.client, s.cluster = conn.Client, c.Target.Topology == redisx.Cluster
	}
	return s
}

// Close closes the connection to another server, if there is one. Only the first call counts.
func (s *Source) Close() error {
	if s.apart == nil || s.apart.closed.Swap(true) {
		return nil
	}
	return s.apart.conn.Close()
}

// apart is another Redis than the index's. It is read at the same time as the blocks. If it does not answer,
// that costs the entries' credit and at most half of what is left of a lookup's time. Then it costs nothing
// for a second.
type apart struct {
	conn    *redisx.Conn
	timeout time.Duration
	now     store.Clock
	rest    atomic.Int64 // until when it is not asked, in Unix nanoseconds
	log     func(string)
	closed  atomic.Bool
}

// entryRest is for how long a source that has failed is not asked.
const entryRest = time.Second

func (s *apart) down() bool { return s.now().UnixNano() < s.rest.Load() }

// fail notes that it has not answered, and says so once for each outage.
func (s *apart) fail(err error) {
	now := s.now()
	before := s.rest.Swap(now.Add(entryRest).UnixNano())
	if now.UnixNano()-before > int64(time.Minute) && s.log != nil {
		s.log("the Redis of LMCache's entries, " + s.conn.Target.String() + ", does not answer; they count for no pod until it does: " + redisx.Clip(err.Error()))
	}
}

// ask asks for what a round trip reads of entries. wait ends it.
func (s *apart) ask(ctx context.Context, r *Round) (wait func()) {
	if s.down() {
		for i := range r.reads {
			r.reads[i].clear()
		}
		return func() {}
	}
	limit := s.timeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	pipe := s.conn.Client.Pipeline()
	r.ask(ctx, pipe)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = pipe.Exec(ctx) // the error is that of some command, and each is looked at
	}()
	return func() {
		<-done
		cancel()
	}
}

// clear makes the entries count for no pod.
func (e *read) clear() {
	n := len(e.names)
	e.owner, e.fields, e.there = make([]string, n), make([][]ownerField, n), make([]bool, n)
}
