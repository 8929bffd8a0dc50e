package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// setBackVariable sets how many histories TestSetBack plays on a server, and on a cluster.
const setBackVariable = "KVATLAS_TEST_SET_BACK_ROUNDS"

// TestSetBack sets what Redis has back to what it was, in random histories, with writes
// before, between and behind, so that numbers come again. The replica must come to what a
// new reader of Redis finds.
//
// Set back is what a server may lose. It is all of it, by a restart or in place, and on a
// cluster the slots of some partitions, or that of the registry. Of the registry it is what a
// hand or a policy may take beside blocks that stay. A log beside its blocks is not among them.
// It is in their slot, and what the replica has not read of it by then is lost.
func TestSetBack(t *testing.T) {
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv(setBackVariable)); err == nil {
		rounds = n
	}
	t.Run("server", func(t *testing.T) {
		s := redistest.Start(t)
		b := &setBack{url: s.URL(), plain: s.Client(), server: s}
		for seed := range uint64(rounds) {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { b.play(t, seed) })
		}
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, false)
		b := &setBack{url: c.URL(), plain: c.Client()}
		for seed := range uint64(rounds) {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { b.play(t, seed) })
		}
	})
}

// setBack is where histories are played.
type setBack struct {
	url    string
	plain  goredis.UniversalClient
	server *redistest.Server // nil on a cluster
}

// play plays one history.
func (b *setBack) play(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 9))
	ctx := t.Context()
	b.empty(t)
	p := newPrefix()
	x, r := openRedis(t, b.url, p), openReplica(t, b.url, p)
	keys := keysOf(seed, 40)
	history := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s\n%+v", history, r.Status())
		}
	}()
	writes := func(n int) {
		for range n {
			if err := randomWrite(ctx, x, rng, keys); err != nil { // a restart breaks connections
				history += fmt.Sprintf("(%v) ", err)
			}
		}
	}
	writes(5 + rng.IntN(10))
	for range 6 {
		if rng.IntN(3) > 0 {
			catchUp(t, r)
		}
		dump := b.dump(t)
		writes(rng.IntN(8))
		if rng.IntN(2) > 0 {
			catchUp(t, r)
		}
		for range 1 + rng.IntN(2) {
			if b.server != nil && rng.IntN(4) == 0 {
				history += "restart, "
				b.server.Kill()
				b.server.Run()
			} else {
				what, has := b.part(rng)
				history += what + ", "
				b.restore(t, p, rng, dump, has)
			}
			writes(rng.IntN(8))
		}
		writes(1)
		fresh := openRedis(t, b.url, p)
		eventually.NoError(t, history, func() error {
			if st := r.Status(); st.Mode != Memory {
				return fmt.Errorf("%+v", st)
			}
			if err := r.CatchUp(ctx); err != nil {
				return err
			}
			got, err := find(t, r, keys...)
			want, err2 := find(t, fresh, keys...)
			if err == nil && err2 == nil && !got.Equal(want) {
				return fmt.Errorf("the replica finds\n%v, Redis\n%v", got, want)
			}
			return errors.Join(err, err2)
		})
	}
}

// randomWrite changes the index.
func randomWrite(ctx context.Context, x store.Index, rng *rand.Rand, keys []blockkey.Key) error {
	pod := fmt.Sprint("p", rng.IntN(4))
	from := rng.IntN(len(keys))
	some := keys[from:min(len(keys), from+1+rng.IntN(20))]
	op := store.Op{Kind: store.Add, Tier: store.GPU, Keys: some}
	switch rng.IntN(8) {
	case 4:
		op.Kind = store.Remove
	case 5:
		op = store.Op{Kind: store.Clear, Tier: store.GPU}
	case 6:
		_, err := x.Retire(ctx, pod)
		return err
	case 7:
		_, err := x.Register(ctx, store.Pod{Name: pod, Model: model})
		return err
	}
	return x.Apply(ctx, store.Batch{Pod: pod, Model: model, Ops: []store.Op{op}})
}

// part chooses what to set back. It is keys of whole slots on a cluster, and on a server of all
// but the log, which is that of the blocks.
func (b *setBack) part(rng *rand.Rand) (what string, has func(key string) bool) {
	registry := func(key string) bool { return strings.Contains(key, "{reg}:") }
	log := func(key string) bool { return strings.HasSuffix(key, ":log") || strings.HasSuffix(key, ":logged") }
	some := rng.Uint64()
	switch kind := rng.IntN(4); {
	case kind == 0:
		return "all", func(string) bool { return true }
	case kind == 1:
		return "numbers", func(key string) bool {
			return strings.HasSuffix(key, "{reg}:epoch") || strings.HasSuffix(key, "{reg}:count") || strings.HasSuffix(key, "{reg}:meta")
		}
	case b.server != nil:
		return "registry", func(key string) bool { return registry(key) && !log(key) }
	case kind == 2:
		return "registry", registry
	}
	return "partitions", func(key string) bool { return !registry(key) && some>>(tagOf(key)[0]%64)&1 != 0 }
}

