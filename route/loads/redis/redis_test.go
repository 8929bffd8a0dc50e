package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/store"
)

var prefixes atomic.Int64

// open returns a way to stores that begin empty, each under a prefix of its own.
func open(client goredis.UniversalClient) loadstest.Open {
	return func(t *testing.T, c *loadstest.Clock) loads.Store {
		s := must.Get(redis.New(redis.Config{Client: client, Prefix: fmt.Sprintf("k%d", prefixes.Add(1)), Now: c.Now, Timeout: 10 * time.Second}))(t)
		return s
	}
}

func TestRedis(t *testing.T) {
	client := redistest.Start(t).Client()
	loadstest.Run(t, open(client))
}

func TestCluster(t *testing.T) {
	client := redistest.StartCluster(t, 3, false).Client()
	loadstest.Run(t, open(client))
}

func request(id string, places ...string) *loads.Call {
	c := &loads.Call{Model: "m", ID: id, Lease: time.Minute, Tokens: 100, BlockSize: 16, WantLoads: true}
	for _, p := range places {
		c.Candidates = append(c.Candidates, loads.Candidate{RankRef: store.RankRef{Pod: p}, Uncached: 100, Work: 100, Factor: 1, Speed: 1})
	}
	return c
}

func isKnown(t *testing.T, s loads.Store, id string) bool {
	t.Helper()
	r := must.Get(s.End(context.Background(), "m", id))(t)
	return r.Known
}

// TestTwoProcesses lets one store book and another one, which shares only Redis, end.
func TestTwoProcesses(t *testing.T) {
	server := redistest.Start(t)
	clock := loadstest.NewClock()
	one, two := newStore(t, server.Client(), "kva", clock), newStore(t, server.Client(), "kva", clock)
	must.Get(one.Book(context.Background(), request("r", "a")))(t)
	if b, err := two.Book(context.Background(), request("r", "b")); err != nil || !b.Again || b.Pod != "a" {
		t.Errorf("%+v, %v", b, err)
	}
	if !isKnown(t, two, "r") || isKnown(t, one, "r") {
		t.Error("the request was not ended once")
	}
}

func newStore(t *testing.T, client goredis.UniversalClient, prefix string, clock *loadstest.Clock) *redis.Store {
	t.Helper()
	c := redis.Config{Client: client, Prefix: prefix, Timeout: 10 * time.Second}
	if clock != nil {
		c.Now = clock.Now
	}
	s := must.Get(redis.New(c))(t)
	return s
}

// TestLostLeases takes the leases away, all of them or all but those of later requests. The next picture
// brings them back: requests that are booked again are known, and end in time. What cannot be read ends too.
func TestLostLeases(t *testing.T) {
	client := redistest.Start(t).Client()
	for _, later := range []int{0, 3} {
		clock, ctx := loadstest.NewClock(), t.Context()
		client.FlushAll(ctx)
		s := newStore(t, client, "kva", clock)
		for i := range 5 {
			must.Get(s.Book(ctx, request(fmt.Sprint(i), "a")))(t)
		}
		keys := client.Keys(ctx, "kva{*}:t3:*").Val()
		must.OK(t, client.Del(ctx, keys...).Err())
		must.OK(t, client.HSet(ctx, strings.Replace(keys[0], ":t3:", ":r3:", 1), "strange", "no reservation").Err())
		for i := range later {
			must.Get(s.Book(ctx, request(fmt.Sprint("later", i), "b")))(t)
		}
		requests := func() (a, b int64) {
			p := must.Get(s.Loads(ctx, "m"))(t)
			return p.Loads[store.RankRef{Pod: "a"}].Requests, p.Loads[store.RankRef{Pod: "b"}].Requests
		}
		requests()
		for i := range 5 {
			if b, err := s.Book(ctx, request(fmt.Sprint(i), "b")); err != nil || !b.Again || b.Pod != "a" {
				t.Errorf("%d later: %+v, %v", later, b, err)
			}
		}
		if a, b := requests(); a != 5 || b != int64(later) {
			t.Errorf("%d later: %d and %d requests", later, a, b)
		}
		clock.Advance(2 * time.Minute)
		if a, b := requests(); a != 0 || b != 0 {
			t.Errorf("%d later: %d and %d requests, a lease later", later, a, b)
		}
		if left := client.Keys(ctx, "kva{*}:[rt]3:*").Val(); len(left) > 0 {
			t.Errorf("%d later: %q are left", later, left)
		}
	}
}

