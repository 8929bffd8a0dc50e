package controller

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

const (
	cpu  = "LocalCPUBackend"
	disk = "LocalDiskBackend"
)

// What was recorded of LMCache 0.5.6's whole engine and of 0.3.1's worker, byte by byte. The
// replies are those that the engine got then, and the index has what it held.
func TestRecorded(t *testing.T) {
	var g golden
	lmcachetest.ReadGolden(t, "testdata/messages.json.gz", &g)
	for name, capture := range g.Capture {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, "vllm-pod-0")
			c := s.controller(func(c *Config) { c.HeartbeatURL = "127.0.0.1:17500"; c.AskAgain = time.Hour })
			pull, reply, beat := c.Addrs()
			push := connect(t, pull, "PUSH")
			ways := map[string]*socket{"reply": connect(t, reply, "DEALER"), "heartbeat": connect(t, beat, "DEALER")}
			var got []byte
			var frames [][]byte
			held := map[string]lmcache.Hash{}
			var order []string
			expect := func(letter string) {
				t.Helper()
				for _, k := range order {
					want := "-"
					if h, ok := held[k]; ok && h == held[k] {
						want = letter
					}
					s.Until(want, "vllm-pod-0/lmcache/0", hashOf(t, k))
				}
			}
			for i, m := range capture {
				b := unhex(t, m.Hex)
				way, isReply := strings.CutPrefix(m.Chan, "DEALER<-ROUTER ")
				_ = way
				switch {
				case m.Chan == "PUSH->PULL":
					frames = append(frames, b)
					if len(frames) < m.Parts {
						continue
					}
					push.Send(frames...)
					for _, f := range frames {
						d := must.Get(decode(f))(t)
						if d.Key != nil {
							d.Ops = append(d.Ops, kvOp{map[string]string{"KVAdmitMsg": "admit", "KVEvictMsg": "evict"}[d.Type], d.Key, nil})
						}
						for _, o := range d.Ops {
							k := o.Key.String()
							if _, ok := held[k]; !ok && o.Op == "admit" {
								order = append(order, k)
							}
							if o.Op == "admit" {
								held[k] = o.Key.Hash
							} else {
								delete(held, k)
							}
						}
						if d.Type == "DeRegisterMsg" {
							clear(held)
						}
					}
					frames = nil
					expect("c")
				case isReply:
					if want := unhex(t, m.Hex); !bytes.Equal(got, want) {
						t.Errorf("message %d: the reply is\n%x, want\n%x", i, got, want)
					}
				default:
					d := must.Get(decode(b))(t)
					if d.Type == "HeartbeatMsg" && i < 5 {
						c.wantAll("controller_restart")
					}
					if d.Type == "FullSyncStatusMsg" {
						lmcachetest.WaitFor(t, "the full sync", func() bool { return c.Stats().Synced == 1 })
					}
					got = ways[m.Chan[len("DEALER->ROUTER "):]].Ask(b)
				}
			}
			if st := c.Stats(); st.Malformed+st.Refused+st.Unknown+st.Unplaced+st.Gaps != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func hashOf(t *testing.T, text string) lmcache.Hash {
	t.Helper()
	h := must.Get(lmcache.ParseHash(text))(t)
	return h
}

func (c *Controller) wantAll(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.roll.all() {
		w.wantSync(why)
	}
}

// Admissions and evictions of two locations, as a worker and in JSON.
func TestOperations(t *testing.T) {
	s := newStage(t, "10.0.0.1:8000")
	c := s.controller()
	x := s.client(c, "inst", 0, true)
	const name = "inst/lmcache/10.0.0.1:8000/0"
	x.say(cpu, 0, "+1", "+2", "+3")
	x.say(disk, 0, "+3", "+4")
	s.Until("cccd", name, ints(1, 2, 3, 4)...)
	x.say(cpu, 3, "-1", "-3", "+1", "-2")
	s.Until("c-dd", name, ints(1, 2, 3, 4)...)
	x.push.Send([]byte(` {"type":"x"}`)) // a space is no brace
	x.push.Send([]byte(`{"type":"KVAdmitMsg","instance_id":"inst","worker_id":0,"key":-5,"location":"cpu"}`),
		[]byte(`{"type":"BatchedKVOperationMsg","instance_id":"inst","worker_id":0,"location":"LocalCPUBackend","operations":[{"op_type":"admit","key":18446744073709551615,"seq_num":7}]}`))
	s.Until("cc", name, lmcache.IntHash(-5), lmcache.UintHash(1<<64-1))
	p := s.Pod(name)
	if p == nil || *p.PartOf != (store.PartOf{Pod: "10.0.0.1:8000", Workers: 1}) || p.Model != model || p.Engine != "lmcache" || p.Labels[feed.LabelIP] != "10.0.0.1" {
		t.Errorf("registered as %+v", p)
	}
	x.push.Send(pack(t, about("DeRegisterMsg", "inst", 0)))
	lmcachetest.WaitFor(t, "the end of the registration", func() bool { return s.Pod(name) == nil })
	lmcachetest.WaitFor(t, "the end of the worker", func() bool { return c.Stats().Workers == 0 })
	if st := c.Stats(); st.Malformed != 1 || st.Gaps != 0 || st.Admitted != 8 || st.Evicted != 3 {
		t.Errorf("%+v", st)
	}
}

// What is no message is counted, and what follows it is taken in. That holds on the same
// connection, in the same message, and in the same list.
func TestMalformed(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller()
	x := s.client(c, "inst", 0, true)
	bad := [][]byte{
		{}, {0xc1}, []byte("{"), []byte("{}"), []byte(`{"type":"KVAdmitMsg"} {}`), {0x80},
		pack(t, map[string]any{"type": 5}), pack(t, map[string]any{"type": "KVAdmitMsg", "worker_id": -1}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "instance_id": strings.Repeat("x", 2000)}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "instance_id": "inst", "worker_id": 0, "key": "abc", "location": cpu}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "instance_id": "inst", "worker_id": 0, "key": []byte("abc"), "location": cpu}),
		append(pack(t, map[string]any{"type": "KVAdmitMsg"}), 1),
		{0x81, 0xa4, 't', 'y', 'p', 'e', 0xdd, 0xff, 0xff, 0xff, 0xff},
		{0x81, 0xaa, 'o', 'p', 'e', 'r', 'a', 't', 'i', 'o', 'n', 's', 0xdd, 0xff, 0xff, 0xff, 0xff},
	}
	refused := [][]byte{
		pack(t, map[string]any{"type": "NoSuchMsg"}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "worker_id": 0}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "instance_id": "inst", "worker_id": 5000}),
		pack(t, map[string]any{"type": "KVAdmitMsg", "instance_id": "inst", "worker_id": 0, "location": cpu}),
		pack(t, map[string]any{"type": "BatchedKVOperationMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "operations": []any{
			map[string]any{"op_type": "polish", "key": 3}, map[string]any{"op_type": "admit", "key": 77},
		}}),
		pack(t, map[string]any{"type": "FullSyncBatchMsg", "instance_id": "inst", "worker_id": 0, "sync_id": "none"}),
	}
	x.push.Send(append(append(append([][]byte{}, bad...), refused...), ops(t, "inst", 0, cpu, 0, "+1"))...)
	s.Until("cc", "inst/lmcache/0", ints(1, 77)...)
	// Bytes, as sha256_cbor of 0.3.13 to 0.4.5 has them.
	h := bytes.Repeat([]byte{7}, 32)
	x.push.Send(pack(t, map[string]any{"type": "BatchedKVOperationMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "operations": []any{
		map[string]any{"op_type": "admit", "key": h, "seq_num": 1},
	}}))
	key := must.Get(lmcache.BytesHash(h))(t)
	s.Until("c", "inst/lmcache/0", key)
	for _, b := range append(bad[1:], refused[0], pack(t, map[string]any{"type": "ClearMsg"})) {
		if r := unpack(t, x.deal.Ask(b)); r["type"] != "ErrorMsg" {
			t.Errorf("%x is answered %v", b, r)
		}
	}
	if st := c.Stats(); st.Malformed != uint64(2*len(bad)-1) || st.Refused != uint64(len(refused)+2) {
		t.Errorf("%d malformed, want %d; %d refused, want %d", st.Malformed, 2*len(bad)-1, st.Refused, len(refused)+2)
	}
	// An unknown location is reported once.
	for range 3 {
		x.say("RustRawBlockBackend", 0, "+5")
	}
	lmcachetest.WaitFor(t, "operations in an unknown location", func() bool { return c.Stats().Unknown == 3 })
	n := 0
	for _, text := range s.Told() {
		if text == "location RustRawBlockBackend" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("told %d times", n)
	}
}

