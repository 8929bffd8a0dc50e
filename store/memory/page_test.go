package memory

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// walkPages walks through all pages and returns how often each block was given.
// between is called between two pages.
func walkPages(tb testing.TB, x *Index, limit int, between func(page int)) map[blockkey.StoreKey]int {
	tb.Helper()
	seen := map[blockkey.StoreKey]int{}
	cursor := ""
	for n := 0; n == 0 || cursor != ""; n++ {
		p := must.Get(x.Page(tb.Context(), cursor, limit))(tb)
		for _, b := range p.Blocks {
			seen[b.Key]++
			if len(b.Holders) == 0 || !slices.IsSorted(b.Holders) {
				tb.Fatalf("block %v has the holders %v", b.Key, b.Holders)
			}
			for _, id := range b.Holders {
				if _, _, live := p.Registry.AnyHolder(id); !live {
					tb.Fatalf("block %v has the holder %d, which is not live", b.Key, id)
				}
			}
		}
		if limit > 0 && len(p.Blocks) > limit+pageStep*slots {
			tb.Fatalf("a page of %d has %d blocks", limit, len(p.Blocks))
		}
		cursor = p.Next
		if between != nil && cursor != "" {
			between(n)
		}
	}
	return seen
}

func pageBatch(pod string, kind store.OpKind, keys ...blockkey.Key) store.Batch {
	return store.Batch{Pod: pod, Model: "m", Ops: []store.Op{{Kind: kind, Keys: keys}}}
}

