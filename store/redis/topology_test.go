package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

// quick holds the index at a URL to the quick part of the contract. An option
// changes the config.
func quick(t *testing.T, url string, options ...func(*Config)) {
	t.Helper()
	storetest.RunQuick(t, func(t *testing.T) storetest.Subject {
		// On a busy machine a second may pass before a connection is made.
		c := Config{URL: url, Prefix: newPrefix(), NoSweep: true, DialTimeout: patience, Timeout: patience}
		for _, o := range options {
			o(&c)
		}
		x, peer := open(t, c), open(t, c)
		return storetest.Subject{Index: x, Peer: peer, Unregistered: x, PeerUnregistered: peer}
	})
}

// works writes and reads a little of everything at a URL.
func works(t *testing.T, url string) {
	t.Helper()
	c := Config{URL: url, Prefix: newPrefix(), NoSweep: true}
	x, y := open(t, c), open(t, c)
	keys := manyKeys(300)
	apply(t, x, batchOf("a", store.Add, keys...), batchOf("b", store.Add, keys[0]))
	wantBlocks(t, y, keys[:2], "a b", "a")
	if _, err := x.Retire(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	wantBlocks(t, y, keys[:2], "b", "")
	if r, err := y.Registry(t.Context()); err != nil || len(r.Pods) != 1 {
		t.Errorf("got %v, %v", r, err)
	}
}

// TestReach runs the contract over every way to reach one server.
func TestReach(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "p@ss:w%rd/?#")
	secret := url.UserPassword("default", "p@ss:w%rd/?#").String()
	at := map[string]string{
		"password alone":    "redis://" + strings.TrimPrefix(secret, "default") + "@" + s.Addr,
		"user and password": "redis://" + secret + "@" + s.Addr,
		"database":          "redis://" + secret + "@" + s.Addr + "/3",
		"unix socket":       "unix://" + secret + "@" + s.Socket,
		"unix socket, 9":    "unix://" + secret + "@" + s.Socket + "?db=9",
	}
	t.Run("RESP2", func(t *testing.T) { quick(t, at["password alone"], func(c *Config) { c.Protocol = 2 }) })
	t.Run("unix socket", func(t *testing.T) { quick(t, at["unix socket, 9"]) })
	for _, name := range slices.Sorted(maps.Keys(at)) {
		t.Run(name, func(t *testing.T) { works(t, at[name]) })
	}
	// The databases are apart, and the RESP version is what was asked for.
	plain := redis.NewClient(&redis.Options{Addr: s.Addr, Password: "p@ss:w%rd/?#", DisableIdentity: true})
	t.Cleanup(func() { _ = plain.Close() })
	for _, protocol := range []int{2, 3} {
		x := open(t, Config{URL: at["database"], NoSweep: true, Protocol: protocol})
		apply(t, x, batchOf("a", store.Add, 1))
		list := plain.ClientList(t.Context()).Val()
		// Redis 6 does not tell the version.
		if want := fmt.Sprintf("resp=%d", protocol); redistest.Version(t) >= 7 && !slices.ContainsFunc(strings.Split(list, "\n"), func(c string) bool {
			return strings.Contains(c, "name=kvatlas ") && strings.Contains(c, "db=3 ") && strings.Contains(c, want)
		}) {
			t.Errorf("no client in database 3 with %s:\n%s", want, list)
		}
	}
	wantBlocks(t, open(t, Config{URL: at["user and password"]}), []blockkey.Key{1}, "")
	for what, u := range map[string]string{"WRONGPASS": "redis://:no@" + s.Addr, "NOAUTH": "redis://" + s.Addr, "DB index is out of range": at["user and password"] + "/99"} {
		err := open(t, Config{URL: u, NoSweep: true}).Apply(t.Context(), batchOf("a", store.Add, 1))
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want ErrUnavailable with %s", err, what)
		}
	}
}

// query appends parameters to a URL.
func query(u string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return u + "?" + q.Encode()
}

