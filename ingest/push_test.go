package ingest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// eventsOf makes events of those that a fake engine has told.
func eventsOf(told []enginetest.Event) (out []event.Event) {
	for _, e := range told {
		var v event.Event
		v.Medium, _ = e["medium"].(string)
		switch e["type"] {
		case "BlockStored":
			v.Kind, v.BlockSize = event.Stored, engineBlock
			v.Tokens, _ = e["token_ids"].([]uint32)
			if p, ok := e["parent_block_hash"].(int64); ok {
				v.Parent, v.HasParent = event.Hash(p), true
			}
		case "BlockRemoved":
			v.Kind = event.Removed
		default:
			v.Kind = event.Cleared
		}
		hashes, _ := e["block_hashes"].([]int64)
		for _, h := range hashes {
			v.Hashes = append(v.Hashes, event.Hash(h))
		}
		out = append(out, v)
	}
	return out
}

// ofRank0 are events of rank 0 alone.
func ofRank0(events []event.Event) []RankEvents { return []RankEvents{{Events: events}} }

// newIndex returns an index in memory with one pod.
func newIndex(t testing.TB) *memory.Index {
	t.Helper()
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { x.Close() })
	must.Get(x.EnsureModel(t.Context(), store.ModelInfo{Name: testModel, BlockSize: indexBlock, Scheme: store.SchemeNative}))(t)
	must.Get(x.Register(t.Context(), store.Pod{Name: "pod", Model: testModel}))(t)
	return x
}

func newIngester(t testing.TB, c Config) *Ingester {
	t.Helper()
	in := must.Get(New(c))(t)
	t.Cleanup(func() { in.Close() })
	return in
}

func checkHeld(t *testing.T, x store.Index, m *plain) {
	t.Helper()
	checkHeldOf(t, x, m, testModel)
}

// checkHeldOf is checkHeld where the blocks are filed under some model's name, and no other.
func checkHeldOf(t *testing.T, x store.Index, m *plain, model string) {
	t.Helper()
	got := must.Get(held(t.Context(), x, "pod", 0))(t)
	want := m.keys()
	other := blockkey.ModelOf(testModel) ^ blockkey.ModelOf(model)
	for tier := range want {
		for i, k := range want[tier] {
			want[tier][i] = blockkey.Key(k).In(other)
		}
		slices.Sort(want[tier])
	}
	if diff := differ(got, want); diff != "" {
		t.Fatal(diff)
	}
}

// TestPushInOrder pushes a random history through two replicas in turn, with pushes that
// are repeated, skipped, and begun again.
func TestPushInOrder(t *testing.T) {
	x := newIndex(t)
	replicas := []*Ingester{newIngester(t, Config{Index: x}), newIngester(t, Config{Index: x})}
	rng := rand.New(rand.NewPCG(1, 2))
	cache := newFakeCache(rng, true)
	m := &plain{blocks: map[int64]*cached{}}
	seq := uint64(0)
	push := func(seq uint64, told []enginetest.Event) PushResult {
		t.Helper()
		res := must.Get(replicas[rng.IntN(2)].Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Seq: &seq, Ranks: ofRank0(eventsOf(told)), Skipped: 1}))(t)
		if res.Applied+res.Skipped != len(told)+1 {
			t.Fatalf("%+v of %d events", res, len(told))
		}
		return res
	}
	for step := range 300 {
		told := []enginetest.Event{cache.event(), cache.event()}
		began := step == 0
		switch step % 50 {
		case 49: // another process
			cache = newFakeCache(rng, true)
			told = []enginetest.Event{cache.event()}
			m.blocks, seq, began = map[int64]*cached{}, 0, true
		case 24: // one is lost
			seq++
			m.blocks, began = map[int64]*cached{}, true
		}
		res := push(seq, told)
		m.apply(told)
		if r := res.Ranks[0]; r.Duplicate || (r.Began != 0) != began {
			t.Fatalf("step %d: %+v", step, res)
		}
		checkHeld(t, x, m)
		if r := push(seq, told).Ranks[0]; !r.Duplicate || r.Applied != 0 || r.Began != 0 {
			t.Fatalf("step %d again: %+v", step, res)
		}
		seq++
	}
	checkHeld(t, x, m)
}

