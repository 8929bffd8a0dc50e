package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
)

// mapStory writes a map in steps, and knows what it is.
type mapStory struct {
	gen   store.Generation
	fence uint64
	seq   uint64
	want  map[store.MapKey]string
	keys  []store.MapKey
}

// write changes some of the first n entries in a batch.
func (s *mapStory) write(t *testing.T, x *Index, rng *rand.Rand, changes, n int) {
	t.Helper()
	s.seq++
	b := guardedBatch("a", s.gen, s.fence, s.seq, store.Add)
	next := maps.Clone(s.want)
	sets := []int{0, 3, 3, 3, 3, 4, 4, 4}[rng.IntN(8)] // of four changes: some batches only set, or only delete
	for range changes {
		op := store.MapOp{MapKey: s.keys[rng.IntN(n)]}
		delete(next, op.MapKey)
		if rng.IntN(4) < sets {
			op.Value = fmt.Appendf(nil, "%d/%d", s.seq, rng.IntN(1000))
			next[op.MapKey] = string(op.Value)
		}
		b.Map = append(b.Map, op)
	}
	apply(t, x, b)
	s.want = next
}

// check reads all of the map.
func (s *mapStory) check(t *testing.T, what string, x *Index) {
	t.Helper()
	got, err := x.ReadMap(t.Context(), s.gen, s.keys...)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for i, v := range got {
		if string(v) != s.want[s.keys[i]] {
			t.Fatalf("%s: entry %v is %q, want %q", what, s.keys[i], v, s.want[s.keys[i]])
		}
	}
}

// TestCompactDies: an owner that dies anywhere in a compaction leaves a map that is as it was. It is so to the next
// owner, which may compact it, and to any earlier reader. A compaction of a former owner changes nothing.
func TestCompactDies(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		ctx := t.Context()
		fence := uint64(0)
		for _, grows := range []bool{false, true} {
			for n, lived := 0, false; !lived; n++ {
				for _, deaf := range []bool{false, true} {
					rng := rand.New(rand.NewPCG(uint64(n), 1))
					fence += 2
					s := &mapStory{fence: fence, want: map[store.MapKey]string{}}
					for i := range 4000 {
						s.keys = append(s.keys, store.MapKey{Hash: rng.Uint64() >> rng.IntN(64), Part: uint16(i % 3)})
					}
					slices.SortFunc(s.keys, func(a, b store.MapKey) int { return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Part, b.Part)) })
					s.keys = slices.Compact(s.keys)
					rng.Shuffle(len(s.keys), func(i, j int) { s.keys[i], s.keys[j] = s.keys[j], s.keys[i] })
					x, life := mortal(t, Config{URL: url})
					x.lists.least = 1 << 20 // none but those of the test
					next := open(t, Config{URL: url, NoSweep: true})
					next.lists.least = 1 << 20
					s.gen = mustBegin(t, x, "a", s.fence)
					few := 1000
					s.write(t, x, rng, 2000, few)
					s.check(t, "before", next)
					x.lists.least = 1
					must.OK(t, x.compact(ctx, s.gen, s.fence))
					s.check(t, "compacted once", next)
					many := few
					if grows {
						many = len(s.keys)
					}
					s.write(t, x, rng, 4000, many)
					s.check(t, "and changed", next)
					life.limit(n, deaf)
					err := x.compact(ctx, s.gen, s.fence)
					life.limit(-1, false)
					if lived = err == nil; !lived && !errors.Is(err, errDead) {
						t.Fatal(err)
					}
					s.check(t, fmt.Sprintf("after %d commands", n), next)
					s.check(t, "its own view", x)

					// The next owner.
					s.fence++
					must.Get(next.TakeOver(ctx, s.gen, s.fence))(t)
					next.lists.open(s.gen, s.fence, 0) // or it would look by itself
					s.check(t, "taken over", next)
					s.write(t, next, rng, 1500, many)
					x.lists.least, next.lists.least = 1, 1
					before := x.space.Client.LIndex(ctx, x.space.Names.Changes(s.gen), 0).Val()
					if err := x.compact(ctx, s.gen, s.fence-1); err != nil {
						t.Fatalf("a zombie's compaction: %v", err)
					}
					if now := x.space.Client.LIndex(ctx, x.space.Names.Changes(s.gen), 0).Val(); now != before {
						t.Fatalf("a zombie has made the state %q of %q", now, before)
					}
					s.check(t, "after a zombie", next)
					must.OK(t, next.compact(ctx, s.gen, s.fence))
					s.check(t, "compacted by the next", next)
					s.check(t, "as another reads it", x)
					state, err := enginemap.ParseState(x.space.Client.LRange(ctx, x.space.Names.Changes(s.gen), 0, 0).Val())
					if left := x.space.Client.LLen(ctx, x.space.Names.Changes(s.gen)).Val(); err != nil || left != 1 || state.Entries < len(s.want)-200 || state.Pages > 64 || state.Pages < 2 {
						t.Fatalf("%d changes are left, the state is %+v, %v; there are %d entries", left, state, err, len(s.want))
					}
					_, _ = x.Close(), next.Close()
				}
			}
		}
	})
}

