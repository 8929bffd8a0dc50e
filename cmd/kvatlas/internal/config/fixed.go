package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// Limits that no operator has a reason to set. The reason of each stands in removed, with its
// value, and in docs/configuration.md.
const (
	// ReadHeaderTimeout is how long a client may take to send the header of a request.
	ReadHeaderTimeout = 5 * time.Second
	// MaxHeaderBytes is the largest header of a request.
	MaxHeaderBytes = Bytes(64 << 10)
	// writeGrace is what Config.WriteTimeout has beyond request-timeout.
	writeGrace = 20 * time.Second

	// MaxPrompts is the number of prompts that one request may carry.
	MaxPrompts = 64
	// MaxObjects is the number of images, audio and video of one request.
	MaxObjects = 1024
	// MaxChatItems is the number of messages, parts of contents, tool calls, tools and
	// documents of one request together.
	MaxChatItems = 1 << 16
	// MaxChatValues is the number of JSON values in the messages, tools, documents and
	// template variables of one request together, keys not counted.
	MaxChatValues = 1 << 20
	// tokensPerKey is how many of max-tokens Config.MaxBlockKeys has a key for.
	tokensPerKey = 8
	// maxPodsNamed bounds Config.MaxPods.
	maxPodsNamed = 1 << 16

	// MaxStreams is the number of dumps, restores and resets worked on at a time. They do
	// not count as requests in flight.
	MaxStreams = 2
	// StreamStall is how long a dump waits for its client to take a page, and a restore
	// for its client to send more.
	StreamStall = 30 * time.Second
	// MaxRelayBytes is how long an answer with a rank's recent events becomes before it
	// is cut.
	MaxRelayBytes = Bytes(4 << 20)

	// RedisTimeout is how long a call to Redis may take whose caller has no nearer
	// deadline, such as a write.
	RedisTimeout = 2 * time.Second
	// RedisMapCache is the memory for what an ingester has read of the maps of its
	// engines' blocks.
	RedisMapCache = Bytes(64 << 20)
	// IndexMaxModels is the number of models that can be indexed.
	IndexMaxModels = 1000
	// bytesPerBlock is how many of index-max-bytes Config.IndexMaxBlocks has a block for.
	bytesPerBlock = 64
	// holdersPerPod is what Config.IndexMaxHolders has for each of index-max-pods.
	holdersPerPod = 10
	// SnapshotChanges is the number of blocks that must have changed since the last
	// snapshot before a new one is written.
	SnapshotChanges = 10_000

	// ReplicaLogEntries is the length of the log of changes that is switched on where there is no decision
	// about one.
	ReplicaLogEntries = changelog.DefaultEntries
	// ReplicaPoll is how long to rest between reads of a cluster's logs while nothing
	// changes.
	ReplicaPoll = 5 * time.Millisecond

	// IngestMaxRanks is the number of ranks whose events this process reads.
	IngestMaxRanks = 10_000
	// IngestReplays is the number of ranks that ask their engines for what they have missed
	// at a time, and IngestReplayBytes what one answer may bring before the next question.
	IngestReplays     = 8
	IngestReplayBytes = Bytes(32 << 20)
	// IngestHandOver is the number of ranks that change hands at a time when a process
	// has joined.
	IngestHandOver = 16
	// maxRankQueue bounds Config.IngestRankQueueBytes.
	maxRankQueue = Bytes(16 << 20)
	// IngestRelayBytes is the size of the recent messages that are kept of each rank.
	IngestRelayBytes = Bytes(1 << 20)
	// PodsDNSInterval is how often names are resolved to pods.
	PodsDNSInterval = 5 * time.Second

	// LMCacheSyncWait is how long what may be false counts while a full sync of the worker
	// is awaited.
	LMCacheSyncWait = 2 * time.Minute
	// LMCacheQueueKeys is the number of chunks that may wait to be written, of all workers;
	// what finds no room is dropped, and asked for again.
	LMCacheQueueKeys = 1_000_000
	// LMCacheSyncKeys is the number of chunks of all full syncs at a time, of about 50 bytes
	// each.
	LMCacheSyncKeys = 4_000_000
	// LMCacheMaxMessage is the longest message of a worker.
	LMCacheMaxMessage = Bytes(4 << 20)
	// LMCacheMaxBody is the longest body of a report in MP mode.
	LMCacheMaxBody = Bytes(64 << 20)
	// LMCacheWriteTTL is how long an entry lives that is written for others and not renewed.
	LMCacheWriteTTL = time.Minute
	// LMCacheWriteEntries is the number of such entries at a time, of about 1 KB each in this
	// process; what is beyond is not written.
	LMCacheWriteEntries = 1 << 18

	// UsageBlocks is the number of blocks whose uses are counted, of about 200 bytes each.
	UsageBlocks = 100_000
	// bytesPerQueued is the memory of max-in-flight-bytes that each byte of a queued text
	// has taken; see Config.TokenizerQueueBytes.
	bytesPerQueued = 4
	// minWorkBytes is what a mebibyte of text that cannot be cut may take.
	minWorkBytes = 350 << 20
	// TokenizerCheckEvery is of how many texts one is tokenized by the library as well, behind its
	// answer. One difference, and the tokenizer is left to it.
	TokenizerCheckEvery = 1000
	// PieceTTL is how long Redis keeps a shared piece.
	PieceTTL = 24 * time.Hour
	// maxPieceTimeout bounds Config.PieceTimeout.
	maxPieceTimeout = 10 * time.Second
)

