package snapshot_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tester is what testing.TB and rapid.T have in common.
type tester interface {
	Context() context.Context
	Helper()
	Fatalf(format string, args ...any)
}

// opener makes an empty index that is closed when the test ends.
type opener func(tb testing.TB) store.Index

func openMemory(tb testing.TB) store.Index {
	tb.Helper()
	x := must.Get(memory.New(memory.Config{}))(tb)
	tb.Cleanup(func() { _ = x.Close() })
	return x
}

var prefixes atomic.Int64

func openRedis(url string) opener {
	return func(tb testing.TB) store.Index {
		tb.Helper()
		x := must.Get(redis.Open(redis.Config{URL: url, Prefix: fmt.Sprintf("t%d", prefixes.Add(1)), NoSweep: true, Timeout: time.Minute}))(tb)
		must.End(tb, x.Close)
		return x
	}
}

// backends are the two kinds of index.
func backends(t *testing.T) map[string]opener {
	t.Helper()
	return map[string]opener{"memory": openMemory, "redis": openRedis(redistest.Start(t).URL())}
}

// chain returns n keys that look like hashes, the same for the same name.
func chain(name uint64, n int) []blockkey.Key {
	keys := make([]blockkey.Key, n)
	rng := rand.New(rand.NewPCG(name, 1))
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

var (
	models = []string{"m1", "m2"}
	keys   = append(chain(5, 60), 0, ^blockkey.Key(0), blockkey.Key(blockkey.ModelOf("m1")))

	genOp = rapid.Custom(func(t *rapid.T) store.Op {
		op := store.Op{
			Kind: rapid.SampledFrom([]store.OpKind{store.Add, store.Add, store.Add, store.Add, store.Remove, store.Clear}).Draw(t, "kind"),
			Tier: rapid.SampledFrom([]store.Tier{store.GPU, store.CPU, store.Shared}).Draw(t, "tier"),
		}
		if op.Kind != store.Clear {
			op.Keys = rapid.SliceOfN(rapid.SampledFrom(keys), 0, 30).Draw(t, "keys")
			if rapid.Bool().Draw(t, "of window groups") {
				op.Tier = op.Tier.Window()
			}
		}
		return op
	})
	genBatch = rapid.Custom(func(t *rapid.T) store.Batch {
		return store.Batch{
			Pod:   rapid.SampledFrom([]string{"a", "b", "c/d", "é\"\\<"}).Draw(t, "pod"),
			Rank:  rapid.IntRange(0, 2).Draw(t, "rank"),
			Model: rapid.SampledFrom(models).Draw(t, "model"),
			Ops:   rapid.SliceOfN(genOp, 0, 4).Draw(t, "ops"),
			Reuse: rapid.SampledFrom([]store.Reuse{{}, {Block: 16}, {Block: 528, Window: 528}}).Draw(t, "reuse"),
		}
	})
)

// play plays a random history to an index and to a model of it.
func play(t *rapid.T, x store.Index, m *storetest.Model) {
	for range rapid.IntRange(0, 8).Draw(t, "steps") {
		switch rapid.IntRange(0, 5).Draw(t, "what") {
		case 0:
			p := store.Pod{
				Name: rapid.SampledFrom([]string{"a", "b", "e"}).Draw(t, "pod"), Model: rapid.SampledFrom(models).Draw(t, "model"),
				Address: "http://x", Role: "both", Ranks: 3, Engine: "vllm", Events: "tcp://a:1", Replay: "tcp://a:2", BlockSize: 16,
				Labels: map[string]string{"zone": "<z>"}, Lease: store.Seconds(time.Hour),
			}
			if _, err := x.Register(t.Context(), p); err != nil {
				t.Fatalf("%v", err)
			}
			m.Register(p)
		case 1:
			pod := rapid.SampledFrom([]string{"a", "b", "c/d"}).Draw(t, "pod")
			if _, err := x.Retire(t.Context(), pod); err != nil {
				t.Fatalf("%v", err)
			}
			m.Retire(pod)
		default:
			b := genBatch.Draw(t, "batch")
			if err := x.Apply(t.Context(), b); err != nil {
				t.Fatalf("%v", err)
			}
			m.Apply(b)
		}
	}
}

// found returns the holders of the keys, for each model.
func found(t tester, x store.Index, ks []blockkey.Key) map[string]storetest.Answer {
	t.Helper()
	out := map[string]storetest.Answer{}
	for _, name := range models {
		c := &storetest.Collector{Keys: len(ks)}
		if err := x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf(name), Keys: ks, Fold: c}); err != nil {
			t.Fatalf("Lookup: %v", err)
		}
		if err := c.Err(); err != nil {
			t.Fatalf("%v", err)
		}
		out[name] = c.Answer
	}
	return out
}

// same fails the test when the index is not what the model is.
func same(t tester, x store.Index, m *storetest.Model) {
	t.Helper()
	for name, got := range found(t, x, keys) {
		if want := m.Lookup(blockkey.ModelOf(name), keys); !got.Equal(want) {
			t.Fatalf("of %s found\n%v, want\n%v", name, got, want)
		}
	}
	reg, err := x.Registry(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, id := range heldBy(t, x) {
		slot, _, _ := reg.AnyHolder(id)
		pod, rank := reg.Pods[reg.Slots[slot].Pod], reg.Slots[slot].Rank
		want := m.Reuse(pod.Name, rank)
		if want.Block == 0 {
			want.Block = pod.BlockSize
		}
		if got := reg.Reuse(slot); got != want {
			t.Fatalf("of the engine of %s/%d it knows %v, want %v", pod.Name, rank, got, want)
		}
	}
	if want := m.Pods(); len(reg.Pods)+len(want) > 0 && !reflect.DeepEqual(reg.Pods, want) {
		t.Fatalf("pods\n%+v, want\n%+v", reg.Pods, want)
	}
}

// heldBy are the live holders of blocks.
func heldBy(t tester, x store.Index) []store.HolderID {
	t.Helper()
	var out []store.HolderID
	for _, name := range models {
		c := &storetest.Collector{Keys: len(keys)}
		if err := x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf(name), Keys: keys, Fold: c}); err != nil {
			t.Fatalf("Lookup: %v", err)
		}
		out = append(out, c.IDs...)
	}
	return out
}

// dump dumps an index.
func dump(t tester, x snapshot.Source, o snapshot.Options) []byte {
	t.Helper()
	var out bytes.Buffer
	s, err := snapshot.Dump(t.Context(), &out, x, o)
	if err != nil {
		t.Fatalf("Dump: %v", err)
	}
	if s.Bytes != int64(out.Len()) {
		t.Fatalf("Dump says %d bytes, it wrote %d", s.Bytes, out.Len())
	}
	return out.Bytes()
}

func restore(t tester, x store.Index, text []byte, mode snapshot.Mode) snapshot.Report {
	t.Helper()
	r, err := snapshot.Restore(t.Context(), bytes.NewReader(text), x, mode)
	if err != nil {
		t.Fatalf("Restore: %v\n%s", err, text)
	}
	return r
}

// add makes a pod the holder of blocks.
func add(tb testing.TB, x store.Index, pod, model string, tier store.Tier, ks ...blockkey.Key) {
	tb.Helper()
	for len(ks) > 0 {
		n := min(len(ks), store.MaxOpKeys)
		must.OK(tb, x.Apply(tb.Context(), store.Batch{Pod: pod, Model: model, Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: ks[:n]}}}))
		ks = ks[n:]
	}
}
