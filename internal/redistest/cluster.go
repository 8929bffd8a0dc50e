package redistest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
)

// Cluster is a Redis Cluster on this machine.
type Cluster struct {
	// Masters hold even parts of the slots, in order. Replicas[i] follows
	// Masters[i]; there are none when the cluster was started without.
	Masters, Replicas []*Server

	tb    testing.TB
	ports map[*Server]int // of the cluster's bus
}

// StartCluster starts a cluster of so many masters, each with a replica if
// replicas is true, and waits until all nodes agree that it works. A master that
// is gone for a second is failed over.
func StartCluster(tb testing.TB, masters int, replicas bool, args ...string) *Cluster {
	tb.Helper()
	if Version(tb) < 7 {
		tb.Skip("redistest: clusters need redis-server 7, whose bus may have any port")
	}
	c := &Cluster{tb: tb, ports: map[*Server]int{}}
	node := func() *Server {
		bus := FreePort(tb)
		s := Start(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0",
		}, args...)...)
		c.ports[s] = bus
		return s
	}
	for range masters {
		c.Masters = append(c.Masters, node())
	}
	if replicas {
		for range masters {
			c.Replicas = append(c.Replicas, node())
		}
	}
	c.join()
	return c
}

// join makes the nodes one cluster.
func (c *Cluster) join() {
	c.tb.Helper()
	const slots = 16384
	ctx := c.tb.Context()
	first := c.Masters[0]
	host, port, err := net.SplitHostPort(first.Addr)
	must.OK(c.tb, err)
	for i, s := range c.nodes() {
		conn := s.Client()
		if i < len(c.Masters) {
			from, to := i*slots/len(c.Masters), (i+1)*slots/len(c.Masters)-1
			c.must(conn.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err())
			c.must(conn.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		}
		if s != first {
			c.must(conn.Do(ctx, "CLUSTER", "MEET", host, port, c.ports[first]).Err())
		}
	}
	c.until("all nodes know each other", func(s *Server) bool {
		return s.has("CLUSTER", fmt.Sprintf("cluster_known_nodes:%d", len(c.nodes())))
	})
	for i, r := range c.Replicas {
		id, err := c.Masters[i].Client().Do(ctx, "CLUSTER", "MYID").Text()
		c.must(err)
		c.must(r.Client().Do(ctx, "CLUSTER", "REPLICATE", id).Err())
	}
	c.Settle()
}

// Settle waits until every running node says that the cluster works and every
// running replica is in step.
func (c *Cluster) Settle() {
	c.tb.Helper()
	c.until("the cluster works", func(s *Server) bool {
		return s.has("CLUSTER", "cluster_state:ok") &&
			(s.has("REPLICATION", "role:master") || s.has("REPLICATION", "master_link_status:up"))
	})
}

// has reports whether INFO or CLUSTER INFO has the line.
func (s *Server) has(section, line string) bool {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var text string
	if section == "CLUSTER" {
		text = c.ClusterInfo(ctx).Val()
	} else {
		text = c.Info(ctx, section).Val()
	}
	return strings.Contains(text, line+"\r\n")
}

// until waits until every running node is as it should be.
func (c *Cluster) until(what string, ok func(*Server) bool) {
	c.tb.Helper()
	for _, s := range c.nodes() {
		eventually.NoError(c.tb, what, func() error {
			if s.running() && !ok(s) {
				return fmt.Errorf("node %s is not so far:\n%s", s.Addr, s.log)
			}
			return nil
		})
	}
}

func (c *Cluster) must(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatalf("redistest: making a cluster: %v", err)
	}
}

// nodes are masters and replicas.
func (c *Cluster) nodes() []*Server {
	return append(append([]*Server(nil), c.Masters...), c.Replicas...)
}

// URL is the cluster's redis+cluster:// URL.
func (c *Cluster) URL() string {
	var addrs []string
	for _, s := range c.Masters {
		addrs = append(addrs, s.Addr)
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// Client returns a client of the cluster. It is closed when the test ends.
func (c *Cluster) Client() *redis.ClusterClient {
	var addrs []string
	for _, s := range c.nodes() {
		addrs = append(addrs, s.Addr)
	}
	cl := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Protocol: 2, DisableIdentity: true, ClusterStateReloadInterval: time.Second})
	c.tb.Cleanup(func() { _ = cl.Close() })
	return cl
}

// FailOver kills the master and waits until its replica has taken its place.
func (c *Cluster) FailOver(master int) {
	c.tb.Helper()
	c.Masters[master].Kill()
	r := c.Replicas[master]
	c.until("the replica is master", func(s *Server) bool {
		return s != r || s.has("REPLICATION", "role:master")
	})
	c.Settle()
}

// MoveSlot moves the slot of a key, which is there, to another master. With half of the slot's
// keys moved it calls meanwhile.
func (c *Cluster) MoveSlot(key string, meanwhile func()) {
	c.tb.Helper()
	ctx := context.Background()
	slot := int(c.Masters[0].Client().ClusterKeySlot(ctx, key).Val())
	at := 0
	for i, m := range c.Masters {
		if n, err := m.Client().ClusterCountKeysInSlot(ctx, slot).Result(); err == nil && n > 0 {
			at = i
		}
	}
	from, to := c.Masters[at], c.Masters[(at+1)%len(c.Masters)]
	id := func(s *Server) string {
		text, err := s.Client().Do(ctx, "CLUSTER", "MYID").Text()
		c.must(err)
		return text
	}
	c.must(to.Client().Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)).Err())
	c.must(from.Client().Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)).Err())
	host, port, err := net.SplitHostPort(to.Addr)
	c.must(err)
	migrate := func(keys []string) {
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		if len(keys) > 0 {
			c.must(from.Client().Do(ctx, args...).Err())
		}
	}
	all, err := from.Client().ClusterGetKeysInSlot(ctx, slot, 1000).Result()
	c.must(err)
	migrate(all[:(len(all)+1)/2])
	meanwhile()
	rest, err := from.Client().ClusterGetKeysInSlot(ctx, slot, 1000).Result()
	c.must(err)
	migrate(rest)
	for _, m := range append([]*Server{to, from}, c.Masters...) {
		c.must(m.Client().Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id(to)).Err())
	}
	// A master that does not know the other's new epoch would give the slot back at the next move.
	c.until("all masters agree who has the slots", func(s *Server) bool { return s.owners() == to.owners() })
}

// owners says which node has which slots by which epoch, as one node sees it.
func (s *Server) owners() string {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var out []string
	for line := range strings.Lines(c.ClusterNodes(ctx).Val()) {
		if f := strings.Fields(line); len(f) >= 8 && strings.Contains(f[2], "master") {
			out = append(out, f[0]+" "+f[6]+" "+strings.Join(f[8:], " "))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
