package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// RunLeases holds the Leases of a Subject to their contract.
func RunLeases(t *testing.T, open Open) {
	run(t, open, []group{{"Leases", readerCases}})
}

// refs are ranks 0 to n-1 of a pod.
func refs(pod string, n int) []store.RankRef {
	out := make([]store.RankRef, n)
	for i := range out {
		out[i] = store.RankRef{Pod: pod, Rank: i}
	}
	return out
}

// tryLease calls through the peer when the reader's name begins with p.
func (b *bench) tryLease(c store.LeaseCall) (store.LeaseView, error) {
	x := b.Leases
	if c.Reader.Name != "" && c.Reader.Name[0] == 'p' {
		x = b.PeerLeases
	}
	return x.Lease(b.ctx, c)
}

func (b *bench) lease(name string, acquire, release []store.RankRef) store.LeaseView {
	b.Helper()
	return b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: name, Ranks: 100}, TTL: b.Lease, Acquire: acquire, Release: release})
}

func (b *bench) leaseCall(c store.LeaseCall) store.LeaseView {
	b.Helper()
	return must.Get(b.tryLease(c))(b)
}

// reads fails the test when the rank is not the reader's; it returns the fence.
func (b *bench) reads(v store.LeaseView, r store.RankRef, reader string) uint64 {
	b.Helper()
	l := v.Leases[r]
	b.failIf(l.Reader != reader || (reader == "") != (l.Fence == 0), "%v is read by %+v, want %q", r, l, reader)
	return l.Fence
}

func (b *bench) living(v store.LeaseView, want ...string) {
	b.Helper()
	var got []string
	for _, r := range v.Readers {
		got = append(got, r.Name)
	}
	b.failIf(fmt.Sprint(got) != fmt.Sprint(want), "%v live, want %v", got, want)
}

