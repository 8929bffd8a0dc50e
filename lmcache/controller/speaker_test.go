package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// onePod finds the same pod for each of these instances.
func onePod(instances ...string) func(*Config) {
	return func(c *Config) {
		c.Lease = lease
		c.Pods.Map = map[string][]feed.Target{}
		for _, i := range instances {
			c.Pods.Map[i] = []feed.Target{{Pod: "pod"}}
		}
	}
}

// An unknown name is refused on a connection that speaks for another worker, and what
// comes behind it counts. One that registers, or comes twice, is taken for what it
// says.
func TestStranger(t *testing.T) {
	t.Parallel()
	s := newStage(t, "pod")
	c := s.controller(onePod("inst", "inst\x01", "jnst", "next"))
	x := s.client(c, "inst", 0, true)
	x.heartbeat()
	x.say(cpu, 0, "+1")
	x.push.Send(ops(t, "inst\x01", 0, cpu, 1, "+2"), ops(t, "inst", 7, cpu, 1, "+2"), ops(t, "inst", 0, cpu, 1, "+2"))
	if r := x.beat.request(about("HeartbeatMsg", "jnst", 0)); r["type"] != "ErrorMsg" || !strings.Contains(fmt.Sprint(r["error"]), "of jnst/0, on a connection of inst/0") {
		t.Error(r)
	}
	if r := x.deal.request(about("FullSyncStatusMsg", "inst", 3)); r["type"] != "ErrorMsg" {
		t.Error(r)
	}
	s.Until("cc", "inst/lmcache/0", ints(1, 2)...)
	if st := c.Stats(); st.Workers != 1 || st.Refused != 4 || st.Malformed != 0 || st.Gaps != 0 {
		t.Errorf("%+v", st)
	}
	if p := s.Pod("inst/lmcache/0"); p.PartOf.Workers != 1 {
		t.Errorf("%+v", p.PartOf)
	}
	// Twice the same is no damage. The first still has its other connections.
	for range 2 {
		x.push.Send(ops(t, "next", 0, cpu, 0, "+3"))
	}
	s.Until("c", "next/lmcache/0", ints(3)...)
	s.Until("cc", "inst/lmcache/0", ints(1, 2)...)
	// A registration is believed, and leaves the worker before without a connection.
	if r := x.deal.request(about("RegisterMsg", "next", 0)); r["type"] != "RegisterRetMsg" {
		t.Error(r)
	}
	if r := x.beat.request(about("HeartbeatMsg", "next", 0)); r["type"] != "HeartbeatRetMsg" {
		t.Error(r)
	}
	lmcachetest.WaitFor(t, "the end of a worker that nobody speaks for", func() bool { return s.Pod("inst/lmcache/0") == nil })
	if st := c.Stats(); st.Workers != 1 || st.Lapsed != 1 {
		t.Errorf("%+v", st)
	}
}

// The first frame of a connection may be the first sign of a worker after a restart, and makes
// one, damaged or not. Then the next ones take the connection from it.
func TestStrangerAfterRestart(t *testing.T) {
	t.Parallel()
	s := newStage(t, "pod")
	config := onePod("inst", "insu")
	a := s.controller(config)
	x := s.client(a, "inst", 0, true)
	x.say(cpu, 0, "+1")
	s.Until("c", "inst/lmcache/0", ints(1)...)
	must.OK(t, a.Close())
	b := s.controller(config)
	y := s.client(b, "inst", 0, false)
	y.push.Send(ops(t, "insu", 0, cpu, 1, "+2"))
	s.Until("c", "insu/lmcache/0", ints(2)...)
	y.say(cpu, 2, "+3") // refused: it could as well be the damaged one
	y.say(cpu, 3, "+4")
	s.Until("c", "inst/lmcache/0", ints(4)...)
	lmcachetest.WaitFor(t, "the end of the damaged one", func() bool { return s.Pod("insu/lmcache/0") == nil })
	y.say(cpu, 4, "+5")
	s.Until("cc", "inst/lmcache/0", ints(4, 5)...)
	if st := b.Stats(); st.Workers != 1 || st.Refused != 1 || st.Lapsed != 1 {
		t.Errorf("%+v", st)
	}
}

