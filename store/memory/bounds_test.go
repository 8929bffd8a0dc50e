package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func find(tb testing.TB, x store.Index, keys []blockkey.Key) storetest.Answer {
	tb.Helper()
	c := &storetest.Collector{Keys: len(keys)}
	must.OK(tb, x.Lookup(tb.Context(), &store.Query{Model: benchMask, Keys: keys, Fold: c}))
	must.OK(tb, c.Err())
	return c.Answer
}

// lookup is find for its effect only.
func lookup(tb testing.TB, x store.Index, keys []blockkey.Key) {
	tb.Helper()
	must.OK(tb, x.Lookup(tb.Context(), &store.Query{Model: benchMask, Keys: keys, Fold: &nullFolder{}}))
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{
		{MaxBlocks: 100}, {MaxBlocks: -1}, {MaxBlocks: 1 << 40}, {MaxBytes: 1000}, {MaxBytes: -1}, {MaxPods: -1}, {MaxHolders: -1}, {MaxModels: -1},
	} {
		if x, err := New(cfg); !errors.Is(err, errConfig) {
			t.Errorf("%+v: got %v, %v", cfg, x, err)
		}
	}
}

func TestRegistryIsBounded(t *testing.T) {
	x := open(t, Config{MaxPods: 2, MaxHolders: 3, MaxModels: 1})
	ctx := t.Context()
	key := []blockkey.Key{1}
	add := func(pod string, tier store.Tier) error {
		return x.Apply(ctx, store.Batch{Pod: pod, Model: benchModel, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: key}}})
	}
	for i, tc := range []struct {
		err  error
		want error
	}{
		{add("a", store.GPU), nil},
		{add("b", store.GPU), nil},
		{add("c", store.GPU), store.ErrFull}, // a third pod
		{add("a", store.CPU), nil},
		{add("a", store.Disk), store.ErrFull}, // a fourth holder
		{add("a", store.CPU), nil},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Fatalf("step %d: got %v, want %v", i, tc.err, tc.want)
		}
	}
	if _, err := x.Register(ctx, store.Pod{Name: "c", Model: benchModel}); !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	must.Get(x.Retire(ctx, "a"))(t)
	if err := errors.Join(add("c", store.GPU), add("c", store.Disk)); err != nil {
		t.Fatalf("after a retirement there is room: %v", err)
	}
	info := store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative}
	must.Get(x.EnsureModel(ctx, info))(t)
	info.Name = "n"
	if _, err := x.EnsureModel(ctx, info); !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	c := newCorpus(t, 20_000, 1000, 3, true)
	lone := randomKeys(rand.New(rand.NewPCG(9, 9)), 300)
	for i := 0; i < len(lone); i += 2 { // blocks that do not lie beside each other
		mustApply(t, c.x, benchBatch("a", store.Add, lone[i:i+1]), benchBatch("b", store.Add, lone[len(lone)-1-i:len(lone)-i]))
	}
	f := &prefixFolder{}
	null := &nullFolder{}
	qs := []*store.Query{{Model: benchMask, Keys: c.chains[0], Fold: f}, {Model: benchMask, Keys: lone, Fold: null}, {Keys: lone, Fold: null}}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		must.OK(t, c.x.Lookup(ctx, qs...))
	}); n != 0 {
		t.Fatalf("a lookup allocates %v times", n)
	}
	if slices.Max(f.len) != 1000 {
		t.Fatalf("the longest prefix is %v, want 1000", f.len)
	}
}

