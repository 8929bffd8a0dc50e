package redis

import (
	"fmt"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prefixes gives every index of a test a key space of its own on one server.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }

// open opens an index and closes it when the test ends.
func open(tb testing.TB, c Config) *Index {
	tb.Helper()
	if _, test := tb.(*testing.T); test && c.compactAt == 0 {
		c.compactAt = 24 // so that maps are compacted all the time
	}
	x := must.Get(Open(c))(tb)
	must.End(tb, x.Close)
	return x
}

// topologies runs a test on a server and on a cluster.
func topologies(t *testing.T, f func(t *testing.T, url string)) {
	t.Run("server", func(t *testing.T) { f(t, redistest.Start(t).URL()) })
	t.Run("cluster", func(t *testing.T) { f(t, redistest.StartCluster(t, 3, false).URL()) })
}

func TestContract(t *testing.T) {
	s := redistest.Start(t)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		return subject(t, Config{URL: s.URL(), Prefix: newPrefix()})
	})
}

func TestContractOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		return subject(t, Config{URL: c.URL(), Prefix: newPrefix()})
	})
}

// subject is two handles of one index, of which the first can be killed.
func subject(t *testing.T, c Config) storetest.Subject {
	// On a busy machine a second may pass before a connection is made.
	c.DialTimeout, c.Timeout = patience, patience
	x, line := mortal(t, c)
	peer := open(t, c)
	return storetest.Subject{
		Index: x, Peer: peer, Leases: x, PeerLeases: peer, Unregistered: x, PeerUnregistered: peer,
		Limit: func(n int) { line.limit(n, n%2 == 1) },
	}
}