// TestPushLoose pushes without sequences, by one replica, while others clear the pod.
func TestPushLoose(t *testing.T) {
	x := newIndex(t)
	in := newIngester(t, Config{Index: x})
	rng := rand.New(rand.NewPCG(3, 4))
	cache := newFakeCache(rng, true)
	m := &plain{blocks: map[int64]*cached{}}
	for step := range 200 {
		if step == 100 {
			must.OK(t, x.Apply(t.Context(), store.Batch{Pod: "pod", Model: testModel, Ops: []store.Op{{Kind: store.Clear, Tier: store.AllTiers, AllRanks: true}}}))
			cache = newFakeCache(rng, true)
			m.blocks = map[int64]*cached{}
		}
		told := []enginetest.Event{cache.event(), cache.event()}
		must.Get(in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Ranks: ofRank0(eventsOf(told))}))(t)
		m.apply(told)
		checkHeld(t, x, m)
	}
	// Nothing is known of the block, and the store has no tokens for its parent.
	res, err := in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Ranks: ofRank0([]event.Event{
		{Kind: event.Removed, Hashes: []event.Hash{1}},
		{Kind: event.Stored, Hashes: []event.Hash{2}, Parent: 1, HasParent: true, Tokens: make([]uint32, 16), BlockSize: 16},
	})})
	if err != nil || res.Applied != 0 || res.Skipped != 2 || res.Ranks[0].Blocks[rechunk.NoParent] != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestPushErrors(t *testing.T) {
	x := newIndex(t)
	in := newIngester(t, Config{Index: x})
	zero, huge := uint64(0), uint64(1<<60)
	stored := eventsOf([]enginetest.Event{newFakeCache(rand.New(rand.NewPCG(5, 6)), false).event()})
	for name, c := range map[string]struct {
		p    Pushed
		want error
	}{
		"no pod":      {Pushed{Model: testModel}, store.ErrInvalid},
		"no model":    {Pushed{Pod: "pod"}, store.ErrInvalid},
		"rank":        {Pushed{Pod: "pod", Model: testModel, Rank: -1}, store.ErrInvalid},
		"sequence":    {Pushed{Pod: "pod", Model: testModel, Seq: &huge}, store.ErrInvalid},
		"rank twice":  {Pushed{Pod: "pod", Model: testModel, Ranks: append(ofRank0(stored), ofRank0(stored)...)}, store.ErrInvalid},
		"other rank":  {Pushed{Pod: "pod", Model: testModel, Ranks: []RankEvents{{store.MaxRanks, stored}}}, store.ErrInvalid},
		"kind":        {Pushed{Pod: "pod", Model: testModel, Ranks: ofRank0([]event.Event{{}})}, store.ErrInvalid},
		"unknown pod": {Pushed{Pod: "nobody", Model: testModel, Seq: &zero, Ranks: ofRank0(stored)}, store.ErrUnknownPod},
	} {
		if res, err := in.Push(t.Context(), c.p); !errors.Is(err, c.want) || res.Applied+res.Skipped+len(res.Ranks) != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	broken := &faulty{pagedIndex: x}
	broken.dead.Store(true)
	other := newIngester(t, Config{Index: broken})
	if _, err := other.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Seq: &zero, Ranks: ofRank0(stored)}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an index that is away: %v", err)
	}
	// The same again is taken once it is back.
	broken.dead.Store(false)
	if res, err := other.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Seq: &zero, Ranks: ofRank0(stored)}); err != nil || res.Applied != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.Push(ctx, Pushed{Pod: "pod", Model: testModel, Seq: &zero, Ranks: ofRank0(stored)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	in.Close()
	if _, err := in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Ranks: ofRank0(stored)}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := in.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// TestPushMapIsLost: a generation whose map the index has lost a part of, but not its
// record, is not waited for: another begins.
func TestPushMapIsLost(t *testing.T) {
	x := &lossy{pagedIndex: newIndex(t)}
	cache, m := newFakeCache(rand.New(rand.NewPCG(7, 8)), false), &plain{blocks: map[int64]*cached{}}
	push := func(in *Ingester, seq uint64, began bool) {
		t.Helper()
		told := []enginetest.Event{cache.event()}
		m.apply(told)
		if res, err := in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Seq: &seq, Ranks: ofRank0(eventsOf(told))}); err != nil || (res.Ranks[0].Began != 0) != began {
			t.Fatalf("push %d: %+v, %v", seq, res, err)
		}
	}
	in := newIngester(t, Config{Index: x})
	push(in, 0, true)
	push(in, 1, false)
	x.lose(t)
	// Another replica finds it when it takes over, and the first one that there is a new one.
	cache, m = newFakeCache(rand.New(rand.NewPCG(9, 10)), false), &plain{blocks: map[int64]*cached{}}
	other := newIngester(t, Config{Index: x})
	push(other, 2, true)
	push(in, 3, false)
	push(other, 4, false)
	checkHeld(t, x, m)
}

