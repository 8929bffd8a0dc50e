package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

var concurrencyCases = []testCase{
	{"a holder that stays is seen by every lookup", func(b *bench) {
		// Writers take blocks of the chain up and down and grow the index
		// around it; "stable" holds it all the time.
		k := chain(1, 200)
		b.add("stable", 0, store.GPU, k...)
		var stop atomic.Bool
		var writers, readers sync.WaitGroup
		for w := range 3 {
			writers.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(w)))
				pod := fmt.Sprint("churn", w)
				for i := range 60 {
					from := rng.IntN(len(k) - 50)
					part := k[from : from+50]
					other := chain(uint64(1000+100*w+i), 300)
					err := b.Index.Apply(b.ctx,
						batch(pod, rng.IntN(3), adds(store.Tier(rng.IntN(store.NumTiers)), part...), adds(store.GPU, other...)),
						batch(pod, rng.IntN(3), removes(store.AllTiers, part...)))
					if err == nil && i%10 == 9 {
						_, err = b.Index.Retire(b.ctx, pod)
					}
					if err != nil {
						b.Errorf("write: %v", err)
						return
					}
				}
			})
		}
		for range 3 {
			readers.Go(func() {
				for !stop.Load() {
					c := &Collector{Keys: len(k)}
					err := b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c})
					if err == nil {
						err = c.Err()
					}
					if err != nil {
						b.Errorf("read: %v", err)
						return
					}
					for i, at := range c.Answer {
						if !slices.Contains(at, on("stable", store.GPU)) {
							b.Errorf("block %d: stable is missing in %v", i, at)
							return
						}
					}
				}
			})
		}
		writers.Wait()
		stop.Store(true)
		readers.Wait()
	}},
	{"who writes sees what he wrote", func(b *bench) {
		// Each writer has a pod of its own and all write the same blocks. What a
		// writer then finds of its own pod is exactly what it wrote.
		k := chain(1, 40)
		var wg sync.WaitGroup
		const writers, rounds = 4, 100
		models := make([]*Model, writers)
		for w := range writers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(2, uint64(w)))
				pod := fmt.Sprint("pod", w)
				m := NewModel()
				models[w] = m
				x := b.Index
				if w%2 == 1 {
					x = b.peer()
				}
				for range rounds {
					from := rng.IntN(len(k))
					part := k[from : from+rng.IntN(len(k)-from)]
					tier := store.Tier(rng.IntN(2))
					op := adds(tier, part...)
					switch rng.IntN(8) {
					case 0, 1, 2:
						op = removes(tier, part...)
					case 3:
						op = store.Op{Kind: store.Clear, Tier: tier}
					}
					bt := batch(pod, 0, op)
					m.Apply(bt)
					c := &Collector{Keys: len(k)}
					err := x.Apply(b.ctx, bt)
					if err == nil {
						err = x.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c})
					}
					if err == nil {
						err = c.Err()
					}
					if err != nil {
						b.Error(err)
						return
					}
					if got, want := only(c.Answer, pod), m.Lookup(mask, k); !got.Equal(want) {
						b.Errorf("%s found\n%v, want\n%v", pod, got, want)
						return
					}
				}
			})
		}
		wg.Wait()
		if b.Failed() {
			return
		}
		all := b.find(k...)
		for w, m := range models {
			if got, want := only(all, fmt.Sprint("pod", w)), m.Lookup(mask, k); !got.Equal(want) {
				b.Errorf("in the end pod%d has\n%v, want\n%v", w, got, want)
			}
		}
	}},
	{"registrations, clears and lookups race", func(b *bench) {
		k := chain(1, 30)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				pod := fmt.Sprint("pod", w%2) // two write one pod
				for i := range 60 {
					var err error
					switch i % 4 {
					case 0:
						_, err = b.Index.Register(b.ctx, store.Pod{Name: pod, Model: model})
					case 1, 2:
						err = b.Index.Apply(b.ctx, batch(pod, w/2, adds(store.GPU, k...), store.Op{Kind: store.Clear, Tier: store.CPU}, adds(store.CPU, k[:i%30]...)))
					case 3:
						_, err = b.Index.Retire(b.ctx, pod)
					}
					c := &Collector{Keys: len(k)}
					if err == nil {
						err = b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c})
					}
					if err == nil {
						err = c.Err()
					}
					if err != nil {
						b.Error(err)
						return
					}
					b.Index.Stats()
					b.Index.Cached()
				}
			})
		}
		wg.Wait()
		for _, pod := range []string{"pod0", "pod1"} {
			b.retire(pod)
		}
		b.want(b.find(k...), times(len(k))...)
	}},
	{"Close while others work", func(b *bench) {
		k := chain(1, 100)
		b.add("a", 0, store.GPU, k...)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 200 {
					c := &Collector{Keys: len(k)}
					err := b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: k, Fold: c})
					if c.Registry == nil {
						b.Error("Begin was not called")
					}
					if err == nil {
						err = b.Index.Apply(b.ctx, batch(fmt.Sprint(w), 0, adds(store.GPU, k[i%100])))
					}
					if err != nil {
						return // closed; which error a call in flight gets is its own business
					}
				}
			})
		}
		if err := b.Index.Close(); err != nil {
			b.Errorf("Close: %v", err)
		}
		wg.Wait()
	}},
}

// only keeps the places of one pod.
func only(a Answer, pod string) Answer {
	out := make(Answer, len(a))
	for i, at := range a {
		for _, x := range at {
			if x.Pod == pod {
				out[i] = append(out[i], x)
			}
		}
	}
	return out
}
