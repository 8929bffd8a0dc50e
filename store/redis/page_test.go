package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// walkPages walks through all pages and returns how often each block was given. Func
// between is called between two pages; an error is tried again for some time.
func walkPages(tb testing.TB, x *Index, limit int, between func(page int)) map[blockkey.StoreKey]int {
	tb.Helper()
	seen := map[blockkey.StoreKey]int{}
	cursor := ""
	for n := 0; n == 0 || cursor != ""; n++ {
		var p store.Page
		eventually.NoError(tb, "a page", func() (err error) {
			if p, err = x.Page(tb.Context(), cursor, limit); err != nil && !errors.Is(err, store.ErrUnavailable) {
				tb.Fatal(err)
			}
			return err
		})
		for _, b := range p.Blocks {
			seen[b.Key]++
			if len(b.Holders) == 0 || !slices.IsSorted(b.Holders) {
				tb.Fatalf("block %v has the holders %v", b.Key, b.Holders)
			}
			for _, id := range b.Holders {
				if _, _, live := p.Registry.Holder(id); !live {
					tb.Fatalf("block %v has the holder %d, which is not live", b.Key, id)
				}
			}
		}
		cursor = p.Next
		if between != nil && cursor != "" {
			between(n)
		}
	}
	return seen
}

func pageKeys(seed uint64, n int) []blockkey.Key {
	rng := rand.New(rand.NewPCG(seed, 0))
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

func wantAll(tb testing.TB, seen map[blockkey.StoreKey]int, keys []blockkey.Key) {
	tb.Helper()
	missing := 0
	for _, k := range keys {
		if seen[k.In(blockkey.ModelOf("m"))] == 0 {
			missing++
		}
	}
	if missing > 0 {
		tb.Fatalf("%d of %d blocks are not given", missing, len(keys))
	}
}

func applyMany(tb testing.TB, x *Index, pod string, kind store.OpKind, keys []blockkey.Key) {
	tb.Helper()
	for part := range slices.Chunk(keys, store.MaxOpKeys) {
		must.OK(tb, x.Apply(tb.Context(), store.Batch{Pod: pod, Model: "m", Ops: []store.Op{{Kind: kind, Keys: part}}}))
	}
}

func TestPage(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
	other := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})

	if seen := walkPages(t, x, 0, nil); len(seen) != 0 {
		t.Errorf("an empty index has %d blocks", len(seen))
	}
	keys, ended := pageKeys(1, 5000), pageKeys(2, 500)
	applyMany(t, x, "a", store.Add, keys)
	applyMany(t, x, "gone", store.Add, append(ended, keys[:10]...))
	applyMany(t, other, "other", store.Add, pageKeys(3, 100))
	must.Get(x.Retire(t.Context(), "gone"))(t)
	// What only looks like blocks.
	name := func(k blockkey.StoreKey) string { return string(x.space.Names.AppendBlock(nil, k)) }
	for _, err := range []error{
		plain.LPush(t.Context(), name(1), "1").Err(),
		plain.Set(t.Context(), name(2), "1,,2", 0).Err(),
		plain.Set(t.Context(), name(3), "4000000000", 0).Err(),
	} {
		must.OK(t, err)
	}
	for _, limit := range []int{1, 1000, 0} {
		seen := walkPages(t, x, limit, nil)
		if wantAll(t, seen, keys); len(seen) != len(keys) {
			t.Errorf("limit %d: %d blocks, want %d", limit, len(seen), len(keys))
		}
	}
	if x.Stats().Garbled == 0 {
		t.Error("the garbled value is not counted")
	}
	// The server's table grows and shrinks while the walk goes on.
	more := pageKeys(4, 60_000)
	seen := walkPages(t, x, 500, func(page int) {
		kind := store.Add
		if page%2 == 1 {
			kind = store.Remove
		}
		applyMany(t, x, "b", kind, more[page/2*10_000%len(more):][:10_000])
	})
	wantAll(t, seen, keys)
}

// TestPageAmongOthersKeys: a server full of others' keys makes pages short, not late.
func TestPageAmongOthersKeys(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	keys := pageKeys(1, 100)
	applyMany(t, x, "a", store.Add, keys)
	const others = 4 * blocks.PageSteps * blocks.PageScan
	const step = 1 << 12 // on a busy machine all at once would keep the server for too long
	for from := 0; from < others; from += step {
		script := "for i = 1, tonumber(ARGV[2]) do redis.call('SET', 'other:' .. ARGV[1] + i, '') end return 1"
		must.OK(t, s.Client().Eval(t.Context(), script, nil, from, step).Err())
	}
	pages, before := 0, x.Stats().RoundTrips
	wantAll(t, walkPages(t, x, 0, func(int) {
		pages++
		if n := x.Stats().RoundTrips - before; n > 3*blocks.PageSteps {
			t.Errorf("page %d took %d round trips", pages, n)
		}
		before = x.Stats().RoundTrips
	}), keys)
	if pages < 3 {
		t.Errorf("%d keys of others made %d pages", others, pages+1)
	}
}

