package roster

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNextLoadReadsAll: a caller that wants all to be read, and finds a load running, gets the
// next one, even where that is started for less.
func TestNextLoadReadsAll(t *testing.T) {
	target := must.Get(redisx.ParseURL(redistest.Start(t).URL()))(t)
	space := keyspace.Open(redisx.Config{Target: target, Protocol: 3, PoolSize: 4, DialTimeout: 20 * time.Second, Timeout: 20 * time.Second}, "kva")
	defer func() { _ = space.Close() }()
	c := New(space, Config{})
	running := &flight{done: make(chan struct{})}
	c.mu.Lock()
	c.flight = running
	c.mu.Unlock()
	if f, mine := c.join(true); f != running || mine {
		t.Fatal("the running load was not joined")
	}
	c.mu.Lock()
	c.flight = nil
	c.mu.Unlock()
	for _, whole := range []bool{true, false} {
		f, mine := c.join(false)
		if !mine || f.whole != whole {
			t.Errorf("mine %t, whole %t, want %t", mine, f.whole, whole)
		}
		<-f.done
	}
}

// rosterOf is a snapshot of pods that have no holders.
func rosterOf(c *Cache, late map[string]bool, pods ...store.Pod) *Snapshot {
	var r roster
	for _, p := range pods {
		r.members = append(r.members, &member{name: p.Name, pod: p})
	}
	return c.assemble(r, late, time.Time{}, serverClock{})
}

// TestLatePodsKeepTheirTexts: a text of a pod whose lease is over is no other's, and counts for
// no pod.
func TestLatePodsKeepTheirTexts(t *testing.T) {
	c := New(nil, Config{Texts: true})
	s := rosterOf(c, map[string]bool{"late": true}, store.Pod{Name: "late", Address: "10.0.0.1:8000"}, store.Pod{Name: "other", Address: "10.0.0.2:8000"})
	for text, counts := range map[string]bool{"late": false, "10.0.0.1:8000": false, "10.0.0.1": false, "10.0.0.2:8000": true, "other": true} {
		if ids, all := s.AppendTexts(nil, []byte(text)); !s.Knows(text) || all != counts || (len(ids) > 0) != counts {
			t.Errorf("%s: known %v, holders %v, want %v", text, s.Knows(text), ids, counts)
		}
	}
	if s.Knows("10.0.0.3:8000") {
		t.Error("a text that is no pod's is known")
	}
}

// TestGuestSetsAreBounded: registries with guests are remembered, as many as there is room for.
func TestGuestSetsAreBounded(t *testing.T) {
	c := New(nil, Config{Texts: true})
	s := rosterOf(c, nil, store.Pod{Name: "a"})
	query := func(i int) []*store.Query {
		return []*store.Query{{Named: []string{"10.0.0." + string(rune('0'+i/10)) + string(rune('0'+i%10)) + ":8000"}}}
	}
	last := c.WithGuests(s, query(0), nil)
	if len(last.Registry.Pods) != 2 || c.WithGuests(s, query(0), nil) != last {
		t.Fatalf("%d pods; a registry is made for each lookup", len(last.Registry.Pods))
	}
	for i := range 100 {
		c.WithGuests(s, query(i), nil)
		if len(c.guests) > guestSets {
			t.Fatalf("%d registries are remembered", len(c.guests))
		}
	}
	c.WithGuests(rosterOf(c, nil, store.Pod{Name: "a"}), query(0), nil)
	if len(c.guests) != 1 {
		t.Errorf("%d registries are remembered, of a snapshot that is over", len(c.guests))
	}
}