// TestCompacts: with writes alone the list stays short, and pages become more.
func TestCompacts(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	rng := rand.New(rand.NewPCG(1, 2))
	story := &mapStory{fence: 1, want: map[store.MapKey]string{}, gen: mustBegin(t, x, "a", 1)}
	for range 4000 {
		story.keys = append(story.keys, store.MapKey{Hash: rng.Uint64()})
	}
	plain := s.Client()
	longest := int64(0)
	for i := range 400 {
		story.write(t, x, rng, 50, min(len(story.keys), 20*(i+1)))
		longest = max(longest, plain.LLen(t.Context(), x.space.Names.Changes(story.gen)).Val())
	}
	story.check(t, "the end", x)
	story.check(t, "as another reads it", open(t, Config{URL: s.URL(), NoSweep: true}))
	// A batch has 50 changes in one or two elements. Of what is very long, four times
	// what is worth a compaction, none is written more.
	state, err := enginemap.ParseState(plain.LRange(t.Context(), x.space.Names.Changes(story.gen), 0, 0).Val())
	if err != nil || state.Compactions < 10 || state.Pages < 16 || longest > 2*4*4000/2/50+8 {
		t.Errorf("the state is %+v, %v; the list had %d elements", state, err, longest)
	}
	pages := plain.Keys(t.Context(), x.space.Names.Life(story.gen)+"p:*").Val()
	for _, p := range pages {
		if !strings.HasPrefix(p, fmt.Sprintf("%sp:%d:", x.space.Names.Life(story.gen), state.Pages)) {
			t.Errorf("%s is left", p)
		}
	}
}

// TestCompactOfAFullServer: on a server that is full entries can be deleted, and the list
// becomes short again.
func TestCompactOfAFullServer(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := t.Context()
	gen := mustBegin(t, x, "a", 1)
	b := guardedBatch("a", gen, 1, 1, store.Add, 1, 2)
	var keys []store.MapKey
	for i := range uint64(1000) {
		keys = append(keys, store.MapKey{Hash: i << 32})
		b.Map = append(b.Map, store.MapOp{MapKey: keys[i], Value: []byte("a value")})
	}
	apply(t, x, b)
	must.OK(t, x.compact(ctx, gen, 1))
	full(t, s.Client())
	b = guardedBatch("a", gen, 1, 2, store.Remove, 1)
	for _, k := range keys[:500] {
		b.Map = append(b.Map, store.MapOp{MapKey: k})
	}
	apply(t, x, b)
	must.OK(t, x.compact(ctx, gen, 1))
	got, err := x.ReadMap(ctx, gen, keys...)
	if err != nil || got[0] != nil || got[499] != nil || string(got[500]) != "a value" {
		t.Errorf("%q, %q, %q, %v", got[0], got[499], got[500], err)
	}
	if n := s.Client().LLen(ctx, x.space.Names.Changes(gen)).Val(); n != 1 {
		t.Errorf("%d elements are left", n)
	}
	b = guardedBatch("a", gen, 1, 3, store.Add, 1)
	b.Map = []store.MapOp{{MapKey: keys[0], Value: []byte("new")}}
	if err := x.Apply(ctx, b); !errors.Is(err, store.ErrNoMemory) {
		t.Errorf("more is taken by a full server: %v", err)
	}
}

