package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/route/notes/notestest"
	"github.com/kvatlas/kvatlas/route/notes/redis"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var prefixes atomic.Int64

func open(t *testing.T, client goredis.UniversalClient, now func() time.Time) *redis.Store {
	t.Helper()
	return must.Get(redis.New(redis.Config{Client: client, Prefix: fmt.Sprintf("n%d", prefixes.Add(1)), Timeout: 10 * time.Second, Now: now}))(t)
}

func TestRedis(t *testing.T) {
	client := redistest.Start(t).Client()
	notestest.Run(t, func(t *testing.T, now func() time.Time) notes.Store { return open(t, client, now) })
}

func TestCluster(t *testing.T) {
	client := redistest.StartCluster(t, 3, false).Client()
	notestest.Run(t, func(t *testing.T, now func() time.Time) notes.Store { return open(t, client, now) })
}

// By the server's clock, every key ends by itself, and names neither a session nor more
// than a rank.
func TestKeysEnd(t *testing.T) {
	client := redistest.Start(t).Client()
	s := open(t, client, nil)
	at := store.RankRef{Pod: "a", Rank: 1}
	got, err := s.Slice(t.Context(), notes.Slice{Model: "m", RankRef: at, Blocks: 1, TTL: time.Hour, Max: 1})
	if in := time.Until(got.Until); err != nil || in < 59*time.Minute || in > 76*time.Minute {
		t.Fatalf("ends in %v, %v", in, err)
	}
	must.OK(t, s.Bind(t.Context(), "m", "alice@example.org", at, time.Hour))
	if b, err := s.Session(t.Context(), "m", "alice@example.org"); err != nil || b.RankRef != at || b.Left < 59*time.Minute {
		t.Fatalf("bound %v, %v", b, err)
	}
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 3 {
		t.Fatalf("%q, %v", keys, err)
	}
	for _, k := range keys {
		if ttl, err := client.PTTL(t.Context(), k).Result(); err != nil || ttl <= 0 {
			t.Errorf("%q lives %v, %v", k, ttl, err)
		}
		if fields, err := client.HKeys(t.Context(), k).Result(); err == nil && (len(fields) != 1 || len(fields[0]) != 16) {
			t.Errorf("%q has the fields %q", k, fields)
		}
	}
}

func TestUnavailable(t *testing.T) {
	s := open(t, redistest.Start(t).Client(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err1 := s.Slice(ctx, notes.Slice{Model: "m", RankRef: store.RankRef{Pod: "a"}, Blocks: 1, TTL: time.Hour, Max: 1})
	_, err2 := s.Session(ctx, "m", "s")
	for _, err := range []error{err1, err2, s.Bind(ctx, "m", "s", store.RankRef{Pod: "a"}, time.Second)} {
		if !errors.Is(err, notes.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
}
