package keyspace

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the keys at a URL, and closes them when the test ends.
func open(t *testing.T, url string) *Space {
	t.Helper()
	target := must.Get(redisx.ParseURL(url))(t)
	s := Open(redisx.Config{Target: target, Protocol: 3, PoolSize: 4, DialTimeout: 20 * time.Second, Timeout: 20 * time.Second}, "kva")
	must.End(t, s.Close)
	return s
}

func register(s *Space, pod string) *Call {
	return s.RegistryCall(lua.Register, s.Names.Own(pod), pod, `{"name":"`+pod+`","model":"m"}`, "0", "10")
}

// TestClockOfAnotherServer: what was known of the server's clock is of another, as after
// a failover, or the clock has been set. A write is sent anew, and done.
func TestClockOfAnotherServer(t *testing.T) {
	for name, url := range map[string]string{
		"standalone": redistest.Start(t).URL(), "cluster": redistest.StartCluster(t, 3, false).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, url)
			for _, pod := range []string{"a", "b"} {
				cmds, err := s.Run(t.Context(), register(s, pod))
				if err != nil || !IsOne(cmds[0].Val()) {
					t.Fatalf("pod %s: got %v, %v", pod, cmds[0].Val(), err)
				}
				for place := range s.clocks.told {
					s.clocks.learn(place, told{ms: 1, heard: time.Now(), dials: s.Conn.Dials()})
				}
			}
		})
	}
}

// TestClocks: a server's clock is never taken to be later than it is, and is asked again
// after a while and with each new connection.
func TestClocks(t *testing.T) {
	var c clocks
	heard := time.Now()
	c.learn(3, told{ms: 1_000_000, heard: heard, dials: 7})
	now, ok := c.of(3, 7)
	if !ok || now.at(heard) != 1_000_000 || now.at(heard.Add(10*time.Second)) != 1_009_990 || now.at(heard.Add(-10*time.Second)) != 989_990 {
		t.Errorf("known %v: %d now, %d in 10 s", ok, now.at(heard), now.at(heard.Add(10*time.Second)))
	}
	if _, ok := c.of(4, 7); ok {
		t.Error("the clock of another place is known")
	}
	if _, ok := c.of(3, 8); ok {
		t.Error("the clock is known although there is a new connection")
	}
	c.learn(3, told{ms: 1_000_000, heard: heard.Add(-clockAge), dials: 7})
	if _, ok := c.of(3, 7); ok {
		t.Error("the clock is known after too long a time")
	}
	c.learn(3, told{ms: 1_000_000, heard: heard, dials: 7})
	c.forget()
	if _, ok := c.of(3, 7); ok {
		t.Error("the clock is known although it has been forgotten")
	}
}

// TestTooLate is what a writer hears that gives a time that is over.
func TestTooLate(t *testing.T) {
	s := open(t, redistest.Start(t).URL())
	for name, c := range map[string]*Call{
		"apply":    {Script: lua.Apply, Place: AtRegistry, Keys: []string{string(s.Names.AppendBlock(nil, 2))}, Args: []string{"0", "0", "0", "+1", "1"}},
		"register": register(s, "b"),
	} {
		c.latest = 1
		err := s.Client.Process(t.Context(), c.command(t.Context(), true))
		if !tooLate(err) {
			t.Errorf("%s: got %v", name, err)
		}
		if err := Failed(t.Context(), name, err); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", name, err)
		}
	}
	if n := s.Client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("there are %d keys", n)
	}
}
