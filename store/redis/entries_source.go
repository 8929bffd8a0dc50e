package redis

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
)

// entrySource is the Redis that entries are in, where that is not the index's
// (Config.EntriesURL). It is read at the same time as the blocks. That it does not answer
// costs the entries' credit and at most half of what is left of a lookup's time, and then
// nothing for a second.
type entrySource struct {
	conn    *redisx.Conn
	client  redis.UniversalClient
	cluster bool
	timeout time.Duration
	rest    atomic.Int64 // until when it is not asked, in Unix nanoseconds
	log     func(string)
	closed  atomic.Bool
}

// entryRest is for how long a source that has failed is not asked.
const entryRest = time.Second

// openEntries opens the source; nil where the entries are in the index's Redis.
func (c Config) openEntries() (*entrySource, error) {
	if c.EntriesURL == "" {
		return nil, nil
	}
	t, err := redisx.ParseURL(c.EntriesURL)
	if err != nil {
		return nil, err
	}
	conn := redisx.Open(c.connection(t))
	s := &entrySource{conn: conn, client: conn.Client, cluster: t.Topology == redisx.Cluster, timeout: c.Timeout, log: c.Observer.Log}
	return s, nil
}

// close closes the connection, once.
func (s *entrySource) close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.conn.Close()
}

func (s *entrySource) down() bool { return time.Now().UnixNano() < s.rest.Load() }

// failed notes that it has not answered, and says so once for each outage.
func (s *entrySource) failed(err error) {
	now := time.Now()
	before := s.rest.Swap(now.Add(entryRest).UnixNano())
	if now.UnixNano()-before > int64(time.Minute) && s.log != nil {
		s.log("the Redis of LMCache's entries, " + s.conn.Target.String() + ", does not answer; they count for nobody until it does: " + redisx.Clip(err.Error()))
	}
}

// begin asks for what a round trip reads of entries. wait ends it.
func (s *entrySource) begin(ctx context.Context, l *lookup) (wait func()) {
	if s.down() {
		for i := range l.entries {
			l.entries[i].none()
		}
		return func() {}
	}
	limit := s.timeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	pipe := s.client.Pipeline()
	l.askEntries(ctx, pipe)
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

// none makes the entries nobody's.
func (e *entryRead) none() {
	n := len(e.names)
	e.owner, e.fields, e.there = make([]string, n), make([][]ownerField, n), make([]bool, n)
}

// foreign is the client of the server that other programs write their keys to.
func (x *Index) foreign() redis.UniversalClient {
	if x.source != nil {
		return x.source.client
	}
	return x.space.Client
}
