package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// guardedBatch is a batch of rank 0 under a guard.
func guardedBatch(pod string, gen store.Generation, fence, seq uint64, kind store.OpKind, keys ...blockkey.Key) store.Batch {
	b := batchOf(pod, kind, keys...)
	b.Guard = &store.Guard{Generation: gen, Fence: fence, Seq: seq}
	return b
}

// mustBegin registers a pod and begins a generation of its rank 0.
func mustBegin(tb testing.TB, x *Index, pod string, fence uint64) store.Generation {
	tb.Helper()
	must.Get(x.Register(tb.Context(), store.Pod{Name: pod, Model: "m"}))(tb)
	gen := must.Get(x.Begin(tb.Context(), pod, 0, fence))(tb)
	return gen
}

// TestRecordsAreSwept: what ended generations leave in the partitions of a
// cluster does not stay, and what the living have there does.
func TestRecordsAreSwept(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	plain := c.Client()
	x := open(t, Config{URL: c.URL(), NoSweep: true, SweepDuty: 1})
	ctx := t.Context()
	var last store.Generation
	for fence := range uint64(5) {
		last = mustBegin(t, x, "a", fence+1)
	}
	other := mustBegin(t, x, "b", 1)
	mustBegin(t, x, "c", 1)
	must.Get(x.Retire(ctx, "c"))(t)
	apply(t, x, guardedBatch("a", last, 5, 1, store.Add, manyKeys(200)...))
	if !x.dueSweep() {
		t.Error("nothing is to be swept")
	}
	must.Get(x.Sweep(ctx))(t)
	for p := range blockkey.Partitions {
		got := plain.HGetAll(ctx, x.space.Names.Guards(p)).Val()
		if len(got) != 2 || got[fmt.Sprint(last)] == "" || got[fmt.Sprint(other)] != "1,0" {
			t.Fatalf("partition %d has the records %v", p, got)
		}
	}
	if n := plain.HLen(ctx, x.space.Names.Records).Val(); n != 2 {
		t.Errorf("the registry has %d records, want 2", n)
	}
	apply(t, x, guardedBatch("a", last, 5, 2, store.Remove, manyKeys(200)...))
	apply(t, x, guardedBatch("b", other, 1, 1, store.Add, 1))
	wantBlocks(t, x, []blockkey.Key{1, manyKeys(1)[0]}, "b", "")
}

// TestLostWrites: a server that has lost what a writer knows to be written refuses it.
// So what is lost is written again under a new generation.
func TestLostWrites(t *testing.T) {
	for name, lose := range map[string]func(x *Index, gen store.Generation) (key, value string){
		"an older record": func(_ *Index, gen store.Generation) (string, string) { return fmt.Sprint(gen), "1,2" },
		"no record":       func(_ *Index, gen store.Generation) (string, string) { return fmt.Sprint(gen), "" },
		"garbage":         func(_ *Index, gen store.Generation) (string, string) { return fmt.Sprint(gen), "x" },
	} {
		for _, cluster := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cluster=%v", name, cluster), func(t *testing.T) {
				ctx := t.Context()
				var x *Index
				var record string
				k := manyKeys(3)
				var set func(field, value string) error
				if cluster {
					c := redistest.StartCluster(t, 3, false)
					x = open(t, Config{URL: c.URL(), NoSweep: true})
					record = x.space.Names.Guards(k[0].In(blockkey.ModelOf("m")).Partition())
					set = func(f, v string) error {
						if v == "" {
							return c.Client().HDel(ctx, record, f).Err()
						}
						return c.Client().HSet(ctx, record, f, v).Err()
					}
				} else {
					s := redistest.Start(t)
					x = open(t, Config{URL: s.URL(), NoSweep: true})
					record = x.space.Names.Records
					set = func(f, v string) error {
						if v == "" {
							return s.Client().HDel(ctx, record, f).Err()
						}
						return s.Client().HSet(ctx, record, f, v).Err()
					}
				}
				gen := mustBegin(t, x, "a", 1)
				for seq := range uint64(4) {
					apply(t, x, guardedBatch("a", gen, 1, seq+1, store.Add, k[0]))
				}
				must.OK(t, set(lose(x, gen)))
				err := x.Apply(ctx, guardedBatch("a", gen, 1, 5, store.Add, k[0], k[1]))
				if !errors.Is(err, store.ErrEnded) {
					t.Fatalf("got %v, want ErrEnded", err)
				}
				gen = mustBegin(t, x, "a", 1)
				apply(t, x, guardedBatch("a", gen, 1, 1, store.Add, k...))
				wantBlocks(t, x, k, "a", "a", "a")
			})
		}
	}
}

