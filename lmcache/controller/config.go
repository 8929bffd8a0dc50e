package controller

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// ErrConfig says that a setting cannot be right.
var ErrConfig = errors.New("controller: invalid config")

// Config is what a Controller is made of. The zero value of each field but Index and Pull
// is its default.
type Config struct {
	// Index is what is written to.
	Index store.Index
	// Pods finds the pods of instances.
	Pods feed.Pods
	// Pull, Reply and Heartbeat are the endpoints to bind, tcp://host:port. Reply and
	// Heartbeat may be "": workers up to 0.3.9 need Pull alone.
	Pull, Reply, Heartbeat string
	// HeartbeatURL is what workers are told to send heartbeats to, host:port. By default
	// it is the address at which the worker has reached Reply, with Heartbeat's port.
	HeartbeatURL string
	// Filter says which workers may connect; nil is all.
	Filter zmq.Filter
	// Hashers recompute the chunks of a model's tokens, for LookupMsg; without one of the
	// model nothing is found.
	Hashers map[string]*lmcache.Hasher

	// Lease is how long a worker that has gone keeps its blocks, 30 s.
	Lease time.Duration
	// Workers is how many workers an instance has at least, 1. With tensor parallelism a
	// chunk counts when all have it, and until the last has registered there seem to be
	// fewer.
	Workers int
	// SyncWait bounds how long what may be false keeps its credit while a full sync is
	// awaited. It also bounds how long a sync may be without progress, 2 minutes. LMCache
	// waits up to 5 s before it begins one.
	SyncWait time.Duration
	// AskAgain is how long after a request for a full sync the next one is made, 30 s.
	AskAgain time.Duration
	// Timeout bounds a call of the index, 2 s; large writes may take longer.
	Timeout time.Duration

	// MaxWorkers bounds the workers, 4,096: those that this process hears, and those that the index has from
	// all processes. Messages of further workers are dropped, and none is added to the index. It leaves room
	// for engines, since each worker is a registration of the index. Workers without a connection make room
	// before one is refused here.
	MaxWorkers int
	// QueueKeys bounds the keys that wait to be written, for all workers, 1,000,000.
	QueueKeys int
	// SyncKeys bounds the keys of all full syncs under way, 4,000,000: about 50 bytes
	// each.
	SyncKeys int
	// MaxMessage bounds a message, 4 MiB.
	MaxMessage int

	// Heard receives the hash of each chunk that a worker has or lists, before its key
	// goes to Index. It may be nil, and must not block.
	Heard func(lmcache.Hash)
	// Observer receives what happens.
	Observer Observer
}

// Observer receives what happens. Any func may be nil. They are called by the goroutines
// that do the work and must not block.
type Observer struct {
	// Began says that a worker's life has begun, or that its generation was taken over.
	Began func(id feed.ID, t feed.Target, tookOver bool)
	// Gone says that a worker has ended, or is silent and loses its lease.
	Gone func(id feed.ID, silent bool)
	// Unmapped says that no pod is known for an instance, or that the index has no room
	// for the worker. Nothing is kept of what it says. It is told once for each reason.
	Unmapped func(id feed.ID, err error)
	// Stale says that a message on a connection did not count. The connection, from, has
	// spoken for the worker before that registered on another one, by. It is told once for
	// each registration.
	Stale func(id feed.ID, from, by string)
	// Shared says that several processes use the id of a worker, and names them. Of those
	// that cannot be told apart nothing is kept.
	Shared func(id feed.ID, by []string)
	// Lost says that something of a worker may be missing.
	Lost func(id feed.ID, location, why string)
	// Synced says that a full sync has been written.
	Synced func(id feed.ID, location string, keys int, took time.Duration)
	// Location says that the tier of a location is unknown; it is told once for each.
	Location func(location string)
	// Malformed says that a frame was no message, or that a peer was disconnected.
	Malformed func(addr string, err error)
	// Failed says that the index has not taken something; it is tried again.
	Failed func(id feed.ID, err error)
}

func (c Config) withDefaults() (Config, error) {
	if c.Index == nil || c.Pull == "" {
		return c, fmt.Errorf("%w: Index and Pull are needed", ErrConfig)
	}
	if c.Heartbeat != "" && c.Reply == "" {
		return c, fmt.Errorf("%w: a socket for heartbeats without one for replies, which tells its address", ErrConfig)
	}
	defaults.Funcs(&c.Observer)
	err := cmp.Or(
		defaults.Within("Lease", &c.Lease, 30*time.Second, 100*time.Millisecond, store.MaxLease),
		defaults.Within("SyncWait", &c.SyncWait, 2*time.Minute, 10*time.Millisecond, 24*time.Hour),
		defaults.Within("AskAgain", &c.AskAgain, 30*time.Second, 10*time.Millisecond, 24*time.Hour),
		defaults.Within("Timeout", &c.Timeout, 2*time.Second, time.Millisecond, time.Hour),
		defaults.Within("Workers", &c.Workers, 1, 1, store.MaxRanks),
		defaults.Within("MaxWorkers", &c.MaxWorkers, 4096, 1, 1<<20),
		defaults.Within("QueueKeys", &c.QueueKeys, 1_000_000, 1, 1<<30),
		defaults.Within("SyncKeys", &c.SyncKeys, 4_000_000, 1, 1<<30),
		defaults.Within("MaxMessage", &c.MaxMessage, 4<<20, 1024, 1<<30),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

// maxPeers bounds the connections of each socket, maxFrames the frames of a message.
const (
	maxPeers  = 8192
	maxFrames = 256
)

func (c Config) listener(endpoint string, kind zmq.Kind) zmq.ListenerConfig {
	return zmq.ListenerConfig{
		Endpoint: endpoint, Kind: kind, Filter: c.Filter, Peers: maxPeers, MaxMessage: c.MaxMessage, MaxFrames: maxFrames,
	}
}

// locations are the locations that are known, by the names of LMCache's storage backends
// and, up to 0.3.9, shorter words. Their places in the list are kinds of marks: new ones
// go to the end. What only fetches from elsewhere, RemoteBackend and P2PBackend, says
// nothing of the worker and is not here.
var locations = []location{
	{name: "LocalCPUBackend", tier: store.CPU, synced: true},
	{name: "LocalDiskBackend", tier: store.Disk},
	{name: "GdsBackend", tier: store.Disk},
	{name: "WekaGdsBackend", tier: store.Disk},
	{name: "cpu", tier: store.CPU},
	{name: "disk", tier: store.Disk},
}

// location is a place where a worker keeps chunks.
type location struct {
	name string
	tier store.Tier
	// synced is set for what LMCache's full sync has.
	synced bool
}

// locationOf is the number of a location; ok is false when it is unknown.
func locationOf(name string) (n int, ok bool) {
	for i := range locations {
		if locations[i].name == name {
			return i, true
		}
	}
	return 0, false
}

// backendOf is what LMCache calls the location of a tier.
func backendOf(t store.Tier) string {
	if t == store.Disk {
		return "LocalDiskBackend"
	}
	return "LocalCPUBackend"
}