// A hole in the numbers asks for a full sync, which puts things right. Until then, and
// for SyncWait at most, the credit is kept.
func TestGapAndFullSync(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller(func(c *Config) { c.AskAgain = 10 * time.Millisecond })
	x := s.client(c, "inst", 0, true)
	const name = "inst/lmcache/0"
	if why := x.heartbeat(); why != "" {
		t.Errorf("a new worker is asked for a full sync: %s", why)
	}
	x.say(cpu, 0, "+1", "+2", "+3")
	x.say(disk, 0, "+9")
	x.say(cpu, 5, "+4") // 3 and 4 are missing: the evictions of 1 and 2
	s.Until("ccccd", name, ints(1, 2, 3, 4, 9)...)
	if why := x.heartbeat(); why != "sequence_discontinuity" {
		t.Errorf("the reason is %q", why)
	}
	// The sync begins; operations go on; the last of three batches is lost.
	start := map[string]any{"type": "FullSyncStartMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "sync_id": "a", "total_keys": 3, "batch_count": 3}
	for range 2 { // its reply was lost, it asks again
		if r := x.deal.request(start); r["accepted"] != true {
			t.Fatal(r)
		}
	}
	batch := func(n int, keys ...any) []byte {
		return pack(t, map[string]any{"type": "FullSyncBatchMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "sync_id": "a", "batch_id": n, "keys": keys})
	}
	x.push.Send(batch(0, 3), ops(t, "inst", 0, cpu, 6, "+5", "-4"), batch(0, 3), x.end("a", 3))
	lmcachetest.WaitFor(t, "missing batches", func() bool { return fmt.Sprint(x.status("a")["missing_batches"]) == "[1 2]" })
	if st := x.status("a"); st["can_exit_freeze"] == true || st["is_complete"] == true {
		t.Error(st)
	}
	s.Until("ccc-cd", name, ints(1, 2, 3, 4, 5, 9)...)
	x.push.Send(batch(1, 4), batch(2, 6), x.end("a", 3))
	lmcachetest.WaitFor(t, "the end of the sync", func() bool { return x.status("a")["is_complete"] == true })
	// 4 was evicted after the start, 5 admitted; the disk was not in it.
	s.Until("--c-ccd", name, ints(1, 2, 3, 4, 5, 6, 9)...)
	if why := x.heartbeat(); why != "" {
		t.Errorf("after the sync it is asked for another one: %s", why)
	}
	x.say(cpu, 8, "+7")
	s.Until("c", name, ints(7)...)
	// LMCache sends no syncs of its disk: its credit goes at once, what comes now counts.
	x.say(disk, 3, "+10")
	s.Until("-d", name, ints(9, 10)...)
	x.sync("b", 1, 2, 3, 4, 5)
	s.Until("ccccc--d", name, ints(1, 2, 3, 4, 5, 6, 7, 10)...)
	x.sync("c") // it has nothing
	s.Until("-----d", name, ints(1, 2, 3, 4, 5, 10)...)
	if st := c.Stats(); st.Gaps != 2 || st.Cleared != 1 || st.Synced != 3 || st.Unsynced != 0 || st.SyncKeys != 0 || st.Asked != 1 {
		t.Errorf("%+v", st)
	}
}

// Credit that may be false goes at once where no full sync can be had, and after SyncWait
// where none comes.
func TestGapWithoutSync(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst")
	c := s.controller(func(c *Config) { c.Lease, c.SyncWait = lease, 50*time.Millisecond })
	x := s.client(c, "inst", 0, true)
	const name = "inst/lmcache/0"
	x.say(cpu, 0, "+1")
	x.say(cpu, 5, "+2")
	s.Until("-c", name, ints(1, 2)...)
	x.heartbeat()
	x.say(cpu, 8, "+3")
	lmcachetest.WaitFor(t, "the gap", func() bool { return c.Stats().Gaps == 2 })
	s.Until("--", name, ints(2, 3)...) // after SyncWait
	if why := x.heartbeat(); why != "sequence_discontinuity" {
		t.Errorf("it is not asked any more: %q", why)
	}
	if st := c.Stats(); st.Cleared != 2 {
		t.Errorf("%+v", st)
	}
}

// A worker that registers has just started and holds nothing. What is still unread of the
// process before it does not count.
func TestRestartedWorker(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller()
	x := s.client(c, "inst", 0, true)
	const name = "inst/lmcache/0"
	x.say(cpu, 0, "+1", "+2")
	s.Until("cc", name, ints(1, 2)...)
	y := s.client(c, "inst", 0, true)
	s.Until("--", name, ints(1, 2)...)
	x.say(cpu, 2, "+5")
	y.say(cpu, 0, "+3")
	s.Until("--c-", name, ints(1, 2, 3, 5)...)
	lmcachetest.WaitFor(t, "the old process's message", func() bool { return c.Stats().Messages == 5 })
	s.Until("--c-", name, ints(1, 2, 3, 5)...)
}

// A worker that dies without a word loses its blocks when its lease runs out.
func TestCrashedWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t, "inst")
	c := s.controller(func(c *Config) { c.Lease = lease })
	x, y := s.client(c, "inst", 0, true), s.client(c, "inst", 1, true)
	x.say(cpu, 0, "+1")
	y.say(cpu, 0, "+1")
	s.Until("c", "inst/lmcache/0", ints(1)...)
	s.Until("c", "inst/lmcache/1", ints(1)...)
	lmcachetest.WaitFor(t, "the number of workers", func() bool { return s.Pod("inst/lmcache/0").PartOf.Workers == 2 })
	x.close()
	s.Until("-", "inst/lmcache/0", ints(1)...)
	lmcachetest.WaitFor(t, "the end of the lease", func() bool { return s.Pod("inst/lmcache/0") == nil })
	// The other one would have ended as well, were it not renewed.
	s.Until("c", "inst/lmcache/1", ints(1)...)
	if st := c.Stats(); st.Lapsed != 1 || st.Workers != 1 {
		t.Errorf("%+v", st)
	}
	// It comes back by a heartbeat alone: nothing is credited until it has told.
	z := s.client(c, "inst", 0, false)
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return z.heartbeat() != "" })
	z.sync("s", 1, 2)
	s.Until("cc", "inst/lmcache/0", ints(1, 2)...)
}

