package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/servercheck"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// TestNamesAreDocumented wants a paragraph on each finding, in their order.
func TestNamesAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	_, text2, ok := strings.Cut(string(text), "\n## What each finding means\n")
	if !ok {
		t.Fatal("docs/operations.md has no section on findings")
	}
	text2, _, _ = strings.Cut(text2, "\n## ")
	var got []string
	for line := range strings.Lines(text2) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			got = append(got, strings.TrimSpace(name))
		}
	}
	// Those of engines, which kvatlas doctor listens to as well, come behind.
	if !slices.Equal(got[:min(len(got), len(servercheck.Names))], servercheck.Names) {
		t.Errorf("documented are\n%q, findings are\n%q", got, servercheck.Names)
	}
}

const budget = time.Minute

// find1 returns the finding of a name.
func find1(t *testing.T, list []check.Finding, what string) check.Finding {
	t.Helper()
	i := slices.IndexFunc(list, func(f check.Finding) bool { return f.What == what })
	if i < 0 {
		t.Fatalf("nothing is said about %s: %+v", what, list)
	}
	return list[i]
}

func checked(t *testing.T, x *Index) []check.Finding {
	t.Helper()
	list := must.Get(x.Check(t.Context(), budget))(t)
	return list
}

// wantLevels fails the test when findings of these names have other levels.
func wantLevels(t *testing.T, list []check.Finding, want map[string]check.Level) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(want)) {
		if f := find1(t, list, what); f.Level != want[what] {
			t.Errorf("%s: got %+v, want %v", what, f, want[what])
		}
	}
}

func TestCheck(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "200mb")
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	before := plain.DBSize(t.Context()).Val()
	list := checked(t, x)
	wantLevels(t, list, map[string]check.Level{
		"connection": check.OK, "version": check.OK, "access": check.OK, "memory limit": check.OK, "eviction policy": check.OK,
		"memory of a block": check.OK, "persistence": check.Info, "replication": check.Info, "round trip": check.OK, "clock": check.OK,
		"clients": check.OK, "output buffers": check.OK, "background work": check.OK, "keys": check.OK, "data model": check.Info,
	})
	if n := plain.DBSize(t.Context()).Val(); n != before {
		t.Errorf("a check has left %d keys", n)
	}

	for part := range slices.Chunk(manyKeys(20_000), 5000) {
		apply(t, x, batchOf("a", store.Add, part...))
	}
	wantLevels(t, checked(t, x), map[string]check.Level{"data model": check.OK, "registry": check.OK, "keys": check.OK})
	// Samples are bounded, whatever the size.
	var n int
	if f := find1(t, checked(t, x), "keys"); f.Found == "" {
		t.Errorf("got %+v", f)
	} else if _, err := fmt.Sscanf(f.Found, "%d blocks looked at", &n); err != nil || n < 500 || n > 2000 {
		t.Errorf("got %+v", f)
	}
	if f := find1(t, checked(t, x), "memory of a block"); redistest.Version(t) == 7 && !strings.HasPrefix(f.Found, "56 bytes") {
		t.Errorf("got %+v", f)
	}

	// Each of these has to show.
	plain.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
	y := open(t, Config{URL: s.URL(), Prefix: "other", NoSweep: true, MaxPods: 1})
	apply(t, y, batchOf("a", store.Add, 1))
	plain.RPush(t.Context(), nameOf(y, 2), "no string")
	plain.Set(t.Context(), nameOf(y, 3), "17,,4", 0)
	list = checked(t, y)
	wantLevels(t, list, map[string]check.Level{
		"eviction policy": check.Fail, "memory of a block": check.Info, "keys": check.Warn, "registry": check.Warn,
	})
	if f := find1(t, list, "keys"); !strings.Contains(f.Found, "2 keys of 3 blocks") || !strings.Contains(f.Found, "is no string") || !strings.Contains(f.Found, `"17,,4"`) {
		t.Errorf("got %+v", f)
	}
	plain.HSet(t.Context(), y.space.Names.Meta, "schema", "99")
	if list, err := y.Check(t.Context(), budget); err != nil || find1(t, list, "data model").Level != check.Fail {
		t.Errorf("got %+v, %v", list, err)
	}
	plain.Del(t.Context(), y.space.Names.Meta)
	plain.Set(t.Context(), y.space.Names.Meta, "x", 0)
	if f := find1(t, checked(t, y), "data model"); f.Level != check.Fail || !strings.Contains(f.Found, "another type") {
		t.Errorf("got %+v", f)
	}

	plain.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	plain.ConfigSet(t.Context(), "maxmemory", "1mb")
	wantLevels(t, checked(t, x), map[string]check.Level{"memory limit": check.Fail})

	_ = x.Close()
	if list, err := x.Check(t.Context(), budget); !errors.Is(err, store.ErrClosed) || list != nil {
		t.Errorf("after Close: %v, %v", list, err)
	}
}

