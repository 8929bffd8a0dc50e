package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// Whatever happened to an index, what comes out of its dump is what it was.
func TestRoundTrips(t *testing.T) {
	all := backends(t)
	for from, openFrom := range all {
		for to, openTo := range all {
			t.Run(from+" to "+to, func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					x, m := openFrom(t), storetest.NewModel()
					play(rt, x, m)
					text := dump(rt, x, snapshot.Options{PageBlocks: rapid.SampledFrom([]int{1, 7, 0}).Draw(rt, "page")})
					end, blocks, err := snapshot.Verify(bytes.NewReader(text))
					if err != nil || end.Blocks != blocks {
						rt.Fatalf("%+v, %d blocks, %v", end, blocks, err)
					}
					y := openTo(t)
					for range rapid.IntRange(1, 2).Draw(rt, "times") {
						restore(rt, y, text, snapshot.Merge)
					}
					same(rt, y, m)
					_ = x.Close()
					_ = y.Close()
				})
			})
		}
	}
}

// To restore into an index that has something is to do both histories, or with
// Replace only the dump's.
func TestModes(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				x, y, m := open(t), open(t), storetest.NewModel()
				play(rt, x, m)
				other := storetest.NewModel()
				play(rt, y, other)
				want, renamed := found(rt, y, keys), renamedPods(rt, x, y)
				text := dump(rt, x, snapshot.Options{PageBlocks: 5})
				if rapid.Bool().Draw(rt, "replace") {
					restore(rt, y, text, snapshot.Replace)
					same(rt, y, m)
					return
				}
				restore(rt, y, text, snapshot.Merge)
				got := found(rt, y, keys)
				for name, answer := range found(rt, x, keys) {
					for i, at := range answer {
						seen := map[storetest.At]bool{}
						for _, a := range at {
							seen[a] = !renamed[a.Pod]
						}
						for _, a := range want[name][i] {
							seen[a] = true
						}
						maps.DeleteFunc(seen, func(_ storetest.At, held bool) bool { return !held })
						if len(got[name][i]) != len(seen) {
							rt.Fatalf("block %d of %s is held by %v, want %v", i, name, got[name][i], seen)
						}
						for _, a := range got[name][i] {
							if !seen[a] {
								rt.Fatalf("block %d of %s is held by %v, want %v", i, name, got[name][i], seen)
							}
						}
					}
				}
				_ = x.Close()
				_ = y.Close()
			})
		})
	}
}

