package entries_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/lmcache/entries"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = "org/model"

func tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// chunksOf returns the hashes of the chunks of tokens, and their keys.
func chunksOf(t *testing.T, c lmcache.Config) (hashes []lmcache.Hash, keys []blockkey.Key) {
	t.Helper()
	h := must.Get(lmcache.New(c))(t)
	for _, hash := range h.Append(nil, tokens(1024)) {
		hashes = append(hashes, hash)
		keys = append(keys, hash.ChunkKey())
	}
	return hashes, keys
}

// server is a Redis in a map, with names and fields joined by a space.
type server struct {
	mu   sync.Mutex // protects the others
	kept map[string]string
	down error
	// renewed counts writes of what was there already.
	calls int
	// meanwhile is called during the next write, once.
	meanwhile func()
}

func (s *server) write(_ context.Context, _ time.Duration, list []entries.Write) error {
	s.mu.Lock()
	f := s.meanwhile
	s.meanwhile = nil
	s.mu.Unlock()
	if f != nil {
		f()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.down != nil {
		return s.down
	}
	for _, w := range list {
		at := strings.TrimSpace(w.Name + " " + w.Field)
		switch {
		case !w.Delete:
			s.kept[at] = w.Value
		case w.Field != "" || s.kept[at] == w.Value:
			delete(s.kept, at)
		}
	}
	return nil
}

func (s *server) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

// names are the keys that are there, of the first chunks by number.
func (s *server) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.kept))
}

// rig has a Writer over an index in memory.
type rig struct {
	t      *testing.T
	w      *entries.Writer
	x      store.Index
	server *server
	stop   func()
}

func newRig(t *testing.T, c entries.Config) *rig {
	t.Helper()
	mem, err := memory.New(memory.Config{})
	must.OK(t, err)
	r := &rig{t: t, server: &server{kept: map[string]string{}}}
	c.Write, c.Registry = r.server.write, mem.Cached
	if r.w, err = entries.New(c); err != nil {
		t.Fatal(err)
	}
	r.x = r.w.Index(mem)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.w.Run(ctx) }()
	r.stop = func() { cancel(); <-done; _ = mem.Close() }
	for _, p := range []store.Pod{{Name: "10.0.0.1:8000", Model: model}, {Name: "p2", Model: model, Address: "http://[fd00::2]:8000/"}} {
		must.Get(r.x.Register(t.Context(), p))(t)
	}
	must.Get(mem.Registry(t.Context()))(t)
	return r
}

// worker registers one.
func (r *rig) worker(instance, pod string, n, of int, lease time.Duration) string {
	r.t.Helper()
	name := lmcache.WorkerName(instance, "", n)
	p := store.Pod{Name: name, Model: model, Lease: store.Seconds(lease), PartOf: &store.PartOf{Pod: pod, Worker: n, Workers: of}}
	must.Get(r.x.Register(r.t.Context(), p))(r.t)
	return name
}

func (r *rig) apply(worker string, ops ...store.Op) {
	r.t.Helper()
	must.OK(r.t, r.x.Apply(r.t.Context(), store.Batch{Pod: worker, Model: model, Ops: ops}))
}

// want waits until exactly these keys are there.
func (r *rig) want(what string, names ...string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.server.names(); !slices.Equal(got, names) {
		r.t.Errorf("%s: %q, want %q", what, got, names)
	}
}

var v031 = lmcache.Config{Version: lmcache.V031}

func add(tier store.Tier, keys ...blockkey.Key) store.Op {
	return store.Op{Kind: store.Add, Tier: tier, Keys: keys}
}

func remove(tier store.Tier, keys ...blockkey.Key) store.Op {
	return store.Op{Kind: store.Remove, Tier: tier, Keys: keys}
}

