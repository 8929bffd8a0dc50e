package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// process is a process of LMCache with an id that others may have too.
type process struct {
	*client
	host, ip string
	port     int
}

// from connects a process from a host, which tells an address.
func (s *stage) from(c *Controller, host, ip string, port int, instance string, worker int) *process {
	s.t.Helper()
	pull, reply, beat := c.Addrs()
	return &process{
		client: &client{connectFrom(s.t, host, pull, "PUSH"), connectFrom(s.t, host, reply, "DEALER"), connectFrom(s.t, host, beat, "DEALER"), instance, worker},
		host:   host, ip: ip, port: port,
	}
}

func (p *process) about(kind string) map[string]any {
	return map[string]any{"type": kind, "instance_id": p.instance, "worker_id": p.worker, "ip": p.ip, "port": p.port, "peer_init_url": p.ip + ":8200"}
}

func (p *process) register() *process {
	t := p.push.t
	t.Helper()
	if r := p.deal.request(p.about("RegisterMsg")); r["type"] != "RegisterRetMsg" {
		t.Fatalf("registration: %v", r)
	}
	return p
}

// peers is where a chunk is, as this process is told.
func (p *process) peers(n uint64) string {
	r := p.deal.request(map[string]any{"type": "BatchedP2PLookupMsg", "instance_id": p.instance, "worker_id": p.worker, "hashes": []any{n}})
	return fmt.Sprint(r["layout_info"].([]any)[0].([]any)[3])
}

// workerOf is the registration of a worker for a pod that its address led to.
func workerOf(instance, pod string, worker int) string {
	return lmcache.WorkerName(instance, pod, worker)
}

func (s *stage) told(parts ...string) bool {
	return slices.ContainsFunc(s.Told(), func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// unplaced waits until so many operations were not kept.
func (s *stage) unplaced(c *Controller, n uint64) {
	s.t.Helper()
	lmcachetest.WaitFor(s.t, "operations that are not kept", func() bool { return c.Stats().Unplaced >= n })
}

func shortLease(c *Config) { c.Lease = lease }

const podOne, podTwo, podThree = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"

// Processes behind one address that tell different ones cannot be told apart: neither counts in either order,
// what one had ends, and both are named. Once one has gone the other counts.
func TestOneIDBehindOneAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		ip1, ip2   string
		port1      int
		port2      int
		pod1, pod2 string
	}{
		{"two pods behind one address", "10.0.0.1", "10.0.0.2", 9000, 9000, podOne, podTwo},
		{"two workers of one number in one pod", "10.0.0.1", "10.0.0.1", 9000, 9001, podOne, podOne},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, podOne, podTwo, podThree)
			x := s.controller(shortLease)
			one := s.from(x, "127.0.0.1", c.ip1, c.port1, "llama", 0).register()
			one.say(cpu, 0, "+1")
			s.Until("c", workerOf("llama", c.pod1, 0), ints(1)...)
			two := s.from(x, "127.0.0.1", c.ip2, c.port2, "llama", 0).register()
			s.Until("-", workerOf("llama", c.pod1, 0), ints(1)...)
			two.say(cpu, 0, "+2", "+3")
			one.say(cpu, 1, "+4")
			s.unplaced(x, 3)
			for _, pod := range []string{c.pod1, c.pod2} {
				s.Until("----", workerOf("llama", pod, 0), ints(1, 2, 3, 4)...)
			}
			if where := s.from(x, "127.0.0.1", "10.0.0.9", 9000, podThree, 0).register().peers(2); where != "" {
				t.Errorf("peers are sent to %s", where)
			}
			first, second := address{c.ip1, c.port1}.String(), address{c.ip2, c.port2}.String()
			if !s.told("llama/0 is shared", first, second) || !s.told("nothing is kept", first, second, "127.0.0.1:") {
				t.Errorf("told %q", s.Told())
			}
			lmcachetest.WaitFor(t, "a registration that names both", func() bool {
				return slices.ContainsFunc([]string{c.pod1, c.pod2}, func(pod string) bool {
					p := s.Pod(workerOf("llama", pod, 0))
					return p != nil && strings.Contains(p.Labels[feed.LabelShared], first) && strings.Contains(p.Labels[feed.LabelShared], second)
				})
			})
			start := map[string]any{"type": "FullSyncStartMsg", "instance_id": "llama", "worker_id": 0, "location": cpu, "sync_id": "a", "total_keys": 1, "batch_count": 1}
			if r := two.deal.request(start); r["accepted"] != false {
				t.Errorf("a full sync is accepted: %v", r)
			}
			if st := x.Stats(); st.Unmapped != 1 {
				t.Errorf("%+v", st)
			}
			one.close()
			lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return two.ask() == "pod_known" })
			two.sync("s", 2, 3)
			two.say(cpu, 2, "+5")
			s.Until("-cc-c", workerOf("llama", c.pod2, 0), ints(1, 2, 3, 4, 5)...)
			if p := s.Pod(workerOf("llama", c.pod2, 0)); p.Labels[feed.LabelShared] != "" || p.Labels[feed.LabelIP] != c.ip2 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// ask is heartbeat with the process's own address.