// renamedPods are the pods that two indexes have for different models: another life's
// blocks are not restored.
func renamedPods(t tester, x, y store.Index) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	before, err := x.Registry(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	after, err := y.Registry(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, p := range before.Pods {
		i, known := after.PodIndex(p.Name)
		out[p.Name] = known && after.Pods[i].Model != p.Model
	}
	return out
}

func TestModelsAndPods(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			x := open(t)
			for i, m := range models {
				must.Get(x.EnsureModel(ctx, store.ModelInfo{Name: m, BlockSize: 16 << i, Scheme: store.SchemeNative}))(t)
			}
			ks := chain(1, 3)
			add(t, x, "a", "m1", store.GPU, ks[0], ks[1])
			add(t, x, "b", "m1", store.CPU, ks[1])
			add(t, x, "c", "m2", store.GPU, ks...)

			y := open(t)
			// A pod that is there keeps what is known of it.
			must.Get(y.Register(ctx, store.Pod{Name: "a", Model: "m1", Engine: "sglang"}))(t)
			report := restore(t, y, dump(t, x, snapshot.Options{Model: "m1"}), snapshot.Merge)
			if report.Models != 1 || report.Pods != 1 || report.Blocks != 2 || report.Credits != 3 || report.Skipped != 0 || report.TrueAt.Time.IsZero() {
				t.Errorf("got %+v", report)
			}
			reg := must.Get(y.Registry(ctx))(t)
			if fmt.Sprint(reg.Models) != "map[m1:{m1 16 native false}]" || len(reg.Pods) != 2 || reg.Pods[0].Engine != "sglang" {
				t.Errorf("got %v, %+v", reg.Models, reg.Pods)
			}
			if got := found(t, y, ks); fmt.Sprint(got["m1"]) != fmt.Sprint(storetest.Answer{{{Pod: "a"}}, {{Pod: "a"}, {Pod: "b", Tier: store.CPU}}, nil}) ||
				!got["m2"].Equal(make([][]storetest.At, 3)) {
				t.Errorf("got %v", got)
			}

			z := open(t)
			restore(t, z, dump(t, x, snapshot.Options{Pod: "b"}), snapshot.Merge)
			if got := found(t, z, ks)["m1"]; !got.Equal([][]storetest.At{nil, {{Pod: "b", Tier: store.CPU}}, nil}) {
				t.Errorf("got %v", got)
			}

			// Another block size is refused, at the line where it is, unless all is
			// replaced.
			w := open(t)
			must.Get(w.EnsureModel(ctx, store.ModelInfo{Name: "m2", BlockSize: 128, Scheme: store.SchemeNative}))(t)
			text := dump(t, x, snapshot.Options{})
			if _, err := snapshot.Restore(ctx, bytes.NewReader(text), w, snapshot.Merge); !errors.Is(err, store.ErrModelConflict) || !strings.Contains(err.Error(), "line 3") {
				t.Errorf("got %v", err)
			}
			restore(t, w, text, snapshot.Replace)
			if got := found(t, w, ks); !got["m2"].Equal([][]storetest.At{{{Pod: "c"}}, {{Pod: "c"}}, {{Pod: "c"}}}) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// While others write, retire and clear, a dump has all that stays, and nothing
// that never was.
func TestConcurrentWriters(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			x := open(t)
			stay, go1, go2 := chain(1, 5000), chain(2, 3000), chain(3, 3000)
			add(t, x, "stays", "m1", store.CPU, stay...)
			stop := make(chan struct{})
			var writers sync.WaitGroup
			for i, ks := range [][]blockkey.Key{go1, go2} {
				writers.Go(func() {
					pod := fmt.Sprint("w", i)
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						part := ks[n*500%len(ks):][:500]
						batch := store.Batch{Pod: pod, Model: "m1", Ops: []store.Op{{Kind: store.Add, Keys: part}, {Kind: store.Add, Keys: stay[n*50%4000:][:50]}}}
						if err := x.Apply(ctx, batch); err != nil {
							t.Error(err)
							return
						}
						batch.Ops = []store.Op{{Kind: store.Remove, Keys: part[:250]}}
						if n%7 == 6 {
							batch.Ops = []store.Op{{Kind: store.Clear, Tier: store.AllTiers}}
						}
						if err := x.Apply(ctx, batch); err != nil {
							t.Error(err)
						}
						if n%11 == 10 {
							if _, err := x.Retire(ctx, pod); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			var texts [][]byte
			for range 5 {
				texts = append(texts, dump(t, x, snapshot.Options{PageBlocks: 200}))
			}
			close(stop)
			writers.Wait()
			for _, text := range texts {
				y := openMemory(t)
				restore(t, y, text, snapshot.Merge)
				for i, at := range found(t, y, stay)["m1"] {
					seen := false
					for _, a := range at {
						seen = seen || a == storetest.At{Pod: "stays", Tier: store.CPU}
					}
					if !seen {
						t.Fatalf("block %d has lost its holder: %v", i, at)
					}
				}
				for i, ks := range [][]blockkey.Key{go1, go2} {
					for j, at := range found(t, y, ks)["m1"] {
						if len(at) > 1 || len(at) == 1 && at[0] != (storetest.At{Pod: fmt.Sprint("w", i)}) {
							t.Fatalf("block %d of writer %d is held by %v", j, i, at)
						}
					}
				}
				if y.Stats().Blocks > int64(len(stay)+len(go1)+len(go2)) {
					t.Fatalf("%d blocks", y.Stats().Blocks)
				}
			}
		})
	}
}

// The reader of an engine's events goes on with a restored index where the dump is true at.
func TestSequences(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			x, y := open(t), open(t)
			ks := chain(1, 100)
			for _, pod := range []string{"a", "b", "kept"} {
				must.Get(x.Register(ctx, store.Pod{Name: pod, Model: "m1", Ranks: 2}))(t)
			}
			for pod, seq := range map[string]uint64{"a": 4711, "kept": 8} {
				gen := must.Get(x.Begin(ctx, pod, 1, 7))(t)
				must.OK(t, x.Apply(ctx, store.Batch{
					Pod: pod, Rank: 1, Model: "m1", Ops: []store.Op{{Kind: store.Add, Keys: ks}},
					Guard: &store.Guard{Generation: gen, Fence: 7, Seq: seq},
				}))
			}
			add(t, x, "b", "m1", store.GPU, ks...)
			// A pod that is there has an owner of its own.
			must.Get(y.Register(ctx, store.Pod{Name: "kept", Model: "m1"}))(t)
			own := must.Get(y.Begin(ctx, "kept", 1, 3))(t)

			text := dump(t, x, snapshot.Options{PageBlocks: 10})
			if n := bytes.Count(text, []byte(`{"seq":{`)); n != 2 {
				t.Errorf("%d sequences\n%.1000s", n, text)
			}
			restore(t, y, text, snapshot.Merge)
			life, err := y.Life(ctx, "a", 1)
			if err != nil || life.Generation == 0 || life.Seq != 4711 {
				t.Fatalf("got %+v, %v", life, err)
			}
			if seq, err := y.TakeOver(ctx, life.Generation, 2); seq != 4711 || err != nil {
				t.Errorf("got %d, %v", seq, err)
			}
			if err := y.Apply(ctx, store.Batch{
				Pod: "a", Rank: 1, Model: "m1", Ops: []store.Op{{Kind: store.Remove, Keys: ks[50:]}},
				Guard: &store.Guard{Generation: life.Generation, Fence: 2, Seq: 4712},
			}); err != nil {
				t.Error(err)
			}
			at := storetest.At{Pod: "a", Rank: 1}
			b, kept := storetest.At{Pod: "b"}, storetest.At{Pod: "kept", Rank: 1}
			for i, got := range found(t, y, ks)["m1"] {
				want := [][]storetest.At{{at, b, kept}}
				if i >= 50 {
					want = [][]storetest.At{{b, kept}}
				}
				if !(storetest.Answer{got}).Equal(want) {
					t.Fatalf("block %d is held by %v, want %v", i, got, want)
				}
			}
			if life, err := y.Life(ctx, "kept", 1); err != nil || life.Generation != own || life.Seq != 0 {
				t.Errorf("got %+v, %v", life, err)
			}
		})
	}
}

