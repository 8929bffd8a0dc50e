package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// TestRegistryKeysAreLost takes one key of the registry after the other away, as an
// eviction does. No pod is credited for a life that is over, and one that writes again
// is credited again.
func TestRegistryKeysAreLost(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	ends := map[string]func(*testing.T, *Index){
		"retire": func(t *testing.T, x *Index) {
			must.Get(x.Retire(t.Context(), "a"))(t)
		},
		"clear": func(t *testing.T, x *Index) { apply(t, x, batchOf("a", store.Clear)) },
		"begin": func(t *testing.T, x *Index) { mustBegin(t, x, "a", 9) },
		"the lease": func(t *testing.T, x *Index) {
			pod := store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Millisecond)}
			must.Get(x.Register(t.Context(), pod))(t)
			waitForLease(t, x, "a")
		},
	}
	for _, key := range []string{"own:a", "gen", "pods", "count", "epoch", "s", "meta", "live"} {
		for name, end := range ends {
			t.Run(key+"/"+name, func(t *testing.T) {
				c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true}
				x, y := open(t, c), open(t, c)
				keys := manyKeys(3)
				apply(t, x, batchOf("a", store.Add, keys...), batchOf("b", store.Add, keys[0]))
				wantBlocks(t, y, keys, "a b", "a", "a")
				must.OK(t, plain.Del(t.Context(), x.config.Prefix+"{reg}:"+key).Err())
				if key == "own:a" {
					// It is not needed for reading.
					wantBlocks(t, y, keys, "a b", "a", "a")
				}
				end(t, x)
				for _, i := range []*Index{x, y, open(t, c)} {
					if got := find(t, i, keys...); slices.ContainsFunc(got, func(at string) bool { return strings.Contains(at, "a") }) {
						t.Fatalf("a has ended and is credited: %q", got)
					}
				}
				// The next life, under the same name.
				must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m"}))(t)
				apply(t, x, batchOf("a", store.Add, keys[1]), batchOf("b", store.Add, keys[2]))
				for _, i := range []*Index{x, y, open(t, c)} {
					got := find(t, i, keys...)
					if strings.Contains(got[0], "a") || !strings.Contains(got[1], "a") || strings.Contains(got[2], "a") {
						t.Fatalf("the next life of a has %q, want the second block", got)
					}
				}
			})
		}
	}
}

// TestLostOwnIsHealed: the hash alone costs nothing, not even credit.
func TestLostOwnIsHealed(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	gen := mustBegin(t, x, "a", 1)
	keys := manyKeys(4)
	apply(t, x, guardedBatch("a", gen, 1, 1, store.Add, keys[:2]...))
	for tier := range store.Tier(store.NumHolderTiers) {
		apply(t, x, store.Batch{Pod: "a", Rank: 3, Model: "m", Reuse: store.Reuse{Block: 16, Window: 128}, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: keys[3:]}}})
	}
	before := plain.HGetAll(t.Context(), x.space.Names.Own("a")).Val()
	must.OK(t, plain.Del(t.Context(), x.space.Names.Own("a")).Err())
	apply(t, x, guardedBatch("a", gen, 1, 2, store.Add, keys[2]))
	wantBlocks(t, x, keys, "a", "a", "a", "a a a a a a a a")
	if after := plain.HGetAll(t.Context(), x.space.Names.Own("a")).Val(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("got %v, want %v", after, before)
	}
}

// TestEvictionsWithoutFalseCredit lets pods live and die on a server that evicts
// whatever it likes. No pod may be credited for what a former life has written.
func TestEvictionsWithoutFalseCredit(t *testing.T) {
	for _, policy := range []string{"allkeys-random", "allkeys-lru"} {
		t.Run(policy, func(t *testing.T) {
			s := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", policy)
			x, y := open(t, Config{URL: s.URL(), NoSweep: true}), open(t, Config{URL: s.URL(), NoSweep: true})
			rng := rand.New(rand.NewPCG(1, 2))
			held := map[string]map[blockkey.Key]bool{}
			fill := 0
			var all []blockkey.Key
			for k := range blockkey.Key(300) {
				all = append(all, k)
			}
			for range 250 {
				pod := fmt.Sprint("pod", rng.IntN(4))
				switch rng.IntN(6) {
				case 0:
					must.Get(x.Retire(t.Context(), pod))(t)
					held[pod] = nil
				case 1:
					apply(t, x, batchOf(pod, store.Clear))
					held[pod] = nil
				default:
					var keys []blockkey.Key
					for range 20 {
						keys = append(keys, blockkey.Key(rng.Uint64N(300)))
					}
					apply(t, x, batchOf(pod, store.Add, keys...))
					for _, k := range keys {
						if held[pod] == nil {
							held[pod] = map[blockkey.Key]bool{}
						}
						held[pod][k] = true
					}
				}
				var ballast []blockkey.Key
				for range 500 {
					fill++
					ballast = append(ballast, blockkey.Key(1<<40+fill))
				}
				apply(t, x, batchOf("ballast", store.Add, ballast...))
				for i, at := range find(t, y, all...) {
					k := all[i]
					for _, p := range strings.Fields(at) {
						if !held[p][k] {
							t.Fatalf("block %d is credited to %s, which has not written it in this life", k, p)
						}
					}
				}
			}
			if n := s.Client().Info(t.Context(), "stats").Val(); strings.Contains(n, "evicted_keys:0\r") {
				t.Error("nothing was evicted")
			}
		})
	}
}

