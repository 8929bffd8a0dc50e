package controller

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
)

// released is a worker of LMCache, and the keys that a test uses with it.
type released struct {
	*lmcachetest.Client
	s      *stage
	name   string
	keys   []any
	hashes []lmcache.Hash
}

func (s *stage) released(c *Controller, kind string, worker, world int, heartbeat int) *released {
	s.t.Helper()
	pull, reply, _ := c.Addrs()
	r := &released{s: s, name: lmcache.WorkerName("inst", "", worker)}
	for i := range 40 {
		if kind == "0.3.1" {
			text := strings.Repeat(fmt.Sprintf("%02x", i+1), 32)
			h := must.Get(lmcache.ParseHash(text))(s.t)
			r.keys, r.hashes = append(r.keys, text), append(r.hashes, h)
			continue
		}
		v := int64(i*0x123456789abcdef - 1<<62) // negative ones too
		r.keys, r.hashes = append(r.keys, v), append(r.hashes, lmcache.IntHash(v))
	}
	r.Client = lmcachetest.Start(s.t, lmcachetest.Options{
		Kind: kind, Instance: "inst", Worker: worker, World: world, Pull: pull.String(), Reply: reply.String(), Port: redistest.FreePort(s.t), Heartbeat: heartbeat,
	})
	lmcachetest.WaitFor(s.t, "the worker's registration", func() bool { return s.Pod(r.name) != nil })
	return r
}

// equal waits until the index has what the worker holds.
func (r *released) equal(holds []json.RawMessage) {
	r.s.t.Helper()
	in := map[string]bool{}
	for _, k := range holds {
		in[strings.Trim(string(k), `"`)] = true
	}
	want := ""
	for _, k := range r.keys {
		if in[fmt.Sprint(k)] {
			want += "c"
		} else {
			want += "-"
		}
	}
	if strings.Count(want, "c") != len(holds) {
		r.s.t.Fatalf("the worker holds %s", holds)
	}
	r.s.Until(want, r.name, r.hashes...)
}

// pick is a random part of the keys.
func (r *released) pick(rng *rand.Rand, most int) (out []any) {
	for range 1 + rng.IntN(most) {
		out = append(out, r.keys[rng.IntN(len(r.keys))])
	}
	return out
}

// churn admits and evicts at random, and compares after each.
func (r *released) churn(rng *rand.Rand, rounds int) {
	r.s.t.Helper()
	for range rounds {
		r.Do("admit", r.pick(rng, 30)...)
		r.equal(r.Do("evict", r.pick(rng, 20)...))
	}
}

// LMCache 0.3.1, which says all over PUSH and numbers nothing.
func TestRealWorker031(t *testing.T) {
	t.Parallel()
	s := &stage{lmcachetest.NewRedisStage(t, "inst"), t}
	config := fixedPorts(t, func(c *Config) { c.Lease = lease })
	c := s.controller(config)
	rng := rand.New(rand.NewPCG(1, 2))
	r := s.released(c, "0.3.1", 0, 1, 0)
	r.churn(rng, 5)
	r.equal(r.Do("deregister"))
	lmcachetest.WaitFor(t, "the end of its registration", func() bool { return s.Pod(r.name) == nil })
	r = s.released(c, "0.3.1", 0, 1, 0)
	r.equal(r.Do("admit", r.keys...))
	time.Sleep(lease + time.Second) // it is silent, and connected
	r.equal(r.Do("holds"))
	if st := c.Stats(); st.Malformed+st.Refused+st.Gaps+st.Unknown != 0 {
		t.Errorf("%+v", st)
	}
	// It never registers again, and nothing tells what another controller has missed of it:
	// with its next message it begins anew.
	must.OK(t, c.Close())
	c = s.controller(config)
	r.Do("admit", r.keys[0])
	r.equal(r.Do("evict", r.keys[1:]...))
	r.Kill()
	r.equal(nil)
	lmcachetest.WaitFor(t, "the end of its registration", func() bool { return s.Pod(r.name) == nil })
	if st := c.Stats(); st.Malformed+st.Refused+st.Gaps+st.Unknown != 0 || st.Began != 1 || st.TookOver != 0 {
		t.Errorf("%+v", st)
	}
}