func TestTLS(t *testing.T) {
	ca, other := redistest.NewAuthority(t), redistest.NewAuthority(t)
	cert, key := ca.Issue("client")
	stranger, strangerKey := other.Issue("client")
	byIP := redistest.Start(t, ca.Args("no", "127.0.0.1")...)
	byName := redistest.Start(t, ca.Args("no", "redis.example")...)
	mutual := redistest.Start(t, ca.Args("yes", "127.0.0.1", "localhost")...)
	tls := func(s *redistest.Server) string { return "rediss://" + s.Addr }

	t.Run("client certificate", func(t *testing.T) { quick(t, query(tls(mutual), "ca", ca.CA, "cert", cert, "key", key)) })
	for name, u := range map[string]string{
		"authority":               query(tls(byIP), "ca", ca.CA),
		"name in the certificate": query(tls(byName), "ca", ca.CA, "server_name", "redis.example"),
		"no check":                query(tls(byName), "insecure", "true"),
	} {
		t.Run(name, func(t *testing.T) { works(t, u) })
	}
	for name, c := range map[string]struct{ url, want string }{
		"unknown authority":   {tls(byIP), "certificate signed by unknown authority"},
		"other authority":     {query(tls(byIP), "ca", other.CA), "certificate signed by unknown authority"},
		"other name":          {query(tls(byName), "ca", ca.CA), "127.0.0.1"},
		"no certificate":      {query(tls(mutual), "ca", ca.CA), "certificate required"},
		"other certificate":   {query(tls(mutual), "ca", ca.CA, "cert", stranger, "key", strangerKey), "unknown certificate authority"},
		"plain to a TLS port": {"redis://" + byIP.Addr, ""},
	} {
		t.Run(name, func(t *testing.T) {
			// With TLS 1.3 a server refuses a client's certificate after the
			// client's handshake is over. So a write may meet the closed
			// connection before the client has read the alert that says why.
			// Every attempt must fail; one of a few must say why.
			var err error
			for range 10 {
				err = within(t, patience, "apply", func() error {
					return open(t, Config{URL: c.url, NoSweep: true}).Apply(t.Context(), batchOf("a", store.Add, 1))
				})
				if !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), c.want) {
					break
				}
			}
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrUnavailable with %q", err, c.want)
			}
		})
	}
	t.Run("TLS to a plain port", func(t *testing.T) {
		s := redistest.Start(t)
		err := within(t, patience, "apply", func() error {
			return open(t, Config{URL: query("rediss://"+s.Addr, "ca", ca.CA), NoSweep: true}).Apply(t.Context(), batchOf("a", store.Add, 1))
		})
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	})
	t.Run("down at start", func(t *testing.T) {
		byIP.Kill()
		x := open(t, Config{URL: query(tls(byIP), "ca", ca.CA), NoSweep: true})
		if err := x.Apply(t.Context(), batchOf("a", store.Add, 1)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		byIP.Run()
		eventually.NoError(t, "apply", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
	})
	// The handshake with a server that has stopped answering ends with its caller.
	t.Run("frozen", func(t *testing.T) {
		x := open(t, Config{URL: query(tls(byIP), "ca", ca.CA), NoSweep: true, DialTimeout: 10 * patience, Timeout: 10 * patience})
		byIP.Freeze()
		defer byIP.Thaw()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := within(t, patience, "lookup", func() error {
			return x.Lookup(ctx, &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: &firsts{}})
		})
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrUnavailable by the deadline", err)
		}
	})
}

func TestTLSOnCluster(t *testing.T) {
	ca := redistest.NewAuthority(t)
	c := redistest.StartCluster(t, 3, false, ca.Args("no", "127.0.0.1")...)
	works(t, query(strings.Replace(c.URL(), "redis+", "rediss+", 1), "ca", ca.CA))
}