// TestMapsAreSwept: the maps of ended generations go, those of the living stay.
func TestMapsAreSwept(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		ctx := t.Context()
		x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
		var ops []store.MapOp
		var keys []store.MapKey
		for i := range uint64(300) {
			keys = append(keys, store.MapKey{Hash: i})
			ops = append(ops, store.MapOp{MapKey: keys[i], Value: []byte("v")})
		}
		var last store.Generation
		for fence := range uint64(3) {
			last = mustBegin(t, x, "a", fence+1)
			b := guardedBatch("a", last, fence+1, 1, store.Add, 1)
			b.Map = ops
			apply(t, x, b)
			must.OK(t, x.compact(ctx, last, fence+1))
		}
		names := func() (n int) {
			count := func(ctx context.Context, c *redis.Client) error {
				n += len(c.Keys(ctx, "kva{g*").Val())
				return nil
			}
			if c, ok := x.space.Client.(*redis.ClusterClient); ok {
				var mu sync.Mutex
				must.OK(t, c.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
					mu.Lock()
					defer mu.Unlock()
					return count(ctx, c)
				}))
				return n
			}
			_ = count(ctx, x.space.Client.(*redis.Client))
			return n
		}
		before := names()
		must.Get(x.Sweep(ctx))(t)
		if n := names(); n*3 != before || n < 4 {
			t.Errorf("%d keys of maps are left of %d of three generations", n, before)
		}
		got, err := x.ReadMap(ctx, last, keys...)
		if err != nil || string(got[0]) != "v" || string(got[299]) != "v" {
			t.Errorf("the map that lives has %q, %v", got[0], err)
		}
	})
}

// BenchmarkMapMemory reports what an entry of a map takes, values being 11 bytes:
// a block key, a part and copies.
func BenchmarkMapMemory(b *testing.B) {
	for _, entries := range []int{1 << 10, 1 << 14, 1 << 16, 1 << 18} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			s := redistest.Start(b)
			plain := s.Client()
			x := open(b, Config{URL: s.URL(), NoSweep: true})
			used := func() int64 {
				for line := range strings.Lines(plain.Info(b.Context(), "memory").Val()) {
					if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
						n := must.Get(strconv.ParseInt(v, 10, 64))(b)
						return n
					}
				}
				b.Fatal("no figure")
				return 0
			}
			gen := mustBegin(b, x, "a", 1)
			seq := uint64(1)
			apply(b, x, guardedBatch("a", gen, 1, seq, store.Add))
			hashes := manyKeys(entries)
			for b.Loop() {
				before := used()
				for part := range slices.Chunk(hashes, 4096) {
					seq++
					batch := guardedBatch("a", gen, 1, seq, store.Add)
					for _, h := range part {
						batch.Map = append(batch.Map, store.MapOp{MapKey: store.MapKey{Hash: uint64(h)}, Value: []byte("12345678\x01\x01\x02")})
					}
					apply(b, x, batch)
				}
				b.ReportMetric(float64(used()-before)/float64(entries), "B/entry")
			}
		})
	}
}