// fixedPorts has ports that another controller can bind in its turn.
func fixedPorts(t *testing.T, change func(*Config)) func(*Config) {
	t.Helper()
	var ports [3]string
	for i := range ports {
		ports[i] = redistest.FreeEndpoint(t, 1)
	}
	return func(c *Config) {
		c.Pull, c.Reply, c.Heartbeat = ports[0], ports[1], ports[2]
		change(c)
	}
}

// LMCache 0.5.6: operations, a loss that a full sync puts right, a controller that is
// replaced, a crash, and a process that takes its place.
func TestRealWorker056(t *testing.T) {
	t.Parallel()
	s := &stage{lmcachetest.NewRedisStage(t, "inst"), t}
	config := fixedPorts(t, func(c *Config) { c.Lease, c.AskAgain = lease, 500*time.Millisecond })
	c := s.controller(config)
	rng := rand.New(rand.NewPCG(3, 4))
	r := s.released(c, "0.5.6", 0, 1, 1)
	r.churn(rng, 5)
	r.Do("admit", r.keys...)
	r.Do("lose", r.keys[3:9]...)
	r.equal(r.Do("evict", r.keys[0]))
	st := c.Stats()
	if st.Gaps == 0 || st.Synced == 0 || st.Malformed+st.Refused != 0 {
		t.Errorf("%+v", st)
	}
	// Another controller comes in its place. What was lost meanwhile comes with the sync
	// that it asks for.
	must.OK(t, c.Close())
	r.Do("lose", r.keys[10:20]...)
	c = s.controller(config)
	lmcachetest.WaitFor(t, "a full sync", func() bool { return c.Stats().Synced > 0 })
	r.equal(r.Do("holds"))
	r.churn(rng, 3)
	if st := c.Stats(); st.TookOver != 1 || st.Cleared != 0 || st.Malformed+st.Refused != 0 {
		t.Errorf("%+v", st)
	}
	r.Kill()
	r = s.released(c, "0.5.6", 0, 1, 1)
	r.equal(nil)
	r.churn(rng, 2)
	r.Kill()
	r.equal(nil)
	lmcachetest.WaitFor(t, "the end of its registration", func() bool { return s.Pod(r.name) == nil })
}

// Two tensor-parallel workers of 0.5.6, without heartbeats as LMCache's default is: what
// one evicts alone is not whole any more.
func TestRealWorkersTensorParallel(t *testing.T) {
	t.Parallel()
	s := &stage{lmcachetest.NewRedisStage(t, "inst"), t}
	config := fixedPorts(t, func(*Config) {})
	c := s.controller(config)
	a, b := s.released(c, "0.5.6", 0, 2, 0), s.released(c, "0.5.6", 1, 2, 0)
	a.equal(a.Do("admit", a.keys[:10]...))
	b.equal(b.Do("admit", b.keys[:10]...))
	b.equal(b.Do("evict", b.keys[4]))
	a.equal(a.Do("holds"))
	lmcachetest.WaitFor(t, "the number of workers", func() bool { return s.Pod(a.name).PartOf.Workers == 2 && s.Pod(b.name).PartOf.Workers == 2 })
	// Another controller hears them first by what they store, since they never register
	// again, and goes on with what they hold.
	must.OK(t, c.Close())
	c = s.controller(config)
	a.equal(a.Do("admit", a.keys[10:15]...))
	b.equal(b.Do("admit", b.keys[10:15]...))
	if st := c.Stats(); st.TookOver != 2 || st.Refused+st.Malformed+st.Gaps != 0 {
		t.Errorf("%+v", st)
	}
	// Without heartbeats nothing can be asked: what may be false goes at once.
	b.Do("lose", b.keys[5])
	b.Do("admit", b.keys[20])
	lmcachetest.WaitFor(t, "the gap", func() bool { return c.Stats().Cleared == 1 })
	s.Until(strings.Repeat("-", 20)+"c"+strings.Repeat("-", 19), b.name, b.hashes...)
	a.equal(a.Do("holds"))
}
