package redis

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// TestTagsOnServer compares the slots of the keyspace.Tags with what a server computes.
func TestTagsOnServer(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	plain := c.Client()
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	for p := range keyspace.Tags {
		k := blockkey.StoreKey(p) | 0xabcdef<<20
		name := string(x.space.Names.AppendBlock(nil, k))
		if got := plain.ClusterKeySlot(t.Context(), name).Val(); got != int64(keyspace.Slot(keyspace.Tags[p:p+1])) {
			t.Errorf("partition %d: the server has slot %d, want %d", p, got, keyspace.Slot(keyspace.Tags[p:p+1]))
		}
	}
	// Blocks are spread, and the pipeline of a lookup goes to all masters.
	keys := manyKeys(3000)
	apply(t, x, batchOf("a", store.Add, keys...))
	for i, m := range c.Masters {
		if n := m.Client().DBSize(t.Context()).Val(); n < 900 || n > 1150 {
			t.Errorf("master %d has %d of %d blocks", i, n, len(keys))
		}
	}
}

// TestSweepOnCluster sweeps all masters.
func TestSweepOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	plain := c.Client()
	x := open(t, Config{URL: c.URL(), NoSweep: true, SweepDuty: 1})
	keys := manyKeys(2000)
	apply(t, x, batchOf("a", store.Add, keys...), batchOf("b", store.Add, keys[:100]...))
	apply(t, x, batchOf("a", store.Clear))
	plain.Set(t.Context(), nameOf(x, 12345), "garbage,", 0)
	p, err := x.Sweep(t.Context())
	if err != nil || !p.Done || p.Cleaned != 2001 || p.Ended != 1 {
		t.Errorf("got %+v, %v", p, err)
	}
	values := blockValues(t, x, plain)
	if len(values) != 100 {
		t.Errorf("%d blocks are left, want 100", len(values))
	}
	for k, v := range values {
		if v != "2" {
			t.Errorf("block %x has the holders %q, want 2", k, v)
		}
	}
}

// TestRegistryIsLost restarts the node of the registry empty, while blocks live
// on elsewhere: no pod may inherit them.
func TestRegistryIsLost(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	plain := c.Client()
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	keys := manyKeys(300)
	apply(t, x, batchOf("a", store.Add, keys...))
	if id := x.idsOf(t, keys...)[0]; id != 1 {
		t.Fatalf("the first id is %d", id)
	}
	owner := must.Get(plain.MasterForKey(t.Context(), x.space.Names.Gen))(t)
	for _, m := range c.Masters {
		if m.Addr == owner.Options().Addr {
			m.Kill()
			m.Run()
		}
	}
	c.Settle()
	left := len(blockValues(t, x, plain))
	if left == 0 || left == len(keys) {
		t.Fatalf("%d of %d blocks have survived", left, len(keys))
	}
	y := open(t, Config{URL: c.URL(), NoSweep: true, SweepDuty: 1})
	eventually.NoError(t, "apply", func() error { return y.Apply(t.Context(), batchOf("b", store.Add, 7)) })
	for _, i := range []*Index{x, y} {
		eventually.NoError(t, "lookup", func() error { _, err := i.Registry(t.Context()); return err })
		for j, b := range find(t, i, keys...) {
			if b != "" {
				t.Fatalf("block %d is credited to %s, who never held it", j, b)
			}
		}
	}
	if id := y.idsOf(t, 7)[0]; id <= reserveStep {
		t.Errorf("id %d is given again", id)
	}
	apply(t, x, batchOf("a", store.Add, 8))
	wantBlocks(t, y, []blockkey.Key{7, 8}, "b", "a")
	if !y.dueSweep() {
		t.Error("nothing is to be swept")
	}
	must.Get(y.Sweep(t.Context()))(t)
	if n := len(blockValues(t, x, plain)); n != 2 {
		t.Errorf("%d blocks are left after a sweep, want 2", n)
	}
}

