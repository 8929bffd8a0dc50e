package redis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/store"
)

// history makes random calls of a store, and the same of a memory as its model. Each has a
// clock, and both are moved alike.
type history struct {
	r            *rapid.T
	s            *redis.Store
	prefix       string
	clock, other *loadstest.Clock
	model        *loads.Memory
	refused      int // calls that the store could not do
}

func newHistory(t *testing.T, r *rapid.T, client goredis.UniversalClient) *history {
	h := &history{r: r, clock: loadstest.NewClock(), other: loadstest.NewClock(), prefix: fmt.Sprintf("h%d", prefixes.Add(1))}
	h.s = newStore(t, client, h.prefix, h.clock)
	h.model = loads.NewMemory(h.other.Now)
	return h
}

// step makes one call. What the store cannot do the model does not do either.
func (h *history) step() {
	ctx, r := context.Background(), h.r
	id := fmt.Sprint("r", rapid.IntRange(0, 12).Draw(r, "id"))
	place := func(what string) string { return fmt.Sprint("p", rapid.IntRange(0, 2).Draw(r, what)) }
	c := request(id, place("place"))
	for i := range rapid.IntRange(0, 6).Draw(r, "blocks") {
		c.Keys = append(c.Keys, blockkey.Key(i+1)<<8|blockkey.Key(rapid.IntRange(0, 1).Draw(r, "fork")))
	}
	n := rapid.IntRange(0, 200).Draw(r, "tokens")
	var call func(s loads.Store) (string, error)
	switch rapid.IntRange(0, 6).Draw(r, "what") {
	case 0, 1:
		call = func(s loads.Store) (string, error) {
			b, err := s.Book(ctx, c)
			return fmt.Sprint(b.RankRef, b.Again), err
		}
	case 2:
		p := &loads.PairCall{Call: *c, Prefill: request(id, place("prefills")).Candidates, Options: []loads.Option{{Factor: 1}}}
		call = func(s loads.Store) (string, error) {
			b, err := s.BookPair(ctx, p)
			return fmt.Sprint(b.RankRef, b.Prefill, b.Again), err
		}
	case 3:
		call = func(s loads.Store) (string, error) {
			x, err := s.Done(ctx, "m", id, loads.Done{Cached: -1})
			return fmt.Sprint(x), err
		}
	case 4:
		call = func(s loads.Store) (string, error) {
			x, err := s.Output(ctx, "m", id, n)
			return fmt.Sprint(x), err
		}
	case 5:
		call = func(s loads.Store) (string, error) {
			x, err := s.End(ctx, "m", id)
			return fmt.Sprint(x), err
		}
	case 6:
		d := time.Duration(rapid.IntRange(1, 15).Draw(r, "seconds")) * time.Second
		h.clock.Advance(d)
		h.other.Advance(d)
		return
	}
	got, err := call(h.s)
	if errors.Is(err, loads.ErrUnavailable) {
		h.refused++
		return
	}
	want, wanted := call(h.model)
	if err != nil || wanted != nil || got != want {
		r.Fatalf("%s, %v, the model has %s, %v", got, err, want, wanted)
	}
}

// load is what of a load does not depend on the clock.
type load struct{ work, prefill, blocks, requests int64 }

func (h *history) loads(s loads.Store) map[store.RankRef]load {
	h.r.Helper()
	p, err := s.Loads(context.Background(), "m")
	for end := time.Now().Add(10 * time.Second); errors.Is(err, loads.ErrUnavailable) && time.Now().Before(end); {
		p, err = s.Loads(context.Background(), "m") // the masters do not agree yet which of them has the slot
	}
	must.OK(h.r, err)
	out := map[store.RankRef]load{}
	for at, l := range p.Loads {
		if runs := (load{l.Work, l.Prefill, l.Blocks, l.Requests}); runs != (load{}) {
			out[at] = runs
		}
	}
	return out
}

// check compares loads, reservations and the model.
func (h *history) check(model bool) {
	h.r.Helper()
	got := h.loads(h.s)
	if model {
		if want := h.loads(h.model); !maps.Equal(got, want) {
			h.r.Fatalf("%v, the model has %v", got, want)
		}
	}
	d, err := h.s.Audit(context.Background(), "m")
	for end := time.Now().Add(10 * time.Second); errors.Is(err, loads.ErrUnavailable) && time.Now().Before(end); {
		d, err = h.s.Audit(context.Background(), "m")
	}
	if err != nil || len(d) > 0 {
		h.r.Fatalf("the reservations come to something else: %+v, %v", d, err)
	}
}

// over lets all leases end.
func (h *history) over() {
	h.clock.Advance(2 * time.Minute)
	if l := h.loads(h.s); len(l) > 0 {
		h.r.Fatalf("one lease later: %v", l)
	}
}