// Another process goes on with the generation, and finds out what it has missed.
func TestTakeOver(t *testing.T) {
	for _, missed := range []bool{false, true} {
		t.Run(fmt.Sprint("missed=", missed), func(t *testing.T) {
			s := newStage(t, "inst")
			a := s.controller()
			x := s.client(a, "inst", 0, true)
			const name = "inst/lmcache/0"
			x.say(cpu, 0, "+1", "+2")
			s.Until("cc", name, ints(1, 2)...)
			must.OK(t, a.Close())
			s.Until("cc", name, ints(1, 2)...) // nothing is lost between the two
			b := s.controller()
			y := s.client(b, "inst", 0, false)
			if missed {
				y.say(cpu, 4, "+3") // it does not send heartbeats
				s.Until("--c", name, ints(1, 2, 3)...)
				return
			}
			y.say(cpu, 2, "+3")
			s.Until("ccc", name, ints(1, 2, 3)...)
			if st := b.Stats(); st.TookOver != 1 || st.Gaps != 0 || st.Began != 1 {
				t.Errorf("%+v", st)
			}
			if why := y.heartbeat(); why != "controller_restart" {
				t.Errorf("it is asked for a full sync because of %q", why)
			}
		})
	}
}

// A worker without numbers cannot be gone on with.
func TestTakeOverOfOldWorker(t *testing.T) {
	s := newStage(t, "inst")
	a, b := s.controller(), s.controller()
	x := s.client(a, "inst", 0, true)
	x.say("cpu", -1, "+1")
	s.Until("c", "inst/lmcache/0", ints(1)...)
	y := s.client(b, "inst", 0, false)
	y.say("cpu", -1, "+2")
	s.Until("-c", "inst/lmcache/0", ints(1, 2)...)
}

