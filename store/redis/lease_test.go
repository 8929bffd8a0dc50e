package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func TestLeases(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		storetest.RunLeases(t, func(t *testing.T) storetest.Subject {
			s := subject(t, Config{URL: url, Prefix: newPrefix()})
			s.Lease = 2 * time.Second
			return s
		})
	})
}

// leaseOf acquires a rank and returns its fence.
func leaseOf(t *testing.T, x *Index, name string, ranks ...store.RankRef) uint64 {
	t.Helper()
	v := must.Get(x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: name, Ranks: 10}, TTL: time.Minute, Acquire: ranks}))(t)
	if l := v.Leases[ranks[0]]; l.Reader != name {
		t.Fatalf("the lease is %+v", l)
	}
	return v.Leases[ranks[0]].Fence
}

// TestFencesAfterLoss: a server that has lost its latest writes, all of them, or just
// its counters gives no fence again, and none that is lower.
func TestFencesAfterLoss(t *testing.T) {
	s := redistest.Start(t, "--save", "", "--appendonly", "no")
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	plain := s.Client()
	r := store.RankRef{Pod: "a"}
	last := uint64(0)
	grow := func(what string) {
		t.Helper()
		f := leaseOf(t, x, "o", r)
		if f <= last {
			t.Fatalf("%s: fence %d after %d", what, f, last)
		}
		last = f
	}
	grow("first")
	// As if the clock of the last server had been ten minutes ahead of this one's.
	plain.HSet(t.Context(), x.space.Names.Count, "lease", fmt.Sprintf("%d %s", last+600e6, strings.Repeat("0", 40)))
	before := last + 600e6
	grow("another server")
	if last <= before {
		t.Fatalf("fence %d after a server that had given %d", last, before)
	}
	grow("the same server")
	plain.Del(t.Context(), x.space.Names.Count)
	grow("no counters")
	_, leases := x.space.Names.Readers()
	must.OK(t, plain.HSet(t.Context(), leases, "x", "y", "0 b", "words", "0 ", "1 z", "1 c", "5").Err())
	grow("strange leases")
	s.Kill()
	s.Run()
	eventually.NoError(t, "lease", func() error {
		_, err := x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "o"}, TTL: time.Minute})
		return err
	})
	// All is lost. What is left of the former fences is time, which has gone on by less
	// than half an hour. So the reader says what it was refused for.
	v, err := x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "o"}, TTL: time.Minute, Acquire: []store.RankRef{r}, After: last})
	if err != nil || v.Leases[r].Fence <= last {
		t.Fatalf("got %+v, %v; want a fence after %d", v, err, last)
	}
}

// TestLeaseIsBounded: limits, and a server that is full.
func TestLeaseIsBounded(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), MaxHolders: 2, NoSweep: true})
	ref := func(n int) (out []store.RankRef) {
		for i := range n {
			out = append(out, store.RankRef{Pod: "a", Rank: i})
		}
		return out
	}
	call := func(name string, ranks []store.RankRef) error {
		_, err := x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: name}, TTL: time.Minute, Acquire: ranks})
		return err
	}
	if err := call("o", ref(3)); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	if err := call("o", ref(2)); err != nil {
		t.Error(err)
	}
	plain := s.Client()
	living, _ := x.space.Names.Readers()
	for i := range store.MaxReaders {
		plain.ZAdd(t.Context(), living, zOf(fmt.Sprint("r", i, " 5"), time.Now().Add(time.Hour)))
	}
	if err := call("p", nil); !errors.Is(err, store.ErrFull) {
		t.Errorf("the readers are too many: got %v, want ErrFull", err)
	}
	if err := call("o", nil); err != nil {
		t.Errorf("one of them: %v", err)
	}
	must.OK(t, plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	if err := call("o", nil); err != nil {
		t.Errorf("a full server: %v", err)
	}
}

// TestLeaseTrips: whatever a call does is one round trip, and so is what it sees, up to 256
// leases. Beyond that they are read in pages.
func TestLeaseTrips(t *testing.T) {
	x := open(t, Config{URL: redistest.Start(t).URL(), NoSweep: true})
	leaseOf(t, x, "o", store.RankRef{Pod: "a"})
	var many []store.RankRef
	for i := range store.MaxLeaseRanks {
		many = append(many, store.RankRef{Pod: fmt.Sprint("p", i)})
	}
	for _, c := range []struct{ leases, trips int }{{256, 1}, {1024, 1 + 3}} {
		before := x.Stats().RoundTrips
		leaseOf(t, x, "o", many[:c.leases-1]...) // a is one
		if n := x.Stats().RoundTrips - before; n > uint64(c.trips) || n < uint64(min(c.trips, 2)) {
			t.Errorf("%d leases: %d round trips, want at most %d", c.leases, n, c.trips)
		}
	}
}