// idsOf returns the first live holder of each block.
func (x *Index) idsOf(tb testing.TB, keys ...blockkey.Key) []store.HolderID {
	tb.Helper()
	f := &firsts{}
	must.OK(tb, x.Lookup(tb.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: f}))
	return f.ids
}

// firsts keeps the first live holder of each block, 0 for none.
type firsts struct {
	reg *store.Registry
	ids []store.HolderID
}

func (f *firsts) Begin(r *store.Registry) { f.reg = r }

func (f *firsts) Run(n int, holders []store.HolderID) bool {
	var first store.HolderID
	for _, id := range holders {
		if _, _, live := f.reg.Holder(id); live {
			first = id
			break
		}
	}
	for range n {
		f.ids = append(f.ids, first)
	}
	return true
}

// TestIdsBeyondTheLimit raises the limit on ids several times.
func TestIdsBeyondTheLimit(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	plain := c.Client()
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	var last store.HolderID
	for range 3 {
		apply(t, x, batchOf("a", store.Clear), batchOf("a", store.Add, 1))
		id := x.idsOf(t, 1)[0]
		if id <= last {
			t.Fatalf("id %d after %d", id, last)
		}
		last = id
		// The next id is the first beyond the limit.
		limit := plain.HGet(t.Context(), x.space.Names.Count, "reserved").Val()
		if n, err := strconv.Atoi(limit); err != nil || n < int(id) {
			t.Fatalf("id %d was given, the limit is %q", id, limit)
		}
		plain.HSet(t.Context(), x.space.Names.Count, "holder", limit)
	}
	if last <= 2*reserveStep {
		t.Errorf("the last id is %d", last)
	}
	for p := range blockkey.Partitions {
		if v, _ := strconv.Atoi(plain.Get(t.Context(), x.space.Names.High(p)).Val()); v < int(last) {
			t.Errorf("partition %d remembers %d, id %d was given", p, v, last)
		}
	}
}

// TestSlotMoves moves a partition to another master while it is in use, and
// stops half way.
func TestSlotMoves(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	ctx := t.Context()
	const partition = 5
	var keys []blockkey.Key
	for i := range blockkey.Key(40) {
		keys = append(keys, blockkey.Key(uint64(i*64+partition)^uint64(blockkey.ModelOf("m"))))
	}
	held, fresh := keys[:30], keys[30:]
	apply(t, x, batchOf("a", store.Add, held...))
	expect := func(what, pod string) {
		t.Helper()
		for i, b := range find(t, x, held...) {
			if b != pod {
				t.Fatalf("%s: block %d is held by %q, want %q", what, i, b, pod)
			}
		}
	}
	expect("before", "a")

	s := keyspace.Slot(keyspace.Tags[partition : partition+1])
	from, to := c.Masters[0].Client(), c.Masters[2].Client()
	id := func(c *redis.Client) string { return c.Do(ctx, "CLUSTER", "MYID").Val().(string) }
	must.OK(t, to.Do(ctx, "CLUSTER", "SETSLOT", s, "IMPORTING", id(from)).Err())
	must.OK(t, from.Do(ctx, "CLUSTER", "SETSLOT", s, "MIGRATING", id(to)).Err())
	migrate := func(n int) {
		names := from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", s, n).Val().([]any)
		host, port := "127.0.0.1", c.Masters[2].Addr[len("127.0.0.1:"):]
		args := append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, names...)
		must.OK(t, from.Do(ctx, args...).Err())
	}
	migrate(15)
	expect("half way", "a")
	// Blocks of here, of there, and new ones in one call.
	apply(t, x, batchOf("b", store.Add, keys...))
	expect("half way, written", "a b")
	apply(t, x, batchOf("a", store.Remove, keys...))
	expect("half way, removed", "b")
	for i, b := range find(t, x, fresh...) {
		if b != "b" {
			t.Errorf("new block %d is held by %q", i, b)
		}
	}
	migrate(100)
	for _, m := range []*redis.Client{to, from, c.Masters[1].Client()} {
		must.OK(t, m.Do(ctx, "CLUSTER", "SETSLOT", s, "NODE", id(to)).Err())
	}
	expect("after", "b")
	apply(t, x, batchOf("a", store.Add, keys...))
	expect("after, written", "a b")
}