// A worker whose connections move between two replicas is written by the replica that it talks to.
func TestTwoReplicas(t *testing.T) {
	s := newStage(t, "inst")
	a, b := s.controller(), s.controller()
	const name = "inst/lmcache/0"
	x := s.client(a, "inst", 0, true)
	x.say(cpu, 0, "+1")
	s.Until("c", name, ints(1)...)
	y := s.client(b, "inst", 0, false)
	y.say(cpu, 1, "+2")
	s.Until("cc", name, ints(1, 2)...)
	y.say(cpu, 2, "-1")
	s.Until("-c", name, ints(1, 2)...)
	x.heartbeat()
	x.say(cpu, 3, "+3")
	s.Until("-cc", name, ints(1, 2, 3)...)
	lmcachetest.WaitFor(t, "a refused write", func() bool { return a.Stats().Fenced == 1 })
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return x.heartbeat() != "" })
	x.sync("s", 3, 4)
	s.Until("--cc", name, ints(1, 2, 3, 4)...)
	// The other worker of the instance sits on the other replica.
	z := s.client(b, "inst", 1, true)
	z.say(cpu, 0, "+3")
	s.Until("c", "inst/lmcache/1", ints(3)...)
	if p := s.Pod("inst/lmcache/1"); p.PartOf.Workers != 2 {
		t.Errorf("%+v", p.PartOf)
	}
}