// WriteTimeout is how long a client may take to receive its answer, from the end of the
// request's header on.
func (c *Config) WriteTimeout() time.Duration { return c.RequestTimeout + writeGrace }

// MaxBlockKeys is the number of block keys that one request may carry.
func (c *Config) MaxBlockKeys() int { return max(c.MaxTokens/tokensPerKey, 1) }

// MaxPods is the number of pods that one request may name.
func (c *Config) MaxPods() int { return min(c.IndexMaxPods, maxPodsNamed) }

// IndexMaxBlocks is the number of blocks that the index in memory holds.
func (c *Config) IndexMaxBlocks() int { return int(c.IndexMaxBytes) / bytesPerBlock }

// IndexMaxHolders is the number of holders, each a (pod, rank, tier), that can live at a
// time.
func (c *Config) IndexMaxHolders() int { return c.IndexMaxPods * holdersPerPod }

// IngestRankQueueBytes is the part of ingest-queue-bytes that one rank may take.
func (c *Config) IngestRankQueueBytes() int64 {
	return int64(min(c.IngestQueueBytes, maxRankQueue))
}

// LMCacheMaxWorkers is the number of workers, and of instances of MP mode, that are heard
// at a time, and of workers that the index may have from all processes. Each is a
// registration, so engines have room beside them.
func (c *Config) LMCacheMaxWorkers() int { return max(c.IndexMaxPods*2/5, 1) }

// TokenizerQueueBytes is the size of all texts that wait for a tokenizer or are worked on.
func (c *Config) TokenizerQueueBytes() int64 {
	return max(int64(c.MaxInFlightBytes)/bytesPerQueued, int64(c.MaxPromptBytes))
}

// TokenizerWorkBytes is the memory of the tokenizers' library that all texts being tokenized
// take.
func (c *Config) TokenizerWorkBytes() int64 { return max(int64(c.MaxInFlightBytes), minWorkBytes) }

// PieceTimeout is how long a text waits for shared pieces before it is tokenized.
func (c *Config) PieceTimeout() time.Duration {
	return min(max(c.TokenizerBudget*2/5, time.Microsecond), maxPieceTimeout)
}

// removedSetting is a limit that could be set once.
type removedSetting struct {
	name string
	is   any    // the value, or a text that says what it follows from
	why  string // it need not be set
}

