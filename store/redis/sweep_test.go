package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// blockValues returns the values of all blocks of the index.
func blockValues(tb testing.TB, x *Index, plain redis.UniversalClient) map[blockkey.StoreKey]string {
	tb.Helper()
	out := map[blockkey.StoreKey]string{}
	add := func(ctx context.Context, c *redis.Client) error {
		it := c.Scan(ctx, 0, "*", 1000).Iterator()
		for it.Next(ctx) {
			if k, ok := x.space.Names.ParseBlock(it.Val()); ok {
				v, err := c.Get(ctx, it.Val()).Result()
				if err != nil {
					v = "<" + err.Error() + ">"
				}
				out[k] = v
			}
		}
		return it.Err()
	}
	var err error
	switch c := plain.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex
		err = c.ForEachMaster(tb.Context(), func(ctx context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			return add(ctx, c)
		})
	case *redis.Client:
		err = add(tb.Context(), c)
	}
	must.OK(tb, err)
	return out
}

func manyKeys(n int) []blockkey.Key {
	rng := rand.New(rand.NewPCG(3, 4))
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

func TestSweep(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	var last SweepProgress
	steps := 0
	x := open(t, Config{URL: s.URL(), NoSweep: true, SweepDuty: 1, Observer: Observer{Swept: func(p SweepProgress) { last = p; steps++ }}})
	other := open(t, Config{URL: s.URL(), Prefix: "kvb", NoSweep: true})
	keys := manyKeys(3000)
	apply(t, x, batchOf("a", store.Add, keys...), batchOf("b", store.Add, keys[:1000]...), batchOf("c", store.Add, keys[500:600]...))
	apply(t, other, batchOf("a", store.Add, keys[:10]...))
	apply(t, other, batchOf("a", store.Clear))
	must.Get(x.Retire(t.Context(), "a"))(t)
	apply(t, x, batchOf("b", store.Clear))
	apply(t, x, batchOf("a", store.Add, keys[:5]...)) // the next life
	plain.Set(t.Context(), nameOf(x, 12345), "garbage,", 0)
	plain.HSet(t.Context(), nameOf(x, 12346), "f", "v")

	p := must.Get(x.Sweep(t.Context()))(t)
	if p != last || !p.Done || p.Ended != 2 || p.Cleaned != 3001 || p.Foreign != 1 || p.Scanned < 3000 || p.Keys < 3000 {
		t.Errorf("got %+v, last told %+v", p, last)
	}
	if steps < 3 {
		t.Errorf("told of %d steps only", steps)
	}
	values := blockValues(t, x, plain)
	want := map[blockkey.StoreKey]string{blockkey.Key(12346).In(blockkey.ModelOf("m")): "<WRONGTYPE Operation against a key holding the wrong kind of value>"}
	for i, k := range keys {
		switch {
		case i < 5:
			want[k.In(blockkey.ModelOf("m"))] = "4"
		case i >= 500 && i < 600:
			want[k.In(blockkey.ModelOf("m"))] = "3"
		}
	}
	if fmt.Sprint(values) != fmt.Sprint(want) {
		t.Errorf("%d blocks are left, want %d", len(values), len(want))
	}
	if n := len(blockValues(t, other, plain)); n != 10 {
		t.Errorf("%d blocks of another prefix are left, want 10", n)
	}
	if x.dueSweep() {
		t.Error("there is still something to sweep")
	}
	must.Get(x.Retire(t.Context(), "c"))(t)
	if !x.dueSweep() {
		t.Error("there is nothing to sweep after a retirement")
	}
}

// TestSweepBesideWriters sweeps again and again while pods live and die, and
// compares the end with what must be left.
func TestSweepBesideWriters(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true, SweepDuty: 1})
	keys := manyKeys(2000)
	apply(t, x, batchOf("stable", store.Add, keys...))
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			pod := fmt.Sprint("pod", w)
			for i := range 40 {
				from := (i * 37) % 1000
				err := x.Apply(t.Context(), batchOf(pod, store.Add, keys[from:from+500]...))
				if err == nil && i%3 == 0 {
					err = x.Apply(t.Context(), batchOf(pod, store.Clear))
				}
				if err == nil && i%7 == 0 {
					_, err = x.Retire(t.Context(), pod)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if _, err := x.Retire(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
	}
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := x.Sweep(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	writers.Wait()
	close(stop)
	sweeps.Wait()
	must.Get(x.Sweep(t.Context()))(t)
	values := blockValues(t, x, plain)
	if len(values) != len(keys) {
		t.Errorf("%d blocks, want %d", len(values), len(keys))
	}
	for k, v := range values {
		if v != "1" {
			t.Fatalf("block %x has the holders %q, want 1 alone", k, v)
		}
	}
}

func TestOneSweepsAtATime(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	apply(t, x, batchOf("a", store.Add, 1), batchOf("a", store.Clear))
	plain.Set(t.Context(), x.space.Names.Sweep, "another", time.Hour)
	if _, err := x.Sweep(t.Context()); !errors.Is(err, errOtherSweeps) {
		t.Fatalf("got %v, want %v", err, errOtherSweeps)
	}
	if v := plain.Get(t.Context(), x.space.Names.Sweep).Val(); v != "another" {
		t.Fatalf("the right to sweep is %q's", v)
	}
	plain.Del(t.Context(), x.space.Names.Sweep)
	must.Get(x.Sweep(t.Context()))(t)
	// A sweep that loses its right stops before it says that all is swept.
	s1 := &sweeper{x: x, token: "one"}
	must.OK(t, s1.hold(t.Context(), ""))
	if ttl := plain.PTTL(t.Context(), x.space.Names.Sweep).Val(); ttl <= 0 || ttl > sweepLease {
		t.Errorf("the right to sweep is for %v", ttl)
	}
	plain.Del(t.Context(), x.space.Names.Sweep)
	if err := s1.hold(t.Context(), "99"); !errors.Is(err, errOtherSweeps) {
		t.Errorf("got %v, want %v", err, errOtherSweeps)
	}
}

func TestBackgroundSweep(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	done := make(chan SweepProgress, 100)
	var indexes []*Index
	for range 3 {
		indexes = append(indexes, open(t, Config{URL: s.URL(), SweepInterval: 20 * time.Millisecond, Observer: Observer{Swept: func(p SweepProgress) {
			if p.Done {
				done <- p
			}
		}}}))
	}
	x := indexes[0]
	apply(t, x, batchOf("a", store.Add, manyKeys(1000)...), batchOf("b", store.Add, 1))
	apply(t, x, batchOf("a", store.Clear))
	eventually.NoError(t, "the sweep", func() error {
		if n := len(blockValues(t, x, plain)); n != 1 {
			return fmt.Errorf("%d blocks are left", n)
		}
		return nil
	})
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("nobody has told of a complete sweep")
	}
}

func TestSweepEndsWithItsContext(t *testing.T) {
	s := redistest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	// The first step is followed by a rest of hours.
	x := open(t, Config{URL: s.URL(), NoSweep: true, SweepDuty: 1e-9, Observer: Observer{Swept: func(SweepProgress) { cancel() }}})
	apply(t, x, batchOf("a", store.Add, manyKeys(3000)...), batchOf("a", store.Clear))
	err := within(t, patience, "Sweep", func() error { _, err := x.Sweep(ctx); return err })
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "unavailable") {
		t.Fatalf("got %v, want Canceled", err)
	}
}
