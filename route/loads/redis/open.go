package redis

import (
	"cmp"
	"runtime"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
	index "github.com/kvatlas/kvatlas/store/redis"
)

// Address says how to connect. URL must be set.
type Address struct {
	// URL is that of the index: see redisx.ParseURL.
	URL string
	// Prefix begins all key names; default that of the index.
	Prefix string
	// PoolSize is the number of connections to a server at most; default 10 a core.
	PoolSize int
	// Timeout bounds each call, and the making of a connection; default one second.
	Timeout time.Duration
	// Log is told what an operator may want to read; nil is deaf.
	Log func(string)
}

// protocol is the version of RESP: replies of scripts look the same in all.
const protocol = 2

// Open returns a Store with connections of its own, which Close ends. It does no I/O.
func Open(a Address) (*Store, error) {
	t, err := redisx.ParseURL(a.URL)
	if err != nil {
		return nil, err
	}
	a.Prefix = cmp.Or(a.Prefix, index.DefaultPrefix)
	a.PoolSize = cmp.Or(a.PoolSize, 10*runtime.GOMAXPROCS(0))
	a.Timeout = cmp.Or(a.Timeout, time.Second)
	conn := redisx.Open(redisx.Config{Target: t, Protocol: protocol, PoolSize: a.PoolSize, DialTimeout: a.Timeout, Timeout: a.Timeout, Log: a.Log})
	s, err := New(Config{Client: conn.Client, Prefix: a.Prefix, Timeout: a.Timeout})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s.close = conn.Close
	return s, nil
}

// Config returns what the store is made of, for packages that keep something beside its loads.
func (s *Store) Config() Config { return s.c }

// Close ends the connections of a Store that Open has made.
func (s *Store) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}