// A lookup reads the replies itself, and knows a refusal all the same.
func TestLookupRefused(t *testing.T) {
	s := redistest.Start(t)
	apply(t, open(t, Config{URL: s.URL(), NoSweep: true}), batchOf("a", store.Add, 1))
	must.OK(t, s.Client().Do(t.Context(), "ACL", "SETUSER", "half", "on", ">p", "~kva{*", "+@all", "-mget").Err())
	x := open(t, Config{URL: "redis://half:p@" + s.Addr, NoSweep: true})
	err := x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: &storetest.Collector{Keys: 1}})
	if !errors.Is(err, store.ErrRefused) || !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
}

// TestCheckAsUser looks through the eyes of several users.
func TestCheckAsUser(t *testing.T) {
	s := redistest.Start(t)
	users(t, s)
	plain := s.Client()
	user := func(name string, rules ...any) {
		t.Helper()
		must.OK(t, plain.Do(t.Context(), append([]any{"ACL", "SETUSER", name, "reset", "on", ">p"}, rules...)...).Err())
	}
	user("others-keys", "~other:*", "+@all")
	user("no-scripts", "~kva{*", "+@all", "-eval", "-evalsha")
	user("no-transaction", "~kva{*", "+@all", "-eval", "-multi")
	user("half", "~kva{*", "+@all", "-hset")
	url := func(user string) string { return "redis://" + user + s.Addr }
	apply(t, open(t, Config{URL: s.URL(), NoSweep: true}), batchOf("a", store.Add, 1))

	type as struct {
		url   string
		level check.Level
		say   string
	}
	all := map[string]as{
		"all":            {s.URL(), check.OK, "read, write and sweep"},
		"reader":         {url(asReader), check.Info, "user kvatlas-reader may read"},
		"writer":         {url(asWriter), check.OK, "read, write and sweep"},
		"doctor":         {url("kvatlas-doctor:DOCTOR_PASSWORD@"), check.Info, "may read"},
		"others' keys":   {url("others-keys:p@"), check.Fail, "mget"},
		"no scripts":     {url("no-scripts:p@"), check.Fail, "may not call eval on"},
		"no transaction": {url("no-transaction:p@"), check.Info, "cannot be seen"},
		"half a writer":  {url("half:p@"), check.Fail, "not call hset on"},
	}
	if redistest.Version(t) < 7 {
		// It is found out by a transaction, which these users may not begin.
		for _, name := range []string{"reader", "writer", "doctor"} {
			all[name] = as{all[name].url, check.Info, "cannot be seen"}
		}
	}
	for name, c := range all {
		list, err := open(t, Config{URL: c.url, NoSweep: true}).Check(t.Context(), budget)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f := find1(t, list, "access"); f.Level != c.level || !strings.Contains(f.Found, c.say) {
			t.Errorf("%s: got %+v, want %v and %q", name, f, c.level, c.say)
		}
		blind := slices.ContainsFunc(list, func(f check.Finding) bool { return f.What == "information" || strings.Contains(f.Found, "SCAN") })
		if sees := name == "all" || name == "doctor"; sees && blind {
			t.Errorf("%s: does not see all: %+v", name, list)
		} else if name == "reader" && !blind {
			t.Errorf("%s: sees what a reader may not", name)
		}
	}
	if n := plain.Exists(t.Context(), "kva{.}AAAAAAAA").Val(); n != 0 {
		t.Error("a check has written")
	}
}

// TestCheckOnCluster wants what is the same said once, and each fault where it is.
func TestCheckOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	x := open(t, Config{URL: c.URL(), NoSweep: true})
	apply(t, x, batchOf("a", store.Add, manyKeys(100)...))
	list := checked(t, x)
	wantLevels(t, list, map[string]check.Level{"connection": check.OK, "access": check.OK, "keys": check.OK, "data model": check.OK, "cluster": check.OK})
	if f := find1(t, list, "version"); f.Where != "" {
		t.Errorf("got %+v", f)
	}
	if f := find1(t, list, "cluster"); !strings.Contains(f.Found, "3 masters of 64 partitions") {
		t.Errorf("got %+v", f)
	}
	c.Masters[1].Client().ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	list = checked(t, x)
	if n := slices.IndexFunc(list, func(f check.Finding) bool { return f.What == "eviction policy" && f.Where == c.Masters[1].Addr }); n < 0 {
		t.Errorf("the one master is not named: %+v", list)
	}

	// A URL of a single server leads to a node.
	list, _ = open(t, Config{URL: c.Masters[2].URL(), NoSweep: true}).Check(t.Context(), budget)
	if f := find1(t, list, "cluster"); f.Level != check.Fail {
		t.Errorf("got %+v", f)
	}

	// Uneven slots.
	ctx := t.Context()
	id := func(s *redistest.Server) string { return s.Client().Do(ctx, "CLUSTER", "MYID").Val().(string) }
	from, to := c.Masters[2], c.Masters[0]
	for i := range 12 {
		s := keyspace.SlotOf(63 - i)
		for _, m := range c.Masters {
			// Without its keys, which the test does not need.
			m.Client().Do(ctx, "DEBUG", "FLUSHALL")
			m.Client().FlushAll(ctx)
		}
		for _, m := range []*redistest.Server{to, from, c.Masters[1]} {
			must.OK(t, m.Client().Do(ctx, "CLUSTER", "SETSLOT", s, "NODE", id(to)).Err())
		}
	}
	eventually.NoError(t, "the check sees the moves", func() error {
		list, err := x.Check(ctx, budget)
		if err != nil {
			return err
		}
		if f := find1(t, list, "cluster"); f.Level != check.Warn {
			return fmt.Errorf("got %+v", f)
		}
		return nil
	})

	c.Masters[1].Kill()
	eventually.NoError(t, "the check misses a master", func() error {
		list, err := x.Check(ctx, budget)
		if err == nil {
			return errors.New("no error")
		}
		if !errors.Is(err, store.ErrUnavailable) {
			return fmt.Errorf("not ErrUnavailable: %w", err)
		}
		if f := find1(t, list, "connection"); f.Level != check.Fail {
			return fmt.Errorf("got %+v", f)
		}
		return nil
	})
}

