package replica

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// TestClusterFailsOver kills each master under a replica.
func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, true)
	p := newPrefix()
	x := openRedis(t, c.URL(), p)
	r := openReplica(t, c.URL(), p)
	keys := keysOf(1, 300)
	write(t, x, "a", store.Add, keys[:200]...)
	same(t, r, x, keys...)
	for m := range c.Masters {
		if n := c.Masters[m].Client().Wait(t.Context(), 1, patience).Val(); n < 1 {
			t.Fatalf("master %d has no replica", m)
		}
		c.FailOver(m)
		eventually.NoError(t, fmt.Sprintf("apply after the end of master %d", m), func() error {
			return x.Apply(t.Context(), store.Batch{Pod: fmt.Sprint("p", m), Model: model, Ops: []store.Op{{Kind: store.Add, Keys: keys[m*20:]}}})
		})
		eventually.NoError(t, "the replica goes on", func() error { return r.CatchUp(t.Context()) })
		same(t, r, x, keys...)
	}
	if st := r.Status(); st.Gaps != 0 {
		t.Logf("some log lost its end: %+v", st)
	}
}

// TestSentinelsFailOver kills the master of a replicated pair.
func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinels(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 300)
	write(t, x, "a", store.Add, keys[:200]...)
	same(t, r, x, keys...)
	if n := s.Client().Wait(t.Context(), 1, patience).Val(); n < 1 {
		t.Fatal("no replica")
	}
	s.FailOver()
	eventually.NoError(t, "apply", func() error {
		return x.Apply(t.Context(), store.Batch{Pod: "b", Model: model, Ops: []store.Op{{Kind: store.Add, Keys: keys}}})
	})
	same(t, r, x, keys...)
}

// TestSlotMoves moves the slot of a partition to another node, log and all, while it
// is written to.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	ctx := t.Context()
	p := newPrefix()
	x := openRedis(t, c.URL(), p)
	r := openReplica(t, c.URL(), p)
	keys := keysOf(1, 2000)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	plain := c.Client()
	log := p + "{\x04}:log" // of partition 0
	slot := plain.ClusterKeySlot(ctx, log).Val()
	owner, err := plain.MasterForKey(ctx, log)
	must.OK(t, err)
	var from, to *goredis.Client
	var host, port string
	for _, m := range c.Masters {
		if m.Addr == owner.Options().Addr {
			from = m.Client()
			continue
		}
		to = m.Client()
		if host, port, err = net.SplitHostPort(m.Addr); err != nil {
			t.Fatal(err)
		}
	}
	id := func(n *goredis.Client) string { return n.ClusterMyID(ctx).Val() }
	s := strconv.FormatInt(slot, 10)
	must.OK(t, to.Do(ctx, "CLUSTER", "SETSLOT", s, "IMPORTING", id(from)).Err())
	must.OK(t, from.Do(ctx, "CLUSTER", "SETSLOT", s, "MIGRATING", id(to)).Err())
	for {
		names := from.ClusterGetKeysInSlot(ctx, int(slot), 10).Val()
		if len(names) == 0 {
			break
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, n := range names {
			args = append(args, n)
		}
		must.OK(t, from.Do(ctx, args...).Err())
		if got, err := find(t, r, keys[:50]...); err != nil || len(got) != 50 {
			t.Fatalf("found %d, %v", len(got), err)
		}
	}
	for _, m := range c.Masters {
		must.OK(t, m.Client().Do(ctx, "CLUSTER", "SETSLOT", s, "NODE", id(to)).Err())
	}
	write(t, x, "b", store.Add, keys[:1000]...)
	same(t, r, x, keys...)
	if st := r.Status(); st.Gaps != 0 {
		t.Errorf("the log did not go on where it was left: %+v", st)
	}
	write(t, x, "a", store.Remove, keys[:500]...)
	same(t, r, x, keys...)
}

// TestClusterLosesANode restarts a master empty: its partitions are read again.
func TestClusterLosesANode(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	p := newPrefix()
	x := openRedis(t, c.URL(), p)
	r := openReplica(t, c.URL(), p, func(c *Config) { c.MaxLag = 200 * time.Millisecond })
	keys := keysOf(1, 300)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	reg := must.Get(c.Client().MasterForKey(t.Context(), p+"{reg}:meta"))(t)
	before := r.Status().Snapshots
	for _, m := range c.Masters {
		if m.Addr != reg.Options().Addr {
			must.OK(t, m.Client().FlushAll(t.Context()).Err())
			break
		}
	}
	again(t, r, before)
	same(t, r, x, keys...)
	write(t, x, "b", store.Add, keys[:100]...)
	same(t, r, x, keys...)
}
