package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// Config is everything that can be set of kvatlas serve. The comment of a
// field is also its help text and its row in docs/configuration.md; default
// and bounds stand in the tags.
type Config struct {
	// File is the YAML file to read, of at most 1 MiB. A setting in it is weaker
	// than a variable and a flag.
	File string `name:"config" section:"File"`

	// Listen is the address that the API is served on, host:port. Port 0 takes
	// a free one; an empty host takes all addresses of the machine.
	Listen string `name:"listen" default:"127.0.0.1:8080" section:"HTTP"`
	// AdminListen is the address of a listener of its own for /metrics, /v1/dump,
	// /v1/restore, /v1/reset, /v1/lmcache/sync and /v1/ingest, which the API's listener then
	// has not, and for /healthz and /readyz. Empty serves them all on the API's listener.
	AdminListen string `name:"admin-listen"`
	// Roles is the list of parts that this process plays: score answers requests,
	// ingest reads the events of engines.
	Roles Roles `name:"roles" default:"score,ingest"`
	// StrictReady makes /readyz answer 503 while Redis cannot be reached.
	// Without it the process stays ready, since it goes on answering
	// (degraded).
	StrictReady bool `name:"strict-ready" default:"false"`
	// ReadHeaderTimeout is how long a client may take to send the header of a
	// request.
	ReadHeaderTimeout time.Duration `name:"read-header-timeout" default:"5s" min:"10ms" max:"10m"`
	// WriteTimeout is how long a client may take to receive its answer, from
	// the end of the request's header on; so it includes request-timeout.
	WriteTimeout time.Duration `name:"write-timeout" default:"30s" min:"10ms" max:"1h"`
	// IdleTimeout is how long an idle connection is kept. Let it be longer
	// than that of a load balancer in front.
	IdleTimeout time.Duration `name:"idle-timeout" default:"2m" min:"10ms" max:"24h"`
	// MaxHeaderBytes is the largest header of a request.
	MaxHeaderBytes Bytes `name:"max-header-bytes" default:"64KiB" min:"4KiB" max:"16MiB"`

	// RequestTimeout is how long one request may take, reading its body
	// included; then the answer is 504.
	RequestTimeout time.Duration `name:"request-timeout" default:"10s" min:"1ms" max:"10m" section:"Limits of requests"`
	// MaxBodyBytes is the longest body of a request.
	MaxBodyBytes Bytes `name:"max-body-bytes" default:"16MiB" min:"1KiB" max:"1GiB"`
	// MaxTokens is the number of tokens that one request may carry.
	MaxTokens int `name:"max-tokens" default:"1048576" min:"1" max:"268435456"`
	// MaxBlockKeys is the number of block keys that one request may carry.
	MaxBlockKeys int `name:"max-block-keys" default:"131072" min:"1" max:"67108864"`
	// MaxPrompts is the number of prompts that one request may carry.
	MaxPrompts int `name:"max-prompts" default:"64" min:"1" max:"4096"`
	// MaxPods is the number of pods that one request may name.
	MaxPods int `name:"max-pods" default:"1024" min:"1" max:"65536"`
	// MaxObjects is the number of images, audio and video of one request.
	MaxObjects int `name:"max-objects" default:"1024" min:"1" max:"65536"`
	// MaxChatItems is the number of messages, parts of contents, tool calls, tools and
	// documents of one request together, of which each takes some 20 us.
	MaxChatItems int `name:"max-chat-items" default:"65536" min:"1" max:"16777216"`
	// MaxChatValues is the number of JSON values in the messages, tools, documents and
	// template variables of one request together, keys not counted.
	MaxChatValues int `name:"max-chat-values" default:"1048576" min:"1" max:"268435456"`
	// MaxInFlight is the number of requests worked on at a time; more are
	// refused with 503.
	MaxInFlight int `name:"max-in-flight" default:"1024" min:"1" max:"1000000"`
	// MaxInFlightBytes is the memory that the bodies of all requests take at a
	// time; what would go beyond is refused with 503.
	MaxInFlightBytes Bytes `name:"max-in-flight-bytes" default:"256MiB" min:"1KiB" max:"1TiB"`
	// MaxStreams is the number of dumps, restores and resets worked on at a time;
	// more are refused with 503. They do not count as requests in flight.
	MaxStreams int `name:"max-streams" default:"2" min:"1" max:"1024"`
	// MaxRelayBytes is how long an answer with a rank's recent events becomes before
	// it is cut.
	MaxRelayBytes Bytes `name:"max-relay-bytes" default:"4MiB" min:"1KiB" max:"1GiB"`
	// StreamStall is how long a dump waits for its client to take a page, and a
	// restore for its client to send more. They have no other limit of time.
	StreamStall time.Duration `name:"stream-stall" default:"30s" min:"1ms" max:"10m"`

	// DrainDelay is how long the process goes on accepting requests after
	// SIGTERM, while /readyz answers 503, so that load balancers see it and
	// turn away. Let it be longer than their probe's period.
	DrainDelay time.Duration `name:"drain-delay" default:"1s" min:"0s" max:"10m" section:"Shutdown"`
	// DrainTimeout is how long the requests that are under way may take to
	// finish after that. Those still running then are cut off, and the process
	// exits with 1.
	DrainTimeout time.Duration `name:"drain-timeout" default:"30s" min:"0s" max:"1h"`

	// Redis is the URL of the Redis that holds the index: redis://, unix://,
	// redis+cluster:// or redis+sentinel://, with rediss for TLS. Empty keeps
	// the index in the memory of this process.
	Redis SecretURL `name:"redis" section:"Index"`
	// RedisPrefix begins the name of every key in Redis: 1 to 32 letters,
	// digits and the characters _ . : -.
	RedisPrefix string `name:"redis-prefix" default:"kva"`
	// RedisPool is the number of connections to each Redis server at most.
	RedisPool int `name:"redis-pool" default:"32" min:"1" max:"4096"`
	// RedisTimeout is how long a call to Redis may take whose caller has no
	// nearer deadline, such as a write.
	RedisTimeout time.Duration `name:"redis-timeout" default:"2s" min:"1ms" max:"1m"`
	// PlainMaxAge is how old the value of a block in Redis may become that names
	// pods by text, as engines write it that know nothing else; 0 lets none count.
	PlainMaxAge time.Duration `name:"plain-max-age" default:"1h" min:"0s" max:"8760h"`
	// IndexMaxBlocks is the number of blocks that the index in memory holds at
	// most; what comes beyond evicts. It has no effect with redis.
	IndexMaxBlocks int `name:"index-max-blocks" default:"16777216" min:"4096" max:"68719476736"`
	// IndexMaxBytes is the memory that these blocks may take, the garbage
	// collector's overhead not counted. It has no effect with redis.
	IndexMaxBytes Bytes `name:"index-max-bytes" default:"1GiB" min:"1MiB" max:"4TiB"`
	// IndexMaxPods is the number of pods that can be registered.
	IndexMaxPods int `name:"index-max-pods" default:"10000" min:"1" max:"1000000"`
	// IndexMaxHolders is the number of holders, each a (pod, rank, tier), that
	// can live at a time.
	IndexMaxHolders int `name:"index-max-holders" default:"100000" min:"1" max:"10000000"`
	// IndexMaxModels is the number of models that can be indexed.
	IndexMaxModels int `name:"index-max-models" default:"1000" min:"1" max:"1000000"`
	// BlockSize is the number of tokens in an index block of a model that the
	// index does not know yet. It is fixed once a model is written.
	BlockSize int `name:"block-size" default:"64" min:"1" max:"65536"`

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
	// ReplicaLogEntries is the length of the log of changes that is switched on where
	// nobody has decided about one. 0 switches none on.
	ReplicaLogEntries int `name:"replica-log-entries" default:"10000" min:"0" max:"10000000"`
	// ReplicaVerify is how often the whole index is read again beside the log, which
	// finds blocks that Redis has evicted. 0 is never.
	ReplicaVerify time.Duration `name:"replica-verify" default:"10m" min:"0s" max:"168h"`
	// ReplicaPoll is how long to rest between reads of a cluster's logs while nothing
	// changes. A single server is waited at instead.
	ReplicaPoll time.Duration `name:"replica-poll" default:"5ms" min:"1ms" max:"1s"`

	// IngestMaxRanks is the number of ranks whose events this process reads at most.
	// Those that find room in no process stay unread.
	IngestMaxRanks int `name:"ingest-max-ranks" default:"10000" min:"1" max:"1000000" section:"Ingest"`
	// IngestTTL is how long a process can be silent before others take over the ranks
	// that it reads. It calls four times in that time.
	IngestTTL time.Duration `name:"ingest-ttl" default:"2s" min:"100ms" max:"10m"`
	// IngestHandOver is the number of ranks that change hands at a time when a process
	// has joined.
	IngestHandOver int `name:"ingest-hand-over" default:"16" min:"1" max:"1024"`
	// IngestQueueBytes is the size of all events that wait to be applied; what finds no
	// room is dropped, and asked for again.
	IngestQueueBytes Bytes `name:"ingest-queue-bytes" default:"256MiB" min:"64KiB" max:"1TiB"`
	// IngestRankQueueBytes is the part of it that one rank may take.
	IngestRankQueueBytes Bytes `name:"ingest-rank-queue-bytes" default:"16MiB" min:"64KiB" max:"1TiB"`
	// IngestRelayMessages is how many of the last messages of each rank are kept for
	// who asks for recent events. 0 keeps none.
	IngestRelayMessages int `name:"ingest-relay-messages" default:"1024" min:"0" max:"1048576"`
	// IngestRelayBytes is the size of them, of each rank.
	IngestRelayBytes Bytes `name:"ingest-relay-bytes" default:"1MiB" min:"4KiB" max:"1GiB"`
	// IngestSilent is how long a rank may send nothing before its engine's /health is
	// asked, and an engine that is healthy is counted as silent. 0 asks nobody.
	IngestSilent time.Duration `name:"ingest-silent" default:"0s" min:"0s" max:"24h"`
	// IngestUnremovedBlocks is the number of engine blocks that count for a rank in a tier
	// other than the GPU's in which its engine never tells of a removal, as LMCache does
	// through vLLM: the oldest go. 0 is no limit.
	IngestUnremovedBlocks int `name:"ingest-unremoved-blocks" default:"262144" min:"0" max:"1000000000"`
	// IngestTopic is the prefix of the topics that are read; {pod}, {host}, {model} and
	// {rank} in it stand for those of each stream. Empty reads all.
	IngestTopic string `name:"ingest-topic"`
	// IngestBind is the address of this machine at which engines may connect whose pod's
	// events are bind+tcp://*:PORT; * is all addresses. Empty lets nobody.
	IngestBind string `name:"ingest-bind"`
	// IngestCurveKeys is the file with the public and the secret key of kvatlas for
	// engines behind CURVE, as zmq.auth.create_certificates writes it (NAME.key_secret).
	IngestCurveKeys string `name:"ingest-curve-keys"`
	// IngestCurveServer is the file with the public key of these engines (NAME.key).
	IngestCurveServer string `name:"ingest-curve-server"`
	// IngestMedia are engines' words for where blocks are and the tiers that they mean,
	// beyond those that are known, as in cxl=cpu,tape=disk.
	IngestMedia Media `name:"ingest-media"`
	// IngestCopies is what it means that an engine announces a block again: infer takes
	// what vLLM reports at the head of a prompt for no copy and all else for one, all
	// counts each, none counts none.
	IngestCopies rechunk.Copies `name:"ingest-copies" default:"infer" oneof:"infer,all,none"`
	// IngestRecords is the number of engine blocks of a rank that are kept in memory,
	// 200 to 400 bytes each; others are read from the index when they are needed.
	IngestRecords int `name:"ingest-records" default:"262144" min:"64" max:"268435456"`
	// Pods are pods that are always there, as host:port?model=NAME; other parameters
	// are in docs/operations.md. Others register over HTTP.
	Pods Names `name:"pods"`
	// PodsDNS are names that are resolved to pods, as host:port for A and AAAA records
	// or _service._proto.name for SRV records, with the same parameters.
	PodsDNS Names `name:"pods-dns"`
	// PodsDNSInterval is how often they are resolved.
	PodsDNSInterval time.Duration `name:"pods-dns-interval" default:"5s" min:"100ms" max:"1h"`
	// PodsKubernetes are the labels of pods of Kubernetes that are found while they are
	// ready, as kubectl takes them.
	PodsKubernetes string `name:"pods-kubernetes"`
	// PodsKubernetesPool is the name of an InferencePool whose pods are found instead,
	// at its target ports.
	PodsKubernetesPool string `name:"pods-kubernetes-pool"`
	// PodsKubernetesNamespace is the namespace of both. Empty is all, but not for a pool.
	PodsKubernetesNamespace string `name:"pods-kubernetes-namespace"`
	// PodsPortKubernetes is the port at which the engines of pods found by labels serve.
	PodsPortKubernetes int `name:"pods-port-kubernetes" default:"8000" min:"1" max:"65535"`
	// PodsKubernetesConfig is a kubeconfig file whose current context names the
	// cluster. Empty is the cluster that this process runs in.
	PodsKubernetesConfig string `name:"pods-kubernetes-config"`
	// PodsLease is how long a pod stays that is not found any more.
	PodsLease time.Duration `name:"pods-lease" default:"30s" min:"1s" max:"24h"`
	// PodsAsk lets engines be asked for what is not known of a pod: its model, and
	// where its events are.
	PodsAsk bool `name:"pods-ask" default:"false"`
	// PodsModel is the model of pods of which nothing else says it.
	PodsModel string `name:"pods-model"`
	// PodsEngine is the kind of their engine: vllm, sglang, trtllm or another word.
	PodsEngine string `name:"pods-engine"`
	// PodsPortEvents is the port of their events; 0 is none. Rank n has the nth port
	// after it.
	PodsPortEvents int `name:"pods-port-events" default:"0" min:"0" max:"65535"`
	// PodsPortReplay is the port of their replay sockets; 0 is none.
	PodsPortReplay int `name:"pods-port-replay" default:"0" min:"0" max:"65535"`
	// PodsRanks is the number of data-parallel ranks that they have.
	PodsRanks int `name:"pods-ranks" default:"1" min:"1" max:"1024"`

	// SnapshotFile is the file that keeps the index in memory over a restart; with
	// a name that ends with .gz it is compressed. Its folder must be there. Empty
	// keeps nothing.
	SnapshotFile string `name:"snapshot-file" section:"Snapshots of the index in memory"`
	// SnapshotChanges is the number of blocks that must have changed since the last
	// snapshot before a new one is written. One is written at the end, too, if
	// anything has changed.
	SnapshotChanges int `name:"snapshot-changes" default:"10000" min:"1" max:"1000000000"`
	// SnapshotInterval is how often to look whether that many have.
	SnapshotInterval time.Duration `name:"snapshot-interval" default:"1m" min:"10ms" max:"24h"`
	// SnapshotMaxAge is how old a snapshot may be to be loaded; an older one is put
	// aside. 0 is any age.
	SnapshotMaxAge time.Duration `name:"snapshot-max-age" default:"0s" min:"0s" max:"8760h"`

	// LMCacheModels are the ways in which engines of models run LMCache, as
	// MODEL?version=0.5.6&seed=0; all parameters are in docs/lmcache.md. What LMCache
	// holds of these models counts in their scores.
	LMCacheModels LMCacheModels `name:"lmcache-models" section:"LMCache"`
	// LMCache says which entries of LMCache in the Redis of the index are read: auto
	// those that a model's version of LMCache writes, set its strings, hset the fork's
	// hashes; off counts nothing of LMCache, be it in the index.
	LMCache string `name:"lmcache" default:"auto" oneof:"auto,off,set,hset"`
	// LMCacheMaxAge is how old an entry of LMCache may be that says when it was
	// written, as the fork's do; 0 is any age.
	LMCacheMaxAge time.Duration `name:"lmcache-max-age" default:"24h" min:"0s" max:"8760h"`
	// LMCacheControllerPull is the endpoint where LMCache's workers say what they hold,
	// as tcp://*:8300: their controller_pull_url. Empty is none.
	LMCacheControllerPull string `name:"lmcache-controller-pull"`
	// LMCacheControllerReply is the endpoint of their controller_reply_url, as
	// tcp://*:8400, which workers from 0.3.10 on need.
	LMCacheControllerReply string `name:"lmcache-controller-reply"`
	// LMCacheControllerHeartbeat is the endpoint of their heartbeats, as tcp://*:8401.
	// They are told of it when they register, and what they are asked for is asked there.
	LMCacheControllerHeartbeat string `name:"lmcache-controller-heartbeat"`
	// LMCacheControllerHeartbeatURL is the host:port that they are told. Empty is the
	// address at which they have reached this process.
	LMCacheControllerHeartbeatURL string `name:"lmcache-controller-heartbeat-url"`
	// LMCacheCoordinatorListen is the address, host:port, where servers of LMCache's MP
	// mode report: their --coordinator-url. Empty is none.
	LMCacheCoordinatorListen string `name:"lmcache-coordinator-listen"`
	// LMCacheInstances are the pods of LMCache's instances, as instance=pod or
	// instance=pod#rank. Of others it is the pod of that name, or the only one at
	// their IP.
	LMCacheInstances Names `name:"lmcache-instances"`
	// LMCachePodsModel is the model of the pods that are looked for so. Empty is any.
	LMCachePodsModel string `name:"lmcache-pods-model"`
	// LMCacheWorkers is how many workers each instance has at least: a chunk counts when
	// all have it, and until the last has registered there seem to be fewer.
	LMCacheWorkers int `name:"lmcache-workers" default:"1" min:"1" max:"1024"`
	// LMCacheLease is how long a worker keeps its blocks that is not heard any more.
	LMCacheLease time.Duration `name:"lmcache-lease" default:"30s" min:"100ms" max:"24h"`
	// LMCacheSyncWait is how long what may be false counts while a full sync of the
	// worker is awaited.
	LMCacheSyncWait time.Duration `name:"lmcache-sync-wait" default:"2m" min:"10ms" max:"24h"`
	// LMCacheMaxWorkers is the number of workers, and of instances of MP mode, that are
	// heard at a time, and of workers that the index may have, whoever hears them: each is a
	// registration, of which there are index-max-pods.
	LMCacheMaxWorkers int `name:"lmcache-max-workers" default:"4096" min:"1" max:"1048576"`
	// LMCacheQueueKeys is the number of chunks that may wait to be written, of all
	// workers; what finds no room is dropped, and asked for again.
	LMCacheQueueKeys int `name:"lmcache-queue-keys" default:"1000000" min:"1" max:"1073741824"`
	// LMCacheSyncKeys is the number of chunks of all full syncs at a time, of about 50
	// bytes each.
	LMCacheSyncKeys int `name:"lmcache-sync-keys" default:"4000000" min:"1" max:"1073741824"`
	// LMCacheMaxMessage is the longest message of a worker.
	LMCacheMaxMessage Bytes `name:"lmcache-max-message" default:"4MiB" min:"1KiB" max:"1GiB"`
	// LMCacheMaxBody is the longest body of a report in MP mode.
	LMCacheMaxBody Bytes `name:"lmcache-max-body" default:"64MiB" min:"1KiB" max:"1GiB"`
	// LMCacheWrite says in which of LMCache's shapes what the controller and the
	// coordinator are told is written into the Redis of the index as well, for tools that
	// read it: set is its strings, hset the fork's hashes.
	LMCacheWrite string `name:"lmcache-write" default:"off" oneof:"off,set,hset,both"`
	// LMCacheWriteTTL is how long such an entry lives that nobody renews.
	LMCacheWriteTTL time.Duration `name:"lmcache-write-ttl" default:"1m" min:"1s" max:"24h"`
	// LMCacheWriteEntries is the number of them at a time, of about 1 KB each in this
	// process; what is beyond is not written.
	LMCacheWriteEntries int `name:"lmcache-write-entries" default:"262144" min:"1" max:"100000000"`

	// Strategy says how held blocks become a score where a request does not.
	Strategy string `name:"strategy" default:"longest_prefix" oneof:"longest_prefix,highest_block,coverage" section:"Scoring"`
	// TierWeights are what a block counts by the best tier that holds it, each
	// within 0 and 1000, as gpu=1,cpu=0.8; tiers left out keep their default.
	TierWeights Weights `name:"tier-weights" default:"gpu=1,cpu=0.8,disk=0.5,shared=0.3"`
	// ScoreBudget is how long the index may take before an answer is given
	// without the rest, marked as degraded.
	ScoreBudget time.Duration `name:"score-budget" default:"50ms" min:"1ms" max:"1m"`
	// UsageWindow is the time over which uses of a block are counted for the
	// frequencies in an answer. 0 does not count.
	UsageWindow time.Duration `name:"usage-window" default:"0s" min:"0s" max:"720h"`
	// UsageBlocks is the number of blocks whose uses are counted, of about 200
	// bytes each.
	UsageBlocks int `name:"usage-blocks" default:"100000" min:"16" max:"100000000"`

	// Tokenizers is the directory of tokenizers, <org>/<model>/tokenizer.json
	// below it (or tiktoken.model, qwen.tiktoken). Models that are not there come from the hub.
	Tokenizers string `name:"tokenizers" section:"Tokenization"`
	// HubEndpoint is the URL of the hub that tokenizers are fetched from.
	HubEndpoint string `name:"hub-endpoint" alias:"HF_ENDPOINT" default:"https://huggingface.co"`
	// HubToken is the access token for the hub. A variable or the file keeps
	// it out of the list of processes.
	HubToken Secret `name:"hub-token" alias:"HF_TOKEN"`
	// HubRevision is the branch, tag or commit of the hub's models.
	HubRevision string `name:"hub-revision" default:"main"`
	// HubCache is the directory that keeps what was fetched. Empty is
	// kvatlas/tokenizers below the user's cache directory.
	HubCache string `name:"hub-cache"`
	// HubOffline never asks the hub. What was fetched before is used.
	HubOffline bool `name:"hub-offline" alias:"HF_HUB_OFFLINE" default:"false"`
	// TokenizerWorkers is the number of texts tokenized at a time. 0 is one
	// for each CPU.
	TokenizerWorkers int `name:"tokenizer-workers" default:"0" min:"0" max:"1024"`
	// TokenizerQueue is the number of texts that may wait for a worker;
	// beyond it answers are degraded or 503.
	TokenizerQueue int `name:"tokenizer-queue" default:"1024" min:"1" max:"1000000"`
	// TokenizerQueueBytes is the size of all texts that wait or are worked on.
	TokenizerQueueBytes Bytes `name:"tokenizer-queue-bytes" default:"64MiB" min:"1KiB" max:"1TiB"`
	// TokenizerBudget is how long a request waits for its tokens where it does
	// not say; the answer then covers the part that is known.
	TokenizerBudget time.Duration `name:"tokenizer-budget" default:"50ms" min:"1us" max:"1m"`
	// TokenizersLoaded is the number of tokenizers in memory at most, of 13 to
	// 300 MB each.
	TokenizersLoaded int `name:"tokenizers-loaded" default:"8" min:"1" max:"1024"`
	// TokenizerPins are what the tokenizers of single models must be, as
	// MODEL=sha256:DIGITS of the tokenizer's file or MODEL=REVISION of the hub, with
	// commas. A model whose files are others is refused.
	TokenizerPins Names `name:"tokenizer-pins"`
	// Preload is the list of models, with commas, whose tokenizers are loaded
	// before /readyz says ready. Others are loaded by the first text, which takes
	// seconds.
	Preload Names `name:"preload"`
	// MaxPromptBytes is the longest text that is tokenized. A mebibyte takes
	// about 0.7 s, and 150 to 350 MiB of memory at worst.
	MaxPromptBytes Bytes `name:"max-prompt-bytes" default:"1MiB" min:"1KiB" max:"32MiB"`
	// PrefixCache is the kind of store that remembers the tokens of texts: lru
	// by chunks, trie by bytes, or none.
	PrefixCache string `name:"prefix-cache" default:"lru" oneof:"lru,trie,none"`
	// PrefixCacheBytes is the memory of that store.
	PrefixCacheBytes Bytes `name:"prefix-cache-bytes" default:"256MiB" min:"1MiB" max:"1TiB"`
	// PieceCacheBytes is the memory for the tokens of pieces of texts. With them a
	// chat's next turn costs what is new in it. 0 keeps none.
	PieceCacheBytes Bytes `name:"piece-cache-bytes" default:"64MiB" min:"0" max:"1TiB"`
	// PieceSecret shares them with all servers that have the same one, through Redis
	// and sealed under it, so that none tokenizes what another has. At least 16
	// bytes; empty shares nothing. A variable or the file keeps it out of the list
	// of processes.
	PieceSecret Secret `name:"piece-secret"`
	// PieceTTL is how long Redis keeps a shared piece.
	PieceTTL time.Duration `name:"piece-ttl" default:"24h" min:"1s" max:"8760h"`
	// PieceTimeout is how long a text waits for shared pieces before it is
	// tokenized.
	PieceTimeout time.Duration `name:"piece-timeout" default:"20ms" min:"1us" max:"10s"`

	// ChatEngine is the engine whose way of preparing messages for their template
	// is followed.
	ChatEngine string `name:"chat-engine" default:"vllm" oneof:"vllm,transformers" section:"Chats"`
	// ChatRebuildTools gives tools and tool calls the form in which vLLM's server
	// passes them on, for clients that send another one.
	ChatRebuildTools bool `name:"chat-rebuild-tools" default:"false"`
	// ChatKwargs is a JSON object of variables for chat templates, which those of
	// a request go before (vLLM's --default-chat-template-kwargs).
	ChatKwargs string `name:"chat-kwargs"`
	// ChatOwnTemplatesOnly refuses chats that bring a template of their own.
	ChatOwnTemplatesOnly bool `name:"chat-own-templates-only" default:"false"`

	// LogLevel is the least important kind of line that is written.
	LogLevel string `name:"log-level" default:"info" oneof:"debug,info,warn,error" section:"Log"`
	// LogFormat is json for machines or console for people.
	LogFormat string `name:"log-format" default:"json" oneof:"json,console"`
}