// TestPushModelIsForgotten: a generation is begun with the block size that the index has
// then. It may have lost all, or been made to forget the model.
func TestPushModelIsForgotten(t *testing.T) {
	x := newIndex(t)
	in := newIngester(t, Config{Index: x, BlockSize: indexBlock})
	push := func(seq uint64) {
		t.Helper()
		told := []enginetest.Event{newFakeCache(rand.New(rand.NewPCG(11, 12)), false).event()}
		if res, err := in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Seq: &seq, Ranks: ofRank0(eventsOf(told))}); err != nil || res.Applied == 0 {
			t.Fatalf("push %d: %+v, %v", seq, res, err)
		}
	}
	push(0)
	must.Get(x.Forget(t.Context(), testModel))(t)
	push(7) // after a hole
	reg, err := x.Registry(t.Context())
	if err != nil || reg.Models[testModel].BlockSize != indexBlock {
		t.Fatalf("the index knows %+v, %v", reg.Models, err)
	}
}

// lossy has lost the map of a generation.
type lossy struct {
	pagedIndex
	lost store.Generation
}

func (x *lossy) lose(t *testing.T) {
	t.Helper()
	life := must.Get(x.Life(t.Context(), "pod", 0))(t)
	x.lost = life.Generation
}

func (x *lossy) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if gen == x.lost {
		return nil, store.ErrEnded
	}
	return x.pagedIndex.ReadMap(ctx, gen, keys...)
}

// TestWriterIsolates has one batch of many refused: the others must not suffer.
func TestWriterIsolates(t *testing.T) {
	x := newIndex(t)
	in := newIngester(t, Config{Index: x, Writers: 1})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i := range 50 {
		wg.Go(func() {
			b := store.Batch{Pod: "pod", Model: testModel}
			if i%10 == 0 {
				b.Model = "" // invalid
			}
			if i%10 == 1 {
				b.Guard = &store.Guard{Generation: 1 << 40, Fence: 1, Seq: 1} // ended
			}
			err := in.write(t.Context(), []store.Batch{b})
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	count := func(want error) (n int) {
		return len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool {
			return (want == nil) != (err == nil) || want != nil && !errors.Is(err, want)
		}))
	}
	if count(nil) != 40 || count(store.ErrInvalid) != 5 || count(store.ErrEnded) != 5 {
		t.Errorf("%v", errs)
	}
}

// stopping is an index that is away for callers that are not refused.
type stopping struct {
	store.Index
	why error
}

func (x stopping) Apply(ctx context.Context, batches ...store.Batch) error {
	err := x.Index.Apply(ctx, batches...)
	if refused, ok := errors.AsType[*store.RefusedError](err); ok {
		refused.Stopped = x.why
		return refused
	}
	return x.why
}

// TestWriterTellsApart has batches of two generations in one call of which one is refused and
// the other one stopped by something else. Neither may be told what is the other's.
func TestWriterTellsApart(t *testing.T) {
	ctx := t.Context()
	x := must.Get(memory.New(memory.Config{MaxMapEntries: 1}))(t)
	t.Cleanup(func() { _ = x.Close() })
	must.Get(x.Register(ctx, store.Pod{Name: "pod", Model: testModel}))(t)
	var guards [2]store.Guard
	for rank := range guards {
		gen := must.Get(x.Begin(ctx, "pod", rank, 1))(t)
		guards[rank] = store.Guard{Generation: gen, Fence: 1, Seq: 1}
	}
	must.Get(x.TakeOver(ctx, guards[0].Generation, 2))(t)
	call := func(index store.Index) (fenced, other error) {
		w := newWriter(&Config{Index: index, Writers: 1})
		list := make([]*write, len(guards))
		for rank := range list {
			b := store.Batch{Pod: "pod", Rank: rank, Model: testModel, Guard: &guards[rank]}
			for hash := range uint64(2) { // one more than there is room for
				b.Map = append(b.Map, store.MapOp{MapKey: store.MapKey{Hash: hash}, Value: []byte{1}})
			}
			list[rank] = &write{batches: []store.Batch{b}, done: make(chan error, 1)}
		}
		w.call(ctx, list)
		return <-list[0].done, <-list[1].done
	}
	for _, index := range []store.Index{x, stopping{x, store.ErrUnavailable}, stopping{x, store.ErrClosed}} {
		fenced, other := call(index)
		if !errors.Is(fenced, store.ErrFenced) {
			t.Errorf("%T: the fenced one: %v", index, fenced)
		}
		if other == nil || errors.Is(other, store.ErrFenced) {
			t.Errorf("%T: the other one: %v", index, other)
		}
	}
}
