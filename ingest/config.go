package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/store"
)

// Config says what an Ingester writes to and what it may use. The zero value of
// each field but Index is its default.
type Config struct {
	// Index is what is kept true.
	Index store.Index
	// BlockSize is the index block size of models that have none yet, in tokens; 0
	// is store.DefaultBlockSize.
	BlockSize int
	// QueueMessages and QueueBytes bound what waits of one rank, 4,096 messages and
	// 16 MiB; TotalBytes what waits of all, 256 MiB.
	QueueMessages int
	QueueBytes    int64
	TotalBytes    int64
	// WindowMessages bounds the messages of a rank that are written as one batch,
	// 64. After a crash they are read again together; more of them takes memory for each
	// rank that is behind, and hardly fewer calls.
	WindowMessages int
	// Linger is how long a batch waits for those of other ranks to go with it while
	// others are being written, 2 ms. Writers is how many calls may be under way, 4.
	Linger  time.Duration
	Writers int
	// InProcess says that Index is memory of this process. Each rank then writes its batches
	// by itself, at once, since waiting for those of others saves no trip. Linger and Writers
	// do nothing then. No other Ingester reads ranks of it: while all that is known of a rank
	// fits in memory, the generation's map is not written.
	InProcess bool
	// ReplayBytes bounds what one question to a replay socket may bring before the next is
	// asked, 32 MiB. Replays is how many ranks ask at a time, 8. The answers that all have
	// and have not worked off stay below that many times ReplayBytes.
	ReplayBytes int64
	Replays     int
	// ReplayIdle is how long a replay socket may say nothing in the middle of an answer,
	// 2 s.
	ReplayIdle time.Duration
	// ReplayTries is how often in a row a replay may bring nothing of what is
	// missing before it counts as lost, 5. The pauses grow, and take some seconds
	// together.
	ReplayTries int
	// ReplayPatience is how long a rank keeps its credit while events are known to be missing, or a replay
	// contradicts the live stream: 1.5 s. It is the time of all questions together; then a generation begins
	// with what comes live.
	ReplayPatience time.Duration
	// Quiet is how long a rank is silent before its replay socket is asked whether
	// there is more, 2 s. While there is nothing the time doubles up to 1 minute.
	Quiet time.Duration
	// RelayMessages and RelayBytes bound what is kept of each rank for
	// Ingester.Recent: 1,024 messages and 1 MiB. Below 0 keeps none.
	RelayMessages int
	RelayBytes    int64
	// Pushers bounds the ranks that push over HTTP and of which state is kept here,
	// 4,096. The one that is longest silent is forgotten and read from the index again.
	Pushers int
	// Events bounds what a message may have; zero fields are event.Limits' defaults.
	Events event.Limits
	// Media maps engines' words for where blocks are to tiers; nil is the known words.
	Media *event.Media
	// Copies is what a repeated store of a block means.
	Copies rechunk.Copies
	// Records is how many engine blocks of a rank are kept in memory, 100 to 250 bytes
	// each. What is beyond is read from the index when it is needed. 256 Ki, at least
	// rechunk.MinRecords.
	Records int
	// Unremoved bounds the engine blocks that a rank holds in each tier, but the GPU's, in which its engine
	// never reports a removal. LMCache is so through vLLM. The oldest are taken for removed. 262,144; below 0
	// is no bound.
	Unremoved int
	// Wire has limits, times and the filter of connections. Endpoint, Bind, Topic and Curve are
	// the source's, Dials is the Ingester's own.
	Wire zmq.Config
	// Observer is told what happens.
	Observer Observer
}

var errConfig = errors.New("ingest: invalid config")

// withDefaults fills what is not set and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Index == nil {
		return c, fmt.Errorf("%w: no Index", errConfig)
	}
	defaults.Funcs(&c.Observer)
	err := cmp.Or(
		defaults.Within("BlockSize", &c.BlockSize, store.DefaultBlockSize, 1, store.MaxBlockSize),
		defaults.Within("QueueMessages", &c.QueueMessages, 4096, 1, 1<<20),
		defaults.Within("WindowMessages", &c.WindowMessages, 64, 1, 1<<16),
		defaults.Within("Writers", &c.Writers, 4, 1, 256),
		defaults.Within("Replays", &c.Replays, 8, 1, 4096),
		defaults.Within("ReplayTries", &c.ReplayTries, 5, 1, 1000),
		defaults.Within("Pushers", &c.Pushers, 4096, 1, 1<<20),
		defaults.AtLeast("QueueBytes", &c.QueueBytes, 16<<20, 1<<16),
		defaults.AtLeast("TotalBytes", &c.TotalBytes, 256<<20, 1<<16),
		defaults.AtLeast("ReplayBytes", &c.ReplayBytes, 32<<20, 1<<16),
		defaults.Within("Linger", &c.Linger, 2*time.Millisecond, 0, time.Second),
		defaults.Within("Quiet", &c.Quiet, 2*time.Second, 0, time.Hour),
		defaults.Within("ReplayIdle", &c.ReplayIdle, 2*time.Second, 0, time.Minute),
		defaults.Within("ReplayPatience", &c.ReplayPatience, 1500*time.Millisecond, 0, time.Hour),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errConfig, err)
	}
	// An index block size is to be had of each model; these are the same for all.
	if _, err := rechunk.New(rechunk.Config{BlockSize: 1, Copies: c.Copies, MaxRecords: c.Records}); err != nil {
		return c, fmt.Errorf("%w: %w", errConfig, err)
	}
	c.Unremoved = max(cmp.Or(c.Unremoved, 256<<10), 0)
	c.RelayMessages, c.RelayBytes = cmp.Or(c.RelayMessages, 1024), cmp.Or(c.RelayBytes, 1<<20)
	return c, nil
}
