package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// find returns the answer for a chain, with the pods' names alone.
func find(tb testing.TB, x *Index, keys ...blockkey.Key) (blocks []string) {
	tb.Helper()
	c := &storetest.Collector{Keys: len(keys)}
	if err := x.Lookup(tb.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: c}); err != nil {
		tb.Fatalf("Lookup: %v", err)
	}
	must.OK(tb, c.Err())
	for _, at := range c.Answer {
		var pods []string
		for _, a := range at {
			pods = append(pods, a.Pod)
		}
		blocks = append(blocks, strings.Join(pods, " "))
	}
	return blocks
}

func wantBlocks(tb testing.TB, x *Index, keys []blockkey.Key, want ...string) {
	tb.Helper()
	if got := find(tb, x, keys...); !slices.Equal(got, want) {
		tb.Fatalf("found %q, want %q", got, want)
	}
}

func batchOf(pod string, kind store.OpKind, keys ...blockkey.Key) store.Batch {
	return store.Batch{Pod: pod, Model: "m", Ops: []store.Op{{Kind: kind, Keys: keys}}}
}

func apply(tb testing.TB, x *Index, batches ...store.Batch) {
	tb.Helper()
	if err := x.Apply(tb.Context(), batches...); err != nil {
		tb.Fatalf("Apply: %v", err)
	}
}

// nameOf is the name of a block of model m.
func nameOf(x *Index, k blockkey.Key) string {
	return string(x.space.Names.AppendBlock(nil, k.In(blockkey.ModelOf("m"))))
}

func TestValues(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := t.Context()
	apply(t, x, batchOf("a", store.Add, 1, 2), batchOf("b", store.Add, 2))
	for k, want := range map[blockkey.Key][2]string{1: {"1", "int"}, 2: {"1,2", "embstr"}} {
		name := nameOf(x, k)
		if v, enc := plain.Get(ctx, name).Val(), plain.ObjectEncoding(ctx, name).Val(); v != want[0] || enc != want[1] {
			t.Errorf("block %d is %q encoded %s, want %q encoded %s", k, v, enc, want[0], want[1])
		}
	}
	// The design's figure for a block with one holder.
	if n := plain.MemoryUsage(ctx, nameOf(x, 1)).Val(); n > 56 {
		t.Errorf("a block with one holder takes %d bytes, want at most 56", n)
	}
	apply(t, x, batchOf("a", store.Remove, 1, 2), batchOf("b", store.Remove, 2))
	if n := plain.Exists(ctx, nameOf(x, 1), nameOf(x, 2)).Val(); n != 0 {
		t.Errorf("%d blocks that nobody holds are left", n)
	}
}

// TestForeignValues puts under the names of blocks what does not belong there.
func TestForeignValues(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, garbage := range []string{"", "x", "0", "007", "1,", ",1", "1,,2", "1,02", "4294967296", "10.0.0.1:8000", "1\n"} {
		t.Run(fmt.Sprintf("%q", garbage), func(t *testing.T) {
			x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
			keys := []blockkey.Key{1, 2, 3}
			apply(t, x, batchOf("a", store.Add, keys...))
			plain.Set(t.Context(), nameOf(x, 2), garbage, 0)
			wantBlocks(t, x, keys, "a", "", "a")
			// A text that names no pod is counted apart.
			if s := x.Stats(); s.Garbled+s.UnknownTexts != 1 || (s.UnknownTexts == 1) != keyspace.IsText([]byte(garbage)) {
				t.Errorf("%d garbled values and %d unknown texts counted, want 1", s.Garbled, s.UnknownTexts)
			}
			if garbage == "4294967296" {
				return // writers take it for an id
			}
			apply(t, x, batchOf("b", store.Add, keys...))
			wantBlocks(t, x, keys, "a b", "b", "a b")
		})
	}
	for kind, put := range map[string]func(name string) error{
		"hash": func(n string) error { return plain.HSet(t.Context(), n, "f", 1).Err() },
		"list": func(n string) error { return plain.RPush(t.Context(), n, 1).Err() },
		"zset": func(n string) error { return plain.ZAdd(t.Context(), n, redis.Z{Member: 1}).Err() },
	} {
		t.Run(kind, func(t *testing.T) {
			x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
			keys := []blockkey.Key{1, 2, 3}
			apply(t, x, batchOf("a", store.Add, 1, 3))
			must.OK(t, put(nameOf(x, 2)))
			wantBlocks(t, x, keys, "a", "", "a")
			apply(t, x, batchOf("a", store.Remove, keys...))
			wantBlocks(t, x, keys, "", "", "")
			apply(t, x, batchOf("a", store.Add, keys...))
			wantBlocks(t, x, keys, "a", "a", "a")
		})
	}
}