// tagOf returns what the slot of a key is made of.
func tagOf(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// masters calls f for each of them.
func (b *setBack) masters(t *testing.T, f func(context.Context, *goredis.Client) error) {
	t.Helper()
	var err error
	switch c := b.plain.(type) {
	case *goredis.ClusterClient:
		err = c.ForEachMaster(t.Context(), f)
	case *goredis.Client:
		err = f(t.Context(), c)
	}
	must.OK(t, err)
}

func (b *setBack) empty(t *testing.T) {
	b.masters(t, func(ctx context.Context, c *goredis.Client) error { return c.FlushAll(ctx).Err() })
}

func (b *setBack) keys(t *testing.T) (all []string) {
	var mu sync.Mutex
	b.masters(t, func(ctx context.Context, c *goredis.Client) error {
		keys, err := c.Keys(ctx, "*").Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, keys...)
		return err
	})
	return all
}

// dump returns all that there is, and saves what a server has in its file.
func (b *setBack) dump(t *testing.T) map[string]string {
	dump := map[string]string{}
	for _, key := range b.keys(t) {
		dump[key] = b.plain.Dump(t.Context(), key).Val()
	}
	if b.server != nil {
		must.OK(t, b.server.Client().Save(t.Context()).Err())
	}
	return dump
}

// restore makes keys what they were: all at once on a server, slot by slot on a cluster.
func (b *setBack) restore(t *testing.T, prefix string, rng *rand.Rand, dump map[string]string, has func(string) bool) {
	slots := map[string]goredis.Pipeliner{}
	slot := func(key string) goredis.Pipeliner {
		tag := ""
		if b.server == nil {
			tag = tagOf(key)
		}
		if slots[tag] == nil {
			slots[tag] = b.plain.TxPipeline()
		}
		return slots[tag]
	}
	for _, key := range b.keys(t) {
		if has(key) {
			slot(key).Del(t.Context(), key)
		}
	}
	for key, value := range dump {
		if has(key) {
			slot(key).RestoreReplace(t.Context(), key, 0, value)
		}
	}
	if count := prefix + "{reg}:count"; has(count) {
		// It comes from another server, as what one has lost does.
		slot(count).HSet(t.Context(), count, "run", fmt.Sprintf("%040x", rng.Uint64()))
	}
	for _, pipe := range slots {
		must.Get(pipe.Exec(t.Context()))(t)
	}
	// Ids of a log's entries are times in ms. No server is back within one, in which the next
	// entry would get the id and the number of one that is gone.
	for now := time.Now(); time.Since(now) < 2*time.Millisecond; {
		runtime.Gosched()
	}
}

// TestHoldersLiveAgain: a replica has all that blocks have, predictions too, and holders that
// are dead when it reads them. The registry is set back to a time when a pod lived that has been
// retired since. Its blocks are there again, whether the replica read them before or after.
func TestHoldersLiveAgain(t *testing.T) {
	s := redistest.Start(t)
	b := &setBack{url: s.URL(), plain: s.Client(), server: s}
	p := newPrefix()
	x, before := openRedis(t, s.URL(), p), openReplica(t, s.URL(), p)
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, before, x, keys...)
	dump := b.dump(t)
	must.Get(x.Retire(t.Context(), "a"))(t)
	write(t, x, "b", store.Add, keys[50:]...)
	predicted := store.Op{Kind: store.Add, Tier: store.Predicted, Keys: keys[:60], Until: time.Now().Add(time.Hour)}
	must.OK(t, x.Apply(t.Context(), store.Batch{Pod: "b", Model: model, Ops: []store.Op{predicted}}))
	after := openReplica(t, s.URL(), p)
	for _, r := range []*Replica{before, after} {
		same(t, r, x, keys...)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	b.restore(t, p, rng, dump, func(key string) bool {
		return strings.Contains(key, "{reg}:") && !strings.HasSuffix(key, ":log") && !strings.HasSuffix(key, ":logged")
	})
	write(t, x, "c", store.Add, keys[99])
	for _, r := range []*Replica{before, after} {
		same(t, r, x, keys...)
		if got, err := find(t, r, keys...); err != nil || len(got) == 0 {
			t.Errorf("the replica finds %v, %v", got, err)
		}
	}
}