// While the index does not answer the queue fills and no more; then a full sync puts
// right what was dropped.
func TestIndexDown(t *testing.T) {
	s := newStage(t, "inst")
	f := &faulty{Index: s.Index}
	s.Index = f
	c := s.controller(func(c *Config) { c.QueueKeys, c.AskAgain = 100, 10*time.Millisecond })
	x := s.client(c, "inst", 0, true)
	const name = "inst/lmcache/0"
	x.heartbeat()
	x.say(cpu, 0, "+1", "+2")
	s.Until("cc", name, ints(1, 2)...)
	f.set(true)
	x.say(cpu, 2, "-1")
	lmcachetest.WaitFor(t, "a failure", func() bool { return c.Stats().Failures > 0 })
	for i := range 300 {
		x.say(cpu, 3+i, fmt.Sprint("+", 1000+i))
	}
	lmcachetest.WaitFor(t, "messages", func() bool { return c.Stats().Messages == 304 })
	if st := c.Stats(); st.Dropped == 0 || st.QueueKeys > 100 {
		t.Errorf("%+v", st)
	}
	if r := x.heartbeat(); r == "" {
		t.Log("not asked yet") // it has not been seen yet
	}
	f.set(false)
	s.Until("-c", name, ints(1, 2)...)
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return x.heartbeat() != "" })
	x.sync("s", 2, 1000)
	s.Until("-cc-", name, ints(1, 2, 1000, 1001)...)
	if st := c.Stats(); st.QueueKeys != 0 || st.Gaps == 0 {
		t.Errorf("%+v", st)
	}
}

