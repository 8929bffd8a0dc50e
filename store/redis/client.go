package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/kvatlas/kvatlas/store"
)

// newClient makes the client of a target, which connects by d. It does no I/O.
//
// What differs from go-redis's defaults is what made it fail late or loudly: it
// heeds contexts, tries a dial once, repeats a command once, and learns of a
// cluster's failover within a second. It does not tell the server which library
// it is: not every version takes that, nor every user's ACL.
func newClient(t *target, c *Config, d *dialer) redis.UniversalClient {
	const (
		name    = "kvatlas"
		retries = 1
	)
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	dial := d.Dial
	switch t.topology {
	case cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Dialer: dial, Addrs: t.addrs, ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password,
			MaxRedirects: 3, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true, MaintNotificationsConfig: off, ClusterStateReloadInterval: time.Second,
			DisableRoutingPolicies: true,
		})
	case sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			Dialer: dial, MasterName: t.master, SentinelAddrs: t.addrs, ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password,
			SentinelUsername: t.sentinelUsername, SentinelPassword: t.sentinelPassword, DB: t.db,
			MaxRetries: retries, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true,
		})
	default:
		return redis.NewClient(&redis.Options{
			Dialer: dial, Network: t.network, Addr: t.addrs[0], ClientName: name, Protocol: c.Protocol, Username: t.username, Password: t.password, DB: t.db,
			MaxRetries: retries, DialTimeout: c.DialTimeout, DialerRetries: 1, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
			ContextTimeoutEnabled: true, PoolSize: c.PoolSize, MaxActiveConns: c.PoolSize, PoolTimeout: c.Timeout, PipelinePoolSize: -1,
			TLSConfig: t.tls, DisableIdentity: true, MaintNotificationsConfig: off,
		})
	}
}

// logs passes on what go-redis logs, a line of each kind once a minute. Its logger
// is one for the whole process and does not say which client speaks, so that every
// open index hears it. Of dials that fail each index's dialer tells instead.
var logs = logRouter{to: map[*Index]func(string){}}

type logRouter struct {
	once sync.Once
	mu   sync.Mutex // protects to and said
	to   map[*Index]func(string)
	said limiter
}

// add makes the index hear. A nil log is deaf, and still keeps go-redis from
// writing to stderr.
func (l *logRouter) add(x *Index, log func(string)) {
	l.once.Do(func() { redis.SetLogger(l) })
	if log == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to[x] = log
}

func (l *logRouter) remove(x *Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.to, x)
}

// Printf implements go-redis's logger.
func (l *logRouter) Printf(_ context.Context, format string, v ...any) {
	for _, arg := range v {
		if err, ok := arg.(error); ok {
			if _, told := errors.AsType[dialError](err); told {
				return
			}
		}
	}
	msg := fmt.Sprintf(format, v...)
	l.mu.Lock()
	dropped, ok := l.said.pass(format, time.Now())
	if !ok {
		l.mu.Unlock()
		return
	}
	if dropped > 0 {
		msg += fmt.Sprintf(" (and %d more like it since the last)", dropped)
	}
	to := make([]func(string), 0, len(l.to))
	for _, f := range l.to {
		to = append(to, f)
	}
	l.mu.Unlock()
	for _, f := range to {
		f("redis client: " + msg)
	}
}

// failed wraps an error of a call to the server into what this package
// promises: the context's error when that is why the call ended, and
// store.ErrUnavailable for whatever the caller can do nothing about but try
// again later.
func failed(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	for _, mine := range []error{store.ErrClosed, store.ErrFull, store.ErrInvalid, store.ErrUnavailable, store.ErrFenced, store.ErrEnded, ErrSchema} {
		if errors.Is(err, mine) {
			return err
		}
	}
	if errors.Is(err, redis.ErrClosed) {
		return store.ErrClosed
	}
	if schema, ok := strings.CutPrefix(err.Error(), "KVASCHEMA "); ok {
		s, p, _ := strings.Cut(schema, " ")
		return schemaError(s, p)
	}
	if full, ok := strings.CutPrefix(err.Error(), "KVAFULL "); ok {
		what, limit, _ := strings.Cut(full, " ")
		return fmt.Errorf("%w: there are %s %s already, the limit of the configuration", store.ErrFull, limit, what)
	}
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.Canceled):
		return fmt.Errorf("redis: %s: %w", doing, cause)
	case cause != nil:
		return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, cause)
	}
	if why := refusal(err); why != nil {
		return fmt.Errorf("%w: %w: %s: %w", store.ErrUnavailable, why, doing, err)
	}
	return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, err)
}

// refusal returns what the server means by an error, nil if it says nothing that
// another call could not change.
func refusal(err error) error {
	if redis.HasErrorPrefix(err, "OOM") {
		return store.ErrNoMemory
	}
	for _, prefix := range []string{"READONLY", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "MISCONF"} {
		if redis.HasErrorPrefix(err, prefix) {
			return store.ErrRefused
		}
	}
	return nil
}

func schemaError(schema, partitions string) error {
	return fmt.Errorf("%w: it has schema %s with %s partitions, this version has schema %d with %d", ErrSchema, schema, partitions, Schema, len(tags))
}
