package redistest

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	s := Start(t, "--maxmemory", "50mb")
	c := s.Client()
	if v := c.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; v != "52428800" {
		t.Errorf("maxmemory is %s: the arguments have not arrived", v)
	}
	c.Set(t.Context(), "k", "v", 0)
	s.Freeze()
	s.Thaw()
	if v := c.Get(t.Context(), "k").Val(); v != "v" {
		t.Errorf("k is %q after a freeze", v)
	}
	s.Kill()
	if s.running() {
		t.Error("it runs after Kill")
	}
	s.Kill() // again is harmless
	s.Run()
	if n := c.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("the data has survived")
	}
}

func TestCluster(t *testing.T) {
	c := StartCluster(t, 3, true)
	plain := c.Client()
	for _, k := range []string{"a", "b", "c", "d"} {
		must.OK(t, plain.Set(t.Context(), k, "v", 0).Err())
	}
	for i, s := range c.Masters {
		if !s.has("REPLICATION", "connected_slaves:1") {
			t.Errorf("master %d has no replica", i)
		}
	}
	c.FailOver(0)
	if !strings.HasPrefix(c.URL(), "redis+cluster://127.0.0.1:") {
		t.Errorf("the URL is %s", c.URL())
	}
}

func TestSentinels(t *testing.T) {
	s := StartSentinels(t)
	plain := s.Client()
	must.OK(t, plain.Set(t.Context(), "k", "v", 0).Err())
	s.FailOver()
	if v := s.Replica.Client().ConfigGet(t.Context(), "port").Val()["port"]; !strings.HasSuffix(s.Replica.Addr, ":"+v) {
		t.Errorf("the replica's port is %s, its address %s", v, s.Replica.Addr)
	}
}