// TestServersClock lets the server's own time end leases.
func TestServersClock(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client(), "kva", nil)
	c := request("r", "a")
	c.Lease = 30 * time.Millisecond
	must.Get(s.Book(context.Background(), c))(t)
	for deadline := time.Now().Add(10 * time.Second); ; {
		p := must.Get(s.Loads(context.Background(), "m"))(t)
		if p.Loads[store.RankRef{Pod: "a"}].Requests == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the lease never ended")
		}
	}
}

// TestLostKeys takes each key of a model away while requests run, and lets Audit find what
// the loads are without it.
func TestLostKeys(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	for _, kind := range []string{"l3", "r3", "t3", "m3"} {
		t.Run(kind, func(t *testing.T) {
			clock := loadstest.NewClock()
			s := newStore(t, client, "lost"+kind, clock)
			for i := range 20 {
				c := request(fmt.Sprint(i), "a", "b")
				c.Tokens, c.Keys = 131, []blockkey.Key{1, 2, 3, 4, 5, 6, 7, blockkey.Key(i+1) << 9} // one mark is shared, one is its own
				c.Candidates[i%2].Base = -1
				must.Get(s.Book(ctx, c))(t)
			}
			keys := must.Get(client.Keys(ctx, "lost"+kind+"{*}:"+kind+":*").Result())(t)
			if len(keys) == 0 {
				t.Fatal("there is no such key")
			}
			for _, k := range keys {
				client.Del(ctx, k)
			}
			for i := range 5 {
				isKnown(t, s, fmt.Sprint(i))
			}
			for range 2 {
				must.Get(s.Audit(ctx, "m"))(t)
			}
			if d, err := s.Audit(ctx, "m"); err != nil || len(d) > 0 {
				t.Errorf("after an audit there are still differences: %v, %v", d, err)
			}
			clock.Advance(2 * time.Minute)
			p, err := s.Loads(ctx, "m")
			for at, l := range p.Loads {
				if l.Requests != 0 || l.Work != 0 || l.Prefill != 0 || l.Blocks != 0 {
					t.Errorf("one lease later: %v has %+v", at, l)
				}
			}
			if err != nil {
				t.Error(err)
			}
			clock.Advance(loads.ForgetSpeed)
			if _, err := s.Loads(ctx, "m"); err != nil {
				t.Error(err)
			}
			if n := client.DBSize(ctx).Val(); n != 0 {
				t.Errorf("%d keys are left: %v", n, client.Keys(ctx, "*").Val())
			}
		})
	}
}

