// Package redisx connects to Redis. It has URLs, topologies (one server, a cluster, sentinels), and the
// client with the settings that kvatlas needs. It has log lines on connections that fail, once and not in
// each try. The index, the checks of kvatlas doctor and whatever else kvatlas keeps in Redis stand beside
// each other on it; it knows none of them.
package redisx

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config says how to connect. Every field but Log must be set.
type Config struct {
	// Target is where to.
	Target *Target
	// Protocol is the version of RESP, 2 or 3.
	Protocol int
	// PoolSize is the number of connections to a server at most.
	PoolSize int
	// DialTimeout bounds the making of a connection, Timeout each wait for a server whose
	// caller has no nearer deadline.
	DialTimeout, Timeout time.Duration
	// Log is told what an operator may want to read; nil is deaf. It never holds a password.
	Log func(string)
}

// Conn is a client of a target. It is safe for concurrent use.
type Conn struct {
	// Client sends commands.
	Client redis.UniversalClient
	// Target is where it connects to.
	Target *Target

	dialer *dialer
}

// Open returns the client of a target. It does no I/O. Close releases it.
func Open(c Config) *Conn {
	conn := &Conn{Target: c.Target, dialer: newDialer(&c)}
	logs.add(conn, c.Log)
	conn.Client = newClient(&c, conn.dialer)
	told := newRefusals(&c)
	switch client := conn.Client.(type) {
	case *redis.ClusterClient:
		client.OnNewNode(func(node *redis.Client) { addHooks(node, told) })
	default:
		addHooks(client, told)
	}
	return conn
}

// addHooks adds what sees each command to a client of one server.
func addHooks(client interface{ AddHook(redis.Hook) }, told *refusals) {
	client.AddHook(told)
	client.AddHook(glances{})
}

// Dials returns how many connections have been begun.
func (c *Conn) Dials() uint64 { return c.dialer.dials.Load() }

// Close closes the connections. Commands in flight end with an error.
func (c *Conn) Close() error {
	defer logs.remove(c)
	return c.Client.Close()
}

// DialFailed reports whether err is of a connection that could not be made: nothing was sent.
func DialFailed(err error) bool {
	_, failed := errors.AsType[dialError](err)
	return failed
}

// newClient makes the client of a target, which connects by d. It does no I/O.
//
// It differs from go-redis's defaults in what made it fail late or loudly. It
// heeds contexts, tries a dial once, repeats a command once, and learns of a
// cluster's failover within a second. It does not tell the server which library
// it is: not every version takes that, nor every user's ACL.
func newClient(c *Config, d *dialer) redis.UniversalClient {
	const (
		name    = "kvatlas"
		retries = 1
	)
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	t, dial := c.Target, d.Dial
	switch t.Topology {
	case Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Dialer: dial, Addrs: t.Addrs, ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password,
			MaxRedirects: 3, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true, MaintNotificationsConfig: off, ClusterStateReloadInterval: time.Second,
			DisableRoutingPolicies: true,
		})
	case Sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			Dialer: dial, MasterName: t.Master, SentinelAddrs: t.Addrs, ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password,
			SentinelUsername: t.sentinelUsername, SentinelPassword: t.sentinelPassword, DB: t.db,
			MaxRetries: retries, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true,
		})
	default:
		return redis.NewClient(&redis.Options{
			Dialer: dial, Network: t.network, Addr: t.Addrs[0], ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password, DB: t.db,
			MaxRetries: retries, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true, MaintNotificationsConfig: off,
		})
	}
}