func (p *process) ask() (reason string) {
	list, _ := p.beat.request(p.about("HeartbeatMsg"))["commands"].([]any)
	if len(list) == 0 {
		return ""
	}
	reason, _ = list[0].(map[string]any)["reason"].(string)
	return reason
}

// The first words of two that have registered may come in any order: none counts.
func TestOneIDWhoeverSpeaksFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne, podTwo)
	x := s.controller()
	one := s.from(x, "127.0.0.1", "10.0.0.1", 9000, "llama", 0).register()
	two := s.from(x, "127.0.0.1", "10.0.0.2", 9000, "llama", 0).register()
	two.say(cpu, 0, "+2")
	one.say(cpu, 0, "+1")
	s.unplaced(x, 2)
	// The one that deregisters ends nothing of the other's.
	one.push.Send(pack(t, one.about("DeRegisterMsg")))
	lmcachetest.WaitFor(t, "a request for a full sync", func() bool { return two.ask() == "pod_known" })
	two.sync("s", 2)
	s.Until("-c", workerOf("llama", podTwo, 0), ints(1, 2)...)
	if st := x.Stats(); st.Workers != 1 || st.Stale != 1 {
		t.Errorf("%+v", st)
	}
}

// Processes at addresses of their own count each for its own pod, and peers find either.
func TestOneIDAtTwoAddresses(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne, podTwo, podThree)
	x := s.controller(shortLease)
	var one, two [2]*process
	for i := range 2 { // two tensor-parallel workers each
		one[i] = s.from(x, "127.0.0.2", "10.0.0.1", 9000+i, "llama", i).register()
		two[i] = s.from(x, "127.0.0.3", "10.0.0.2", 9000+i, "llama", i).register()
	}
	for i := range 2 {
		two[i].say(cpu, 0, "+2", "+3")
		one[i].say(cpu, 0, "+1", "+3")
	}
	for i := range 2 {
		s.Until("c-c", workerOf("llama", podOne, i), ints(1, 2, 3)...)
		s.Until("-cc", workerOf("llama", podTwo, i), ints(1, 2, 3)...)
	}
	other := s.from(x, "127.0.0.1", "10.0.0.9", 9000, podThree, 0).register()
	for key, want := range map[uint64]string{1: "10.0.0.1:8200", 2: "10.0.0.2:8200"} {
		if got := other.peers(key); got != want {
			t.Errorf("chunk %d is at %q, want %s", key, got, want)
		}
	}
	if got := one[0].peers(2); got != "10.0.0.2:8200" {
		t.Errorf("the other of its id is at %q", got)
	}
	if got := one[0].peers(1); got != "" {
		t.Errorf("it is sent to itself, %q", got)
	}
	// What one evicts is its own, and no hole of the other's.
	one[0].say(cpu, 2, "-3")
	two[0].say(cpu, 2, "+4")
	s.Until("c--", workerOf("llama", podOne, 0), ints(1, 3, 4)...)
	s.Until("cc", workerOf("llama", podTwo, 0), ints(3, 4)...)
	if st := x.Stats(); st.Workers != 5 || st.Gaps != 0 || st.Cleared != 0 || st.Unmapped != 0 || st.Stale != 0 {
		t.Errorf("%+v", st)
	}
	if !s.told("llama/0 is shared", "127.0.0.2", "127.0.0.3") {
		t.Errorf("told %q", s.Told())
	}
	// The death of one is not the other's.
	one[0].close()
	lmcachetest.WaitFor(t, "the end of one", func() bool { return s.Pod(workerOf("llama", podOne, 0)) == nil })
	s.Until("cc", workerOf("llama", podTwo, 0), ints(3, 4)...)
}