func TestSizeFollowsLiveBlocks(t *testing.T) {
	const total = 60_000
	rng := rand.New(rand.NewPCG(7, 7))
	before := heap()
	x := open(t, Config{})
	var chains [][]blockkey.Key
	for range total / 100 {
		chain := randomKeys(rng, 100)
		chains = append(chains, chain)
		mustApply(t, x, benchBatch("a", store.Add, chain), benchBatch("b", store.Add, chain))
	}
	full := x.Stats()
	if full.Blocks != total {
		t.Fatalf("%d blocks, want %d", full.Blocks, total)
	}
	if perBlock := float64(full.Bytes) / total; perBlock > 32 {
		t.Errorf("%.1f bytes a block when full", perBlock)
	}
	// Of every chain 95 blocks go, at random places and in random order: nothing
	// that lies together goes together.
	var gone []blockkey.Key
	for _, chain := range chains {
		for _, i := range rng.Perm(100)[:95] {
			gone = append(gone, chain[i])
		}
	}
	rng.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
	for i := 0; i < len(gone); i += 1000 {
		mustApply(t, x, benchBatch("a", store.Remove, gone[i:i+1000]), benchBatch("b", store.Remove, gone[i:i+1000]))
	}
	x.janitor.clean()
	s := x.Stats()
	if s.Blocks != total/20 {
		t.Fatalf("%d blocks, want %d", s.Blocks, total/20)
	}
	const base = 128 << 10 // empty tables, open lanes, a page of sets
	if limit := s.Blocks*40 + base; s.Bytes > limit {
		t.Errorf("%d bytes for %d blocks, the limit is %d", s.Bytes, s.Blocks, limit)
	}
	t.Logf("full: %d bytes for %d blocks; after churn: %d for %d", full.Bytes, full.Blocks, s.Bytes, s.Blocks)
	if !testing.Short() {
		// The heap has the keys of this test too.
		if h := heap() - before - 8*2*total; h > s.Bytes*2+2<<20 {
			t.Errorf("the heap grew by %d for %d bytes of blocks", h, s.Bytes)
		}
	}
	left := map[blockkey.Key]bool{}
	for _, k := range gone {
		left[k] = true
	}
	for _, chain := range chains[:50] {
		for i, at := range find(t, x, chain) {
			if want := 2; (len(at) == want) == left[chain[i]] || len(at) != want && len(at) != 0 {
				t.Fatalf("block %d is held by %v", i, at)
			}
		}
	}
	checkInvariants(t, x)
	runtime.KeepAlive(chains)
}

func TestRetirementGivesMemoryBack(t *testing.T) {
	x := open(t, Config{})
	rng := rand.New(rand.NewPCG(8, 8))
	shared := randomKeys(rng, 5000)
	for p := range 4 {
		addChain(t, x, fmt.Sprint("pod", p), shared)
		addChain(t, x, fmt.Sprint("pod", p), randomKeys(rng, 10_000))
	}
	full := x.Stats()
	for p := range 3 {
		must.Get(x.Retire(t.Context(), fmt.Sprint("pod", p)))(t)
		want := 3 - p
		if at := find(t, x, shared)[77]; len(at) != want {
			t.Fatalf("%v hold it, want %d pods", at, want)
		}
	}
	x.janitor.clean()
	s := x.Stats()
	if s.Blocks != 15_000 {
		t.Fatalf("%d blocks, want 15000", s.Blocks)
	}
	// A third of the blocks; tables may be a third full.
	if s.Bytes > full.Bytes*9/20 {
		t.Errorf("%d bytes, of %d for all four", s.Bytes, full.Bytes)
	}
	must.Get(x.Retire(t.Context(), "pod3"))(t)
	x.janitor.clean()
	if s := x.Stats(); s.Blocks != 0 || s.Bytes > 128<<10 {
		t.Errorf("%d blocks and %d bytes are left", s.Blocks, s.Bytes)
	}
	checkInvariants(t, x)
}

// TestJanitorWakes lets the goroutine do what the tests above call for.
func TestJanitorWakes(t *testing.T) {
	x := open(t, Config{})
	addChain(t, x, "a", randomKeys(rand.New(rand.NewPCG(1, 1)), 10_000))
	must.Get(x.Retire(t.Context(), "a"))(t)
	for x.Stats().Blocks != 0 { // the test's own time-out ends a janitor that sleeps
		runtime.Gosched()
	}
}

func TestManyClearsDoNotPileUp(t *testing.T) {
	x := open(t, Config{})
	ctx := t.Context()
	k := randomKeys(rand.New(rand.NewPCG(1, 1)), 3)
	bt := store.Batch{Pod: "a", Model: benchModel, Ops: []store.Op{{Kind: store.Add, Keys: k}, {Kind: store.Clear}}}
	for range maxEnded + 100 {
		must.OK(t, x.Apply(ctx, bt))
	}
	if n := x.registry.ended.Load(); n > maxEnded+1 {
		t.Fatalf("%d ended holders wait", n)
	}
	x.janitor.clean()
	if s := x.Stats(); s.Blocks != 0 || s.Bytes > 128<<10 {
		t.Errorf("%d blocks and %d bytes are left", s.Blocks, s.Bytes)
	}
	checkInvariants(t, x)
}