// TestTLSFailsOver speaks TLS to sentinels and masters. The sentinels are down
// when the index is opened, and later the master dies under a reader and a writer, which go on by themselves.
// How long they cannot is logged.
func TestTLSFailsOver(t *testing.T) {
	ca := redistest.NewAuthority(t)
	s := redistest.StartSentinels(t, ca.Args("no", "127.0.0.1")...)
	for _, w := range s.Sentinels {
		w.Kill()
	}
	u := query(strings.Replace(s.URL(), "redis+", "rediss+", 1), "ca", ca.CA)
	x, y := open(t, Config{URL: u, NoSweep: true}), open(t, Config{URL: u, NoSweep: true})
	if err := x.Apply(t.Context(), batchOf("a", store.Add, 1)); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("without sentinels: %v, want ErrUnavailable", err)
	}
	for _, w := range s.Sentinels {
		w.Run()
	}
	eventually.NoError(t, "apply", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
	wantBlocks(t, y, []blockkey.Key{1}, "a")

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	lookups := &outage{f: func(ctx context.Context) error {
		return y.Lookup(ctx, &store.Query{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1}, Fold: &firsts{}})
	}}
	writes := &outage{f: func(ctx context.Context) error { return x.Apply(ctx, batchOf("a", store.Add, 2)) }}
	for _, o := range []*outage{lookups, writes} {
		running.Go(func() { o.watch(ctx) })
	}
	work := func(when string) {
		t.Helper()
		for what, o := range map[string]*outage{"lookups": lookups, "writes": writes} {
			was := o.worked.Load()
			eventually.NoError(t, what+" "+when, func() error {
				if o.worked.Load() <= was {
					return fmt.Errorf("none has worked; the last error is %v", o.failed.Load())
				}
				return nil
			})
		}
	}
	work("before")
	begin := time.Now()
	s.FailOver()
	failedOver := time.Since(begin)
	work("after")
	stop()
	running.Wait()
	t.Logf("the replica was master after %v; no lookup for %v, no write for %v", failedOver, lookups.longest, writes.longest)
	if got := find(t, y, 2)[0]; got != "a" {
		t.Errorf("found %q", got)
	}
}

// outage calls f over and over, each time with the budget of a scorer.
type outage struct {
	f       func(context.Context) error
	worked  atomic.Int64
	failed  atomic.Value  // the last error
	longest time.Duration // the longest time without success
}

func (o *outage) watch(ctx context.Context) {
	last := time.Now()
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err := o.f(try)
		cancel()
		if err == nil {
			o.longest, last = max(o.longest, time.Since(last)), time.Now()
			o.worked.Add(1)
		} else {
			o.failed.Store(err.Error())
		}
		_ = keyspace.Sleep(ctx, 5*time.Millisecond)
	}
}

// documented returns the commands that docs/operations.md has between two marks.
func documented(t *testing.T, mark string) [][]string {
	t.Helper()
	return redistest.DocumentedACL(t, "../../docs/operations.md", mark)
}

// granted are the commands that the lines grant a user, as INFO commandstats
// names them.
func granted(lines [][]string, user string) []string {
	var out []string
	for _, words := range lines {
		for _, w := range words {
			if name, ok := strings.CutPrefix(w, "+"); ok && words[2] == user {
				out = append(out, name)
			}
		}
	}
	return out
}

// users makes the documented users on servers.
func users(t *testing.T, on ...*redistest.Server) {
	t.Helper()
	for _, s := range on {
		for _, words := range slices.Concat(documented(t, "acl"), documented(t, "acl-doctor")) {
			redistest.Do(t, s.Client(), words...)
		}
	}
}

// refusals are what servers have refused by ACL.
func refusals(t *testing.T, on ...*redistest.Server) []string {
	t.Helper()
	var out []string
	for _, s := range on {
		list := must.Get(s.Client().Do(t.Context(), "ACL", "LOG").Slice())(t)
		for _, e := range list {
			out = append(out, fmt.Sprint(e))
		}
	}
	return out
}

const (
	asReader = "kvatlas-reader:READER_PASSWORD@"
	asWriter = "kvatlas-writer:WRITER_PASSWORD@"
)