// Workers are registrations of the index: of one beyond the limit, in any process, nothing is kept until
// there is room.
func TestWorkersOfTheIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst", "other")
	few := func(c *Config) { c.MaxWorkers, c.Lease = 2, lease }
	a, b := s.controller(few), s.controller(few)
	x, y := s.client(a, "inst", 0, true), s.client(a, "inst", 1, true)
	lmcachetest.WaitFor(t, "two workers", func() bool { return s.Pod("inst/lmcache/0") != nil && s.Pod("inst/lmcache/1") != nil })
	z := s.client(b, "other", 0, true)
	z.heartbeat()
	z.say(cpu, 0, "+1")
	lmcachetest.WaitFor(t, "operations that are not kept", func() bool { return b.Stats().Unplaced == 1 })
	if st := b.Stats(); st.Workers != 1 || st.Unmapped != 1 || st.Failures != 0 || st.QueueKeys != 0 {
		t.Errorf("%+v", st)
	}
	if told := s.Told(); len(told) != 1 || !strings.Contains(told[0], "index-max-pods") {
		t.Errorf("told %q", told)
	}
	x.push.Send(pack(t, about("DeRegisterMsg", "inst", 0)))
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return z.heartbeat() == "pod_known" })
	z.sync("s", 1)
	s.Until("c", "other/lmcache/0", ints(1)...)
	_ = y
}

// An index that has no room at all holds no other up.
func TestIndexFull(t *testing.T) {
	x := must.Get(memory.New(memory.Config{MaxPods: 2}))(t)
	defer func() { _ = x.Close() }()
	s := newStage(t)
	s.Index = x
	s.Register("inst")
	c := s.controller(func(c *Config) { c.QueueKeys = 30 })
	one, two := s.client(c, "inst", 0, true), s.client(c, "inst", 1, true)
	lmcachetest.WaitFor(t, "one that finds no room", func() bool { return c.Stats().Unmapped == 1 })
	if s.Pod("inst/lmcache/0") == nil { // they come in any order
		one, two = two, one
	}
	for i := range 20 {
		two.say(cpu, i, "+1")
	}
	lmcachetest.WaitFor(t, "operations that are not kept", func() bool { return c.Stats().Unplaced == 20 })
	one.say(cpu, 0, "+1")
	s.Until("c", fmt.Sprintf("inst/lmcache/%d", one.worker), ints(1)...)
	if st := c.Stats(); st.Dropped != 0 || st.Failures != 0 {
		t.Errorf("%+v", st)
	}
}

// While the index does not answer, what is no operation does not fill the queue either.
func TestQueueIsBounded(t *testing.T) {
	s := newStage(t, "inst")
	f := &faulty{Index: s.Index}
	s.Index = f
	c := s.controller(func(c *Config) { c.QueueKeys = 100 })
	x := s.client(c, "inst", 0, true)
	f.set(true)
	x.say(cpu, 0, "+1")
	lmcachetest.WaitFor(t, "a failure", func() bool { return c.Stats().Failures > 0 })
	about := about("RegisterMsg", "inst", 0)
	end := func(i int) {
		start := map[string]any{"type": "FullSyncStartMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "sync_id": fmt.Sprint(i), "total_keys": 1, "batch_count": 1}
		if r := x.deal.request(start); r["accepted"] != true {
			t.Fatal(r)
		}
		x.push.Send(x.end(fmt.Sprint(i), 0), x.end(fmt.Sprint(i), 0), x.end("none", 0))
	}
	for i := range 200 {
		end(i)
	}
	lmcachetest.WaitFor(t, "messages", func() bool { return c.Stats().Messages == 2+200*4 })
	size := func() int {
		c.mu.Lock()
		w := c.roll.of[feed.ID{Instance: "inst"}][0]
		c.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.queue)
	}
	if n, st := size(), c.Stats(); n > 101 || st.QueueKeys > 101 {
		t.Errorf("%d items, %+v", n, st)
	}
	for range 200 {
		x.deal.request(about)
	}
	if n, st := size(), c.Stats(); n > 1 || st.QueueKeys > 101 {
		t.Errorf("%d items, %+v", n, st)
	}
	f.set(false)
	lmcachetest.WaitFor(t, "an empty queue", func() bool { return c.Stats().QueueKeys == 0 })
	s.client(c, "inst", 0, true).say(cpu, 0, "+2")
	s.Until("-c", "inst/lmcache/0", ints(1, 2)...)
}