func TestEviction(t *testing.T) {
	const limit = 20_000
	x := open(t, Config{MaxBlocks: limit})
	rng := rand.New(rand.NewPCG(2, 3))
	hot := randomKeys(rng, 500)
	addChain(t, x, "a", hot)
	var chains [][]blockkey.Key
	for range 1000 {
		chain := randomKeys(rng, 100)
		chains = append(chains, chain)
		mustApply(t, x, benchBatch("a", store.Add, chain))
		lookup(t, x, hot)
		if n := x.Stats().Blocks; n > limit {
			t.Fatalf("%d blocks, the limit is %d", n, limit)
		}
	}
	s := x.Stats()
	if s.Blocks < limit-limit/50 {
		t.Errorf("%d blocks, though %d fit", s.Blocks, limit)
	}
	if got, want := s.Evicted, uint64(500+1000*100)-uint64(s.Blocks); got != want {
		t.Errorf("%d evictions are counted, there were %d", got, want)
	}
	for i, at := range find(t, x, hot) {
		if len(at) != 1 {
			t.Fatalf("block %d of the chain that everybody asks for is gone", i)
		}
	}
	// What is left of the others: the youngest, and reachable from the head.
	held, reachable, old := 0, 0, 0
	for n, chain := range chains {
		prefix := true
		for _, at := range find(t, x, chain) {
			prefix = prefix && len(at) == 1
			if len(at) == 1 {
				held++
				if n < 500 {
					old++
				}
				if prefix {
					reachable++
				}
			}
		}
	}
	t.Logf("%d of %d blocks are reachable, %d are of the older half", reachable, held, old)
	// A chain may lie in two chunks, of which the first goes first. (Eviction of
	// single blocks by age would leave three quarters reachable, at random a
	// few percent.)
	if reachable < held*80/100 {
		t.Errorf("only %d of %d blocks are reachable from their chain's head", reachable, held)
	}
	if old > held/20 {
		t.Errorf("%d of %d blocks are of the older half", old, held)
	}
	checkInvariants(t, x)
}

func TestBytesAreBounded(t *testing.T) {
	const limit = 1 << 20
	x := open(t, Config{MaxBytes: limit})
	rng := rand.New(rand.NewPCG(4, 5))
	truth := storetest.NewModel()
	var keys []blockkey.Key
	for round := range 60 {
		// New blocks, and random holders for random old ones: almost every block
		// then has a set of its own.
		chain := randomKeys(rng, 700)
		keys = append(keys, chain...)
		var all []store.Batch
		all = append(all, benchBatch(fmt.Sprint("pod", round%60), store.Add, chain))
		for range 20 {
			some := make([]blockkey.Key, 60)
			for i := range some {
				some[i] = keys[rng.IntN(len(keys))]
			}
			kind := store.Add
			if rng.IntN(3) == 0 {
				kind = store.Remove
			}
			all = append(all, benchBatch(fmt.Sprint("pod", rng.IntN(60)), kind, some))
		}
		mustApply(t, x, all...)
		truth.Apply(all...)
		if n := x.Stats().Bytes; n > limit+64<<10 {
			t.Fatalf("round %d: %d bytes, the limit is %d", round, n, limit)
		}
	}
	s := x.Stats()
	t.Logf("%d blocks, %d sets, %d bytes, %d evicted", s.Blocks, x.sets.live, s.Bytes, s.Evicted)
	if s.Blocks < 5_000 || s.Evicted == 0 {
		t.Errorf("%d blocks are left, %d were evicted", s.Blocks, s.Evicted)
	}
	// Credit may be missing, never wrong.
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	keys = keys[:5_000]
	got, want := find(t, x, keys), truth.Lookup(benchMask, keys)
	for i := range got {
		for _, at := range got[i] {
			if !slices.Contains(want[i], at) {
				t.Fatalf("block %d is credited to %v, held by %v", i, at, want[i])
			}
		}
	}
	checkInvariants(t, x)
}