// TestDrift spoils a load as no script does, and lets Audit mend it.
func TestDrift(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	s := newStore(t, client, "kva", loadstest.NewClock())
	for i := range 3 {
		must.Get(s.Book(ctx, request(fmt.Sprint(i), "a")))(t)
	}
	before, _ := s.Loads(ctx, "m")
	key := client.Keys(ctx, "kva{*}:l3:*").Val()[0]
	row := []byte(client.HGet(ctx, key, "0:a").Val())
	binary.LittleEndian.PutUint64(row[5*8:], math.Float64bits(9999))
	client.HSet(ctx, key, "0:a", row)
	d, err := s.Audit(ctx, "m")
	if err != nil || len(d) != 1 || d[0].Load.Blocks != 9999 || d[0].Reserved != before.Loads[d[0].RankRef] {
		t.Errorf("%+v, %v", d, err)
	}
	if after, _ := s.Loads(ctx, "m"); !maps.Equal(after.Loads, before.Loads) {
		t.Errorf("%v, expected %v", after, before)
	}
	// A row that cannot be read does not count: the next request begins anew.
	client.HSet(ctx, key, "0:a", "rubbish")
	if b, err := s.Book(ctx, request("new", "a")); err != nil || b.Loads[0].Requests != 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestReadOnly gives the loads to a user that may only read, and refuses to book.
func TestReadOnly(t *testing.T) {
	server := redistest.Start(t)
	admin, ctx := server.Client(), context.Background()
	s := newStore(t, admin, "kva", nil)
	must.Get(s.Book(ctx, request("r", "a")))(t)
	must.OK(t, admin.ACLSetUser(ctx, "reader", "on", ">secret", "~*", "+@read", "+hello", "+client").Err())
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, Username: "reader", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	reader := newStore(t, client, "kva", nil)
	p, err := reader.Loads(ctx, "m")
	if err != nil || p.Loads[store.RankRef{Pod: "a"}].Requests != 1 {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := reader.Book(ctx, request("q", "a")); !errors.Is(err, loads.ErrReadOnly) || !errors.Is(err, loads.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// TestCaseScriptThatMayNotGoOn takes a command that scripts call from the user: that is a refusal
// as one of the script itself, and no server that is away. One without memory says so.
func TestCaseScriptThatMayNotGoOn(t *testing.T) {
	server := redistest.Start(t)
	admin, ctx := server.Client(), context.Background()
	must.OK(t, admin.ACLSetUser(ctx, "half", "on", ">secret", "~*", "+@all", "-hincrby", "-hset", "-zadd").Err())
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, Username: "half", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	if _, err := newStore(t, client, "kva", nil).Book(ctx, request("q", "a")); !errors.Is(err, loads.ErrReadOnly) {
		t.Errorf("without the right: %v", err)
	}
	must.OK(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())
	if err := newStore(t, admin, "kva", nil).PutSettings(ctx, "m", []byte(`{"policy":"random"}`)); !errors.Is(err, loads.ErrNoMemory) || !errors.Is(err, loads.ErrUnavailable) {
		t.Errorf("without memory: %v", err)
	}
}

// TestDocumentedUsers makes the users of docs/operations.md. The writer can do all that the
// contract asks for. TestReadOnly has one that may only read.
func TestDocumentedUsers(t *testing.T) {
	server := redistest.Start(t)
	admin, ctx := server.Client(), context.Background()
	for _, line := range redistest.DocumentedACL(t, "../../../docs/operations.md", "acl") {
		redistest.Do(t, admin, line...)
	}
	writer := goredis.NewClient(&goredis.Options{Addr: server.Addr, Username: "kvatlas-writer", Password: "WRITER_PASSWORD", Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = writer.Close() })
	loadstest.Run(t, func(t *testing.T, c *loadstest.Clock) loads.Store {
		if err := admin.FlushDB(ctx).Err(); err != nil { // the user may only use this prefix
			t.Fatal(err)
		}
		return newStore(t, writer, "kva", c)
	})
}

// TestAway gets an error that says so, within the timeout, from a server that is frozen and
// from one that is not there.
func TestAway(t *testing.T) {
	server := redistest.Start(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	s := must.Get(redis.New(redis.Config{Client: client, Prefix: "kva", Timeout: 50 * time.Millisecond}))(t)
	server.Freeze()
	for range 2 {
		if _, err := s.Book(context.Background(), request("r", "a")); !errors.Is(err, loads.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		if _, err := s.Loads(context.Background(), "m"); !errors.Is(err, loads.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		server.Thaw()
		server.Kill()
	}
}

// TestKeysOfAnotherType puts another type under each of a model's keys: the error names the key
// and the cure, after which loads are kept again.
func TestKeysOfAnotherType(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	s := newStore(t, client, "kva", nil)
	book := func(id string) error {
		_, err := s.Book(ctx, request(id, "a"))
		return err
	}
	must.OK(t, book("first"))
	keys, err := client.Keys(ctx, "kva*").Result()
	if err != nil || len(keys) < 3 {
		t.Fatalf("%q, %v", keys, err)
	}
	for i, key := range keys {
		must.OK(t, errors.Join(client.Del(ctx, key).Err(), client.LPush(ctx, key, "x").Err()))
		_, read := s.Loads(ctx, "m")
		failed := 0
		for _, err := range []error{book(fmt.Sprint("r", i)), read} {
			if err == nil {
				continue // it does not need that key
			}
			failed++
			if !errors.Is(err, loads.ErrUnavailable) || !strings.Contains(err.Error(), "UNLINK it") || !strings.Contains(err.Error(), fmt.Sprintf("%q", key)) && !strings.Contains(key, ":m:") {
				t.Errorf("%q: %v", key, err)
			}
		}
		if failed == 0 && !strings.Contains(key, ":m:") {
			t.Errorf("%q may be of any type", key)
		}
		must.OK(t, client.Unlink(ctx, key).Err())
		if err := book(fmt.Sprint("again", i)); err != nil {
			t.Errorf("%q is gone: %v", key, err)
		}
	}
}

// TestFullServer gives the server no memory. Requests that run go on, renew their leases and end, and
// what is booked can be read, by booking it once more as well; nothing new is booked. One whose lease is over
// counts as new.
func TestFullServer(t *testing.T) {
	client, clock := redistest.Start(t).Client(), loadstest.NewClock()
	s, ctx := newStore(t, client, "kva", clock), context.Background()
	for _, id := range []string{"done", "put", "left"} {
		c := request(id, "a")
		for k := range blockkey.Key(6) {
			c.Keys = append(c.Keys, k+1)
		}
		must.Get(s.Book(ctx, c))(t)
	}
	must.Get(s.BookPair(ctx, &loads.PairCall{Call: *request("pair", "a"), Prefill: request("pair", "b").Candidates, Options: []loads.Option{{Factor: 1}}}))(t)
	must.OK(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	if _, err := s.Book(ctx, request("new", "a")); !errors.Is(err, loads.ErrNoMemory) {
		t.Errorf("a new request: %v", err)
	}
	if b, err := s.Book(ctx, request("put", "b")); err != nil || !b.Again || b.Pod != "a" {
		t.Errorf("a running request once more: %+v, %v", b, err)
	}
	if b, err := s.BookPair(ctx, pair("pair", "a", "b")); err != nil || !b.Again || b.Pod != "a" || b.Prefill.Pod != "b" {
		t.Errorf("a running pair once more: %+v, %v", b, err)
	}
	clock.Advance(40 * time.Second)
	shape := loads.Done{Cached: 10, Shape: loads.DefaultShape}
	for _, id := range []string{"done", "pair"} {
		if r, err := s.Done(ctx, "m", id, shape); err != nil || !r.First {
			t.Errorf("%s is done: %+v, %v", id, r, err)
		}
	}
	for _, tokens := range []int{1, 1000} { // the second one takes more blocks
		if r, err := s.Output(ctx, "m", "put", tokens); err != nil || !r.First {
			t.Errorf("put out %d: %+v, %v", tokens, r, err)
		}
	}
	clock.Advance(40 * time.Second) // the lease of the third is over, those of the others have been renewed
	if _, err := s.Book(ctx, request("left", "a")); !errors.Is(err, loads.ErrNoMemory) {
		t.Errorf("a request whose lease is over: %v", err)
	}
	p, err := s.Loads(ctx, "m")
	if l := p.Loads[store.RankRef{Pod: "a"}]; err != nil || l.Requests != 3 || len(p.Loads) != 2 {
		t.Errorf("%+v, %v", p.Loads, err)
	}
	for _, id := range []string{"done", "put", "pair"} {
		if !isKnown(t, s, id) {
			t.Errorf("%s has not ended", id)
		}
	}
	if p, err := s.Loads(ctx, "m"); err != nil || p.Loads[store.RankRef{Pod: "a"}].Requests != 0 || p.Loads[store.RankRef{Pod: "a"}].Blocks != 0 {
		t.Errorf("at the end: %+v, %v", p.Loads, err)
	}
}