// A process that takes the place of one that has ended goes by its id at once. It may be at the
// same address, on another port, or on another host.
func TestOneIDAfterARestart(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]struct {
		host, ip string
		port     int
	}{
		"the same address": {"127.0.0.2", "10.0.0.1", 9000},
		"another port":     {"127.0.0.2", "10.0.0.1", 9001},
		"another host":     {"127.0.0.3", "10.0.0.2", 9000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, "llama")
			x := s.controller()
			one := s.from(x, "127.0.0.2", "10.0.0.1", 9000, "llama", 0).register()
			one.say(cpu, 0, "+1")
			s.Until("c", "llama/lmcache/0", ints(1)...)
			one.close()
			lmcachetest.WaitFor(t, "the end of its connections", func() bool { return x.Stats().Peers == 0 })
			two := s.from(x, next.host, next.ip, next.port, "llama", 0).register()
			two.say(cpu, 0, "+2")
			s.Until("-c", "llama/lmcache/0", ints(1, 2)...)
			if st := x.Stats(); st.Workers != 1 || st.Unplaced != 0 || st.Stale != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// After a restart of the controller no worker registers. Operations from two hosts are of two processes, and those
// of two sockets at one host count for no pod.
func TestOneIDAfterTheControllersRestart(t *testing.T) {
	t.Parallel()
	s := newStage(t, "127.0.0.2:8000", "127.0.0.3:8000")
	a := s.controller()
	for i, host := range []string{"127.0.0.2", "127.0.0.3"} {
		p := s.from(a, host, host, 9000, "llama", 0).register()
		p.say(cpu, 0, fmt.Sprint("+", i+1))
		s.Until("c", workerOf("llama", host+":8000", 0), ints(uint64(i+1))...)
	}
	must.OK(t, a.Close())
	b := s.controller()
	one, two := s.from(b, "127.0.0.2", "127.0.0.2", 9000, "llama", 0), s.from(b, "127.0.0.3", "127.0.0.3", 9000, "llama", 0)
	two.say(cpu, 1, "+4")
	one.say(cpu, 1, "+3")
	s.Until("c-c-", workerOf("llama", "127.0.0.2:8000", 0), ints(1, 2, 3, 4)...)
	s.Until("-c-c", workerOf("llama", "127.0.0.3:8000", 0), ints(1, 2, 3, 4)...)
	if st := b.Stats(); st.TookOver != 2 || st.Gaps != 0 {
		t.Errorf("%+v", st)
	}
	third := s.from(b, "127.0.0.2", "127.0.0.2", 9000, "llama", 0)
	third.say(cpu, 0, "+5")
	s.Until("----", workerOf("llama", "127.0.0.2:8000", 0), ints(1, 3, 4, 5)...)
	s.Until("-c-c-", workerOf("llama", "127.0.0.3:8000", 0), ints(1, 2, 3, 4, 5)...)
	if !s.told("nothing is kept", one.push.Addr().String(), third.push.Addr().String()) {
		t.Errorf("told %q", s.Told())
	}
}

// An id that is set to a pod, or is its name, leads all that have it to that pod. The one at the
// pod's own address counts, and of several elsewhere none.
func TestOneIDThatNamesAPod(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne, podTwo, "pod")
	x := s.controller(func(c *Config) {
		c.Pods.Map = map[string][]feed.Target{"own": {{Pod: podOne}}, "far": {{Pod: "pod"}}}
	})
	own := s.from(x, "127.0.0.2", "10.0.0.1", 9000, "own", 0).register()
	claims := s.from(x, "127.0.0.3", "10.0.0.2", 9000, "own", 0).register()
	claims.say(cpu, 0, "+1")
	s.unplaced(x, 1)
	own.say(cpu, 0, "+2")
	s.Until("-c", "own/lmcache/0", ints(1, 2)...)

	far := s.from(x, "127.0.0.2", "10.0.0.3", 9000, "far", 0).register()
	far.say(cpu, 0, "+1")
	s.Until("c", "far/lmcache/0", ints(1)...)
	twin := s.from(x, "127.0.0.3", "10.0.0.4", 9000, "far", 0).register()
	s.Until("-", "far/lmcache/0", ints(1)...)
	twin.say(cpu, 0, "+2")
	far.say(cpu, 1, "+3")
	s.unplaced(x, 3)
	s.Until("---", "far/lmcache/0", ints(1, 2, 3)...)

	// The name of one pod at the address of another is a mistake.
	s.from(x, "127.0.0.4", "10.0.0.2", 9000, podOne, 0).register().say(cpu, 0, "+4")
	s.unplaced(x, 4)
	if s.Pod(lmcache.WorkerName(podOne, "", 0)) != nil || !s.told("it is called like "+podOne, podTwo) {
		t.Errorf("told %q", s.Told())
	}
}