// TestUsers runs the index as the users of docs/operations.md: they may do all
// that they need, and need all that they may do.
func TestUsers(t *testing.T) {
	s := redistest.Start(t)
	users(t, s)
	plain := s.Client()
	as := func(user string) string { return "redis://" + user + s.Addr + "/1" }
	// The documented users are for the usual prefix, under which there is room
	// for one index.
	fresh := func() {
		t.Helper()
		must.OK(t, plain.FlushAll(t.Context()).Err())
	}
	calls := func(name string) (n int64) {
		_, rest, _ := strings.Cut(plain.Info(t.Context(), "commandstats").Val(), "cmdstat_"+name+":calls=")
		_, _ = fmt.Sscanf(rest, "%d", &n)
		return n
	}
	// held fails the test when the user was refused something, or may do what it
	// has not done.
	held := func(user string) {
		t.Helper()
		if r := refusals(t, s); len(r) > 0 {
			t.Errorf("%s was refused:\n%s", user, strings.Join(r, "\n"))
		}
		for _, name := range granted(documented(t, "acl"), user) {
			if redistest.Version(t) < 7 {
				name, _, _ = strings.Cut(name, "|") // commands are counted as a whole
			}
			if calls(name) == 0 {
				t.Errorf("%s may call %s and never does", user, name)
			}
		}
	}

	plain.ConfigResetStat(t.Context())
	storetest.RunQuick(t, func(*testing.T) storetest.Subject {
		fresh()
		c := Config{URL: as(asWriter), NoSweep: true, DialTimeout: patience, Timeout: patience}
		x, peer := open(t, c), open(t, c)
		return storetest.Subject{Index: x, Peer: peer, Unregistered: x, PeerUnregistered: peer}
	})
	fresh()
	w := open(t, Config{URL: as(asWriter), NoSweep: true, SweepDuty: 1})
	must.Get(w.Register(t.Context(), store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}))(t)
	apply(t, w, batchOf("a", store.Add, 1, 2), batchOf("b", store.Add, 1), batchOf("c", store.Add, 1))
	apply(t, w, batchOf("c", store.Clear))
	for i := range rosterPods { // so many that they are read in pages
		apply(t, w, batchOf(fmt.Sprint("more", i), store.Add, 99))
	}
	// After a restart, ids jump ahead.
	other := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, DB: 1, DisableIdentity: true})
	t.Cleanup(func() { _ = other.Close() })
	other.HSet(t.Context(), w.space.Names.Count, "run", strings.Repeat("0", 40))
	apply(t, w, batchOf("d", store.Add, 3))
	_ = w.dueSweep()
	other.Set(t.Context(), nameOf(w, 7), "a", 0)
	if _, err := w.Sweep(t.Context()); err != nil {
		t.Errorf("sweep: %v", err)
	}
	pageThrough(t, w)
	if _, err := w.Forget(t.Context(), "m"); err != nil {
		t.Errorf("forget: %v", err)
	}
	held("kvatlas-writer")

	plain.ConfigResetStat(t.Context())
	r := open(t, Config{URL: as(asReader), NoSweep: true})
	wantBlocks(t, r, []blockkey.Key{1, 2, 3}, "a b", "a", "d")
	if _, err := r.Registry(t.Context()); err != nil {
		t.Error(err)
	}
	_ = r.dueSweep()
	held("kvatlas-reader")

	before := blockValues(t, r, other)
	for name, err := range map[string]error{
		"remove":    r.Apply(t.Context(), batchOf("a", store.Remove, 1)),
		"add":       r.Apply(t.Context(), batchOf("e", store.Add, 1)),
		"a script":  r.space.Client.Eval(t.Context(), "return redis.call('DEL', KEYS[1])", []string{w.space.Names.Gen}).Err(),
		"other key": r.space.Client.Get(t.Context(), "other").Err(),
	} {
		if err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "can't run this command") && !strings.Contains(err.Error(), "no permissions") {
			t.Errorf("%s by a reader: got %v, want a refusal", name, err)
		}
	}
	if _, err := r.Retire(t.Context(), "a"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("retire by a reader: %v", err)
	}
	if after := blockValues(t, r, other); !maps.Equal(before, after) {
		t.Errorf("a reader has changed %v to %v", before, after)
	}
	wantBlocks(t, r, []blockkey.Key{1, 2, 3}, "a b", "a", "d")
}

// pageThrough reads all pages of an index.
func pageThrough(t *testing.T, x *Index) {
	t.Helper()
	cursor := ""
	for range 1000 {
		p, err := x.Page(t.Context(), cursor, 0)
		if err != nil {
			t.Errorf("page: %v", err)
			return
		}
		if cursor = p.Next; cursor == "" {
			return
		}
	}
	t.Error("the pages have no end")
}

