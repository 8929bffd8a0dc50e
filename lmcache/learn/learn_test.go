package learn

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// redis stands for the keys of one, and counts what is asked of it. It is read when all of
// its bubble of synctest waits.
type redis struct {
	mu            sync.Mutex // protects all below, but what is read when all waits
	keys          []string
	err           error
	scans, asked  int
	learnt, fails []string
}

func (r *redis) set(keys []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.err = keys, err
}

func (r *redis) start(t *testing.T) *Learner {
	t.Helper()
	l := New(Config{
		Names: func(_ context.Context, each func(string)) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.scans++
			for _, k := range r.keys {
				each(k)
			}
			return r.err
		},
		There: func(_ context.Context, names []string) ([]bool, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked += len(names)
			out := make([]bool, len(names))
			for i, name := range names {
				out[i] = slices.Contains(r.keys, name)
			}
			return out, r.err
		},
		Learnt: func(model, profile string) { r.learnt = append(r.learnt, model+" "+profile) },
		Failed: func(err error) { r.fails = append(r.fails, err.Error()) },
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return l
}

func tokens(first, n int) (out []uint32) {
	for i := range n {
		out = append(out, uint32(first+i))
	}
	return out
}

func keysOf(t *testing.T, c lmcache.Config, target lmcache.Target, prompt []uint32) []string {
	t.Helper()
	keys := must.Get(lmcache.Keys(c, target, prompt))(t)
	return keys
}

// Where there is nothing of LMCache a day of requests costs a few scans, and no question.
func TestNothingCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &redis{keys: []string{"kva", "user@example.org", "a@b@c"}}
		l := r.start(t)
		prompt := tokens(0, 2000)
		for range 24 * 60 * 6 {
			if l.Reader("m", prompt) != nil {
				t.Fatal("something is learnt from nothing")
			}
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if r.scans > 10+24*6 || r.scans < 100 || r.asked != 0 || len(r.fails) != 0 {
			t.Errorf("%d scans, %d asked, %q", r.scans, r.asked, r.fails)
		}
	})
}

// What comes later is learnt, once, by the prompt that is there, and a prompt that is not
// there teaches nothing. Another way of the same model is learnt too.
func TestLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &redis{}
		l := r.start(t)
		prompt, other := tokens(0, 2000), tokens(7000, 2000)
		l.Reader("m", prompt)
		synctest.Wait()
		old := lmcache.Config{Version: lmcache.V031}
		r.set(keysOf(t, old, lmcache.Target{Model: "m", WorldSize: 1}, prompt), nil)
		wait := func(ask []uint32, n int) *lmcache.Reader {
			t.Helper()
			for range 3000 {
				got := l.Reader("m", ask)
				synctest.Wait()
				if got != nil && len(r.learnt) == n {
					return l.Reader("m", nil)
				}
				time.Sleep(time.Second)
			}
			return l.Reader("m", nil)
		}
		if wait(other, 1) != nil {
			t.Fatal("a prompt that is not there has taught something")
		}
		first := wait(prompt, 1)
		if first == nil || !slices.Equal(r.learnt, []string{"m m?version=0.3.2"}) {
			t.Fatalf("learnt %q", r.learnt)
		}
		r.set(append(r.keys, keysOf(t, lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.SHA256CBOR, VLLM: true, Seed: "0"}, lmcache.Target{Model: "m", WorldSize: 1, DType: "half"}, other)...), nil)
		if second := wait(other, 2); second == nil || len(second.Groups()) != 2 || !strings.Contains(r.learnt[1], "algorithm=sha256_cbor&seed=0&dtype=half&remote=resp") {
			t.Errorf("learnt %q", r.learnt)
		}
	})
}

// Nothing is learnt from what other models have filed, or from what is for a tag, a layer or a salt.
// Nor is it from what is too short. Nor does a hash that nothing gives teach anything.
func TestLearnsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lmcache.Config{Version: lmcache.V034, Python: 12}
		prompt := tokens(0, 1024)
		r := &redis{keys: slices.Concat(
			keysOf(t, c, lmcache.Target{Model: "other", WorldSize: 1}, prompt),
			keysOf(t, c, lmcache.Target{Model: "org/m", WorldSize: 1}, prompt),
			keysOf(t, c, lmcache.Target{Model: "m", WorldSize: 1, Tags: []lmcache.Tag{{Name: "user", Value: "a"}}}, prompt),
			keysOf(t, c, lmcache.Target{Model: "m", WorldSize: 1, Layer: 3, HasLayer: true}, prompt),
			[]string{"vllm@m@1@0@12345", "vllm@m@1@0@" + strings.Repeat("ab", 32), "m@" + strings.Repeat("cd", 32), "m@1@0@ff@halfmetadata"},
		)}
		l := r.start(t)
		for range 100 {
			for _, ask := range [][]uint32{prompt, prompt[:15], nil} {
				if l.Reader("m", ask) != nil {
					t.Fatalf("learnt %q", r.learnt)
				}
			}
			time.Sleep(time.Minute)
		}
		if r.asked == 0 || len(r.learnt) != 0 {
			t.Errorf("%d asked, learnt %q", r.asked, r.learnt)
		}
	})
}

// A Redis that refuses is reported, and asked again later.
func TestLearnsAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := tokens(0, 512)
		r := &redis{err: errors.New("NOPERM"), keys: keysOf(t, lmcache.Config{Version: lmcache.V031}, lmcache.Target{Model: "m", WorldSize: 1}, prompt)}
		l := r.start(t)
		for range 10 {
			l.Reader("m", prompt)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if len(r.fails) < 3 || len(r.learnt) != 0 {
			t.Errorf("%q, %q", r.fails, r.learnt)
		}
		r.set(r.keys, nil)
		for range 30 {
			l.Reader("m", prompt)
			time.Sleep(time.Minute)
		}
		if len(r.learnt) != 1 {
			t.Errorf("learnt %q", r.learnt)
		}
	})
}