// TestLife follows two workers of an instance, and another pod with the same chunk.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings | entries.Hashes})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		for _, h := range hashes {
			r.w.Heard(h)
		}
		s := func(worker string, i int) string { return "vllm@" + model + "@2@" + worker + "@" + hashes[i].String() }
		h := func(owner string, i int) string { return model + "@" + hashes[i].String() + " " + owner }
		const one, two = "10.0.0.1:8000", "[fd00::2]:8000"

		// One of two workers: its string, and no hash yet.
		a := r.worker("i", one, 0, 2, 0)
		b := r.worker("i", one, 1, 2, 0)
		r.apply(a, add(store.CPU, keys[0], keys[1]))
		r.want("half", s("0", 0), s("0", 1))
		r.apply(b, add(store.CPU, keys[0]), add(store.Disk, keys[0]))
		r.want("one is whole", h(one, 0), s("0", 0), s("0", 1), s("1", 0))
		if v := r.server.kept[h(one, 0)]; !strings.HasPrefix(v, "vllm@2@0@9466848") { // synctest's year 2000
			t.Errorf("the field is %q", v)
		}

		// In two tiers it stays until it is in neither.
		r.apply(b, remove(store.CPU, keys[0]))
		r.want("still on disk", h(one, 0), s("0", 0), s("0", 1), s("1", 0))
		r.apply(b, remove(store.Disk, keys[0]))
		r.want("evicted", s("0", 0), s("0", 1))
		r.apply(b, add(store.CPU, keys[0]))

		// Another pod has the same: the string names the last one, the hash both.
		c := r.worker("j", "p2", 0, 2, 0)
		d := r.worker("j", "p2", 1, 2, 0)
		r.apply(c, add(store.CPU, keys[0]))
		r.apply(d, add(store.CPU, keys[0]))
		r.want("two pods", h(one, 0), h(two, 0), s("0", 0), s("0", 1), s("1", 0))
		if v := r.server.kept[s("0", 0)]; v != two {
			t.Errorf("the string names %q", v)
		}
		r.apply(c, store.Op{Kind: store.Clear, Tier: store.AllTiers})
		r.want("cleared", h(one, 0), s("0", 0), s("0", 1), s("1", 0))
		if v := r.server.kept[s("0", 0)]; v != one {
			t.Errorf("the string names %q", v)
		}
		must.Get(r.x.Retire(t.Context(), d))(t)

		// A worker that retires, and one that begins anew.
		must.Get(r.x.Retire(t.Context(), a))(t)
		r.want("retired", s("1", 0))
		must.Get(r.x.Begin(t.Context(), b, 0, 1))(t)
		r.want("begun anew")
		if n := r.w.Stats(); n.Entries != 0 || len(r.w.Names()) != 0 {
			t.Errorf("%+v, %q", n, r.w.Names())
		}
	})
}

// TestSilence: a worker whose lease is not renewed loses its entries, and one that is
// renewed keeps them alive.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings, TTL: 6 * time.Second})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		r.w.Heard(hashes[0])
		name := "vllm@" + model + "@1@0@" + hashes[0].String()
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 5*time.Second)
		r.apply(a, add(store.CPU, keys[0]))
		r.want("there", name)
		for range 5 {
			time.Sleep(4 * time.Second)
			r.worker("i", "10.0.0.1:8000", 0, 1, 5*time.Second)
		}
		if s := r.w.Stats(); s.Renewed < 8 || s.Renewed > 10 || s.Written != 1 {
			t.Errorf("in 20s of a TTL of 6s: %+v", s)
		}
		time.Sleep(7 * time.Second)
		r.want("silent")
	})
}

// TestWorld: a worker that turns out to be one of two gets other names.
func TestWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		r.w.Heard(hashes[0])
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 0)
		r.apply(a, add(store.CPU, keys[0]))
		r.want("alone", "vllm@"+model+"@1@0@"+hashes[0].String())
		r.worker("i", "10.0.0.1:8000", 0, 2, 0)
		r.want("of two", "vllm@"+model+"@2@0@"+hashes[0].String())
	})
}

