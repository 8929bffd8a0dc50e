package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

// role is a use of Redis, with the log of the process that makes it.
type role struct {
	name string
	call func() error
	// goesOn says that calls succeed without what is refused.
	goesOn bool

	mu    sync.Mutex // protects lines
	lines []string
}

func (r *role) log(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// with returns the lines that have a part.
func (r *role) with(part string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.lines), func(l string) bool { return !strings.Contains(l, part) })
}

type noSink struct{}

func (noSink) Anew(uint64)                                     {}
func (noSink) Set([]blockkey.StoreKey, []store.HolderID) error { return nil }
func (noSink) Whole(uint64)                                    {}

// roles are all uses of a Redis that a process makes, each in a process of its own.
func roles(t *testing.T, url, other string) []*role {
	t.Helper()
	ctx := t.Context()
	var all []*role
	add := func(name string, c Config, call func(x *Index) error) {
		r := &role{name: name}
		c.Observer.Log, c.NoSweep = r.log, true
		if c.URL == "" {
			c.URL = url
		}
		x := open(t, c)
		r.call = func() error { return call(x) }
		all = append(all, r)
	}
	entries := func(x *Index) error {
		q := &store.Query{Model: blockkey.ModelOf("m"), Fold: &holdings{}, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerString, Names: []string{"m@1@0@aa"}}}
		if err := x.Lookup(ctx, q); err != nil {
			return err
		}
		if x.space.Garbled.Swap(0) > 0 {
			return errors.New("entries cannot be read")
		}
		return nil
	}
	add("scorer", Config{}, func(x *Index) error { return x.Lookup(ctx, &store.Query{Keys: []blockkey.Key{1}, Fold: &holdings{}}) })
	add("writer", Config{}, func(x *Index) error { return x.Apply(ctx, batchOf("a", store.Add, 1), batchOf("a", store.Clear)) })
	add("ingest reader", Config{}, func(x *Index) error {
		_, err := x.Lease(ctx, store.LeaseCall{Reader: store.Reader{Name: "r", Ranks: 1}, TTL: time.Minute, Acquire: []store.RankRef{{Pod: "a"}}})
		return err
	})
	add("snapshots", Config{}, func(x *Index) error { _, err := x.Page(ctx, "", 100); return err })
	add("sweeper", Config{SweepDuty: 1}, func(x *Index) error { _, err := x.Sweep(ctx); return err })
	add("shared pieces", Config{}, func(x *Index) error {
		p := x.Pieces(time.Minute)
		_, err := p.GetPieces(ctx, []string{"a"})
		return errors.Join(err, p.PutPieces(ctx, []string{"a"}, [][]byte{{1}}))
	})
	add("entries of LMCache", Config{Entries: true}, entries)
	if other != "" {
		// With each call the rest is over that a failure takes.
		var calls atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(calls.Load()) * time.Second) }
		add("entries of LMCache elsewhere", Config{Entries: true, URL: other, EntriesURL: url, clock: clock}, func(x *Index) error {
			calls.Add(1)
			return entries(x)
		})
		all[len(all)-1].goesOn = true
	}
	add("what is learnt of LMCache", Config{}, func(x *Index) error {
		_, err := x.External().Scan(ctx, external.Scan{Match: "*@*", MaxKeys: 10, MaxSteps: 10, Want: func(string) (bool, bool) { return true, true }, Each: func(external.Key) {}})
		return err
	})
	r := &role{name: "replica"}
	x := open(t, Config{URL: url, NoSweep: true, Observer: Observer{Log: r.log}})
	f := must.Get(x.Follow(changelog.Config{Sink: noSink{}, Entries: changelog.DefaultEntries}))(t)
	r.call = func() error {
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		return f.CatchUp(soon)
	}
	return append(all, r)
}