// TestUsersOnCluster runs the users on a cluster while a slot moves.
func TestUsersOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	users(t, c.Masters...)
	for _, m := range c.Masters {
		for _, words := range documented(t, "acl-cluster") {
			redistest.Do(t, m.Client(), words...)
		}
	}
	url := func(user string) string { return strings.Replace(c.URL(), "://", "://"+user, 1) }
	w := open(t, Config{URL: url(asWriter), NoSweep: true, SweepDuty: 1})
	keys := manyKeys(500)
	apply(t, w, batchOf("a", store.Add, keys...), batchOf("b", store.Add, keys...))
	apply(t, w, batchOf("a", store.Clear))
	r := open(t, Config{URL: url(asReader), NoSweep: true})
	wantBlocks(t, r, keys[:2], "b", "b")

	// The slot of the first block is on its way to another master.
	ctx := t.Context()
	s := keyspace.SlotOf(keys[0].In(blockkey.ModelOf("m")).Partition())
	from := s * 3 / 16384
	to := (from + 1) % 3
	id := func(i int) string { return c.Masters[i].Client().Do(ctx, "CLUSTER", "MYID").Val().(string) }
	for _, e := range []error{
		c.Masters[to].Client().Do(ctx, "CLUSTER", "SETSLOT", s, "IMPORTING", id(from)).Err(),
		c.Masters[from].Client().Do(ctx, "CLUSTER", "SETSLOT", s, "MIGRATING", id(to)).Err(),
	} {
		must.OK(t, e)
	}
	host, port, _ := strings.Cut(c.Masters[to].Addr, ":")
	must.OK(t, c.Masters[from].Client().Do(ctx, "MIGRATE", host, port, nameOf(w, keys[0]), 0, 5000).Err())
	wantBlocks(t, r, keys[:2], "b", "b")
	apply(t, w, batchOf("c", store.Add, keys...))
	wantBlocks(t, r, keys[:2], "b c", "b c")
	if _, err := w.Sweep(ctx); err != nil {
		t.Errorf("sweep: %v", err)
	}
	must.OK(t, c.Masters[from].Client().Do(ctx, "CLUSTER", "SETSLOT", s, "STABLE").Err())
	must.OK(t, c.Masters[to].Client().Do(ctx, "CLUSTER", "SETSLOT", s, "STABLE").Err())
	pageThrough(t, w)
	for _, name := range granted(documented(t, "acl-cluster"), "kvatlas-writer") {
		n := 0
		for _, m := range c.Masters {
			if strings.Contains(m.Client().Info(ctx, "commandstats").Val(), "cmdstat_"+name+":") {
				n++
			}
		}
		if n == 0 {
			t.Errorf("on a cluster %s may be called and never is", name)
		}
	}
	if got := refusals(t, c.Masters...); len(got) > 0 {
		t.Errorf("refused:\n%s", strings.Join(got, "\n"))
	}
	for user, level := range map[string]check.Level{asReader: check.Info, asWriter: check.OK} {
		list, err := open(t, Config{URL: url(user), NoSweep: true}).Check(ctx, budget)
		if err != nil {
			t.Error(err)
		}
		wantLevels(t, list, map[string]check.Level{"access": level, "cluster": check.OK})
	}
}

// TestNeeds holds what a check asks for to what the documentation grants.
func TestNeeds(t *testing.T) {
	lines := documented(t, "acl")
	forLogs := granted(documented(t, "acl-replica"), "kvatlas-writer")
	// What scripts call is a writer's.
	scripts, err := filepath.Glob("lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	reader, writer, sweeper := servercheck.Needs()
	for _, f := range scripts {
		src := must.Get(os.ReadFile(f))(t)
		for _, m := range regexp.MustCompile(`redis\.p?call\('(\w+)'`).FindAllSubmatch(src, -1) {
			name := strings.ToLower(string(m[1]))
			if slices.Contains(forLogs, name) {
				continue // only where replicas follow a log
			}
			if !slices.Contains(slices.Concat(reader, writer, sweeper), name) {
				t.Errorf("%s calls %s, which is not among the needs of a writer", f, name)
			}
		}
	}
	for user, needs := range map[string][]string{
		"kvatlas-reader": reader,
		"kvatlas-writer": slices.Concat(reader, writer, sweeper),
	} {
		want := append([]string{"client|setname", "select"}, needs...)
		got := granted(lines, user)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s is granted\n%v, needs\n%v", user, got, want)
		}
	}
}