func TestScriptFlush(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL()})
	for i := range blockkey.Key(5) {
		must.OK(t, plain.ScriptFlush(t.Context()).Err())
		// Two parts, and the registry's script with them.
		keys := make([]blockkey.Key, callKeys+10)
		for j := range keys {
			keys[j] = i<<32 + blockkey.Key(j)
		}
		apply(t, x, batchOf("a", store.Clear), batchOf("a", store.Add, keys...))
		wantBlocks(t, x, []blockkey.Key{keys[0], keys[callKeys+9]}, "a", "a")
		must.OK(t, plain.ScriptFlush(t.Context()).Err())
		must.Get(x.Retire(t.Context(), "a"))(t)
	}
}

// TestWriterWithEndedHolder is the race of Apply's comment: a writer
// whose ids are of an ended life loses nothing.
func TestWriterWithEndedHolder(t *testing.T) {
	s := redistest.Start(t)
	endings := map[string]func(y *Index, plain *redis.Client) error{
		"cleared": func(y *Index, _ *redis.Client) error { return y.Apply(t.Context(), batchOf("a", store.Clear)) },
		"retired": func(y *Index, _ *redis.Client) error { _, err := y.Retire(t.Context(), "a"); return err },
		"renewed after a retirement": func(y *Index, _ *redis.Client) error {
			_, err := y.Retire(t.Context(), "a")
			return errors.Join(err, y.Apply(t.Context(), batchOf("a", store.Add, 9)))
		},
		"flushed": func(_ *Index, plain *redis.Client) error { return plain.FlushAll(t.Context()).Err() },
		"expired": func(_ *Index, plain *redis.Client) error {
			return plain.ZAdd(t.Context(), "kva{reg}:live", redis.Z{Score: 1, Member: "a"}).Err()
		},
		"another pod expired": func(y *Index, plain *redis.Client) error {
			return errors.Join(y.Apply(t.Context(), batchOf("b", store.Add, 1)), plain.ZAdd(t.Context(), "kva{reg}:live", redis.Z{Score: 1, Member: "b"}).Err())
		},
	}
	for name, end := range endings {
		for _, kind := range []store.OpKind{store.Add, store.Remove} {
			t.Run(fmt.Sprint(name, kind), func(t *testing.T) {
				plain := s.Client()
				plain.FlushAll(t.Context())
				x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
				apply(t, x, batchOf("a", store.Add, 1, 2))
				must.OK(t, end(y, plain))
				apply(t, x, batchOf("a", kind, 3))
				want := ""
				if kind == store.Add {
					want = "a"
				}
				kept := ""
				if name == "another pod expired" {
					kept = "a"
				}
				for _, i := range []*Index{x, y} {
					wantBlocks(t, i, []blockkey.Key{1, 2, 3}, kept, kept, want)
				}
			})
		}
	}
}

