package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// TestPeerSeesDeathAtItsNextLookup counts that a lookup costs one round trip
// while nothing changes, and one more to learn what has.
func TestPeerSeesDeathAtItsNextLookup(t *testing.T) {
	s := redistest.Start(t)
	x, y := open(t, Config{URL: s.URL(), NoSweep: true}), open(t, Config{URL: s.URL(), NoSweep: true})
	keys := []blockkey.Key{1, 2}
	apply(t, x, batchOf("a", store.Add, keys...), batchOf("b", store.Add, 1))
	trips := func(want uint64, blocks ...string) {
		t.Helper()
		before := y.Stats()
		wantBlocks(t, y, keys, blocks...)
		if n := y.Stats().RoundTrips - before.RoundTrips; n != want {
			t.Fatalf("the lookup took %d round trips, want %d", n, want)
		}
	}
	trips(2, "a b", "a")
	trips(1, "a b", "a")
	apply(t, x, batchOf("b", store.Add, 2))
	trips(1, "a b", "a b") // a known holder is no news
	must.Get(x.Retire(t.Context(), "a"))(t)
	trips(2, "b", "b")
	trips(1, "b", "b")
	must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}))(t)
	trips(2, "b", "b")
	for range 3 { // a renewal that changes nothing moves nothing either
		must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}))(t)
		trips(1, "b", "b")
	}
}

// TestRegistryLoadsOnce has many lookups find out at once that the registry has
// changed.
func TestRegistryLoadsOnce(t *testing.T) {
	s := redistest.Start(t)
	x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
	apply(t, x, batchOf("a", store.Add, 1))
	wantBlocks(t, y, []blockkey.Key{1}, "a")
	for life := range 10 {
		apply(t, x, batchOf("a", store.Clear), batchOf("a", store.Add, 1))
		before := y.Stats().RegistryLoads
		const readers = 50
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() {
				c := &storetest.Collector{Keys: 1}
				err := y.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: c})
				if err := errors.Join(err, c.Err()); err != nil || len(c.IDs) != 1 {
					t.Errorf("life %d: %v, ids %v", life, err, c.IDs)
				}
			})
		}
		wg.Wait()
		if n := y.Stats().RegistryLoads - before; n > readers/2 {
			t.Errorf("%d loads for %d lookups", n, readers)
		}
	}
}

// rosterPods and rosterLeases are how many pods and leases roster.lua returns at most.
const rosterPods, rosterLeases = 128, 64

// TestLeaseRunsOutForAll renews and expires by the server's clock, seen by
// another process that gets no news of it.
func TestLeaseRunsOutForAll(t *testing.T) {
	s := redistest.Start(t)
	x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
	const lease = 2 * time.Second // a busy machine must not miss it
	pod := store.Pod{Name: "a", Model: "m", Lease: store.Seconds(lease)}
	must.Get(x.Register(t.Context(), pod))(t)
	apply(t, x, batchOf("a", store.Add, 1))
	begin := time.Now()
	wantBlocks(t, y, []blockkey.Key{1}, "a")
	if until := y.Cached().ValidUntil; until.After(time.Now().Add(lease)) {
		t.Errorf("valid for %v after a lease of %v", time.Until(until), lease)
	}
	renewals := time.NewTicker(lease / 8)
	defer renewals.Stop()
	for ; time.Since(begin) < 2*lease; <-renewals.C {
		if created, err := x.Register(t.Context(), pod); err != nil || created {
			t.Fatal(created, err)
		}
		wantBlocks(t, y, []blockkey.Key{1}, "a")
	}
	// Without a renewal it is gone within the lease, to every reader.
	waitForLease(t, x, "a")
	eventually.True(t, "the end of the lease to a reader", func() bool { return find(t, y, 1)[0] == "" })
	// And the reader has retired it for good.
	plain := s.Client()
	eventually.NoError(t, "the retirement, which is in the background,", func() error {
		if n := plain.HLen(t.Context(), x.space.Names.Pods).Val(); n > 0 {
			return fmt.Errorf("%d pods are left", n)
		}
		return nil
	})
	for _, key := range []string{x.space.Names.Pods, x.space.Names.Live, x.space.Names.Own("a")} {
		if plain.Exists(t.Context(), key).Val() != 0 {
			t.Errorf("%s is left over", key)
		}
	}
	if fields := plain.HKeys(t.Context(), x.space.Names.Gen).Val(); len(fields) != 1 || fields[0] != "@" {
		t.Errorf("of the holders are left over %q", fields)
	}
}

