// Package keyspace is the keys of one index in Redis. It has their names and the forms of
// their values, and the connection to the server or cluster that has them. It runs scripts
// on them, which a server does in time or never. It knows what no key is for.
package keyspace

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// Space is the keys of one index, open until Close. It is safe for concurrent use; its
// fields do not change.
type Space struct {
	Names   *Names
	Conn    *redisx.Conn
	Client  redis.UniversalClient
	Cluster bool
	// Timeout bounds each wait for a server whose caller has no nearer deadline.
	Timeout time.Duration
	// Life ends with Close. What runs in the background heeds it.
	Life context.Context

	// Trips counts round trips, and Garbled values that cannot be read. Texts counts those
	// that name pods by text, UnknownTexts those of them that name no pod that counts.
	Trips, Garbled, Texts, UnknownTexts atomic.Uint64

	clocks clocks
	said   *onceLog
	log    func(string)

	end     context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex // protects closed, and running from growing after it
	closed  bool
}

// Open opens the keys under a prefix. It does no I/O.
func Open(c redisx.Config, prefix string) *Space {
	s := &Space{Names: NewNames(prefix), Conn: redisx.Open(c), Cluster: c.Target.Topology == redisx.Cluster, Timeout: c.Timeout, said: newOnceLog(onceLimit), log: c.Log}
	s.Client = s.Conn.Client
	s.Life, s.end = context.WithCancel(context.Background())
	return s
}

// Spawn runs f in the background until Close, and reports whether it does: not on keys that
// are closed.
func (s *Space) Spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Go(f)
	return true
}

// Close ends calls in flight with an error, and what runs in the background. Later calls of
// it wait until the first is done with that, and return nil.
func (s *Space) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	var err error
	if !was {
		s.end()
		err = s.Conn.Close()
	}
	s.running.Wait()
	return err
}

// Check refuses what is called too late.
func (s *Space) Check(ctx context.Context, doing string) error {
	if s.Life.Err() != nil {
		return store.ErrClosed
	}
	return Failed(ctx, doing, ctx.Err())
}

// Log tells what an operator may want to read.
func (s *Space) Log(msg string) {
	if s.log != nil {
		s.log(msg)
	}
}

// EachMaster calls f for the server, or for each master of the cluster, several at once.
func (s *Space) EachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	return EachMaster(ctx, s.Client, f)
}

// EachMaster is Space.EachMaster of any client.
func EachMaster(ctx context.Context, client redis.UniversalClient, f func(context.Context, *redis.Client) error) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, f)
	case *redis.Client:
		return f(ctx, c)
	}
	return fmt.Errorf("redis: a client of type %T has no masters", client)
}