// TestSlotMoves moves the slot of the loads from master to master while requests come and go.
// A call in the middle of a move is refused whole or done whole.
func TestSlotMoves(t *testing.T) {
	cluster := redistest.StartCluster(t, 2, false)
	var addrs []string
	for _, m := range cluster.Masters {
		addrs = append(addrs, m.Addr)
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addrs, Protocol: 2, DisableIdentity: true, MinRetryBackoff: -1})
	t.Cleanup(func() { _ = client.Close() })
	refused, moved := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		h := newHistory(t, r, client)
		for range rapid.IntRange(0, 12).Draw(r, "before") {
			h.step()
		}
		if keys := keysOf(t, cluster, h.prefix); len(keys) > 0 {
			moved++
			cluster.MoveSlot(keys[0], func() {
				for range rapid.IntRange(0, 4).Draw(r, "meanwhile") {
					h.step()
				}
			})
		}
		for range rapid.IntRange(0, 12).Draw(r, "after") {
			h.step()
		}
		h.check(true)
		h.over()
		refused += h.refused
	})
	t.Logf("%d slots were moved, %d calls refused meanwhile", moved, refused)
	if moved == 0 {
		t.Error("no slot was moved")
	}
}

// keysOf returns the keys that hold the loads under a prefix.
func keysOf(t *testing.T, c *redistest.Cluster, prefix string) (keys []string) {
	t.Helper()
	for _, m := range c.Masters {
		k := must.Get(m.Client().Keys(context.Background(), prefix+"{*").Result())(t)
		keys = append(keys, k...)
	}
	return keys
}

// TestLostTail takes the server back to an earlier state in the midst of requests. The failover
// to a replica does so that has not had the last writes.
func TestLostTail(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	rapid.Check(t, func(r *rapid.T) {
		h := newHistory(t, r, client)
		client.FlushAll(ctx)
		for range rapid.IntRange(1, 20).Draw(r, "before") {
			h.step()
		}
		then, dumped := h.loads(h.s), map[string]string{}
		for _, k := range client.Keys(ctx, "*").Val() {
			dumped[k] = client.Dump(ctx, k).Val()
		}
		at := h.clock.Now()
		for range rapid.IntRange(1, 20).Draw(r, "lost") {
			h.step()
		}
		client.FlushAll(ctx)
		for k, v := range dumped {
			must.OK(r, client.Restore(ctx, k, 0, v).Err())
		}
		if now := h.loads(h.s); h.clock.Now().Sub(at) < time.Second && !maps.Equal(now, then) {
			r.Fatalf("%v, before it was %v", now, then)
		}
		h.check(false)
		h.model = loads.NewMemory(h.other.Now) // it knows nothing of the loss
		for range rapid.IntRange(1, 20).Draw(r, "after") {
			h.lenient()
			h.check(false)
		}
		h.over()
		h.clock.Advance(loads.ForgetSpeed)
		h.loads(h.s) // which forgets what caches were filled with
		if n := client.DBSize(ctx).Val(); n != 0 {
			r.Fatalf("%d keys are left", n)
		}
	})
}

// lenient makes one call whose answer does not matter.
func (h *history) lenient() {
	id, ctx := fmt.Sprint("r", rapid.IntRange(0, 12).Draw(h.r, "id")), context.Background()
	var err error
	switch rapid.IntRange(0, 4).Draw(h.r, "what") {
	case 0:
		_, err = h.s.Book(ctx, request(id, fmt.Sprint("p", rapid.IntRange(0, 2).Draw(h.r, "place"))))
	case 1:
		_, err = h.s.Done(ctx, "m", id, loads.Done{Cached: -1})
	case 2:
		_, err = h.s.Output(ctx, "m", id, rapid.IntRange(0, 200).Draw(h.r, "tokens"))
	case 3:
		_, err = h.s.End(ctx, "m", id)
	case 4:
		h.clock.Advance(time.Duration(rapid.IntRange(1, 15).Draw(h.r, "seconds")) * time.Second)
	}
	must.OK(h.r, err)
}

// TestEarlierForm has a process of an earlier version book beside this one.
func TestEarlierForm(t *testing.T) {
	client := redistest.Start(t).Client()
	s := must.Get(redis.New(redis.Config{Client: client, Prefix: "kva", Timeout: 10 * time.Second}))(t)
	call := &loads.Call{Model: "m", ID: "r", Lease: time.Minute, Tokens: 10, BlockSize: 16, Candidates: []loads.Candidate{{RankRef: store.RankRef{Pod: "a"}, Factor: 1}}}
	must.Get(s.Book(t.Context(), call))(t)
	ours := client.Keys(t.Context(), "kva{*}:t3:*").Val()
	if len(ours) != 1 {
		t.Fatalf("leases are %q", ours)
	}
	theirs := strings.Replace(ours[0], ":t3:", ":t:", 1)
	audit := func(till time.Time, want error) {
		t.Helper()
		client.ZAdd(t.Context(), theirs, goredis.Z{Score: float64(till.UnixMicro()), Member: "their request"})
		if _, err := s.Audit(t.Context(), "m"); !errors.Is(err, want) {
			t.Errorf("the audit says %v, want %v", err, want)
		}
	}
	audit(time.Now().Add(time.Minute), loads.ErrMixed)
	audit(time.Now().Add(-time.Second), nil)
	if p, err := s.Loads(t.Context(), "m"); err != nil || p.Loads[store.RankRef{Pod: "a"}].Requests != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}