// TestLeaseSteps: a call of many ranks, which goes in parts, is like one of few.
func TestLeaseSteps(t *testing.T) {
	x := open(t, Config{URL: redistest.Start(t).URL(), NoSweep: true, MaxHolders: 600})
	ref := func(from, to int) (out []store.RankRef) {
		for i := from; i < to; i++ {
			out = append(out, store.RankRef{Pod: fmt.Sprint("p", i)})
		}
		return out
	}
	call := func(name string, acquire, release []store.RankRef) (store.LeaseView, error) {
		return x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: name, Ranks: 1000}, TTL: time.Minute, Acquire: acquire, Release: release})
	}
	v, err := call("o", ref(0, 500), nil)
	if err != nil || !v.Lapsed || len(v.Leases) != 500 || len(v.Readers) != 1 {
		t.Fatalf("got %d leases, %+v, %v", len(v.Leases), v.Readers, err)
	}
	// Of what another has nothing is taken; what is released and acquired has a new fence.
	was := v.Leases
	if v, err = call("p", ref(400, 560), ref(0, 10)); err != nil || !v.Lapsed || len(v.Leases) != 560 || v.Leases[ref(400, 401)[0]].Reader != "o" || v.Leases[ref(559, 560)[0]].Reader != "p" {
		t.Fatalf("got %d leases, %v", len(v.Leases), err)
	}
	if v, err = call("o", ref(0, 300), ref(200, 500)); err != nil || v.Lapsed || len(v.Leases) != 360 {
		t.Fatalf("got %d leases, lapsed %v, %v", len(v.Leases), v.Lapsed, err)
	}
	fences := map[uint64]bool{}
	for r, l := range v.Leases {
		if fences[l.Fence] || l.Reader == "o" && l.Fence <= was[r].Fence {
			t.Fatalf("%v has %+v after %+v", r, l, was[r])
		}
		fences[l.Fence] = true
	}
	// The last parts find no room; the caller sees next time what it has got.
	if _, err = call("o", ref(600, 1000), nil); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	if v, err = call("o", nil, nil); err != nil || len(v.Leases) > 600 || len(v.Leases) < 360 {
		t.Errorf("%d leases, %v", len(v.Leases), err)
	}
	again, err := x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "o", Ranks: 1000}, TTL: time.Minute, Version: v.Version})
	if err != nil || again.Leases != nil || again.Version != v.Version {
		t.Errorf("nothing has changed: got %d leases, %v", len(again.Leases), err)
	}
	// The end of a reader frees all of it.
	if v, err = x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "o"}, Release: ref(0, 1000)}); err != nil || len(v.Leases) != 60 || len(v.Readers) != 1 {
		t.Errorf("%d leases, %+v, %v", len(v.Leases), v.Readers, err)
	}
}

// TestDeadReadersGo: a reader that is dead for an hour is forgotten.
func TestDeadReadersGo(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	living, _ := x.space.Names.Readers()
	plain := s.Client()
	plain.ZAdd(t.Context(), living, zOf("old 1", time.Now().Add(-2*time.Hour)), zOf("dead 1", time.Now().Add(-time.Minute)))
	leaseOf(t, x, "o", store.RankRef{Pod: "a"})
	if got := plain.ZRange(t.Context(), living, 0, -1).Val(); fmt.Sprint(got) != "[dead 1 o 10]" {
		t.Errorf("there are %v", got)
	}
}

// BenchmarkLease is the call that each replica makes twice a second, and that of a
// replica that takes over a thousand ranks. It reports the server's CPU and how long
// each command keeps it from others.
func BenchmarkLease(b *testing.B) {
	s := redistest.Start(b)
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	var many []store.RankRef
	for i := range 1000 {
		many = append(many, store.RankRef{Pod: fmt.Sprint("10.0.0.1:", i)})
	}
	for _, name := range []string{"renew", "acquire"} {
		b.Run(name, func(b *testing.B) {
			c := store.LeaseCall{Reader: store.Reader{Name: "o", Ranks: 5000}, TTL: time.Minute, Acquire: many}
			report := cpu(b, s.Client())
			each := slowlog(b, s.Client(), "evalsha", "hscan")
			for b.Loop() {
				v := must.Get(x.Lease(b.Context(), c))(b)
				if c.Version = v.Version; name == "renew" {
					c.Acquire = nil
				}
			}
			report()
			each()
		})
	}
}

func zOf(member string, until time.Time) redis.Z {
	return redis.Z{Score: float64(until.UnixMilli()), Member: member}
}
