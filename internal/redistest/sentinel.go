package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
)

// Sentinels are a master, its replica, and three sentinels that watch them.
type Sentinels struct {
	Master, Replica *Server
	Sentinels       []*Server

	tb testing.TB
}

// MasterName is the name that the sentinels know the master by.
const MasterName = "kv"

// StartSentinels starts a master with a replica and three sentinels, which fail
// over a master that is gone for a second. The args are for master and replica;
// those of Authority.Args are for the sentinels too, and nothing else may then
// stand beside them.
func StartSentinels(tb testing.TB, args ...string) *Sentinels {
	tb.Helper()
	// A master waits that long for further replicas.
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	s := &Sentinels{tb: tb, Master: Start(tb, args...)}
	host, port, err := net.SplitHostPort(s.Master.Addr)
	must.OK(tb, err)
	s.Replica = Start(tb, append([]string{"--replicaof", host, port}, args...)...)
	eventually.True(s.tb, "the replica follows", func() bool { return s.Replica.has("REPLICATION", "master_link_status:up") })
	for range 3 {
		var tls []string
		if slices.Contains(args, "--tls-cert-file") {
			tls = args[2:]
		}
		w := prepare(tb, "sentinel", tls...)
		conf := fmt.Sprintf("sentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 5000\n", MasterName, host, port, MasterName, MasterName)
		must.OK(tb, os.WriteFile(filepath.Join(w.dir, "sentinel.conf"), []byte(conf), 0o600))
		w.Run()
		s.Sentinels = append(s.Sentinels, w)
	}
	eventually.True(s.tb, "the sentinels know each other and the replica", func() bool {
		for _, w := range s.Sentinels {
			if !w.has("SENTINEL", fmt.Sprintf("master0:name=%s,status=ok,address=%s,slaves=1,sentinels=3", MasterName, s.Master.Addr)) {
				return false
			}
		}
		return true
	})
	return s
}

// URL is the redis+sentinel:// URL.
func (s *Sentinels) URL() string {
	var addrs []string
	for _, w := range s.Sentinels {
		addrs = append(addrs, w.Addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + MasterName
}

// Client returns a client of the current master. It is closed when the test ends.
func (s *Sentinels) Client() *redis.Client {
	var addrs []string
	for _, w := range s.Sentinels {
		addrs = append(addrs, w.Addr)
	}
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: addrs, Protocol: 2, DisableIdentity: true})
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// FailOver kills the master and waits until the replica has taken its place.
func (s *Sentinels) FailOver() {
	s.tb.Helper()
	s.Master.Kill()
	eventually.True(s.tb, "the replica is master", func() bool { return s.Replica.has("REPLICATION", "role:master") })
}