// TestLateWriterRegisters covers batches that change no block, of a pod that this process
// believes to be there. Those that only take away change nothing, others register it.
func TestLateWriterRegisters(t *testing.T) {
	s := redistest.Start(t)
	x, y := open(t, Config{URL: s.URL()}), open(t, Config{URL: s.URL()})
	for name, b := range map[string]store.Batch{
		"no ops": {Pod: "a", Model: "m"}, "no keys": batchOf("a", store.Add), "remove": batchOf("a", store.Remove, 1), "clear": batchOf("a", store.Clear),
	} {
		apply(t, x, batchOf("a", store.Add, 1))
		if known, err := y.Retire(t.Context(), "a"); err != nil || !known {
			t.Fatal(known, err)
		}
		apply(t, x, b)
		r := must.Get(y.Registry(t.Context()))(t)
		if _, ok := r.PodIndex("a"); ok != b.Enrols() {
			t.Errorf("%s: registered is %v", name, ok)
		}
	}
}

// TestApplyScript holds the fold in Lua to a plain one in Go, garbage included.
func TestApplyScript(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := context.Background()
	ids := rapid.SampledFrom([]string{"1", "2", "7", "17", "71", "100", "117", "4026531839"})
	value := rapid.OneOf(
		rapid.Just(""), rapid.Just("<none>"),
		rapid.Custom(func(t *rapid.T) string { // as written by the rules
			n := rapid.SliceOfNDistinct(ids, 1, 6, rapid.ID).Draw(t, "ids")
			slices.SortFunc(n, compareNumbers)
			return strings.Join(n, ",")
		}),
		rapid.Custom(func(t *rapid.T) string { // of many holders
			id := rapid.OneOf(rapid.IntRange(1, 999), rapid.IntRange(1, int(store.FirstLocal)-1))
			n := rapid.SliceOfNDistinct(id, 10, 200, rapid.ID).Draw(t, "many")
			slices.Sort(n)
			text := make([]string, len(n))
			for i, id := range n {
				text[i] = strconv.Itoa(id)
			}
			return strings.Join(text, ",")
		}),
		rapid.SampledFrom([]string{"x", "0", "01", "1,", ",1", "1,,2", "1,0", "1,02", "1 7", "-1", "7x", "a,1"}),
	)
	op := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"+", "-"}).Draw(t, "sign") + ids.Draw(t, "id")
	})
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(value, 1, 8).Draw(t, "values")
		c := &keyspace.Call{Script: lua.Apply, Args: []string{"0", "0", "0"}}
		var want []string
		for i, v := range values {
			name := fmt.Sprint("b", i)
			c.Keys = append(c.Keys, name)
			if v == "<none>" {
				plain.Del(ctx, name)
			} else {
				plain.Set(ctx, name, v, 0)
			}
			ops := rapid.SliceOfN(op, 1, 3).Draw(t, "ops")
			if rapid.IntRange(0, 9).Draw(t, "exact") == 0 {
				ops = []string{"=" + v}
			}
			c.Args = append(c.Args, strings.Join(ops, ""), "1")
			want = append(want, foldValue(v, ops))
		}
		cmds, err := x.space.Run(ctx, c)
		if n, _ := cmds[0].Val().(int64); err != nil || n < 0 {
			t.Fatalf("got %v, %v", cmds[0].Val(), err)
		}
		for i, name := range c.Keys {
			got, err := plain.Get(ctx, name).Result()
			if errors.Is(err, redis.Nil) {
				got = "<none>"
			}
			if got != want[i] {
				t.Errorf("%q with %s became %q, want %q", values[i], c.Args[3+2*i], got, want[i])
			}
		}
	})
}

// TestApplyScriptOnLongGarbage: what is too long to be looked at wholly may stay
// garbled, but never stops a writer.
func TestApplyScriptOnLongGarbage(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := context.Background()
	garbage := rapid.StringOfN(rapid.RuneFrom([]rune("0123456789,,, x")), 60, 200, -1)
	rapid.Check(t, func(t *rapid.T) {
		v := "5" + garbage.Draw(t, "value") + "9"
		plain.Set(ctx, "b", v, 0)
		id := strconv.FormatUint(rapid.Uint64Range(1, 1<<32-1).Draw(t, "id"), 10)
		for _, sign := range []string{"+", "-"} {
			if _, err := x.space.Run(ctx, &keyspace.Call{Script: lua.Apply, Keys: []string{"b"}, Args: []string{"0", "0", "0", sign + id, "1"}}); err != nil {
				t.Fatalf("%s%s on %q: %v", sign, id, v, err)
			}
		}
	})
}