// validate checks the form of texts and the rules between settings. Each
// setting has passed its own limits when it is called.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	errs = append(errs, checkAddress("listen", c.Listen))
	if c.AdminListen != "" {
		errs = append(errs, checkAddress("admin-listen", c.AdminListen))
		if c.AdminListen == c.Listen && !strings.HasSuffix(c.Listen, ":0") {
			bad("admin-listen: it is the same address as listen (%s); leave it out to serve both on one", c.Listen)
		}
	}
	if c.Redis != "" {
		if err := redis.CheckURL(string(c.Redis)); err != nil {
			bad("redis: %s", strings.TrimPrefix(err.Error(), "redis: "))
		}
	}
	if !redisPrefix.MatchString(c.RedisPrefix) {
		bad("redis-prefix: %q must be 1 to 32 letters, digits and the characters _ . : -", c.RedisPrefix)
	}
	if c.StrictReady && c.Redis == "" {
		bad("strict-ready: it is about Redis, and redis is not set")
	}
	if c.Replica && c.Redis == "" {
		bad("replica: it is a copy of the index in Redis, and redis is not set")
	}
	if c.ReplicaMaxStale < c.ReplicaMaxLag {
		bad("replica-max-stale: %v is less than replica-max-lag (%v)", c.ReplicaMaxStale, c.ReplicaMaxLag)
	}
	if n := c.ReplicaLogEntries; n != 0 && n < redis.MinLogEntries {
		bad("replica-log-entries: %d is too short, give 0 or at least %d", n, redis.MinLogEntries)
	}
	errs = append(errs, c.validatePods(), c.validateLMCache(), c.validateFeed())
	if c.SnapshotFile != "" && c.Redis != "" {
		bad("snapshot-file: it is for the index in memory, and redis is set: Redis keeps the index itself, and kvatlas dump makes backups")
	}
	if c.RequestTimeout >= c.WriteTimeout {
		bad("write-timeout: %v must be longer than request-timeout (%v), which is a part of it", c.WriteTimeout, c.RequestTimeout)
	}
	if c.ScoreBudget+c.TokenizerBudget >= c.RequestTimeout {
		bad("request-timeout: %v leaves no time for tokenizer-budget (%v) and score-budget (%v)", c.RequestTimeout, c.TokenizerBudget, c.ScoreBudget)
	}
	if c.MaxInFlightBytes < c.MaxBodyBytes {
		bad("max-in-flight-bytes: %v is less than max-body-bytes (%v): such a body could never be read", c.MaxInFlightBytes, c.MaxBodyBytes)
	}
	if c.MaxPromptBytes > c.MaxBodyBytes {
		bad("max-prompt-bytes: %v is more than max-body-bytes (%v): such a prompt could never be sent", c.MaxPromptBytes, c.MaxBodyBytes)
	}
	if c.UsageWindow != 0 && c.UsageWindow < time.Second {
		bad("usage-window: %v is too short, give 0 or at least 1s", c.UsageWindow)
	}
	switch {
	case c.PieceSecret == "":
	case len(c.PieceSecret) < tokenpool.MinSharedSecret:
		bad("piece-secret: it has %d bytes, it needs at least %d", len(c.PieceSecret), tokenpool.MinSharedSecret)
	case c.Redis == "":
		bad("piece-secret: pieces are shared through Redis, and redis is not set")
	case c.PieceCacheBytes == 0:
		bad("piece-secret: there are no pieces to share with piece-cache-bytes 0")
	}
	if c.IngestQueueBytes < c.IngestRankQueueBytes {
		bad("ingest-queue-bytes: %v is less than ingest-rank-queue-bytes (%v), which is a part of it", c.IngestQueueBytes, c.IngestRankQueueBytes)
	}
	if (c.IngestCurveKeys == "") != (c.IngestCurveServer == "") {
		bad("ingest-curve-keys and ingest-curve-server go together")
	}
	if w := (fleet.Wiring{Topic: c.IngestTopic, Bind: c.IngestBind}); w.Validate() != nil {
		bad("ingest-topic, ingest-bind: %s", strings.TrimPrefix(w.Validate().Error(), "fleet: invalid config: "))
	}
	errs = append(errs, checkHub(c.HubEndpoint))
	if _, err := chat.NewRenderer(chat.Files{}, chat.Options{DefaultKwargs: []byte(c.ChatKwargs)}); err != nil {
		bad("chat-kwargs: %q is no JSON object of variables: %v", c.ChatKwargs, err)
	}
	if _, err := tokenpool.ParsePins(c.TokenizerPins); err != nil {
		bad("tokenizer-pins: %s", err)
	}
	if c.HubRevision == "" {
		bad("hub-revision: it is empty; the usual one is main")
	}
	if c.TokenizerQueueBytes < c.MaxPromptBytes {
		bad("tokenizer-queue-bytes: %v is less than max-prompt-bytes (%v): such a prompt could never be tokenized", c.TokenizerQueueBytes, c.MaxPromptBytes)
	}
	return errors.Join(errs...)
}

func checkAddress(setting, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: %q is no address host:port, such as 127.0.0.1:8080 or :8080", setting, address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s: port %q of %q is no number within 0 and 65535", setting, port, address)
	}
	return nil
}

var redisPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,32}$`)

func checkHub(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return fmt.Errorf("hub-endpoint: %q is no URL, such as https://huggingface.co", SecretURL(raw))
	case u.User != nil:
		return errors.New("hub-endpoint: it has a user in it; give the access token as hub-token")
	}
	return nil
}