// An instance without a pod is heard and not kept, and asked for a full sync once its pod
// is known.
func TestUnmapped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.controller(func(c *Config) { c.Lease = lease })
	x := s.client(c, "inst", 0, true)
	x.say(cpu, 0, "+1", "+2")
	lmcachetest.WaitFor(t, "operations that are not kept", func() bool { return c.Stats().Unplaced == 2 })
	if st := c.Stats(); st.Unmapped != 1 || st.Workers != 1 {
		t.Errorf("%+v", st)
	}
	if why := x.heartbeat(); why != "" {
		t.Errorf("asked in vain: %s", why)
	}
	if r := x.deal.request(map[string]any{"type": "FullSyncStartMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "sync_id": "a", "total_keys": 3, "batch_count": 3}); r["accepted"] != false {
		t.Error(r)
	}
	s.Register("10.0.0.1:8000")
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return x.heartbeat() == "pod_known" })
	x.sync("s", 1, 2)
	s.Until("cc", "inst/lmcache/10.0.0.1:8000/0", ints(1, 2)...)
	if told := s.Told(); len(told) != 1 || !strings.Contains(told[0], "none is at 10.0.0.1") {
		t.Errorf("told %q", told)
	}
}

// Limits hold, and what is beyond them is refused with a reason.
func TestLimits(t *testing.T) {
	s := newStage(t, "inst")
	c := s.controller(func(c *Config) { c.MaxWorkers, c.SyncKeys = 2, 10 })
	x := s.client(c, "inst", 0, true)
	y := s.client(c, "inst", 1, true)
	if r := y.deal.request(about("RegisterMsg", "other", 0)); r["type"] != "ErrorMsg" || !strings.Contains(fmt.Sprint(r["error"]), "2 workers") {
		t.Error(r)
	}
	start := func(x *client, id string, total, batches int) map[string]any {
		return x.deal.request(map[string]any{"type": "FullSyncStartMsg", "instance_id": "inst", "worker_id": x.worker, "location": cpu, "sync_id": id, "total_keys": total, "batch_count": batches})
	}
	lmcachetest.WaitFor(t, "a full sync", func() bool { return start(x, "a", 8, 1)["accepted"] == true })
	for _, r := range []map[string]any{start(y, "b", 3, 1), start(y, "b", 1, 0), start(y, "b", 1, 1<<20)} {
		if r["accepted"] != false || r["error_msg"] == nil {
			t.Error(r)
		}
	}
	// More keys than were announced end the sync, and give its room back.
	x.push.Send(pack(t, map[string]any{"type": "FullSyncBatchMsg", "instance_id": "inst", "worker_id": 0, "location": cpu, "sync_id": "a", "batch_id": 0, "keys": []any{1, 2, 3, 4, 5, 6, 7, 8, 9}}))
	lmcachetest.WaitFor(t, "the end of the sync", func() bool { return c.Stats().Unsynced == 1 && c.Stats().SyncKeys == 0 })
	if r := start(y, "b", 3, 1); r["accepted"] != true {
		t.Error(r)
	}
	if r := x.status("a"); r["can_exit_freeze"] != true || r["is_complete"] != false {
		t.Errorf("a worker whose sync has ended stays frozen: %v", r)
	}
	for _, bad := range []Config{{}, {Index: s.Index}, {Index: s.Index, Pull: "tcp://127.0.0.1:0", Heartbeat: "tcp://127.0.0.1:0"}, {Index: s.Index, Pull: "tcp://127.0.0.1:0", Lease: 1}, {Index: s.Index, Pull: "tcp://127.0.0.1:0", Workers: -1}} {
		if _, err := New(t.Context(), bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := New(t.Context(), Config{Index: s.Index, Pull: "8300"}); err == nil {
		t.Error("an endpoint without a transport is taken")
	}
}

// Questions of peers and of orchestrators.
func TestQuestions(t *testing.T) {
	s := newStage(t, "a", "b")
	h := must.Get(lmcache.New(lmcache.Config{Version: lmcache.V046, Algorithm: lmcache.Builtin, ChunkSize: 2}))(t)
	c := s.controller(func(c *Config) { c.Hashers = map[string]*lmcache.Hasher{model: h} })
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7}
	hashes := h.Append(nil, tokens)
	var keys []any
	for _, hash := range hashes {
		v, negative, _ := hash.Int()
		if negative {
			keys = append(keys, int64(v))
		} else {
			keys = append(keys, v)
		}
	}
	admit := func(x *client, n int, location string) {
		var list []any
		for i, k := range keys[:n] {
			list = append(list, map[string]any{"op_type": "admit", "key": k, "seq_num": i})
		}
		x.push.Send(pack(t, map[string]any{"type": "BatchedKVOperationMsg", "instance_id": x.instance, "worker_id": x.worker, "location": location, "operations": list}))
		s.Until(strings.Repeat(map[string]string{cpu: "c", disk: "d"}[location], n), fmt.Sprintf("%s/lmcache/%d", x.instance, x.worker), hashes[:n]...)
	}
	var all []*client
	for _, instance := range []string{"a", "b"} {
		for worker := range 2 {
			x := s.client(c, instance, worker, false)
			m := about("RegisterMsg", instance, worker)
			m["peer_init_url"] = fmt.Sprintf("10.0.0.1:%d", 8200+worker)
			if instance == "b" {
				m["ip"] = "10.0.0.2"
			}
			x.deal.request(m)
			all = append(all, x)
		}
	}
	admit(all[0], 2, cpu)
	admit(all[1], 1, cpu)
	admit(all[2], 3, disk)
	admit(all[3], 3, disk)
	lookup := func(x *client, keys ...any) string {
		r := x.deal.request(map[string]any{"type": "BatchedP2PLookupMsg", "hashes": keys, "instance_id": x.instance, "worker_id": x.worker})
		return fmt.Sprint(r["type"], r["layout_info"])
	}
	for _, q := range []struct{ got, want string }{
		{lookup(all[0], keys...), "BatchedP2PLookupRetMsg[[b LocalDiskBackend 3 10.0.0.1:8200]]"},
		{lookup(all[3], keys...), "BatchedP2PLookupRetMsg[[a LocalCPUBackend 1 10.0.0.1:8201]]"},
		{lookup(all[3], 1, 2), "BatchedP2PLookupRetMsg[[  0 ]]"},
		{lookup(all[3]), "BatchedP2PLookupRetMsg[[  0 ]]"},
		{fmt.Sprint(all[0].deal.request(map[string]any{"type": "LookupMsg", "event_id": "e1", "tokens": []any{1, 2, 3, 4, 5, 6, 7}})), "map[event_id:e1 layout_info:map[a:[LocalCPUBackend 2] b:[LocalDiskBackend 6]] type:LookupRetMsg]"},
		{fmt.Sprint(all[0].deal.request(map[string]any{"type": "LookupMsg", "event_id": "e1", "tokens": []any{9}})), "map[event_id:e1 layout_info:map[] type:LookupRetMsg]"},
		{fmt.Sprint(all[0].deal.request(map[string]any{"type": "QueryInstMsg", "event_id": "e2", "ip": "10.0.0.2"})), "map[event_id:e2 instance_id:b type:QueryInstRetMsg]"},
		{fmt.Sprint(all[0].deal.request(map[string]any{"type": "QueryInstMsg", "event_id": "e2", "ip": "1.2.3.4"})), "map[event_id:e2 instance_id:<nil> type:QueryInstRetMsg]"},
	} {
		if q.got != q.want {
			t.Errorf("answered %s, want %s", q.got, q.want)
		}
	}
}