// AskSync asks those that are named.
func TestAskSync(t *testing.T) {
	s := newStage(t, "inst", "other")
	c := s.controller(func(c *Config) { c.AskAgain = 10 * time.Millisecond })
	x, y, z := s.client(c, "inst", 0, true), s.client(c, "inst", 1, true), s.client(c, "other", 0, true)
	for _, w := range []*client{x, y, z} {
		w.say(cpu, 0, "+1")
		s.Until("c", fmt.Sprintf("%s/lmcache/%d", w.instance, w.worker), ints(1)...)
	}
	x.heartbeat()
	z.heartbeat() // y sends none
	for _, q := range []struct {
		instance      string
		worker        int
		heard, asked  int
		first, second string // what x and z are asked then
	}{
		{"nobody", -1, 0, 0, "", ""},
		{"inst", 2, 0, 0, "", ""},
		{"inst", 1, 1, 0, "", ""},
		{"inst", 0, 1, 1, "asked", ""},
		{"inst", -1, 2, 1, "asked", ""},
		{"", -1, 3, 2, "asked", "asked"},
	} {
		if heard, asked := c.AskSync(q.instance, q.worker); heard != q.heard || asked != q.asked {
			t.Errorf("%q, %d: %d and %d, want %d and %d", q.instance, q.worker, heard, asked, q.heard, q.asked)
		}
		for w, want := range map[*client]string{x: q.first, z: q.second} {
			if want != "" {
				lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return w.heartbeat() == want })
				w.sync(fmt.Sprint(q), 1)
			} else if why := w.heartbeat(); why != "" {
				t.Errorf("%q, %d: %s is asked because of %q", q.instance, q.worker, w.instance, why)
			}
		}
	}
	if why := y.heartbeat(); why != "asked" { // its first
		t.Errorf("it is asked because of %q", why)
	}
}

// What an index has lost, or has what is wrong, is right after a full sync that was asked
// for.
func TestAskedSyncMends(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller()
	x := s.client(c, "inst", 0, true)
	x.heartbeat()
	x.say(cpu, 0, "+1", "+2", "+3")
	const name = "inst/lmcache/0"
	s.Until("ccc-", name, ints(1, 2, 3, 4)...)
	keys := ints(1, 4)
	var wrong feed.Ops
	wrong.Key(store.Remove, store.CPU, keys[0].ChunkKey())
	wrong.Key(store.Add, store.CPU, keys[1].ChunkKey())
	must.OK(t, s.Index.Apply(t.Context(), store.Batch{Pod: name, Model: model, Ops: wrong.List}))
	s.Until("-ccc", name, ints(1, 2, 3, 4)...)
	if heard, asked := c.AskSync("", -1); heard != 1 || asked != 1 {
		t.Errorf("%d, %d", heard, asked)
	}
	if why := x.heartbeat(); why != "asked" {
		t.Errorf("it is asked because of %q", why)
	}
	x.sync("s", 1, 2, 3)
	s.Until("ccc-", name, ints(1, 2, 3, 4)...)
	if why := x.heartbeat(); why != "" {
		t.Errorf("it is asked again because of %q", why)
	}
}

// What comes for a worker that has just ended takes no room, which would never be given back.
func TestEndedWorkerTakesNoRoom(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller()
	s.client(c, "inst", 0, true)
	c.mu.Lock()
	w := c.roll.of[feed.ID{Instance: "inst"}][0]
	c.mu.Unlock()
	c.remove(w, true)
	lmcachetest.WaitFor(t, "its end", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.ended
	})
	w.put(item{ops: make([]op, 3)})
	if w.startSync(&message{SyncID: "x", Location: cpu, Total: 5, Batches: 1}) == "" {
		t.Error("a full sync of nobody is accepted")
	}
	if st := c.Stats(); st.QueueKeys != 0 || st.SyncKeys != 0 {
		t.Errorf("%+v", st)
	}
}