func TestPageRefuses(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
	y := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
	applyMany(t, x, "a", store.Add, pageKeys(1, 5000))
	p, err := x.Page(t.Context(), "", 10)
	if err != nil || p.Next == "" {
		t.Fatal(p.Next, err)
	}
	for i := range p.Next {
		bad := []byte(p.Next)
		bad[i] ^= 1
		if _, err := x.Page(t.Context(), string(bad), 10); !errors.Is(err, store.ErrCursor) {
			t.Errorf("byte %d of the cursor is changed: %v", i, err)
		}
	}
	for _, cursor := range []string{"x", p.Next[1:], p.Next + "A", strings.Repeat("A", len(p.Next))} {
		if _, err := x.Page(t.Context(), cursor, 10); !errors.Is(err, store.ErrCursor) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
	if _, err := y.Page(t.Context(), p.Next, 10); !errors.Is(err, store.ErrCursor) {
		t.Errorf("an index with another prefix takes the cursor: %v", err)
	}
	// Another process with the same prefix takes it.
	z := open(t, Config{URL: s.URL(), Prefix: x.config.Prefix, NoSweep: true})
	if _, err := z.Page(t.Context(), p.Next, 10); err != nil {
		t.Error(err)
	}
	for _, limit := range []int{-1, store.MaxPage + 1} {
		if _, err := x.Page(t.Context(), "", limit); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	must.OK(t, z.Close())
	if _, err := z.Page(t.Context(), "", 0); !errors.Is(err, store.ErrClosed) {
		t.Errorf("got %v", err)
	}
	s.Kill()
	if _, err := x.Page(t.Context(), "", 0); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// A server that starts again, with its data on disk, has its keys in another
// order: the walk begins anew there.
func TestPageAfterARestart(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
	keys := pageKeys(1, 8000)
	applyMany(t, x, "a", store.Add, keys)
	seen := walkPages(t, x, 1000, func(page int) {
		if page == 3 {
			s.Stop()
			s.Run()
		}
	})
	wantAll(t, seen, keys)
	if twice := slices.Max(mapValues(seen)); twice < 2 {
		t.Error("the walk has not begun anew")
	}
}

func mapValues(m map[blockkey.StoreKey]int) (all []int) {
	for _, n := range m {
		all = append(all, n)
	}
	return all
}

// A replica that has taken a master's place is scanned from its beginning, and
// the partitions that are done are not scanned again.
func TestPageAfterAFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, true)
	x := open(t, Config{URL: c.URL(), Prefix: newPrefix(), NoSweep: true})
	keys := pageKeys(1, 6000)
	applyMany(t, x, "a", store.Add, keys)
	for i := range c.Masters {
		// Replication is not synchronous.
		must.OK(t, c.Masters[i].Client().Wait(t.Context(), 1, 10*time.Second).Err())
	}
	failed := false
	seen := walkPages(t, x, 500, func(page int) {
		if page == 1 {
			c.FailOver(0)
			failed = true
		}
	})
	if wantAll(t, seen, keys); !failed {
		t.Error("the walk was over before the failover")
	}
}

// While a slot moves from a master that has not been scanned to one that has, no
// block of it is missed.
func TestPageWhileASlotMoves(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	x := open(t, Config{URL: c.URL(), Prefix: newPrefix(), NoSweep: true})
	keys := pageKeys(1, 6000)
	applyMany(t, x, "a", store.Add, keys)

	// Partition 63 is the last master's; it moves to the first, one page at a time.
	from, to := c.Masters[2].Client(), c.Masters[0].Client()
	slot := keyspace.SlotOf(63)
	do := func(c *redis.Client, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(args, err)
		}
	}
	id := func(c *redis.Client) string {
		v := must.Get(c.Do(t.Context(), "CLUSTER", "MYID").Text())(t)
		return v
	}
	host, port, _ := strings.Cut(c.Masters[0].Addr, ":")
	begun, over := false, false
	move := func(n int) (left bool) {
		names := must.Get(from.ClusterGetKeysInSlot(t.Context(), slot, n).Result())(t)
		for _, k := range names {
			do(from, "MIGRATE", host, port, k, 0, 5000)
		}
		return len(names) > 0
	}
	seen := walkPages(t, x, 500, func(page int) {
		switch {
		case page == 1:
			do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
			do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
			begun = true
		case begun && !over && !move(10):
			for _, s := range []*redis.Client{to, from, c.Masters[1].Client()} {
				do(s, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
			}
			over = true
		}
	})
	wantAll(t, seen, keys)
	if !over {
		t.Error("the slot has not moved")
	}
}

func TestForget(t *testing.T) {
	s := redistest.Start(t)
	c := Config{URL: s.URL(), Prefix: newPrefix()}
	x, peer := open(t, c), open(t, c)
	m := store.ModelInfo{Name: "m", BlockSize: 16, Scheme: store.SchemeNative}
	must.Get(x.EnsureModel(t.Context(), m))(t)
	for _, want := range []bool{true, false} {
		if known, err := x.Forget(t.Context(), "m"); known != want || err != nil {
			t.Errorf("got %v, %v", known, err)
		}
	}
	m.BlockSize = 32
	if _, err := peer.EnsureModel(t.Context(), m); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Forget(ctx, "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkPage(b *testing.B) {
	s := redistest.Start(b)
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	const blocks = 200_000
	applyMany(b, x, "a", store.Add, pageKeys(1, blocks))
	b.ReportAllocs()
	for b.Loop() {
		cursor := ""
		for n := 0; n == 0 || cursor != ""; n++ {
			p := must.Get(x.Page(b.Context(), cursor, 0))(b)
			cursor = p.Next
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
}