func compareNumbers(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x - y
}

// foldValue is what apply.lua does to one value.
func foldValue(v string, ops []string) string {
	if exact, ok := strings.CutPrefix(ops[0], "="); ok {
		if v == exact {
			return "<none>"
		}
		return v
	}
	var ids []string
	left := "<none>" // a text stays until an id takes its place
	if _, ok := keyspace.AppendHolders(nil, []byte(v)); ok {
		ids = strings.Split(v, ",")
	} else if strings.Trim(v, "0123456789,") != "" {
		left = v
	}
	for _, op := range ops {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == op[1:] })
		if op[0] == '+' {
			ids = append(ids, op[1:])
			left = "<none>"
		}
	}
	if len(ids) == 0 {
		return left
	}
	slices.SortFunc(ids, compareNumbers)
	return strings.Join(ids, ",")
}

// TestOneCallABatch counts round trips.
func TestOneCallABatch(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	keys := make([]blockkey.Key, store.MaxOpKeys)
	for i := range keys {
		keys[i] = blockkey.Key(i) << 20
	}
	apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1)) // registers
	for _, c := range []struct {
		name    string
		batches []store.Batch
		trips   uint64
	}{
		{"an event", []store.Batch{batchOf("a", store.Add, keys[:16]...)}, 1},
		{"an eviction", []store.Batch{batchOf("a", store.Remove, keys[:16]...)}, 1},
		{"many blocks", []store.Batch{batchOf("a", store.Add, keys...)}, 1},
		{"several batches", []store.Batch{batchOf("a", store.Add, keys[:99]...), batchOf("b", store.Add, keys[50:200]...), batchOf("a", store.Remove, keys[20:70]...)}, 1},
		{"a clear", []store.Batch{batchOf("a", store.Clear)}, 1},
		{"a clear and blocks", []store.Batch{batchOf("a", store.Clear), batchOf("a", store.Add, keys[:16]...)}, 2},
	} {
		before := x.Stats().RoundTrips
		apply(t, x, c.batches...)
		if n := x.Stats().RoundTrips - before; n != c.trips {
			t.Errorf("%s took %d round trips, want %d", c.name, n, c.trips)
		}
	}
}

func TestLimits(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), MaxPods: 2, MaxHolders: 3, MaxModels: 1})
	ctx := t.Context()
	apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1))
	if err := x.Apply(ctx, batchOf("c", store.Add, 1)); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "2 pods") {
		t.Errorf("a third pod by a batch: got %v, want ErrFull", err)
	}
	if _, err := x.Register(ctx, store.Pod{Name: "c", Model: "m"}); !errors.Is(err, store.ErrFull) {
		t.Errorf("a third pod: got %v, want ErrFull", err)
	}
	if _, err := x.Register(ctx, store.Pod{Name: "b", Model: "m"}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	for rank := 1; rank <= 2; rank++ {
		b := batchOf("a", store.Add, 2)
		b.Rank = rank
		if err := x.Apply(ctx, b); errors.Is(err, store.ErrFull) != (rank == 2) {
			t.Errorf("holder %d: got %v", rank+2, err)
		}
	}
	model := store.ModelInfo{Name: "x", BlockSize: 64, Scheme: store.SchemeNative}
	if _, err := x.EnsureModel(ctx, model); err != nil {
		t.Error(err)
	}
	model.Name = "y"
	if _, err := x.EnsureModel(ctx, model); !errors.Is(err, store.ErrFull) {
		t.Errorf("a second model: got %v, want ErrFull", err)
	}
}
