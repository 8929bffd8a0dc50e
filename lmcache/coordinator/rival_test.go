package coordinator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// server is a server of MP mode with an id that others may have too.
type server struct {
	t           testing.TB
	c           *Coordinator
	host, ip    string
	incarnation int
	seq         int
}

func (v *server) register() *server {
	v.t.Helper()
	if status, got := callFrom(v.t, v.host, v.c, "POST", "/instances", fmt.Appendf(nil, `{"instance_id":"mp","ip":%q,"http_port":8080}`, v.ip)); status != http.StatusOK {
		v.t.Fatal(status, got)
	}
	return v
}

// say posts the next batch and returns the answer.
func (v *server) say(kind, tier, chunks string) string {
	v.t.Helper()
	v.seq++
	body := strings.Replace(event(v.seq, kind, tier, chunks), `"incarnation":7`, fmt.Sprintf(`"incarnation":%d`, v.incarnation), 1)
	status, got := callFrom(v.t, v.host, v.c, "POST", "/events", []byte(`{"batches":[`+body+`]}`))
	if status != http.StatusOK {
		v.t.Fatal(status, got)
	}
	return got
}

func chunk(b byte) lmcache.Hash {
	h, err := lmcache.BytesHash([]byte(strings.Repeat(string(b), 32)))
	if err != nil {
		panic(err)
	}
	return h
}

func (s *stage) told(parts ...string) bool {
	return slices.ContainsFunc(s.Told(), func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// Servers at hosts of their own that share an id count each for its own pod, and the end of
// one is not the other's.
func TestOneIDAtTwoHosts(t *testing.T) {
	s := newStage(t, "10.0.0.1:8000", "10.0.0.2:8000")
	c := s.coordinator()
	one := (&server{t: t, c: c, host: "192.0.2.1", ip: "10.0.0.1", incarnation: 1}).register()
	two := (&server{t: t, c: c, host: "192.0.2.2", ip: "10.0.0.2", incarnation: 2}).register()
	first, second := lmcache.WorkerName("mp", "10.0.0.1:8000", 0), lmcache.WorkerName("mp", "10.0.0.2:8000", 0)
	two.say("store", "l1", "b")
	one.say("store", "l1", "a")
	two.say("store", "l2", "y")
	one.say("store", "l2", "x")
	one.say("delete", "l1", "b") // which it does not have
	all := []lmcache.Hash{chunk('a'), chunk('b'), chunk('x'), chunk('y')}
	s.Until("c-d-", first, all...)
	s.Until("-c-d", second, all...)
	if st := c.Stats(); st.Gaps != 0 || st.Stale != 0 || st.Unplaced != 0 {
		t.Errorf("%+v", st)
	}
	if !s.told("mp is shared by", "192.0.2.1", "192.0.2.2") {
		t.Errorf("told %q", s.Told())
	}
	// Another replica hears them from now on.
	c = s.coordinator()
	one.c, two.c = c, c
	one.register().say("store", "l1", "b")
	two.register().say("store", "l1", "a")
	s.Until("ccd-", first, all...)
	s.Until("cc-d", second, all...)
	if st := c.Stats(); st.Gaps != 0 || st.TookOver != 2 {
		t.Errorf("%+v", st)
	}
	if status, got := callFrom(t, one.host, c, "DELETE", "/instances/mp", nil); status != http.StatusNoContent {
		t.Error(status, got)
	}
	s.Until("----", first, all...)
	s.Until("cc-d", second, all...)
}

// An id that is set to a pod leads both there: neither counts, and one that follows another
// does at once.
func TestOneIDOfMPThatNamesAPod(t *testing.T) {
	s := newStage(t, "pod")
	c := s.coordinator(func(c *Config) { c.Pods.Map = map[string][]feed.Target{"mp": {{Pod: "pod"}}} })
	name := lmcache.WorkerName("mp", "", 0)
	one := (&server{t: t, c: c, host: "192.0.2.1", ip: "10.0.0.1", incarnation: 1}).register()
	one.say("store", "l1", "a")
	s.Until("c", name, chunk('a'))
	two := (&server{t: t, c: c, host: "192.0.2.2", ip: "10.0.0.2", incarnation: 2}).register()
	two.say("store", "l1", "b")
	s.Until("-c", name, chunk('a'), chunk('b'))
	one.say("store", "l1", "c") // so it lives
	two.say("store", "l1", "d")
	s.Until("----", name, chunk('a'), chunk('b'), chunk('c'), chunk('d'))
	if !s.told("unmapped mp", "10.0.0.1", "10.0.0.2") || c.Stats().Unplaced != 2 {
		t.Errorf("told %q, %+v", s.Told(), c.Stats())
	}
}

// Behind one address nothing says which of two servers events are of while both may live. The
// later incarnation counts once the other one is silent.
func TestOneIDOfMPBehindOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, "10.0.0.1:8000", "10.0.0.2:8000")
		c := s.coordinator(func(c *Config) { c.Lease = time.Second })
		one := (&server{t: t, c: c, host: "192.0.2.1", ip: "10.0.0.1", incarnation: 1}).register()
		one.say("store", "l1", "a")
		s.Until("c", lmcache.WorkerName("mp", "10.0.0.1:8000", 0), chunk('a'))
		two := (&server{t: t, c: c, host: "192.0.2.1", ip: "10.0.0.2", incarnation: 2}).register()
		two.say("store", "l1", "b")
		one.say("store", "l1", "c")
		for _, pod := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
			if got := s.Held(lmcache.WorkerName("mp", pod, 0), chunk('b'), chunk('c')); got != "--" {
				t.Errorf("%s holds %s", pod, got)
			}
		}
		if !s.told("unmapped mp", "10.0.0.1", "10.0.0.2") {
			t.Errorf("told %q", s.Told())
		}
		lmcachetest.WaitFor(t, "the later one's credit", func() bool {
			two.say("store", "l1", "d")
			return s.Held(lmcache.WorkerName("mp", "10.0.0.2:8000", 0), chunk('d')) == "c"
		})
	})
}