func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	x, y := openRedis(c.URL())(t), openRedis(c.URL())(t)
	ks := chain(1, 3000)
	add(t, x, "a", "m1", store.GPU, ks...)
	add(t, x, "b", "m1", store.CPU, ks[:1000]...)
	text := dump(t, x, snapshot.Options{PageBlocks: 100})
	restore(t, y, text, snapshot.Merge)
	if got, want := found(t, y, ks), found(t, x, ks); !got["m1"].Equal(want["m1"]) || len(want["m1"][0]) != 2 {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
}

// A pod that ends while a restore goes on is not brought back by it.
func TestPodEndsDuringRestore(t *testing.T) {
	ctx := t.Context()
	x := openMemory(t)
	ks := chain(1, 4000)
	add(t, x, "a", "m1", store.GPU, ks...)
	add(t, x, "b", "m1", store.GPU, ks...)
	text := dump(t, x, snapshot.Options{PageBlocks: 500})

	y := openMemory(t)
	cut := bytes.Index(text, []byte(`{"page":3`))
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(text[:cut])
		_ = eventually.Wait(ctx, func() error { // its two pages are read, but not loaded yet
			if n := y.Stats().Blocks; n < 1000 {
				return fmt.Errorf("%d blocks", n)
			}
			return nil
		})
		if known, err := y.Retire(ctx, "a"); !known || err != nil {
			t.Errorf("got %v, %v", known, err)
		}
		_, _ = w.Write(text[cut:])
		_ = w.Close()
	}()
	report, err := snapshot.Restore(ctx, r, y, snapshot.Merge)
	if err != nil || report.Skipped == 0 || report.Blocks != 4000 {
		t.Errorf("got %+v, %v", report, err)
	}
	reg, err := y.Registry(ctx)
	if err != nil || len(reg.Pods) != 1 || reg.Pods[0].Name != "b" {
		t.Errorf("got %+v, %v", reg.Pods, err)
	}
}

func TestOptions(t *testing.T) {
	ctx := t.Context()
	x := openMemory(t)
	add(t, x, "a", "m1", store.GPU, chain(1, 1000)...)
	for _, o := range []snapshot.Options{{PageBlocks: -1}, {PageBlocks: store.MaxPage + 1}, {Pages: -1}, {Rate: -1}} {
		if _, err := snapshot.Dump(ctx, io.Discard, x, o); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	if _, err := snapshot.Dump(ctx, io.Discard, x, snapshot.Options{After: "x"}); !errors.Is(err, store.ErrCursor) {
		t.Errorf("got %v", err)
	}
	// 1000 blocks at 10,000 a second take a tenth of a second at least.
	began := time.Now()
	dump(t, x, snapshot.Options{PageBlocks: 1, Rate: 10_000})
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if _, err := snapshot.ParseMode("x"); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	for _, m := range []snapshot.Mode{snapshot.Merge, snapshot.Replace} {
		if got, err := snapshot.ParseMode(m.String()); got != m || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
}
