package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// full makes a server refuse whatever takes memory, by a limit below what it uses.
func full(t *testing.T, plain *redis.Client) {
	t.Helper()
	must.OK(t, plain.ConfigSet(t.Context(), "maxmemory", "500kb").Err())
	if err := plain.Eval(t.Context(), "return redis.call('SET', '{' .. ARGV[1] .. '}', 'y')", nil, "x").Err(); err == nil || !strings.Contains(err.Error(), "OOM") && !strings.Contains(err.Error(), "cluster") {
		t.Fatalf("the server is not full: %v", err)
	}
}

// TestSweepOfAFullServer: on a server that is full, sweeping frees memory.
func TestSweepOfAFullServer(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (string, []*redis.Client){
		"standalone": func(t *testing.T) (string, []*redis.Client) {
			s := redistest.Start(t)
			return s.URL(), []*redis.Client{s.Client()}
		},
		"cluster": func(t *testing.T) (string, []*redis.Client) {
			c := redistest.StartCluster(t, 3, false)
			var all []*redis.Client
			for _, m := range c.Masters {
				all = append(all, m.Client())
			}
			return c.URL(), all
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, nodes := start(t)
			x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
			keys := manyKeys(20000)
			for i := 0; i < len(keys); i += 4000 {
				apply(t, x, batchOf("a", store.Add, keys[i:i+4000]...))
			}
			// b shares some of them, so that values become shorter, too.
			apply(t, x, batchOf("b", store.Add, keys[:4000]...))
			for _, n := range nodes {
				full(t, n)
			}
			used := func() (sum int64) {
				for _, n := range nodes {
					var v int64
					for line := range strings.Lines(n.Info(t.Context(), "memory").Val()) {
						if _, err := fmt.Sscanf(line, "used_memory:%d", &v); err == nil {
							sum += v
						}
					}
				}
				return sum
			}
			before := used()
			if _, err := x.Retire(t.Context(), "a"); err != nil {
				t.Fatalf("retire: %v", err)
			}
			p, err := x.Sweep(t.Context())
			if err != nil || p.Cleaned != uint64(len(keys)) || !p.Done {
				t.Fatalf("sweep: %+v, %v", p, err)
			}
			wantBlocks(t, x, []blockkey.Key{keys[0], keys[3999], keys[4000], keys[19999]}, "b", "b", "", "")
			if after := used(); before-after < 16000*40 {
				t.Errorf("the sweep of 16,000 blocks has freed %d bytes", before-after)
			}
			if x.dueSweep() {
				t.Error("there is still something to sweep")
			}
		})
	}
}

// TestWritesToAFullServer: what frees memory, ends lives or renews leases works on
// a server that is full, and what takes memory is refused.
func TestWritesToAFullServer(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	ctx := t.Context()
	pod := store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}
	must.Get(x.Register(ctx, pod))(t)
	gen := must.Get(x.Begin(ctx, "a", 0, 1))(t)
	keys := manyKeys(10)
	entry := func(n uint64, v string) store.MapOp {
		op := store.MapOp{MapKey: store.MapKey{Hash: n}}
		if v != "" {
			op.Value = []byte(v)
		}
		return op
	}
	first := guardedBatch("a", gen, 1, 1, store.Add, keys...)
	first.Map = []store.MapOp{entry(1, "x"), entry(2, "y")}
	apply(t, x, first, batchOf("b", store.Add, keys[:5]...), batchOf("c", store.Add, keys[9]))
	full(t, plain)

	if created, err := x.Register(ctx, pod); err != nil || created {
		t.Errorf("renewal: %v, %v", created, err)
	}
	if _, err := x.Register(ctx, store.Pod{Name: "new", Model: "m"}); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("a new pod: %v", err)
	}
	if watermark, err := x.TakeOver(ctx, gen, 2); err != nil || watermark != 1 {
		t.Errorf("take over: %v, %v", watermark, err)
	}
	// Removals alone are made, and the record says so: of a value that goes, of
	// one that becomes shorter, of an entry of the map.
	removal := guardedBatch("a", gen, 2, 2, store.Remove, keys[0], keys[8])
	removal.Map = []store.MapOp{entry(1, "")}
	apply(t, x, removal)
	apply(t, x, guardedBatch("a", gen, 2, 3, store.Remove, keys[1]))
	// Nothing to remove is no reason to fail.
	apply(t, x, guardedBatch("a", gen, 2, 4, store.Remove, 12345))
	// Of adds and removals only the removals are made, and the record says no.
	mixed := guardedBatch("a", gen, 2, 5, store.Remove, keys[2], keys[7])
	mixed.Ops = append(mixed.Ops, store.Op{Kind: store.Add, Keys: []blockkey.Key{100, 101}})
	mixed.Map = []store.MapOp{entry(3, "z"), entry(2, "")}
	err := x.Apply(ctx, mixed)
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, store.ErrNoMemory) || !strings.Contains(err.Error(), "OOM") {
		t.Fatalf("adds: got %v, want ErrUnavailable that says OOM", err)
	}
	if life, err := x.Life(ctx, "a", 0); err != nil || life.Seq != 4 {
		t.Errorf("applied up to %+v, %v", life, err)
	}
	look := append(slices.Clone(keys), 100, 101)
	wantBlocks(t, x, look, "b", "b", "b", "a b", "a b", "a", "a", "", "", "a c", "", "")
	// A clear and a new generation end what was, and give new ids.
	apply(t, x, batchOf("b", store.Clear))
	wantBlocks(t, x, look, "", "", "", "a", "a", "a", "a", "", "", "a c", "", "")
	if gen, err = x.Begin(ctx, "a", 0, 3); err != nil {
		t.Errorf("begin: %v", err)
	}
	apply(t, x, batchOf("c", store.Clear))
	wantBlocks(t, x, look, "", "", "", "", "", "", "", "", "", "", "", "")

	// With memory again, the batch that was refused is made whole.
	must.OK(t, plain.ConfigSet(ctx, "maxmemory", "0").Err())
	mixed.Guard = &store.Guard{Generation: gen, Fence: 3, Seq: 5}
	apply(t, x, mixed)
	wantBlocks(t, x, []blockkey.Key{100, 101}, "a", "a")
	if got, err := x.ReadMap(ctx, gen, entry(3, "").MapKey); err != nil || string(got[0]) != "z" {
		t.Errorf("the map has %q, %v", got, err)
	}
}