// TestListOfAWriterThatTriesAgain: on a cluster a batch's changes of the map may be taken where
// its blocks are not, again with each try. The list has to stay short all the same.
func TestListOfAWriterThatTriesAgain(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	ctx := t.Context()
	gen := mustBegin(t, x, "a", 1)
	list := x.space.Names.Changes(gen)
	home := must.Get(c.Client().MasterForKey(ctx, list))(t)
	var keys []blockkey.Key
	for i := range uint64(300) { // in all partitions
		keys = append(keys, blockkey.Key(i))
	}
	apply(t, x, guardedBatch("a", gen, 1, 1, store.Add, 1<<40)) // which gives the holder an id
	b := guardedBatch("a", gen, 1, 2, store.Add, keys...)
	for i := range uint64(300) {
		b.Map = append(b.Map, store.MapOp{MapKey: store.MapKey{Hash: i << 32}, Value: []byte("a value")})
	}
	must.OK(t, c.Client().ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		if node.Options().Addr == home.Options().Addr {
			return nil
		}
		return node.ConfigSet(ctx, "maxmemory", "1").Err()
	}))
	x.lists.least = 1000
	longest := int64(0)
	for range 100 {
		if err := x.Apply(ctx, b); !errors.Is(err, store.ErrNoMemory) {
			t.Fatalf("full servers: %v", err)
		}
		longest = max(longest, c.Client().LLen(ctx, list).Val())
	}
	// 1000 changes are 4 elements; at 16 the writer waits for the compaction.
	if longest < 2 || longest > 20 {
		t.Errorf("the list has had %d elements", longest)
	}
}

// TestMapIsLost: when the server loses something of a map, no process goes on with what is left of it: no
// reader, and no writer.
func TestMapIsLost(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	ctx := t.Context()
	for name, lose := range map[string]func(x *Index, gen store.Generation) error{
		"a page": func(x *Index, gen store.Generation) error { return plain.Del(ctx, x.space.Names.Page(gen, 8, 5)).Err() },
		"a page that is another's": func(x *Index, gen store.Generation) error {
			return plain.Set(ctx, x.space.Names.Page(gen, 8, 5), "hello", 0).Err()
		},
		"a page of another type": func(x *Index, gen store.Generation) error {
			return errors.Join(plain.Del(ctx, x.space.Names.Page(gen, 8, 5)).Err(), plain.LPush(ctx, x.space.Names.Page(gen, 8, 5), "x").Err())
		},
		"the list":             func(x *Index, gen store.Generation) error { return plain.Del(ctx, x.space.Names.Changes(gen)).Err() },
		"the list's beginning": func(x *Index, gen store.Generation) error { return plain.LPop(ctx, x.space.Names.Changes(gen)).Err() },
		"the list's type": func(x *Index, gen store.Generation) error {
			return plain.Set(ctx, x.space.Names.Changes(gen), "x", 0).Err()
		},
		"the state is another's": func(x *Index, gen store.Generation) error {
			return plain.LSet(ctx, x.space.Names.Changes(gen), 0, "hello").Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := open(t, Config{URL: s.URL(), NoSweep: true})
			x.lists.least = 1 << 20
			rng := rand.New(rand.NewPCG(1, 2))
			story := &mapStory{fence: 1, want: map[store.MapKey]string{}, gen: mustBegin(t, x, "a", 1)}
			for range 700 {
				story.keys = append(story.keys, store.MapKey{Hash: rng.Uint64()})
			}
			story.write(t, x, rng, 2000, 700)
			x.lists.least = 1
			must.OK(t, x.compact(ctx, story.gen, 1))
			story.check(t, "compacted", x)
			must.OK(t, lose(x, story.gen))
			for _, r := range []*Index{x, open(t, Config{URL: s.URL(), NoSweep: true})} {
				if _, err := r.ReadMap(ctx, story.gen, story.keys...); !errors.Is(err, store.ErrEnded) {
					t.Errorf("the map is read with %v, want ErrEnded", err)
				}
			}
			// The list alone shows it at once, a page when it is compacted into.
			b := guardedBatch("a", story.gen, 1, story.seq+1, store.Add)
			for _, k := range story.keys {
				b.Map = append(b.Map, store.MapOp{MapKey: k, Value: []byte("some")})
			}
			if err := x.Apply(ctx, b); err != nil && !errors.Is(err, store.ErrEnded) {
				t.Fatal(err)
			}
			_ = x.compact(ctx, story.gen, 1)
			b = guardedBatch("a", story.gen, 1, story.seq+2, store.Add)
			b.Map = []store.MapOp{{MapKey: story.keys[0], Value: []byte("more")}}
			if err := x.Apply(ctx, b); !errors.Is(err, store.ErrEnded) {
				t.Errorf("more is written with %v, want ErrEnded", err)
			}
			story.gen, story.seq, story.want = mustBegin(t, x, "a", 1), 0, map[store.MapKey]string{}
			story.write(t, x, rng, 100, 700)
			story.check(t, "the next generation", x)
		})
	}
}