var readerCases = []testCase{
	{"a rank has one reader", func(b *bench) {
		b.Lease = time.Minute // no reader dies
		r := refs("a", 3)
		v := b.lease("o", r[:2], nil)
		b.failIf(!v.Lapsed, "a new reader was alive before")
		f0, f1 := b.reads(v, r[0], "o"), b.reads(v, r[1], "o")
		v = b.lease("p", r, nil)
		b.failIf(b.reads(v, r[0], "o") != f0 || b.reads(v, r[1], "o") != f1, "the fence of a living reader has changed")
		b.reads(v, r[2], "p")
		b.living(v, "o", "p")
		if v = b.lease("o", nil, nil); v.Lapsed {
			b.Fatal("a living reader has lapsed")
		}
		b.failIf(v.Readers[0].Ranks != 100, "it takes %d ranks, want 100", v.Readers[0].Ranks)
	}},
	{"fences only grow", func(b *bench) {
		b.Lease = time.Minute // no reader dies
		r := refs("a", 2)
		last := uint64(0)
		grow := func(v store.LeaseView, reader string) {
			b.Helper()
			f := b.reads(v, r[0], reader)
			b.failIf(f <= last, "fence %d after %d", f, last)
			last = f
		}
		for range 3 {
			grow(b.lease("o", r, nil), "o")
			grow(b.lease("o", r[:1], nil), "o") // again, for a new fence
			b.reads(b.lease("o", nil, r), r[0], "")
			grow(b.lease("p", r, nil), "p")
			b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: "p"}})
			grow(b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: "q"}, TTL: b.Lease, Acquire: r, After: last + 1000}), "q")
			b.failIf(last < 1000, "fence %d is not after the one that was named", last)
			b.lease("q", nil, r)
		}
	}},
	{"a dead reader's ranks are free, and it can come back to what nobody took", func(b *bench) {
		pod := "a"
		b.patiently(func() bool {
			for _, name := range []string{"o", "p"} { // of the last try
				b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: name}})
			}
			r := refs(pod, 3)
			pod += "a"
			begin := time.Now()
			f := b.reads(b.lease("o", r, nil), r[1], "o")
			for range 3 { // it lives by calling
				b.pass(b.Lease * 6 / 10)
				lapsed := b.lease("o", nil, nil).Lapsed
				if !b.inTime(begin) {
					return false
				}
				begin = time.Now()
				b.failIf(lapsed, "it lapsed within %v of its last call", b.Lease)
			}
			v := b.lease("p", r, nil)
			if !b.inTime(begin) {
				return false
			}
			b.living(v, "o", "p")
			b.pass(b.Lease + b.Lease/5)
			begin = time.Now()
			v = b.lease("p", r[:1], nil)
			b.living(v, "p")
			b.failIf(!v.Lapsed, "p has lapsed, and is not told")
			taken := b.reads(v, r[0], "p")
			b.failIf(b.reads(v, r[1], "o") != f, "no reader has taken the rank, and it changed")
			v = b.lease("o", r, r[:1])
			if !b.inTime(begin) {
				return false
			}
			b.failIf(!v.Lapsed || b.reads(v, r[0], "p") != taken || taken <= f, "lapsed %v, the fences are %d and %d", v.Lapsed, taken, f)
			b.reads(v, r[1], "o")
			return true
		})
	}},
	{"a reader that ends leaves its ranks free at once", func(b *bench) {
		b.Lease = time.Minute // no reader dies
		r := refs("a", 2)
		b.lease("o", r, nil)
		b.lease("p", nil, nil)
		v := b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: "o"}, Release: r[:1]})
		b.living(v, "p")
		b.reads(v, r[0], "")
		b.reads(b.lease("p", r[1:], nil), r[1], "p")
		b.living(b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: "o"}}), "p")
	}},
	{"what another reads cannot be released", func(b *bench) {
		b.Lease = time.Minute // no reader dies
		r := refs("a", 1)
		b.lease("o", r, nil)
		b.reads(b.lease("p", nil, r), r[0], "o")
		b.reads(b.lease("o", nil, r), r[0], "")
		b.lease("o", nil, r)
	}},
	{"a view has the leases only when they have changed", func(b *bench) {
		b.Lease = time.Minute // no reader dies
		r := refs("a", 2)
		again := func(v store.LeaseView) store.LeaseView {
			b.Helper()
			return b.leaseCall(store.LeaseCall{Reader: store.Reader{Name: "o", Ranks: 100}, TTL: b.Lease, Version: v.Version})
		}
		first := b.lease("o", r[:1], nil)
		v := again(first)
		b.failIf(v.Leases != nil || v.Version != first.Version, "nothing has changed, and there is %+v", v)
		b.lease("p", nil, nil)
		if v = again(v); v.Leases != nil || len(v.Readers) != 2 {
			b.Fatalf("another reader has come: %+v", v)
		}
		b.lease("p", r[1:], nil)
		if v = again(v); v.Version == first.Version || len(v.Leases) != 2 {
			b.Fatalf("another lease has come: %+v", v)
		}
		b.lease("p", nil, r[1:])
		if v = again(v); v.Leases == nil || len(v.Leases) != 1 {
			b.Fatalf("a lease has gone: %+v", v)
		}
		v = b.lease("o", nil, r)
		b.failIf(v.Leases == nil || len(v.Leases) != 0, "all leases have gone: %+v", v)
	}},
	{"pods of any name, and many ranks in one call", func(b *bench) {
		var many []store.RankRef
		for i := range store.MaxLeaseRanks {
			many = append(many, store.RankRef{Pod: fmt.Sprintf("ä pod [%d]:80", i/3), Rank: i % 3})
		}
		v := b.lease("o", many, nil)
		seen := map[uint64]bool{}
		for _, r := range many {
			seen[b.reads(v, r, "o")] = true
		}
		b.failIf(len(seen) != len(many), "%d fences for %d ranks", len(seen), len(many))
		if v = b.lease("o", nil, many); len(v.Leases) != 0 {
			b.Fatalf("%d are left", len(v.Leases))
		}
	}},
	{"of many contenders each rank has one", func(b *bench) {
		const contenders = 8
		r := refs("a", 20)
		var mu sync.Mutex
		fences := map[uint64]string{}
		var wg sync.WaitGroup
		for i := range contenders {
			name := fmt.Sprintf("%c%d", "op"[i%2], i)
			wg.Go(func() {
				for range 10 {
					// Releasing and acquiring are one step: what it gives up here, another
					// may have next time.
					v, err := b.tryLease(store.LeaseCall{Reader: store.Reader{Name: name, Ranks: 100}, TTL: time.Minute, Acquire: r, Release: r[:5]})
					if err != nil {
						b.Errorf("Lease: %v", err)
						return
					}
					mu.Lock()
					for _, l := range v.Leases {
						if was := fences[l.Fence]; was != "" && was != l.Reader {
							b.Errorf("the fence %d is of %s and %s", l.Fence, was, l.Reader)
						}
						fences[l.Fence] = l.Reader
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		v := b.lease("o", nil, nil)
		for _, ref := range r {
			b.failIf(v.Leases[ref].Reader == "", "nobody has %v", ref)
		}
	}},
	{"a fence from a lease keeps the last reader out", func(b *bench) {
		b.register(store.Pod{Name: "a"})
		r := refs("a", 1)
		old := b.reads(b.lease("o", r, nil), r[0], "o")
		gen := b.begin("a", 0, old)
		b.guarded(gen, "a", 0, old, 1, adds(store.GPU, chain(1, 1)...))
		b.lease("o", nil, r)
		next := b.reads(b.lease("p", r, nil), r[0], "p")
		if w, err := b.peer().TakeOver(b.ctx, gen, next); err != nil || w != 1 {
			b.Fatalf("TakeOver: got %d, %v", w, err)
		}
		b.refused(gen, store.ErrFenced, b.tryGuarded(gen, "a", 0, old, 2, adds(store.GPU, chain(2, 1)...)))
	}},
	{"calls that cannot be right", func(b *bench) {
		ok := store.Reader{Name: "o"}
		many := make([]store.RankRef, store.MaxLeaseRanks+1)
		for i := range many {
			many[i] = store.RankRef{Pod: "a"}
		}
		for what, c := range map[string]store.LeaseCall{
			"no name":          {TTL: time.Second},
			"a space":          {Reader: store.Reader{Name: "a b"}, TTL: time.Second},
			"a long name":      {Reader: store.Reader{Name: string(make([]byte, 200))}, TTL: time.Second},
			"negative ranks":   {Reader: store.Reader{Name: "a", Ranks: -1}, TTL: time.Second},
			"a short TTL":      {Reader: ok, TTL: time.Millisecond},
			"a long TTL":       {Reader: ok, TTL: 2 * store.MaxLeaseTTL},
			"acquire at end":   {Reader: ok, Acquire: refs("a", 1)},
			"many":             {Reader: ok, TTL: time.Second, Acquire: many},
			"many to release":  {Reader: ok, TTL: time.Second, Release: many},
			"no pod":           {Reader: ok, TTL: time.Second, Acquire: []store.RankRef{{}}},
			"no such rank":     {Reader: ok, TTL: time.Second, Release: []store.RankRef{{Pod: "a", Rank: store.MaxRanks}}},
			"after no fence":   {Reader: ok, TTL: time.Second, After: store.MaxSequence + 1},
			"a TTL below zero": {Reader: ok, TTL: -time.Second},
		} {
			b.wantErr(errorOf(b.tryLease(c)), store.ErrInvalid, what)
		}
	}},
}