func pageKeys(seed uint64, n int) []blockkey.Key {
	rng := rand.New(rand.NewPCG(seed, 0))
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

func pageApply(tb testing.TB, x *Index, batches ...store.Batch) {
	tb.Helper()
	for _, b := range batches {
		ops := b.Ops
		for _, op := range ops {
			for part := range slices.Chunk(op.Keys, store.MaxOpKeys) {
				b.Ops = []store.Op{{Kind: op.Kind, Tier: op.Tier, Keys: part}}
				must.OK(tb, x.Apply(tb.Context(), b))
			}
		}
	}
}

// What stays is given once, whatever grows, shrinks and moves meanwhile.
func TestPageWhileTablesChange(t *testing.T) {
	mask := blockkey.ModelOf("m")
	for _, limit := range []int{1, 0} {
		x := open(t, Config{})
		stay, come := pageKeys(1, 10_000), pageKeys(2, 60_000)
		pageApply(t, x, pageBatch("a", store.Add, stay...))
		seen := walkPages(t, x, limit, func(page int) {
			// Tables become ten times as large, and small again.
			part := come[page*1000%len(come):][:1000]
			kind := store.Add
			if page/60%2 == 1 {
				kind = store.Remove
			}
			pageApply(t, x, pageBatch("b", kind, part...))
		})
		for i, k := range stay {
			if n := seen[k.In(mask)]; n != 1 {
				t.Fatalf("limit %d: block %d is given %d times", limit, i, n)
			}
		}
		checkInvariants(t, x)
	}
}

// The walk is right for tables of every size and fill, with what has been pushed
// over the end of a table to its beginning.
func TestPageOfAnySize(t *testing.T) {
	mask := blockkey.ModelOf("m")
	rapid.Check(t, func(rt *rapid.T) {
		x := open(t, Config{})
		defer x.Close()
		keys := pageKeys(rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(0, 3000).Draw(rt, "blocks"))
		pageApply(t, x, pageBatch("a", store.Add, keys...))
		gone := keys[:rapid.IntRange(0, len(keys)).Draw(rt, "removed")]
		pageApply(t, x, pageBatch("a", store.Remove, gone...))
		seen := walkPages(t, x, rapid.IntRange(1, 500).Draw(rt, "limit"), nil)
		if len(seen) != len(keys)-len(gone) {
			rt.Fatalf("%d blocks are given of %d", len(seen), len(keys)-len(gone))
		}
		for _, k := range keys[len(gone):] {
			if seen[k.In(mask)] != 1 {
				rt.Fatalf("block %v is given %d times", k, seen[k.In(mask)])
			}
		}
	})
}

func TestPageLeavesOutEndedHolders(t *testing.T) {
	x := open(t, Config{})
	keys := pageKeys(1, 300)
	pageApply(t, x, pageBatch("a", store.Add, keys...), pageBatch("b", store.Add, keys[:100]...))
	// The janitor may or may not have swept by then.
	must.Get(x.Retire(t.Context(), "a"))(t)
	if seen := walkPages(t, x, 10, nil); len(seen) != 100 {
		t.Errorf("%d blocks", len(seen))
	}
}

// Writers, sweeps and walks at the same time, for the race detector.
func TestPageBesideWriters(t *testing.T) {
	x := open(t, Config{})
	mask := blockkey.ModelOf("m")
	stay := pageKeys(1, 5000)
	pageApply(t, x, pageBatch("stays", store.Add, stay...))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for w := range 2 {
		all.Go(func() {
			keys := pageKeys(uint64(10+w), 2000)
			pod := string(rune('a' + w))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := x.Apply(t.Context(), pageBatch(pod, store.Add, append(keys, stay[:50]...)...)); err != nil {
					t.Error(err)
				}
				if n%3 == 2 {
					if _, err := x.Retire(t.Context(), pod); err != nil {
						t.Error(err)
					}
				} else if err := x.Apply(t.Context(), pageBatch(pod, store.Remove, keys[n%1000:]...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 8 {
		seen := walkPages(t, x, 500, nil)
		for i, k := range stay {
			if seen[k.In(mask)] != 1 {
				t.Fatalf("block %d is given %d times", i, seen[k.In(mask)])
			}
		}
	}
	close(stop)
	all.Wait()
}

func TestPageRefuses(t *testing.T) {
	x, y := open(t, Config{}), open(t, Config{})
	for _, z := range []*Index{x, y} {
		pageApply(t, z, pageBatch("a", store.Add, pageKeys(1, 10_000)...))
	}
	p, err := x.Page(t.Context(), "", 10)
	if err != nil || p.Next == "" {
		t.Fatal(p.Next, err)
	}
	for _, cursor := range []string{"x", p.Next + "A", p.Next[1:], "AAAAAAAAAAAAAAAAAAAAAA", "!" + p.Next[1:]} {
		if _, err := x.Page(t.Context(), cursor, 10); !errors.Is(err, store.ErrCursor) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
	if _, err := y.Page(t.Context(), p.Next, 10); !errors.Is(err, store.ErrCursor) {
		t.Errorf("another index takes the cursor: %v", err)
	}
	for _, limit := range []int{-1, store.MaxPage + 1} {
		if _, err := x.Page(t.Context(), "", limit); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	must.OK(t, x.Close())
	if _, err := x.Page(t.Context(), "", 0); !errors.Is(err, store.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestForget(t *testing.T) {
	x := open(t, Config{})
	m := store.ModelInfo{Name: "m", BlockSize: 16, Scheme: store.SchemeNative}
	must.Get(x.EnsureModel(t.Context(), m))(t)
	before := must.Get(x.Registry(t.Context()))(t)
	for _, want := range []bool{true, false} {
		if known, err := x.Forget(t.Context(), "m"); known != want || err != nil {
			t.Errorf("got %v, %v", known, err)
		}
	}
	m.BlockSize = 32
	if _, err := x.EnsureModel(t.Context(), m); err != nil {
		t.Error(err)
	}
	if before.Models["m"].BlockSize != 16 {
		t.Error("an older registry has changed")
	}
}

func BenchmarkPage(b *testing.B) {
	x := open(b, Config{})
	const blocks = 200_000
	pageApply(b, x, pageBatch("a", store.Add, pageKeys(1, blocks)...))
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