// Ids are compared by their bytes.
func TestIDsThatLookAlike(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne, podTwo, podThree)
	x := s.controller()
	for i, id := range []string{"llama", "Llama", "lla\u00adma"} {
		ip := []string{"10.0.0.1", "10.0.0.2", "10.0.0.9"}[i]
		p := s.from(x, "127.0.0.1", ip, 9000, id, 0).register()
		p.say(cpu, 0, fmt.Sprint("+", i+1))
		want := []byte("---")
		want[i] = 'c'
		s.Until(string(want), workerOf(id, ip+":8000", 0), ints(1, 2, 3)...)
	}
	for _, id := range []string{"llama ", " llama", "llama\t", "llama\n", ""} {
		p := s.from(x, "127.0.0.1", "10.0.0.1", 9000, id, 0)
		r := p.deal.request(p.about("RegisterMsg"))
		name := workerOf(id, podOne, 0)
		if taken := r["type"] == "RegisterRetMsg"; taken {
			p.say(cpu, 0, "+7")
			s.Until("c", name, ints(7)...)
		} else if !strings.Contains(fmt.Sprint(r["error"]), "instance") {
			t.Errorf("%q: %v", id, r)
		}
	}
	s.Until("c---", workerOf("llama", podOne, 0), ints(1, 2, 3, 7)...)
	if st := x.Stats(); st.Unmapped != 0 || st.Stale != 0 {
		t.Errorf("%+v", st)
	}
}

// Two replicas hear one of them each, and each counts for the pod at its address. Where the id
// itself is what leads to a pod the credit of one is never mixed with the other's.
func TestOneIDAtTwoReplicas(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne, podTwo, "pod")
	set := func(c *Config) {
		c.Lease = lease
		c.Pods.Map = map[string][]feed.Target{"far": {{Pod: "pod"}}}
	}
	a, b := s.controller(set), s.controller(set)
	one, two := s.from(a, "127.0.0.2", "10.0.0.1", 9000, "llama", 0).register(), s.from(b, "127.0.0.3", "10.0.0.2", 9000, "llama", 0).register()
	one.say(cpu, 0, "+1")
	two.say(cpu, 0, "+2")
	s.Until("c-", workerOf("llama", podOne, 0), ints(1, 2)...)
	s.Until("-c", workerOf("llama", podTwo, 0), ints(1, 2)...)

	far, twin := s.from(a, "127.0.0.2", "10.0.0.3", 9000, "far", 0).register(), s.from(b, "127.0.0.3", "10.0.0.4", 9000, "far", 0)
	far.say(cpu, 0, "+1")
	s.Until("c", "far/lmcache/0", ints(1)...)
	twin.register().say(cpu, 0, "+2")
	s.Until("-c", "far/lmcache/0", ints(1, 2)...)
	far.say(cpu, 1, "+3")
	lmcachetest.WaitFor(t, "the older one's end", func() bool { return s.told("10.0.0.3", "10.0.0.4", "by another replica") })
	twin.say(cpu, 1, "+4")
	s.Until("-c-c", "far/lmcache/0", ints(1, 2, 3, 4)...)
}

// One whose id is its own may come by several ways.
func TestOneProcessByTwoWays(t *testing.T) {
	t.Parallel()
	s := newStage(t, podOne)
	x := s.controller()
	p := s.from(x, "127.0.0.2", "10.0.0.1", 9000, "llama", 0).register()
	q := s.from(x, "127.0.0.3", "10.0.0.1", 9000, "llama", 0)
	q.say(cpu, 0, "+1")
	s.Until("c", workerOf("llama", podOne, 0), ints(1)...)
	q.ask()
	q.say(cpu, 1, "+2")
	s.Until("cc", workerOf("llama", podOne, 0), ints(1, 2)...)
	if st := x.Stats(); st.Workers != 1 || st.Gaps != 0 || st.Unmapped != 0 {
		t.Errorf("%+v", st)
	}
	_ = p
}