// TestCompactionsOverlap: two processes that write a generation in turn, under one fence, compact it at
// the same time. The one that is announced last wins, and no change is lost.
func TestCompactionsOverlap(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	a, b := open(t, Config{URL: s.URL(), NoSweep: true}), open(t, Config{URL: s.URL(), NoSweep: true})
	a.lists.least, b.lists.least = 1<<20, 1<<20 // no others
	rng := rand.New(rand.NewPCG(1, 2))
	story := &mapStory{fence: 1, want: map[store.MapKey]string{}, gen: mustBegin(t, a, "a", 1)}
	for range 3000 {
		story.keys = append(story.keys, store.MapKey{Hash: rng.Uint64()})
	}
	story.write(t, a, rng, 4000, 3000)
	a.lists.least = 1
	must.OK(t, a.compact(ctx, story.gen, 1))
	begin := func(x *Index) (f compaction, list enginemap.Changes) {
		t.Helper()
		f = compaction{x: x, gen: story.gen, fence: 1}
		changes, err := f.read(ctx)
		if err == nil {
			err = f.announce(ctx)
		}
		must.OK(t, err)
		return f, changes.Last()
	}
	story.write(t, a, rng, 1000, 3000)
	slow, old := begin(a)
	must.Get(b.TakeOver(ctx, story.gen, 1))(t)
	story.write(t, b, rng, 1000, 3000)
	quick, list := begin(b)
	if err := slow.change(ctx, old); !errors.Is(err, errCompacted) {
		t.Errorf("a compaction before the last one writes with %v", err)
	}
	if err := quick.change(ctx, list); err != nil {
		t.Error(err)
	}
	if err := slow.change(ctx, old); !errors.Is(err, errCompacted) {
		t.Errorf("a compaction of other pages writes with %v", err)
	}
	story.check(t, "compacted", b)
	story.check(t, "as the other reads it", a)

	// A failover takes the end of a list that has been read.
	story.write(t, b, rng, 1000, 3000)
	cut, list := begin(b)
	names := s.Client()
	must.OK(t, names.LTrim(ctx, b.space.Names.Changes(story.gen), 0, int64(cut.elements)-1).Err())
	if err := cut.change(ctx, list); !errors.Is(err, errCompacted) {
		t.Errorf("a compaction of more than there is writes with %v", err)
	}
	if n, err := names.LLen(ctx, b.space.Names.Changes(story.gen)).Result(); err != nil || n != int64(cut.elements) {
		t.Errorf("the list has %d elements, %v, want %d", n, err, cut.elements)
	}
}

// TestCompactOfNoList: what is no list says at once that the map is lost.
func TestCompactOfNoList(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	gen := mustBegin(t, x, "a", 1)
	must.OK(t, s.Client().Set(t.Context(), x.space.Names.Changes(gen), "x", 0).Err())
	f := compaction{x: x, gen: gen, fence: 1}
	if _, err := f.read(t.Context()); !errors.Is(err, store.ErrEnded) || !f.lost {
		t.Errorf("it is read with %v, lost %v", err, f.lost)
	}
}

// TestViewOfAFormerOwner: what a process has read of a list before a failover is not what
// it reads when the generation is its own again.
func TestViewOfAFormerOwner(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	plain := s.Client()
	a, b := open(t, Config{URL: s.URL(), NoSweep: true}), open(t, Config{URL: s.URL(), NoSweep: true})
	gen := mustBegin(t, a, "a", 1)
	k := store.MapKey{Hash: 7}
	put := func(x *Index, fence, seq uint64, v string) {
		t.Helper()
		batch := guardedBatch("a", gen, fence, seq, store.Add)
		batch.Map = []store.MapOp{{MapKey: k, Value: []byte(v)}}
		apply(t, x, batch)
	}
	put(a, 1, 1, "one")
	list, record := plain.Dump(ctx, a.space.Names.Changes(gen)).Val(), plain.HGet(ctx, a.space.Names.Records, fmt.Sprint(gen)).Val()
	put(a, 1, 2, "lost")
	if v, err := a.ReadMap(ctx, gen, k); err != nil || string(v[0]) != "lost" {
		t.Fatalf("%q, %v", v, err)
	}
	must.OK(t, errors.Join(plain.RestoreReplace(ctx, a.space.Names.Changes(gen), 0, list).Err(), plain.HSet(ctx, a.space.Names.Records, fmt.Sprint(gen), record).Err()))
	if w, err := b.TakeOver(ctx, gen, 2); err != nil || w != 1 {
		t.Fatal(w, err)
	}
	put(b, 2, 2, "two")
	must.Get(a.TakeOver(ctx, gen, 3))(t)
	if v, err := a.ReadMap(ctx, gen, k); err != nil || string(v[0]) != "two" {
		t.Errorf("%q, %v; want two", v, err)
	}
}