// TestMissingPart: a part is taken only after the one before it.
func TestMissingPart(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := t.Context()
	gen := mustBegin(t, x, "a", 1)
	send := func(attempt, part, parts string, want lua.Result) {
		t.Helper()
		c := &keyspace.Call{Script: lua.Apply, Keys: []string{x.space.Names.Records, "b" + part}, Args: []string{
			"0", "1", "0", fmt.Sprint(gen), "1", "5", "0", "0", attempt, part, parts, "+7", "1",
		}}
		cmds := must.Get(x.space.Run(ctx, c))(t)
		if v, _ := cmds[0].Slice(); len(v) != 2 || v[1] != int64(want) {
			t.Fatalf("part %s of attempt %s: got %v, want %d", part, attempt, v, want)
		}
	}
	record := func(want string) {
		t.Helper()
		if got := s.Client().HGet(ctx, x.space.Names.Records, fmt.Sprint(gen)).Val(); got != want {
			t.Fatalf("the record is %q, want %q", got, want)
		}
	}
	send("1", "1", "3", lua.Gap)
	record("1,0")
	send("1", "0", "3", lua.Applied)
	record("1,0,5,1,1")
	send("1", "2", "3", lua.Gap)
	send("2", "1", "3", lua.Gap)
	send("1", "1", "3", lua.Applied)
	send("3", "0", "2", lua.Applied)
	send("1", "2", "3", lua.Gap)
	record("1,0,5,3,1")
	send("3", "1", "2", lua.Applied)
	record("1,5")
	send("3", "1", "2", lua.Duplicate)
	send("4", "0", "1", lua.Duplicate)
}

// TestGuardedTrips counts the round trips of guarded batches.
func TestGuardedTrips(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		x := open(t, Config{URL: url, NoSweep: true})
		gens := map[string]store.Generation{"a": mustBegin(t, x, "a", 1), "b": mustBegin(t, x, "b", 1)}
		seq := uint64(0)
		batches := func(kind store.OpKind, keys ...blockkey.Key) (out []store.Batch) {
			seq++
			for _, pod := range []string{"a", "b"} {
				out = append(out, guardedBatch(pod, gens[pod], 1, seq, kind, keys...))
			}
			return out
		}
		apply(t, x, batches(store.Add, manyKeys(500)...)...) // gives the ids, and the scripts to all nodes
		for what, b := range map[string][]store.Batch{
			"an event of two ranks": batches(store.Add, manyKeys(16)...), "many blocks": batches(store.Add, manyKeys(3000)...), "an eviction": batches(store.Remove, manyKeys(16)...),
		} {
			seq++
			for i := range b {
				b[i].Guard.Seq = seq
			}
			want := uint64(1)
			if x.space.Cluster {
				want = 2
			}
			before := x.Stats().RoundTrips
			apply(t, x, b...)
			if n := x.Stats().RoundTrips - before; n != want && (what != "many blocks" || n > 3) {
				t.Errorf("%s took %d round trips, want %d", what, n, want)
			}
		}
	})
}

// BenchmarkGuard is what a guard costs: events of 16 blocks, and windows of the
// events of 8 ranks.
func BenchmarkGuard(b *testing.B) {
	for _, name := range []string{"standalone", "cluster"} {
		var url string
		var first *redis.Client // the server, or the first of three
		if name == "cluster" {
			c := redistest.StartCluster(b, 3, false)
			url, first = c.URL(), c.Masters[0].Client()
		} else {
			s := redistest.Start(b)
			url, first = s.URL(), s.Client()
		}
		x := open(b, Config{URL: url, NoSweep: true})
		const ranks = 8
		var gens [ranks]store.Generation
		for i := range gens {
			gens[i] = mustBegin(b, x, benchPod(i), 1)
		}
		seq := uint64(0)
		for _, size := range []int{1, ranks} {
			for _, how := range []string{"plain", "guarded", "mapped"} {
				guarded := how != "plain"
				b.Run(fmt.Sprintf("%s/events=%d/%s", name, size, how), func(b *testing.B) {
					keys := benchChain(16 * ranks)
					report := cpu(b, first)
					for b.Loop() {
						seq++
						var batches []store.Batch
						for i := range size {
							kind := store.Add
							if seq%2 == 0 {
								kind = store.Remove
							}
							batch := batchOf(benchPod(i), kind, keys[i*16:][:16]...)
							if guarded {
								batch.Guard = &store.Guard{Generation: gens[i], Fence: 1, Seq: seq}
							}
							if how == "mapped" {
								for _, k := range keys[i*16:][:16] {
									op := store.MapOp{MapKey: store.MapKey{Hash: uint64(k)}}
									if kind == store.Add {
										op.Value = []byte("12345678\x01\x01\x02")
									}
									batch.Map = append(batch.Map, op)
								}
							}
							batches = append(batches, batch)
						}
						apply(b, x, batches...)
					}
					report()
					b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "events/s")
				})
			}
		}
	}
}