// removed are refused wherever a setting can stand, with a sentence that says so.
var removed = []removedSetting{
	{"read-header-timeout", ReadHeaderTimeout, "a header is a packet or two"},
	{"write-timeout", "request-timeout and " + formatDuration(writeGrace), "the rest is enough to receive an answer"},
	{"max-header-bytes", MaxHeaderBytes, "gateways pass on no larger one by default"},
	{"max-block-keys", fmt.Sprintf("one for each %d tokens of max-tokens", tokensPerKey), "a prompt of max-tokens has fewer"},
	{"max-prompts", MaxPrompts, "a larger batch can be several requests"},
	{"max-pods", fmt.Sprintf("index-max-pods, %d at most", maxPodsNamed), "a request may name every pod that can be registered"},
	{"max-objects", MaxObjects, "engines allow fewer in a prompt by default"},
	{"max-chat-items", MaxChatItems, "no context has room for more messages"},
	{"max-chat-values", MaxChatValues, "they take 160 MiB of max-in-flight-bytes"},
	{"max-streams", MaxStreams, "each goes over the whole index"},
	{"max-relay-bytes", MaxRelayBytes, "an answer that is cut says where to go on"},
	{"stream-stall", StreamStall, "a client that is gone must not hold a place"},
	{"redis-timeout", RedisTimeout, "requests have budgets, and writes are tried again"},
	{"redis-map-cache", RedisMapCache, "what finds no room is read again"},
	{"index-max-blocks", fmt.Sprintf("one for each %d bytes of index-max-bytes", bytesPerBlock), "a block takes about 26, its holders the rest"},
	{"index-max-holders", fmt.Sprintf("%d for each of index-max-pods", holdersPerPod), "most pods have two or three"},
	{"index-max-models", IndexMaxModels, "adapters and salts are no models of their own"},
	{"replica-log-entries", ReplicaLogEntries, "kvatlas changelog --on --entries N makes another length for all servers"},
	{"replica-poll", ReplicaPoll, "it takes 1 to 3 % of a core"},
	{"ingest-max-ranks", IngestMaxRanks, "ranks are shared out, and one takes some 25 KB"},
	{"ingest-hand-over", IngestHandOver, "more at a time helps no reader"},
	{"ingest-rank-queue-bytes", maxRankQueue.String() + ", and at most ingest-queue-bytes", "the rest waits in the engine's socket, and nothing is lost"},
	{"ingest-relay-bytes", IngestRelayBytes, "it bounds long messages, ingest-relay-messages their number"},
	{"pods-dns-interval", PodsDNSInterval, "it is well within pods-lease"},
	{"snapshot-changes", SnapshotChanges, "fewer changes are soon learnt again"},
	{"lmcache-sync-wait", LMCacheSyncWait, "a full sync takes seconds"},
	{"lmcache-max-workers", "2/5 of index-max-pods", "each worker is a registration, and engines need room"},
	{"lmcache-queue-keys", LMCacheQueueKeys, "what finds no room is asked for again"},
	{"lmcache-sync-keys", LMCacheSyncKeys, "they take 200 MB, and others are asked for again"},
	{"lmcache-max-message", LMCacheMaxMessage, "LMCache puts 2,000 keys into a message"},
	{"lmcache-max-body", LMCacheMaxBody, "a report has at most 131,072 entries"},
	{"lmcache-write-ttl", LMCacheWriteTTL, "entries of a worker that lives are renewed"},
	{"lmcache-write-entries", LMCacheWriteEntries, "they take 262 MB, and only other tools miss the rest"},
	{"usage-blocks", UsageBlocks, "they take 20 MB, and the rest is seldom asked for"},
	{"tokenizer-queue", "max-in-flight", "each request in flight may wait for a tokenizer"},
	{"tokenizer-work-bytes", "max-in-flight-bytes, and at least 350 MiB", "a text that cannot be cut takes 350 bytes for each of its own, and a longer one is refused"},
	{"tokenizer-queue-bytes", fmt.Sprintf("1/%d of max-in-flight-bytes, and at least max-prompt-bytes", bytesPerQueued), "a request in flight has that much for its text"},
	{"tokenizer-check-every", TokenizerCheckEvery, "it costs 1 %; tokenizer-fast false leaves all texts to the library"},
	{"piece-ttl", PieceTTL, "maxmemory of Redis bounds pieces too"},
	{"piece-timeout", "2/5 of tokenizer-budget, " + formatDuration(maxPieceTimeout) + " at most", "to wait longer leaves no time to tokenize"},
}

// now is what the limit is.
func (r *removedSetting) now() string {
	if text, ok := r.is.(string); ok {
		return text
	}
	return format(reflect.ValueOf(r.is))
}

// sentence refuses the setting.
func (r *removedSetting) sentence() string {
	return fmt.Sprintf("%s is not a setting any more; it is always %s: %s. Leave it out", r.name, r.now(), r.why)
}

// refuseRemoved is the error of a setting that there was once, nil for any other name.
// place is where it stands.
func refuseRemoved(place, name string) error {
	for i := range removed {
		if removed[i].name == name {
			return fmt.Errorf("%s: %s", place, removed[i].sentence())
		}
	}
	return nil
}

// variableOf is the environment variable of a setting.
func variableOf(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// settingOf is the setting of an environment variable.
func settingOf(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, envPrefix), "_", "-"))
}
