package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// register has an instance registered by a DEALER, and returns why it is not.
func (s *socket) register(instance string) string {
	s.t.Helper()
	if r := s.request(about("RegisterMsg", instance, 0)); r["type"] != "RegisterRetMsg" {
		return fmt.Sprint(r["error"])
	}
	return ""
}

// One connection that registers instance after instance gets few of them, and the others
// lose nothing by it.
func TestFloodOfOneConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst")
	c := s.controller(func(c *Config) { c.MaxWorkers = maxMade + 1 })
	pull, reply, _ := c.Addrs()
	x := connect(t, pull, "PUSH")
	const n = 1000
	for i := range n {
		x.Send(pack(t, about("RegisterMsg", fmt.Sprint("flood-", i), i%8)))
	}
	lmcachetest.WaitFor(t, "the flood", func() bool { return c.Stats().Messages == n })
	if st := c.Stats(); st.Workers > maxMade || st.Refused != n-maxMade {
		t.Errorf("%+v", st)
	}
	if told := s.Told(); !slices.ContainsFunc(told, func(text string) bool {
		return strings.Contains(text, "flood-8/0 would be one more than 8 within lmcache-lease (30s)")
	}) {
		t.Errorf("told %q", told)
	}
	// It still speaks for the last that it has made, and may name that again.
	x.Send(pack(t, about("RegisterMsg", "flood-7", 7)))
	if why := connect(t, reply, "DEALER").register("inst"); why != "" {
		t.Error(why)
	}
	lmcachetest.WaitFor(t, "the last message", func() bool { return c.Stats().Messages == n+2 })
	if st := c.Stats(); st.Refused != n-maxMade {
		t.Errorf("%+v", st)
	}
}

// What a connection has made counts for a lease, also when those workers have ended.
func TestMadeCountsForALease(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.controller(func(c *Config) { c.Lease = lease })
	_, reply, _ := c.Addrs()
	x := connect(t, reply, "DEALER")
	var why string
	for i := range maxMade + 1 {
		if why = x.register(fmt.Sprint(i)); why != "" {
			break
		}
		x.request(about("DeRegisterMsg", fmt.Sprint(i), 0))
		lmcachetest.WaitFor(t, "the end of a worker", func() bool { return c.Stats().Workers == 0 })
		c.mu.Lock()
		c.living() // forgets no connection over it
		c.mu.Unlock()
	}
	if !strings.Contains(why, "too many workers of one connection") {
		t.Errorf("refused because of %q", why)
	}
	lmcachetest.WaitFor(t, "the end of a lease", func() bool { return x.register("late") == "" })
}

// Where there is no room, workers without a connection have to go, and no others.
func TestRoomForTheHeard(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst")
	var mu sync.Mutex // protects gone
	var gone []string
	c := s.controller(func(c *Config) {
		c.MaxWorkers = 3
		c.Observer.Gone = func(id feed.ID, silent bool) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, fmt.Sprint(id, " ", silent))
		}
	})
	_, reply, _ := c.Addrs()
	x := connect(t, reply, "DEALER")
	for _, name := range []string{"a", "b", "c"} {
		if why := x.register(name); why != "" {
			t.Fatal(why)
		}
	}
	y := s.client(c, "inst", 0, true)
	y.say(cpu, 0, "+1")
	s.Until("c", "inst/lmcache/0", ints(1)...)
	mu.Lock()
	slices.Sort(gone)
	if got := fmt.Sprint(gone); got != "[a/0 true b/0 true]" {
		t.Errorf("gone are %s", got)
	}
	mu.Unlock()
	if st := c.Stats(); st.Workers != 2 || st.Lapsed != 2 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
	if why := connect(t, reply, "DEALER").register("d"); why != "" {
		t.Error(why)
	}
	// Now each of them has a connection.
	z := connect(t, reply, "DEALER")
	if why := z.register("e"); !strings.Contains(why, "e/0 would be one more than 3 workers (2/5 of index-max-pods)") {
		t.Errorf("refused because of %q", why)
	}
	x.Close()
	lmcachetest.WaitFor(t, "the room of one that has gone", func() bool { return z.register("e") == "" })
	s.Until("c", "inst/lmcache/0", ints(1)...)
}

// An id may register on another connection, because it is used twice or claimed. Then it is not heard on those
// before: that is counted and reported, and ends with the connection.
func TestIDUsedTwice(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst")
	var mu sync.Mutex // protects told
	var told []string
	c := s.controller(func(c *Config) {
		c.Lease = lease
		c.Observer.Stale = func(id feed.ID, from, by string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(id, " ", from, " ", by))
		}
	})
	x := s.client(c, "inst", 0, true)
	x.say(cpu, 0, "+1")
	s.Until("c", "inst/lmcache/0", ints(1)...)
	x.heartbeat()
	_, reply, _ := c.Addrs()
	y := connect(t, reply, "DEALER")
	if why := y.register("inst"); why != "" {
		t.Fatal(why)
	}
	for i := range 3 {
		x.say(cpu, 1+i, "+2")
	}
	lmcachetest.WaitFor(t, "messages that do not count", func() bool { return c.Stats().Stale == 3 })
	if r := x.beat.request(about("HeartbeatMsg", "inst", 0)); r["type"] != "ErrorMsg" || !strings.Contains(fmt.Sprint(r["error"]), "registered anew") {
		t.Error(r)
	}
	if r := x.beat.request(about("DeRegisterMsg", "inst", 0)); r["type"] != "ErrorMsg" {
		t.Error(r)
	}
	if st := c.Stats(); st.Stale != 5 || st.Refused != 0 || st.Workers != 1 {
		t.Errorf("%+v", st)
	}
	mu.Lock()
	if want := fmt.Sprint("[inst/0 ", x.push.Addr(), " ", y.Addr(), "]"); fmt.Sprint(told) != want {
		t.Errorf("told %v, want %s", told, want)
	}
	mu.Unlock()
	s.Until("--", "inst/lmcache/0", ints(1, 2)...)

	y.Close()
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return x.beat.request(about("HeartbeatMsg", "inst", 0))["commands"] != nil })
	x.say(cpu, 4, "+3")
	s.Until("c", "inst/lmcache/0", ints(3)...)
}