// TestUserIsLostInARestart restarts a server without its users, with another password, with a password that
// the URL does not have, and with fewer rights. Each process says once what is refused to which user and
// what to do about it. It says once that it is over.
func TestUserIsLostInARestart(t *testing.T) {
	const full = "on >secret ~* &* +@all"
	for _, fault := range []struct {
		name, user, says, cure string
		spoil                  func(*testing.T, *redis.Client)
		mend                   func(*testing.T, *redis.Client)
	}{
		{name: "the user is gone", user: "u:secret@", says: "WRONGPASS", cure: "ACL SETUSER"},
		{name: "another password", user: "u:secret@", says: "WRONGPASS", cure: "correct the URL", spoil: func(t *testing.T, c *redis.Client) {
			do(t, c, "ACL SETUSER u reset on >other ~* &* +@all")
		}},
		{
			name: "a password where there was none", says: "NOAUTH", cure: "into the URL", spoil: func(t *testing.T, c *redis.Client) {
				do(t, c, "ACL SETUSER default on resetpass >other")
				do(t, c, "CLIENT KILL TYPE normal SKIPME yes")
			}, mend: func(t *testing.T, c *redis.Client) { do(t, c, "ACL SETUSER default on nopass") },
		},
		{name: "fewer rights", user: "u:secret@", says: "NOPERM", cure: "docs/operations.md", spoil: func(t *testing.T, c *redis.Client) {
			do(t, c, "ACL SETUSER u reset on >secret ~* &* +client|setname +select +readonly")
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s, other := redistest.Start(t), redistest.Start(t)
			plain := s.Client()
			do(t, plain, "ACL SETUSER u reset "+full)
			all := roles(t, "redis://"+fault.user+s.Addr, other.URL())
			for _, r := range all {
				eventually.NoError(t, r.name, r.call)
			}
			s.Kill()
			s.Run()
			if fault.spoil != nil {
				fault.spoil(t, plain)
			}
			const refused = "does not let"
			for _, r := range all {
				eventually.NoError(t, r.name, func() error {
					switch err := r.call(); {
					case err == nil && !r.goesOn:
						return errors.New("the call succeeds")
					case len(r.with(refused)) == 0:
						return fmt.Errorf("it has said %q", r.with(""))
					}
					return nil
				})
				for range 10 {
					if err := r.call(); err == nil && !r.goesOn {
						t.Errorf("%s: a call succeeds", r.name)
					}
				}
				said := map[string]int{}
				for _, l := range r.with(refused) {
					if strings.Contains(l, "WRONGPASS") && fault.says == "NOPERM" {
						continue // it has connected before the user was made
					}
					if !strings.Contains(l, fault.says) || !strings.Contains(l, fault.cure) || !strings.Contains(l, s.Addr) || strings.Contains(l, "secret") {
						t.Errorf("%s: said %q", r.name, l)
					}
					what, _, _ := strings.Cut(l, ": ")
					_, command, _ := strings.Cut(l, " call ")
					command, _, _ = strings.Cut(command, ":")
					said[what+command]++
				}
				for what, n := range said {
					if n > 1 {
						t.Errorf("%s: said %d times: %s", r.name, n, what)
					}
				}
				if n := len(r.with(refused)); n > 1 && fault.says != "NOPERM" {
					t.Errorf("%s: said %q", r.name, r.with(refused))
				}
			}
			if fault.mend != nil {
				fault.mend(t, plain)
			}
			do(t, plain, "ACL SETUSER u reset "+full)
			for _, r := range all {
				eventually.NoError(t, r.name+" again", func() error {
					err := r.call()
					if err == nil && len(r.with("again, after")) == 0 { // a command that is seldom needed may be reported later
						err = fmt.Errorf("it has said %q", r.with(""))
					}
					return err
				})
				if n := len(r.with("again, after")) - len(r.with(refused)); fault.user != "" && len(r.with("connected to")) == 0 && n > 0 {
					t.Errorf("%s: said %q", r.name, r.with(""))
				}
			}
		})
	}
}

// TestUserIsLostOnCluster takes the user away on all nodes of a cluster, and gives it back.
func TestUserIsLostOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	each := func(command string) {
		for _, s := range c.Masters {
			do(t, s.Client(), command)
		}
	}
	each("ACL SETUSER u on >secret ~* &* +@all")
	all := roles(t, strings.Replace(c.URL(), "://", "://u:secret@", 1), "")
	for _, r := range all {
		eventually.NoError(t, r.name, r.call)
	}
	each("ACL DELUSER u")
	for _, r := range all {
		eventually.NoError(t, r.name, func() error {
			if err := r.call(); err == nil {
				return errors.New("the call succeeds")
			}
			if len(r.with("does not let")) == 0 {
				return fmt.Errorf("it has said %q", r.with(""))
			}
			return nil
		})
	}
	each("ACL SETUSER u on >secret ~* &* +@all")
	for _, r := range all {
		eventually.NoError(t, r.name+" again", func() error {
			err := r.call()
			if err == nil && len(r.with("in again, after")) == 0 {
				err = fmt.Errorf("it has said %q", r.with(""))
			}
			return err
		})
		if n := len(r.with("WRONGPASS")); n != 1 || len(r.with("in again, after")) != 1 {
			t.Errorf("%s: said %q", r.name, r.with(""))
		}
	}
}

// do sends a command whose words are separated by spaces.
func do(t *testing.T, c *redis.Client, command string) {
	t.Helper()
	var words []any
	for w := range strings.FieldsSeq(command) {
		words = append(words, w)
	}
	if err := c.Do(t.Context(), words...).Err(); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}