// TestCheckReplica looks at a master and at its replica.
func TestCheckReplica(t *testing.T) {
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := redistest.Start(t, "--replicaof", host, port)
	eventually.NoError(t, "the replica follows", func() error {
		if !strings.Contains(master.Client().Info(t.Context(), "replication").Val(), "state=online") {
			return errors.New("not yet")
		}
		return nil
	})
	list := checked(t, open(t, Config{URL: master.URL(), NoSweep: true}))
	if f := find1(t, list, "replication"); f.Level != check.Info || !strings.Contains(f.Found, "1 replica") {
		t.Errorf("got %+v", f)
	}
	wantLevels(t, list, map[string]check.Level{"persistence": check.Warn})
	list = checked(t, open(t, Config{URL: replica.URL(), NoSweep: true}))
	if f := find1(t, list, "replication"); f.Level != check.Fail || !strings.Contains(f.Found, "a replica of "+master.Addr) {
		t.Errorf("got %+v", f)
	}
}

// TestCheckUnreachable wants a remedy for each way not to be connected.
func TestCheckUnreachable(t *testing.T) {
	ca := redistest.NewAuthority(t)
	s := redistest.Start(t, "--requirepass", "secret")
	public := redistest.Start(t)
	secure := redistest.Start(t, ca.Args("yes", "redis.example")...)
	byIP := redistest.Start(t, ca.Args("no", "127.0.0.1")...)
	frozen := redistest.Start(t)
	frozen.Freeze()
	t.Cleanup(frozen.Thaw)
	public.Client().Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">p", "~*", "+get")
	nobody := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))

	for name, c := range map[string]struct{ url, do string }{
		"wrong password":        {"redis://:no@" + s.Addr, "correct user and password"},
		"no password":           {s.URL(), "put the user and the password"},
		"no such database":      {"redis://:secret@" + s.Addr + "/99", "use a database that the server has"},
		"no such command":       {"redis://mute:p@" + public.Addr, "client|setname"},
		"no server":             {"redis://" + nobody, "nothing listens there"},
		"no socket":             {"unix://" + t.TempDir() + "/no", "there is no such socket"},
		"no host":               {"redis://redis.invalid", "host"},
		"no cluster":            {"redis+cluster://" + public.Addr, "begin the URL with redis://"},
		"no sentinel":           {"redis+sentinel://" + nobody + "/kv", "SENTINEL GET-MASTER-ADDR-BY-NAME kv"},
		"unknown authority":     {"rediss://" + byIP.Addr, "?ca="},
		"other name":            {query("rediss://"+secure.Addr, "ca", ca.CA), "?server_name="},
		"no client certificate": {query("rediss://"+secure.Addr, "ca", ca.CA, "server_name", "redis.example"), "?cert="},
		"TLS to a plain port":   {query("rediss://"+public.Addr, "ca", ca.CA), "begin the URL with redis in place"},
		"plain to a TLS port":   {secure.URL(), "begin the URL with rediss"},
		"frozen":                {frozen.URL(), "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			x := open(t, Config{URL: c.url, NoSweep: true})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if name == "frozen" {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
			}
			list, err := x.Check(ctx, budget)
			if !errors.Is(err, store.ErrUnavailable) || len(list) != 1 {
				t.Fatalf("got %+v, %v, want one finding and ErrUnavailable", list, err)
			}
			f := list[0]
			if f.Level != check.Fail || f.What != "connection" || !strings.Contains(f.Do, c.do) || f.Do == "" {
				t.Errorf("got %+v, want the remedy %q", f, c.do)
			}
			if strings.Contains(fmt.Sprint(list), "secret") {
				t.Errorf("the password shows: %+v", list)
			}
		})
	}
}