// TestIdsAfterARewind restarts a server that has lost its latest writes.
func TestIdsAfterARewind(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	reader := open(t, Config{URL: s.URL(), NoSweep: true})
	apply(t, x, batchOf("a", store.Add, 1))
	must.OK(t, plain.Save(t.Context()).Err())
	for range 5 {
		apply(t, x, batchOf("a", store.Clear), batchOf("a", store.Add, 1, 2))
	}
	wantBlocks(t, reader, []blockkey.Key{1, 2}, "a", "a")
	lost := reader.Cached()
	lostID := lost.Holders()[0].ID

	s.Kill()
	s.Run()
	// The server is back in the first life. A process that knows a later one gets an error.
	apply(t, x, batchOf("a", store.Clear), batchOf("a", store.Add, 2))
	wantBlocks(t, reader, []blockkey.Key{1, 2}, "", "a")
	now := reader.Cached()
	if id := now.Holders()[0].ID; id <= lostID {
		t.Errorf("id %d after %d was given and lost", id, lostID)
	}
	if now.Epoch <= lost.Epoch {
		t.Errorf("epoch %d after %d was reached and lost", now.Epoch, lost.Epoch)
	}
}

// TestRegistryIsDeleted takes the registry away and leaves the blocks, as an
// eviction or a careless hand does: no pod may inherit them.
func TestRegistryIsDeleted(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x, y := open(t, Config{URL: s.URL(), NoSweep: true, SweepDuty: 1}), open(t, Config{URL: s.URL(), NoSweep: true})
	keys := manyKeys(100)
	apply(t, x, batchOf("a", store.Add, keys...))
	wantBlocks(t, y, keys[:1], "a")
	must.OK(t, plain.Del(t.Context(), plain.Keys(t.Context(), "kva{reg}:*").Val()...).Err())
	apply(t, y, batchOf("b", store.Add, 1))
	for _, i := range []*Index{x, y} {
		wantBlocks(t, i, []blockkey.Key{1, keys[0], keys[99]}, "b", "", "")
	}
	must.Get(x.Sweep(t.Context()))(t)
	if n := len(blockValues(t, x, plain)); n != 1 {
		t.Errorf("%d blocks are left after a sweep, want 1", n)
	}
}

// TestEpochAfterFlush: an empty server does not repeat epochs either.
func TestEpochAfterFlush(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
	last := uint64(0)
	for i := range 5 {
		pod := fmt.Sprint("pod", i)
		apply(t, x, batchOf(pod, store.Add, 1))
		wantBlocks(t, y, []blockkey.Key{1}, pod)
		if e := y.Cached().Epoch; e <= last {
			t.Fatalf("epoch %d after %d", e, last)
		} else {
			last = e
		}
		must.OK(t, plain.FlushAll(t.Context()).Err())
	}
	wantBlocks(t, y, []blockkey.Key{1}, "")
}

func TestSchemaMismatch(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for say, meta := range map[string][]any{
		`schema "2"`:        {"schema", "2", "partitions", "64"},
		`schema "1" with "`: {"schema", "1", "partitions", "128"},
		`schema ""`:         {"partitions", "64"},
	} {
		x := open(t, Config{URL: s.URL(), Prefix: newPrefix()})
		must.OK(t, plain.HSet(t.Context(), x.space.Names.Meta, meta...).Err())
		c := &storetest.Collector{Keys: 1}
		lookup := x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: c})
		_, register := x.Register(t.Context(), store.Pod{Name: "a", Model: "m"})
		_, registry := x.Registry(t.Context())
		for name, err := range map[string]error{"lookup": lookup, "register": register, "registry": registry, "apply": x.Apply(t.Context(), batchOf("a", store.Add, 1))} {
			if !errors.Is(err, keyspace.ErrSchema) {
				t.Errorf("%s: got %v, want keyspace.ErrSchema", name, err)
			}
		}
		if !strings.Contains(lookup.Error(), say) {
			t.Errorf("the error %q does not say %s", lookup, say)
		}
		if c.Registry == nil {
			t.Error("Begin was not called")
		}
		if keys := plain.Keys(t.Context(), x.config.Prefix+"*").Val(); len(keys) != 1 {
			t.Errorf("something was written: %q", keys)
		}
	}
}