// TestClusterFailsOver kills each master in turn under an index that is in use.
func TestClusterFailsOver(t *testing.T) {
	c := redistest.StartCluster(t, 3, true)
	x := open(t, Config{URL: c.URL()})
	y := open(t, Config{URL: c.URL()})
	keys := manyKeys(200)
	apply(t, x, batchOf("a", store.Add, keys...))
	for m := range c.Masters {
		// What is not yet at the replica is lost in a failover; wait for it, so
		// that the test can tell what must be there.
		if n := c.Masters[m].Client().Wait(t.Context(), 1, patience).Val(); n < 1 {
			t.Fatalf("master %d has no replica", m)
		}
		begin := time.Now()
		c.FailOver(m)
		t.Logf("master %d: the cluster has failed over after %v", m, time.Since(begin))
		for _, i := range []*Index{x, y} {
			eventually.NoError(t, fmt.Sprintf("lookup after the end of master %d", m), func() error {
				n := &counting{}
				if err := i.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: n}); err != nil {
					return err
				}
				if n.held.Load() != int64(len(keys)) {
					return fmt.Errorf("%d of %d blocks are held", n.held.Load(), len(keys))
				}
				return nil
			})
		}
		t.Logf("master %d: lookups go on after %v", m, time.Since(begin))
		pod := fmt.Sprint("after", m)
		eventually.NoError(t, "apply", func() error { return x.Apply(t.Context(), batchOf(pod, store.Add, keys[:10]...)) })
		eventually.NoError(t, "the peer", func() error {
			if got := find(t, y, keys[0])[0]; got != "a "+pod {
				return fmt.Errorf("found %q", got)
			}
			return nil
		})
		t.Logf("master %d: writes go on after %v", m, time.Since(begin))
		must.Get(y.Retire(t.Context(), pod))(t)
		wantBlocks(t, x, keys[:1], "a")
	}
}

// counting counts blocks that some live holder has.
type counting struct {
	reg  *store.Registry
	held atomic.Int64
}

func (c *counting) Begin(r *store.Registry) { c.reg = r }

func (c *counting) Run(n int, holders []store.HolderID) bool {
	for _, id := range holders {
		if _, _, live := c.reg.Holder(id); live {
			c.held.Add(int64(n))
			break
		}
	}
	return true
}

// TestSentinelsFailOver kills the master of a replicated pair.
func TestSentinelsFailOver(t *testing.T) {
	s := redistest.StartSentinels(t)
	x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
	keys := manyKeys(100)
	apply(t, x, batchOf("a", store.Add, keys...))
	wantBlocks(t, y, keys[:1], "a")
	before := y.Cached()
	if n := s.Client().Wait(t.Context(), 1, patience).Val(); n < 1 {
		t.Fatal("no replica")
	}
	s.FailOver()
	for _, i := range []*Index{x, y} {
		eventually.NoError(t, "lookup", func() error {
			return i.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: &firsts{}})
		})
		wantBlocks(t, i, keys[:2], "a", "a")
	}
	eventually.NoError(t, "apply", func() error { return x.Apply(t.Context(), batchOf("b", store.Add, keys[0])) })
	wantBlocks(t, y, keys[:2], "a b", "a")
	// The new master has not given those ids, and does not know what the old one
	// gave last.
	now := y.Cached()
	if last := now.Holders()[1].ID; last <= before.Holders()[0].ID+1000 {
		t.Errorf("id %d after a failover, %d before", last, before.Holders()[0].ID)
	}
	if now.Epoch < before.Epoch+1000 {
		t.Errorf("epoch %d after a failover, %d before", now.Epoch, before.Epoch)
	}
}
