package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// TestMain waits for all goroutines but the client's own that tries a server again which is away.
// That one looks once a second whether its pool is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patience is how long anything may take on a busy machine.
const patience = 30 * time.Second

// prefixes gives every index of a test a key space of its own on one server.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("r%d", prefixes.Add(1)) }

// openRedis opens an index that is closed when the test ends, and that waits for a
// server which is kept from running.
func openRedis(tb testing.TB, url, prefix string) *redis.Index {
	tb.Helper()
	return openIndex(tb, redis.Config{URL: url, Prefix: prefix, Timeout: patience})
}

func openIndex(tb testing.TB, c redis.Config) *redis.Index {
	tb.Helper()
	c.DialTimeout, c.NoSweep = patience, true
	x := must.Get(redis.Open(c))(tb)
	tb.Cleanup(func() { closed(tb, x) })
	return x
}

// openReplica opens a replica that is closed when the test ends.
func openReplica(tb testing.TB, url, prefix string, change ...func(*Config)) *Replica {
	tb.Helper()
	c := Config{Index: openIndex(tb, redis.Config{URL: url, Prefix: prefix})}
	for _, f := range change {
		f(&c)
	}
	r := must.Get(New(c))(tb)
	tb.Cleanup(func() { closed(tb, r) })
	return r
}

func closed(tb testing.TB, x store.Index) {
	tb.Helper()
	if err := x.Close(); err != nil {
		tb.Errorf("close: %v", err)
	}
}

// catchUp waits until the replica shows all that has been written.
func catchUp(tb testing.TB, r *Replica) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := r.CatchUp(ctx); err != nil {
		tb.Fatalf("CatchUp: %v; %+v", err, r.Status())
	}
}

const model = "m"

func keysOf(name uint64, n int) []blockkey.Key {
	rng := rand.New(rand.NewPCG(name, 1))
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

func write(tb testing.TB, x store.Index, pod string, kind store.OpKind, keys ...blockkey.Key) {
	tb.Helper()
	op := store.Op{Kind: kind, Tier: store.GPU, Keys: keys}
	if err := x.Apply(tb.Context(), store.Batch{Pod: pod, Model: model, Ops: []store.Op{op}}); err != nil {
		tb.Fatalf("Apply: %v", err)
	}
}

// find looks a chain up.
func find(tb testing.TB, x store.Index, keys ...blockkey.Key) (storetest.Answer, error) {
	tb.Helper()
	c := &storetest.Collector{Keys: len(keys)}
	err := x.Lookup(tb.Context(), &store.Query{Model: blockkey.ModelOf(model), Keys: keys, Fold: c})
	if broken := c.Err(); broken != nil && err == nil {
		tb.Fatalf("Lookup broke the contract of Folder: %v", broken)
	}
	return c.Answer, err
}

// same waits until the replica has caught up and fails the test unless it answers
// from memory, and as Redis does. One that has been kept from running for longer than
// its MaxLag asks Redis, as it must: it is asked again.
func same(tb testing.TB, r *Replica, x store.Index, keys ...blockkey.Key) {
	tb.Helper()
	eventually.NoError(tb, "the replica answers from memory", func() error {
		catchUp(tb, r)
		before := r.Status().Lookups[Memory]
		got, err := find(tb, r, keys...)
		want, err2 := find(tb, x, keys...)
		if err != nil || err2 != nil {
			tb.Fatalf("Lookup: %v, %v", err, err2)
		}
		if !got.Equal(want) {
			tb.Fatalf("the replica finds\n%v, Redis\n%v", got, want)
		}
		if s := r.Status(); s.Lookups[Memory] != before+1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