// TestUnreadableRegistry puts into the registry what cannot be read: it counts
// as not there, and the rest goes on.
func TestUnreadableRegistry(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	var mu sync.Mutex
	var said []string
	x := open(t, Config{URL: s.URL(), Observer: Observer{Log: func(m string) { mu.Lock(); defer mu.Unlock(); said = append(said, m) }}})
	apply(t, x, batchOf("a", store.Add, 1))
	ctx := t.Context()
	plain.HSet(ctx, x.space.Names.Pods, "b", "{", "c", `{"name":"d","model":"m"}`)
	for i, copied := range []string{"x", "0 0/gpu x", "0 0/gpu 0", "0 0/gpu", "0 0/tape 77", "0 -1/gpu 77", "0 1024/gpu 77", "0 0/gpu 4294967296"} {
		pod := fmt.Sprint("bad", i)
		plain.HSet(ctx, x.space.Names.Pods, pod, `{"name":"`+pod+`","model":"m"}`)
		plain.HSet(ctx, x.space.Names.Gen, "@"+pod, copied)
	}
	plain.HSet(ctx, x.space.Names.Meta, "model:bad", "{}", "model:worse", "")
	plain.Incr(ctx, x.space.Names.Epoch)
	wantBlocks(t, x, []blockkey.Key{1}, "a")
	if n := len(x.Cached().Holders()); n != 1 {
		t.Errorf("%d holders, want 1", n)
	}
	wantSaid := func(n int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if len(said) != n {
			t.Errorf("%d things said of %d that cannot be read: %q", len(said), n, said)
		}
	}
	wantSaid(12)
	for range 2 { // no reload says it again
		must.Get(x.Registry(ctx))(t)
		wantSaid(12)
	}
	plain.HSet(ctx, x.space.Names.Pods, "b", "}")
	must.Get(x.Registry(ctx))(t)
	wantSaid(13)
	plain.Set(ctx, x.space.Names.Epoch, "soon", 0)
	for range 2 { // it counts as lost: the registry is loaded each time, and it is said once
		if err := x.Lookup(ctx, &store.Query{Fold: &storetest.Collector{}}); err != nil {
			t.Errorf("an epoch that is no number: got %v", err)
		}
		wantSaid(14)
	}
}

// TestGenerations looks at how lives are numbered: a clear replaces the ids it
// clears within the generation of the rank, a retirement ends it.
func TestGenerations(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	add := func(rank int, tier store.Tier) {
		t.Helper()
		apply(t, x, store.Batch{Pod: "a b", Model: "m", Rank: rank, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: []blockkey.Key{1}}}})
	}
	want := func(lives map[string]string) {
		t.Helper()
		got := map[string]string{}
		for id, text := range plain.HGetAll(t.Context(), x.space.Names.Gen).Val() {
			if strings.HasPrefix(id, "@") {
				continue
			}
			f := strings.SplitN(text, " ", 5)
			if _, err := strconv.ParseUint(f[3], 10, 64); err != nil || f[4] != "a b" {
				t.Errorf("holder %s is %q", id, text)
			}
			got[id] = f[0] + " " + f[1] + " " + f[2]
		}
		if fmt.Sprint(got) != fmt.Sprint(lives) {
			t.Fatalf("got %v, want %v", got, lives)
		}
	}
	add(0, store.GPU)
	add(0, store.CPU)
	add(1, store.GPU)
	want(map[string]string{"1": "gpu 0 1", "2": "cpu 0 1", "3": "gpu 1 3"})
	apply(t, x, batchOf("a b", store.Clear))
	add(0, store.GPU)
	want(map[string]string{"4": "gpu 0 1", "2": "cpu 0 1", "3": "gpu 1 3"})
	must.Get(x.Retire(t.Context(), "a b"))(t)
	want(map[string]string{})
	add(0, store.GPU)
	want(map[string]string{"5": "gpu 0 5"})
	if n := plain.HGet(t.Context(), x.space.Names.Count, "ended").Val(); n != "4" {
		t.Errorf("%s ended lives counted, want 4", n)
	}
}

// TestExpiredIsCheckedAgain: a pod that renews after a load has seen it late is
// not retired.
func TestExpiredIsCheckedAgain(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL()})
	apply(t, x, batchOf("a", store.Add, 1))
	must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}))(t)
	must.OK(t, x.retireLate(t.Context(), []string{"a", "nobody"}))
	wantBlocks(t, x, []blockkey.Key{1}, "a")
	plain.ZAdd(t.Context(), x.space.Names.Live, redis.Z{Score: 1, Member: "a"})
	must.OK(t, x.retireLate(t.Context(), []string{"a"}))
	wantBlocks(t, x, []blockkey.Key{1}, "")
}

