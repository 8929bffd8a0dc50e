package replica

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// TestChaos plays random writes and random accidents of the log and the server, at
// any moment of each other. It holds the replica against Redis after every few: it
// must come to the same answers, from memory, whatever has happened.
func TestChaos(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			chaos(t, redistest.Start(t), seed)
		})
	}
}

func chaos(t *testing.T, s *redistest.Server, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	plain, ctx := s.Client(), t.Context()
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	log, logged := logOf(p), p+"{reg}:logged"
	keys := keysOf(seed, 400)
	some := func() (from, to int) {
		from = rng.IntN(len(keys))
		return from, min(len(keys), from+1+rng.IntN(60))
	}
	writes := []func(){
		func() { i, j := some(); write(t, x, fmt.Sprint("p", rng.IntN(4)), store.Add, keys[i:j]...) },
		func() { i, j := some(); write(t, x, fmt.Sprint("p", rng.IntN(4)), store.Add, keys[i:j]...) },
		func() { i, j := some(); write(t, x, fmt.Sprint("p", rng.IntN(4)), store.Remove, keys[i:j]...) },
		func() { write(t, x, fmt.Sprint("p", rng.IntN(4)), store.Clear) },
		func() {
			must.Get(x.Retire(ctx, fmt.Sprint("p", rng.IntN(4))))(t)
		},
	}
	accidents := map[string]func(){
		"trimmed": func() {
			r.table.mu.Lock()
			defer r.table.mu.Unlock()
			for range 20 {
				writes[rng.IntN(3)]()
			}
			plain.XTrimMaxLen(ctx, log, int64(rng.IntN(3)))
		},
		"a strange entry": func() { plain.XAdd(ctx, &goredis.XAddArgs{Stream: log, Values: []any{"a", "b"}}) },
		"an entry is deleted": func() {
			if last := plain.XRevRangeN(ctx, log, "+", "-", 1).Val(); len(last) == 1 {
				plain.XDel(ctx, log, last[0].ID)
			}
		},
		"the log is deleted":          func() { plain.Del(ctx, log) },
		"the log's switch is deleted": func() { plain.Del(ctx, logged) },
		"the log is another key":      func() { plain.Del(ctx, log); plain.HSet(ctx, log, "a", "b") },
		"off and on": func() {
			for _, n := range []int{0, 50 + rng.IntN(100)} {
				must.OK(t, x.SetLog(ctx, n))
				writes[rng.IntN(3)]()
			}
		},
		"connections are cut": func() { plain.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes") },
		"all is flushed":      func() { plain.FlushDB(ctx) },
	}
	names := slices.Sorted(maps.Keys(accidents))
	history := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s\n%+v", history, r.Status())
		}
	}()
	for range 15 {
		for range rng.IntN(4) {
			writes[rng.IntN(len(writes))]()
		}
		name := names[rng.IntN(len(names))]
		history += name + ", "
		accidents[name]()
		for range rng.IntN(4) {
			writes[rng.IntN(len(writes))]()
		}
		// Cut connections may make the first try of a lookup fail.
		eventually.NoError(t, name, func() error { _, err := find(t, x, keys[0]); return err })
		eventually.NoError(t, name, func() error {
			if st := r.Status(); st.Mode != Memory {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
		eventually.NoError(t, name, func() error {
			catchUp(t, r)
			got, err := find(t, r, keys...)
			want, err2 := find(t, x, keys...)
			if err == nil && err2 == nil && !got.Equal(want) {
				return fmt.Errorf("the replica finds\n%v, Redis\n%v", got, want)
			}
			return errors.Join(err, err2)
		})
	}
}