// TestDown: nothing waits for a Redis that does not answer, and what it missed comes
// when it does.
func TestDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failures int
		r := newRig(t, entries.Config{Shapes: entries.Strings, Failed: func(error) { failures++ }})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		for _, h := range hashes {
			r.w.Heard(h)
		}
		name := func(i int) string { return "vllm@" + model + "@1@0@" + hashes[i].String() }
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 0)
		r.apply(a, add(store.CPU, keys[0]))
		r.want("there", name(0))
		r.server.set(errors.New("down"))
		r.apply(a, remove(store.CPU, keys[0]), add(store.CPU, keys[1], keys[2]))
		r.apply(a, remove(store.CPU, keys[2]))
		time.Sleep(10 * time.Second)
		r.want("down", name(0))
		if s := r.w.Stats(); failures < 5 || failures > 12 || s.Failures != uint64(failures) {
			t.Errorf("%d failures, %+v", failures, s)
		}
		r.server.set(nil)
		time.Sleep(2 * time.Second)
		r.want("up", name(1))
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings, MaxEntries: 2})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		for _, h := range hashes[:3] { // the first is forgotten
			r.w.Heard(h)
		}
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 0)
		r.apply(a, add(store.CPU, keys...))
		for i := range 2 {
			r.w.Heard(hashes[i])
		}
		r.apply(a, add(store.CPU, keys[0]))
		s := r.w.Stats()
		if s.Entries != 2 || s.Nameless != 2 || s.Full != 1 {
			t.Errorf("%+v", s)
		}
		r.apply("stranger", add(store.CPU, keys...)) // no worker
		if got := r.w.Stats(); got.Entries != 2 || got.Full != 1 {
			t.Errorf("%+v", got)
		}
	})
	for _, c := range []entries.Config{
		{}, {Write: (&server{}).write}, {Write: (&server{}).write, Registry: func() *store.Registry { return nil }},
		{Write: (&server{}).write, Registry: func() *store.Registry { return nil }, Shapes: 4},
		{Write: (&server{}).write, Registry: func() *store.Registry { return nil }, Shapes: 1, TTL: time.Millisecond},
		{Write: (&server{}).write, Registry: func() *store.Registry { return nil }, Shapes: 1, MaxEntries: -1},
	} {
		if _, err := entries.New(c); !errors.Is(err, entries.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestFenced: what another process writes from now on is left alone.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		r.w.Heard(hashes[0])
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 0)
		gen := must.Get(r.x.Begin(t.Context(), a, 0, 1))(t)
		batch := store.Batch{Pod: a, Model: model, Ops: []store.Op{add(store.CPU, keys[0])}, Guard: &store.Guard{Generation: gen, Fence: 1, Seq: 1}}
		must.OK(t, r.x.Apply(t.Context(), batch))
		time.Sleep(time.Second) // it is written
		must.Get(r.x.TakeOver(t.Context(), gen, 2))(t)
		batch.Guard.Seq, batch.Ops = 2, []store.Op{remove(store.CPU, keys[0])}
		if err := r.x.Apply(t.Context(), batch); !errors.Is(err, store.ErrFenced) {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		r.want("left", "vllm@"+model+"@1@0@"+hashes[0].String())
		if s := r.w.Stats(); s.Entries != 0 || s.Deleted != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestMeanwhile: what changes while it is being written is written once more, and what
// another process writes from then on is left alone.
func TestMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, entries.Config{Shapes: entries.Strings})
		defer r.stop()
		hashes, keys := chunksOf(t, v031)
		r.w.Heard(hashes[0])
		name := "vllm@" + model + "@1@0@" + hashes[0].String()
		a := r.worker("i", "10.0.0.1:8000", 0, 1, 0)
		gen := must.Get(r.x.Begin(t.Context(), a, 0, 1))(t)
		seq := uint64(0)
		apply := func(op store.Op) error {
			seq++
			return r.x.Apply(t.Context(), store.Batch{Pod: a, Model: model, Ops: []store.Op{op}, Guard: &store.Guard{Generation: gen, Fence: 1, Seq: seq}})
		}
		during := func(f func()) {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			r.server.meanwhile = f
		}
		do := func(op store.Op) {
			t.Helper()
			if err := apply(op); err != nil {
				t.Error(err)
			}
		}
		during(func() { do(remove(store.CPU, keys[0])) })
		do(add(store.CPU, keys[0]))
		r.want("removed while it was written")
		do(add(store.CPU, keys[0]))
		r.want("there", name)
		during(func() { do(add(store.CPU, keys[0])) })
		do(remove(store.CPU, keys[0]))
		r.want("added while it was removed", name)
		do(remove(store.CPU, keys[0]))
		r.want("removed")
		during(func() {
			if _, err := r.x.TakeOver(t.Context(), gen, 2); err != nil {
				t.Error(err)
			}
			if err := apply(remove(store.CPU, keys[0])); !errors.Is(err, store.ErrFenced) {
				t.Error(err)
			}
		})
		do(add(store.CPU, keys[0]))
		r.want("left to another", name)
		if s := r.w.Stats(); s.Entries != 0 || s.Deleted != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRoundTrip writes to a real Redis, and a scorer that reads LMCache's entries in
// place finds them.
func TestRoundTrip(t *testing.T) {
	t.Run("single", func(t *testing.T) {
		s := redistest.Start(t)
		roundTrip(t, s.URL())
	})
	t.Run("cluster", func(t *testing.T) {
		roundTrip(t, redistest.StartCluster(t, 3, false).URL())
	})
}

func roundTrip(t *testing.T, url string) {
	open := func(prefix string) *redis.Index {
		x := must.Get(redis.Open(redis.Config{URL: url, Prefix: prefix, NoSweep: true, Entries: true, Timeout: 20 * time.Second}))(t)
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	// The controller has an index of its own, so that the scorer can find nothing but the entries.
	heard, scored := open("one"), open("two")
	for _, c := range []struct {
		name   string
		shapes entries.Shapes
		mode   lmcache.Mode
		config lmcache.Config
	}{
		{"strings of 0.3.1", entries.Strings, lmcache.SetEntries, v031},
		{"strings of 0.3.3", entries.Strings, lmcache.SetEntries, lmcache.Config{Version: lmcache.V033}},
		{"strings of 0.3.6", entries.Strings, lmcache.AutoEntries, lmcache.Config{Version: lmcache.V036, Python: 12}},
		{"hashes", entries.Hashes, lmcache.HSetEntries, v031},
		{"hashes of the fork", entries.Hashes | entries.Strings, lmcache.AutoEntries, lmcache.Config{Version: lmcache.VFork}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := "org/" + strings.ReplaceAll(c.name, " ", "-")
			profile := lmcache.Profile{Config: c.config, WorldSizes: []int{2}}
			w := must.Get(entries.New(entries.Config{
				Shapes: c.shapes, Profiles: map[string]lmcache.Profile{m: profile}, Registry: heard.Cached, Timeout: 20 * time.Second, TTL: time.Hour,
				Write: func(ctx context.Context, ttl time.Duration, list []entries.Write) error {
					return writeTo(ctx, heard, ttl, list)
				},
			}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.Run(ctx) }()
			defer func() { cancel(); <-done }()
			x := w.Index(heard)
			pod := store.Pod{Name: "10.0.0.1:8000", Model: m}
			for _, in := range []store.Index{x, scored} {
				must.Get(in.Register(ctx, pod))(t)
			}
			must.Get(heard.Registry(ctx))(t)
			reader := must.Get(lmcache.NewReader(m, c.mode, profile))(t)
			sc := must.Get(scorer.New(scorer.Config{Index: scored, BlockSize: 64, Budget: 20 * time.Second, Chunks: &chunks.Source{Readers: map[string]*lmcache.Reader{m: reader}}}))(t)
			want := func(what string, blocks int) {
				t.Helper()
				eventually.NoError(t, what, func() error {
					resp := must.Get(sc.Score(ctx, scorer.Request{Model: m, Input: scorer.Tokens(tokens(1024))}))(t)
					got := 0
					for i := range resp.Pods {
						got = resp.Pods[i].Blocks
					}
					if got != blocks {
						return fmt.Errorf("%d blocks, want %d", got, blocks)
					}
					return nil
				})
			}
			hashes, keys := chunksOf(t, c.config)
			for _, h := range hashes {
				w.Heard(h)
			}
			var names []string
			for n := range 2 {
				names = append(names, lmcache.WorkerName(m, "", n))
				p := store.Pod{Name: names[n], Model: m, PartOf: &store.PartOf{Pod: pod.Name, Worker: n, Workers: 2}}
				must.Get(x.Register(ctx, p))(t)
				must.OK(t, x.Apply(ctx, store.Batch{Pod: p.Name, Model: m, Ops: []store.Op{add(store.CPU, keys...)}}))
			}
			want("both workers", 16)
			must.OK(t, x.Apply(ctx, store.Batch{Pod: names[1], Model: m, Ops: []store.Op{remove(store.CPU, keys[2:]...)}}))
			want("one evicts", 8)
			must.Get(x.Retire(ctx, names[0]))(t)
			want("the other retires", 0)
			must.Get(x.Retire(ctx, names[1]))(t)
			eventually.NoError(t, "the end of all entries", func() error {
				left := 0
				must.Get(heard.External().Scan(ctx, external.Scan{Match: "*" + m + "@*", MaxKeys: 1000, MaxSteps: 1000,
					Want: func(string) (bool, bool) { return true, false }, Each: func(external.Key) { left++ }}))(t)
				if left > 0 {
					return fmt.Errorf("%d keys are left", left)
				}
				return nil
			})
		})
	}
}

func writeTo(ctx context.Context, x *redis.Index, ttl time.Duration, list []entries.Write) error {
	writes := make([]external.Write, len(list))
	for i, w := range list {
		writes[i] = external.Write{Name: w.Name, Field: w.Field, Value: w.Value, Delete: w.Delete}
	}
	_, err := x.External().Write(ctx, ttl, writes)
	return err
}