// TestNewsTellAll changes a registry at random and compares a reader that follows changes with one that
// begins.
func TestNewsTellAll(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	c := Config{URL: s.URL(), NoSweep: true, SweepDuty: 1, MaxModels: 100}
	x, y := open(t, c), open(t, c)
	rng := rand.New(rand.NewPCG(5, 6))
	pods := 40
	for step := range 600 {
		if step == 300 {
			pods = 2 * rosterPods // more than the script returns at once
		}
		// Sometimes the reader looks rarely, and then at more than the news keep.
		changes := 1
		switch rng.IntN(60) {
		case 0:
			changes = 400
		case 1, 2, 3, 4:
			changes = 20
		}
		for range changes {
			pod := fmt.Sprint("pod", rng.IntN(pods))
			var err error
			switch rng.IntN(10) {
			case 0:
				_, err = x.Retire(t.Context(), pod)
			case 1:
				_, err = x.Register(t.Context(), store.Pod{Name: pod, Model: "m", Ranks: 1 + rng.IntN(3)})
			case 2:
				err = x.Apply(t.Context(), batchOf(pod, store.Clear))
			case 3:
				_, err = x.EnsureModel(t.Context(), store.ModelInfo{Name: fmt.Sprint(rng.IntN(9)), BlockSize: 64, Scheme: store.SchemeNative})
			case 4:
				_, err = x.Forget(t.Context(), fmt.Sprint(rng.IntN(9)))
			case 5:
				if _, err = x.Register(t.Context(), store.Pod{Name: pod, Model: "m"}); err == nil {
					_, err = x.Begin(t.Context(), pod, rng.IntN(2), 1)
				}
			default:
				err = x.Apply(t.Context(), store.Batch{Pod: pod, Rank: rng.IntN(2), Model: "m", Ops: []store.Op{{Kind: store.Add, Tier: store.Tier(rng.IntN(2)), Keys: []blockkey.Key{1}}}})
			}
			if err != nil && !errors.Is(err, store.ErrNoRank) { // a registration may have fewer ranks
				t.Fatal(err)
			}
		}
		switch rng.IntN(50) {
		case 0:
			must.Get(x.Sweep(t.Context()))(t)
		case 1: // it is lost
			plain.Del(t.Context(), x.space.Names.Epoch)
		case 2: // a hand moves the epoch
			plain.Incr(t.Context(), x.space.Names.Epoch)
		case 3: // the server has lost its latest writes
			plain.HSet(t.Context(), x.space.Names.Count, "run", strings.Repeat("0", 40))
		}
		find(t, y, 1)
		want := must.Get(open(t, c).Registry(t.Context()))(t)
		got := y.Cached()
		if fmt.Sprint(got.Pods, got.Slots, got.Holders(), got.Models, got.Epoch) != fmt.Sprint(want.Pods, want.Slots, want.Holders(), want.Models, want.Epoch) {
			t.Fatalf("step %d: the reader has\n%v %v %v %v, there is\n%v %v %v %v", step, got.Pods, got.Holders(), got.Models, got.Epoch, want.Pods, want.Holders(), want.Models, want.Epoch)
		}
	}
}

// TestManyLate lets more leases run out at once than a load is told at first.
func TestManyLate(t *testing.T) {
	s := redistest.Start(t)
	c := Config{URL: s.URL(), NoSweep: true}
	x, y := open(t, c), open(t, c)
	apply(t, x, batchOf("stays", store.Add, 1))
	for i := range 3 * rosterLeases {
		pod := fmt.Sprint("pod", i)
		register(t, x, store.Pod{Name: pod, Lease: store.Seconds(time.Hour)})
		apply(t, x, batchOf(pod, store.Add, 1))
	}
	if got := find(t, y, 1); len(strings.Fields(got[0])) != 1+3*rosterLeases {
		t.Fatalf("found %q", got)
	}
	plain := s.Client()
	for _, z := range plain.ZRangeWithScores(t.Context(), x.space.Names.Live, 0, -1).Val()[1:] {
		plain.ZAdd(t.Context(), x.space.Names.Live, redis.Z{Score: 1, Member: z.Member})
	}
	if r, err := open(t, c).Registry(t.Context()); err != nil || len(r.Pods) != 2 {
		t.Fatalf("%d pods, %v", len(r.Pods), err)
	}
	eventually.NoError(t, "the retirement", func() error {
		if n := plain.ZCard(t.Context(), x.space.Names.Live).Val(); n != 1 {
			return fmt.Errorf("%d leases are left", n)
		}
		return nil
	})
	if got := find(t, y, 1); len(strings.Fields(got[0])) != 2 {
		t.Fatalf("found %q", got)
	}
}
