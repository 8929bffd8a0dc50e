package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/store/redis"
)

// indexSettings are where the index is, and how large it becomes.
type indexSettings struct {
	// Redis is the URL of the Redis that holds the index: redis://, unix://,
	// redis+cluster:// or redis+sentinel://, with rediss for TLS. Empty keeps
	// the index in the memory of this process.
	Redis SecretURL `name:"redis" section:"Index"`
	// RedisPrefix begins the name of every key in Redis: 1 to 32 letters,
	// digits and the characters _ . : -.
	RedisPrefix string `name:"redis-prefix" default:"kva"`
	// RedisPool is the number of connections to each Redis server at most.
	RedisPool int `name:"redis-pool" default:"32" min:"1" max:"4096"`
	// PlainMaxAge is the age to which values in Redis count that name pods by
	// addresses; 0 lets none count.
	PlainMaxAge time.Duration `name:"plain-max-age" default:"1h" min:"0s" max:"8760h"`
	// IndexMaxBytes is the memory that the blocks of the index in memory may take, the garbage
	// collector's overhead not counted. It has no effect with redis.
	IndexMaxBytes Bytes `name:"index-max-bytes" default:"1GiB" min:"1MiB" max:"4TiB"`
	// IndexMaxPods is the number of pods that can be registered.
	IndexMaxPods int `name:"index-max-pods" default:"10000" min:"1" max:"1000000"`
	// BlockSize is the number of tokens in an index block of a model that the
	// index does not know yet. It is fixed once a model is written.
	BlockSize int `name:"block-size" default:"64" min:"1" max:"65536"`
}

// replicaSettings are about the copy of the index in Redis.
type replicaSettings struct {
	// Replica answers lookups from a copy of the index in Redis, in the memory of
	// this process, which follows a log of all changes: no lookup takes a round trip.
	Replica bool `name:"replica" default:"false" section:"Replica of the index in Redis"`
	// ReplicaMaxBytes is the memory that the copy may take, of 20 to 32 bytes a
	// block, the garbage collector's overhead not counted. An index that does not fit
	// is read from Redis.
	ReplicaMaxBytes Bytes `name:"replica-max-bytes" default:"1GiB" min:"1MiB" max:"4TiB"`
	// ReplicaMaxLag is how far the copy may be behind; beyond it lookups ask Redis.
	ReplicaMaxLag time.Duration `name:"replica-max-lag" default:"1s" min:"50ms" max:"1m"`
	// ReplicaMaxStale is how old the copy may be that answers while Redis cannot be
	// reached. Such answers are marked as degraded.
	ReplicaMaxStale time.Duration `name:"replica-max-stale" default:"30s" min:"50ms" max:"24h"`
	// ReplicaVerify is how often the whole index is read again beside the log, which
	// finds blocks that Redis has evicted. 0 is never.
	ReplicaVerify time.Duration `name:"replica-verify" default:"10m" min:"0s" max:"168h"`
}

// snapshotSettings keep the index in memory over a restart.
type snapshotSettings struct {
	// SnapshotFile is the file that keeps the index in memory over a restart; with
	// a name that ends with .gz it is compressed. Its folder must be there. Empty
	// keeps nothing.
	SnapshotFile string `name:"snapshot-file" section:"Snapshots of the index in memory"`
	// SnapshotInterval is how often to look whether 10,000 blocks have changed since the
	// last snapshot; then a new one is written. One is written at the end, too, if
	// anything has changed.
	SnapshotInterval time.Duration `name:"snapshot-interval" default:"1m" min:"10ms" max:"24h"`
	// SnapshotMaxAge is how old a snapshot may be to be loaded; an older one is put
	// aside. 0 is any age.
	SnapshotMaxAge time.Duration `name:"snapshot-max-age" default:"0s" min:"0s" max:"8760h"`
}

// validateIndex checks the rules of where the index is.
func (c *Config) validateIndex() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Redis != "" {
		if err := redis.CheckURL(string(c.Redis)); err != nil {
			bad("redis: %s", strings.TrimPrefix(err.Error(), "redis: "))
		}
	}
	if !redisPrefix.MatchString(c.RedisPrefix) {
		bad("redis-prefix: %q must be 1 to 32 letters, digits and the characters _ . : -", c.RedisPrefix)
	}
	if c.Replica && c.Redis == "" {
		bad("replica: it is a copy of the index in Redis, and redis is not set")
	}
	if c.ReplicaMaxStale < c.ReplicaMaxLag {
		bad("replica-max-stale: %v is less than replica-max-lag (%v)", c.ReplicaMaxStale, c.ReplicaMaxLag)
	}
	if c.SnapshotFile != "" && c.Redis != "" {
		bad("snapshot-file: it is for the index in memory, and redis is set: Redis keeps the index itself, and kvatlas dump makes backups")
	}
	return errors.Join(errs...)
}

var redisPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,32}$`)