// TestReaderSaysOnceThatItMayNotWrite lets leases run out under a process whose
// user may only read.
func TestReaderSaysOnceThatItMayNotWrite(t *testing.T) {
	s := redistest.Start(t)
	users(t, s)
	var mu sync.Mutex
	var said []string
	w := open(t, Config{URL: s.URL(), NoSweep: true})
	r := open(t, Config{
		URL: strings.Replace(s.URL(), "://", "://"+asReader, 1), SweepInterval: 5 * time.Millisecond,
		Observer: Observer{Log: func(m string) { mu.Lock(); defer mu.Unlock(); said = append(said, m) }},
	})
	words := func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(said) }
	for i := range 5 {
		pod := fmt.Sprint("pod", i)
		must.Get(w.Register(t.Context(), store.Pod{Name: pod, Model: "m", Lease: store.Seconds(time.Millisecond)}))(t)
		waitForLease(t, w, pod)
		if reg, err := r.Registry(t.Context()); err != nil || len(reg.Pods) != 0 {
			t.Fatalf("got %v, %v", reg, err)
		}
		wantBlocks(t, r, []blockkey.Key{1}, "")
	}
	// There is something to sweep, too, all the while.
	apply(t, w, batchOf("a", store.Add, 1), batchOf("a", store.Clear))
	eventually.NoError(t, "the reader", func() error {
		if len(words()) == 0 {
			return fmt.Errorf("it has said nothing")
		}
		return nil
	})
	must.Get(r.Registry(t.Context()))(t) // which finds the pods late once more
	if all := words(); len(all) != 1 || !strings.Contains(all[0], "may only read") {
		t.Errorf("said %q", all)
	}
	if n := len(refusals(t, s)); n > 3 {
		t.Errorf("the server has refused %d times", n)
	}
	// A command that scripts call, and that is taken from the user, is a refusal too.
	must.OK(t, s.Client().ACLSetUser(t.Context(), "half", "on", ">secret", "~*", "&*", "+@all", "-hset", "-set", "-hincrby").Err())
	half := open(t, Config{URL: strings.Replace(s.URL(), "redis://", "redis://half:secret@", 1), Prefix: newPrefix(), NoSweep: true})
	if _, err := half.Register(t.Context(), store.Pod{Name: "b", Model: "m"}); !errors.Is(err, store.ErrRefused) {
		t.Errorf("register: %v", err)
	}
	// What it is asked to do is tried, and refused in words.
	if err := r.Apply(t.Context(), batchOf("a", store.Add, 1)); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("apply: %v", err)
	}
}

// TestClearBetweenTries: an error has cut a batch short, and another process clears its rank before it is sent
// again. It is whole at the end, and one that was whole before the clear stays cleared.
func TestClearBetweenTries(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		keys := crashKeys(40)
		whole, parts := 0, 0
		for n := range 40 {
			c := Config{URL: url, Prefix: newPrefix(), NoSweep: true}
			x, line := mortal(t, c)
			gen := mustBegin(t, x, "a", 1)
			apply(t, x, guardedBatch("a", gen, 1, 1, store.Add, keys[0]))
			line.limit(n, n%2 == 1)
			err := x.Apply(t.Context(), guardedBatch("a", gen, 1, 2, store.Add, keys...))
			line.limit(-1, false)
			life := must.Get(x.Life(t.Context(), "a", 0))(t)
			apply(t, x, batchOf("a", store.Clear))
			// The same process knows the new holder before it tries again.
			apply(t, x, batchOf("a", store.Add, 1<<50))
			apply(t, x, guardedBatch("a", gen, 1, 2, store.Add, keys...))
			got := find(t, open(t, c), keys...)
			want := "a"
			if life.Seq == 2 {
				want = ""
				whole++
			} else {
				parts++
			}
			for i, at := range got {
				if at != want {
					t.Fatalf("killed after %d commands (%v, applied up to %d): block %d is held by %q, want %q", n, err, life.Seq, i, at, want)
				}
			}
			if err == nil {
				break
			}
		}
		if whole == 0 || parts == 0 {
			t.Errorf("%d whole and %d in parts", whole, parts)
		}
	})
}

// TestLostLeases: pods whose leases have been lost get them again by a sweep, and
// die by them.
func TestLostLeases(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	c := Config{URL: s.URL(), NoSweep: true, SweepDuty: 1}
	x, y := open(t, c), open(t, c)
	const lease = 300 * time.Millisecond
	register(t, x, store.Pod{Name: "a", Lease: store.Seconds(lease)}, store.Pod{Name: "b"}, store.Pod{Name: "c", Lease: store.Seconds(time.Hour)})
	apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1), batchOf("c", store.Add, 1))
	must.OK(t, plain.Del(t.Context(), x.space.Names.Live).Err())
	register(t, x, store.Pod{Name: "c", Lease: store.Seconds(2 * time.Hour)}) // it lives and renews
	over := plain.Time(t.Context()).Val().Add(lease)
	eventually.True(t, "the lease's end by the server's clock", func() bool { return plain.Time(t.Context()).Val().After(over) })
	wantBlocks(t, y, []blockkey.Key{1}, "a b c")
	must.Get(x.Sweep(t.Context()))(t)
	live := plain.ZRangeWithScores(t.Context(), x.space.Names.Live, 0, -1).Val()
	if len(live) != 2 || live[0].Member != "a" || live[1].Score-live[0].Score < float64(time.Hour.Milliseconds()) {
		t.Errorf("the leases are %v", live)
	}
	eventually.NoError(t, "the index", func() error {
		if got := find(t, y, 1); got[0] != "b c" {
			return fmt.Errorf("found %q", got)
		}
		return nil
	})
}
