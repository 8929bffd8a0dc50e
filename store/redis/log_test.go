package redis

import (
	"fmt"
	"maps"
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
)

// replay makes the values of blocks out of the logs alone, and checks that entries
// are numbered.
func replay(t *rapid.T, x *Index, c redis.UniversalClient) map[blockkey.StoreKey]string {
	out := map[blockkey.StoreKey]string{}
	places := []int{keyspace.AtRegistry}
	for place := range keyspace.AtRegistry {
		if x.space.Cluster {
			places = append(places, place)
		}
	}
	for _, place := range places {
		names := x.space.Names.Logs[place]
		msgs := must.Get(c.XRange(x.space.Life, names.Log, "-", "+").Result())(t)
		last := uint64(0)
		for _, m := range msgs {
			var n uint64
			if _, err := fmt.Sscan(fmt.Sprint(m.Values["n"]), &n); err != nil || last != 0 && n != last+1 {
				t.Fatalf("%s has entry %v after %d: %v", names.Log, m.Values, last, err)
			}
			last = n
			for field, v := range m.Values {
				value, ok := strings.CutPrefix(field, "=")
				for text := v.(string); ok && len(text) > 0; text = text[8:] {
					k, is := x.space.Names.ParseBlock(x.space.Names.Blocks[text[7]&63] + text[:8])
					if !is || x.space.Cluster && k.Partition() != place {
						t.Fatalf("%s tells of the block %x", names.Log, text[:8])
					}
					delete(out, k)
					if value != "" {
						out[k] = value
					}
				}
			}
		}
		var entries, n uint64
		if _, err := fmt.Sscan(c.Get(x.space.Life, names.Logged).Val(), &entries, &n); err != nil || n != last {
			t.Fatalf("%s is at %d, its last entry is %d: %v", names.Logged, n, last, err)
		}
	}
	return out
}

// TestLogTells holds the logs against the blocks after random writes, guarded ones
// and sweeps among them.
func TestLogTells(t *testing.T) {
	for name, url := range map[string]string{"single": redistest.Start(t).URL(), "cluster": redistest.StartCluster(t, 3, false).URL()} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				x := must.Get(Open(Config{URL: url, Prefix: newPrefix(), NoSweep: true, SweepDuty: 1, DialTimeout: patience, Timeout: patience}))(rt)
				defer func() { _ = x.Close() }()
				must.OK(rt, x.SetLog(t.Context(), 10_000))
				must.Get(x.Register(t.Context(), store.Pod{Name: "g", Model: "m"}))(rt)
				gen := must.Get(x.Begin(t.Context(), "g", 0, 1))(rt)
				keys := rapid.SliceOfN(rapid.SampledFrom(manyKeys(40)), 1, 30)
				kind := rapid.SampledFrom([]store.OpKind{store.Add, store.Add, store.Remove})
				for seq := range rapid.IntRange(1, 8).Draw(rt, "writes") {
					b := store.Batch{Pod: rapid.SampledFrom([]string{"a", "b", "g"}).Draw(rt, "pod"), Model: "m"}
					for range rapid.IntRange(1, 3).Draw(rt, "ops") {
						b.Ops = append(b.Ops, store.Op{Kind: kind.Draw(rt, "kind"), Keys: keys.Draw(rt, "keys")})
					}
					if b.Pod == "g" {
						b.Guard = &store.Guard{Generation: gen, Fence: 1, Seq: uint64(seq) + 1}
					}
					must.OK(rt, x.Apply(t.Context(), b))
				}
				if rapid.Bool().Draw(rt, "sweep") {
					must.Get(x.Retire(t.Context(), "a"))(rt)
					must.Get(x.Sweep(t.Context()))(rt)
				}
				got, want := replay(rt, x, x.space.Client), map[blockkey.StoreKey]string{}
				for _, k := range manyKeys(40) {
					k := k.In(blockkey.ModelOf("m"))
					if v := x.space.Client.Get(t.Context(), string(x.space.Names.AppendBlock(nil, k))).Val(); v != "" {
						want[k] = v
					}
				}
				if !maps.Equal(got, want) {
					rt.Fatalf("the logs tell\n%v, there are\n%v", got, want)
				}
			})
		})
	}
}

// TestLogIsBounded writes more than a log keeps.
func TestLogIsBounded(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	must.OK(t, x.SetLog(t.Context(), 100))
	for i := range 1000 {
		apply(t, x, batchOf("a", store.Add, blockkey.Key(i)))
	}
	// It is cut by whole nodes of the stream, of 100 entries.
	if n := s.Client().XLen(t.Context(), "kva{reg}:log").Val(); n < 100 || n > 300 {
		t.Errorf("the log has %d entries", n)
	}
}

// TestLogOffLeavesNothing: without a log, writers leave no key of it.
func TestLogOffLeavesNothing(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	apply(t, x, batchOf("a", store.Add, manyKeys(100)...))
	if keys := s.Client().Keys(t.Context(), "*:log*").Val(); len(keys) > 0 {
		t.Errorf("there are %q", keys)
	}
}

// TestLogIsNoStream: where another key was put, writers go on, and readers
// see that there is no log.
func TestLogIsNoStream(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	must.OK(t, x.SetLog(t.Context(), 100))
	s.Client().Set(t.Context(), "kva{reg}:log", "mine", 0)
	apply(t, x, batchOf("a", store.Add, 1, 2, 3))
	wantBlocks(t, x, []blockkey.Key{1, 2, 3}, "a", "a", "a")
	ends, err := x.LogOffsets(t.Context())
	if err != nil || len(ends) != 0 {
		t.Errorf("got %v, %v", ends, err)
	}
}

// BenchmarkLogKeys is what the log costs a script while it is off: 16 blocks that
// are there, with its two keys and without.
func BenchmarkLogKeys(b *testing.B) {
	s := redistest.Start(b)
	x := open(b, Config{URL: s.URL(), NoSweep: true, Prefix: newPrefix()})
	var names []string
	for _, k := range manyKeys(16) {
		names = append(names, string(x.space.Names.AppendBlock(nil, k.In(0))))
	}
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("keys=%v", with), func(b *testing.B) {
			c := &keyspace.Call{Script: lua.Apply, Keys: names, Args: []string{"0", "0", "0", "", "16"}}
			if with {
				l := x.space.Names.Logs[keyspace.AtRegistry]
				c.Keys = append(append([]string{}, names...), l.Logged, l.Log)
			}
			s.Client().ConfigResetStat(b.Context())
			at := 0
			for b.Loop() {
				c.Args[3] = []string{"+7", "-7"}[at%2]
				at++
				must.Get(x.space.Run(b.Context(), c))(b)
			}
			_, rest, _ := strings.Cut(s.Client().Info(b.Context(), "commandstats").Val(), "cmdstat_evalsha:")
			_, rest, _ = strings.Cut(rest, "usec_per_call=")
			us, _, _ := strings.Cut(rest, ",")
			var n float64
			_, _ = fmt.Sscan(us, &n)
			b.ReportMetric(n, "server-us/op")
		})
	}
}