// TestCompactWaitsInVain has a compaction whose turn does not come in time: it must be due again.
func TestCompactWaitsInVain(t *testing.T) {
	x := &Index{compacting: make(chan struct{}, 1), lists: newMapLogs(1, 10)}
	x.compacting <- struct{}{} // another one, for as long as the test
	x.lists.open(7, 1, 10)
	if due, _, _ := x.lists.due(7, 1); !due {
		t.Fatal("a list of ten times what is worth a compaction is not due")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.compact(ctx, 7, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	x.lists.of(7, 1).rest = time.Time{} // the pause after a failure is over
	if due, _, _ := x.lists.due(7, 1); !due {
		t.Error("it is not due again")
	}
}

// deadlines is a server that fails, and notes how much time it had for that.
type deadlines struct{ left []time.Duration }

func (d *deadlines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *deadlines) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, _ redis.Cmder) error {
		at, _ := ctx.Deadline()
		d.left = append(d.left, time.Until(at))
		return errors.New("this server fails")
	}
}

func (d *deadlines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestCompactTimeIsItsOwn: a compaction has all of its time, however long it has waited for its
// turn; a wait that is too long is called one.
func TestCompactTimeIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		x := must.Get(Open(Config{URL: "redis://127.0.0.1:1", NoSweep: true, Observer: Observer{Log: func(msg string) { logged = append(logged, msg) }}}))(t)
		defer func() { _ = x.Close() }()
		var server deadlines
		x.space.Client.AddHook(&server)
		guard := guardPlan{Guard: store.Guard{Generation: 7, Fence: 1, Seq: 1}, ops: make([]store.MapOp, 1)}
		for _, tc := range []struct {
			wait time.Duration
			left []time.Duration
			log  string
		}{
			{compactWait - 1, []time.Duration{compactTimeout}, "this server fails"},
			{compactWait + 1, nil, "waiting until other maps are compacted"},
		} {
			server.left, logged = nil, nil
			x.compacting <- struct{}{} // another one
			must.OK(t, x.compactDue(t.Context(), []*guardPlan{&guard}))
			time.Sleep(tc.wait) // of the bubble's clock
			<-x.compacting
			synctest.Wait()
			if !slices.Equal(server.left, tc.left) || len(logged) != 1 || !strings.Contains(logged[0], tc.log) {
				t.Errorf("after a wait of %v: the server has been called with %v left, want %v; logged %q, want %q", tc.wait, server.left, tc.left, logged, tc.log)
			}
			time.Sleep(2 * compactRest) // the same
		}
	})
}

// TestLongList: a list is read in pieces that keep the server for a short time, and whole, by the compaction and by
// a takeover.
func TestLongList(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	a := open(t, Config{URL: s.URL(), NoSweep: true})
	a.lists.least = 1 << 20 // not compacted meanwhile
	rng := rand.New(rand.NewPCG(1, 2))
	story := &mapStory{fence: 1, want: map[store.MapKey]string{}, gen: mustBegin(t, a, "a", 1)}
	for range 2000 {
		story.keys = append(story.keys, store.MapKey{Hash: rng.Uint64()})
	}
	for range 20 * firstElements {
		story.write(t, a, rng, 100, 2000)
	}
	b := open(t, Config{URL: s.URL(), NoSweep: true})
	must.Get(b.TakeOver(ctx, story.gen, 1))(t)
	story.check(t, "taken over", b)
	a.lists.least = 1
	must.OK(t, a.compact(ctx, story.gen, 1))
	if n, err := s.Client().LLen(ctx, a.space.Names.Changes(story.gen)).Result(); err != nil || n != 1 {
		t.Errorf("after the compaction the list has %d elements, %v, want its state alone", n, err)
	}
	story.check(t, "compacted", b)
	if got := listStep(0, 0); got != firstElements {
		t.Errorf("the first piece has %d elements", got)
	}
	for _, size := range []int{1, 100, 5000, 64 << 10, 1 << 20} {
		if got := listStep(100, 100*size); got < 1 || got > compactElements || got > 1 && got*size > listBytes {
			t.Errorf("a piece of elements of %d bytes has %d of them", size, got)
		}
	}
}
