package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Limits that nobody has a reason to set. The reason of each stands in removed, with its
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

	// UsageBlocks is the number of blocks whose uses are counted, of about 200 bytes each.
	UsageBlocks = 100_000
	// bytesPerQueued is the memory of max-in-flight-bytes that each byte of a queued text
	// has taken; see Config.TokenizerQueueBytes.
	bytesPerQueued = 4
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

// TokenizerQueueBytes is the size of all texts that wait for a tokenizer or are worked on.
func (c *Config) TokenizerQueueBytes() int64 {
	return max(int64(c.MaxInFlightBytes)/bytesPerQueued, int64(c.MaxPromptBytes))
}

// PieceTimeout is how long a text waits for shared pieces before it is tokenized.
func (c *Config) PieceTimeout() time.Duration {
	return min(max(c.TokenizerBudget*2/5, time.Microsecond), maxPieceTimeout)
}

// removedSetting is a limit that could be set once.
type removedSetting struct {
	name string
	is   any    // the value, or a text that says what it follows from
	why  string // nobody has to set it
}

// removed are refused wherever a setting can stand, with a sentence that says so.
var removed = []removedSetting{
	{"read-header-timeout", ReadHeaderTimeout, "a header is a packet or two, and who sends it slower only holds a connection"},
	{"write-timeout", "request-timeout and " + formatDuration(writeGrace), "an answer is made within request-timeout, and the rest is enough to receive it"},
	{"max-header-bytes", MaxHeaderBytes, "gateways pass on no larger one unless they are told to"},
	{"max-block-keys", fmt.Sprintf("one for each %d tokens of max-tokens", tokensPerKey), "a prompt of max-tokens has fewer, unless its blocks are smaller than any engine's default"},
	{"max-prompts", MaxPrompts, "a scheduler asks for one prompt; a batch of more can be several requests"},
	{"max-pods", fmt.Sprintf("index-max-pods, %d at most", maxPodsNamed), "a request may name every pod that can be registered"},
	{"max-objects", MaxObjects, "engines allow fewer in a prompt by default"},
	{"max-chat-items", MaxChatItems, "to prepare them takes 1.3 s, and no context has room for more messages"},
	{"max-chat-values", MaxChatValues, "they take 160 MiB of max-in-flight-bytes"},
	{"max-streams", MaxStreams, "each dump, restore or reset goes over the whole index, and more at a time are slower together"},
	{"max-relay-bytes", MaxRelayBytes, "an answer that is cut says where to go on"},
	{"stream-stall", StreamStall, "a client that is gone must not hold one of the places for dumps and restores"},
	{"usage-blocks", UsageBlocks, "they take 20 MB, and blocks that are used less often are seldom asked for"},
	{"tokenizer-queue", "max-in-flight", "each request in flight may wait for a tokenizer"},
	{"tokenizer-queue-bytes", fmt.Sprintf("1/%d of max-in-flight-bytes, and at least max-prompt-bytes", bytesPerQueued), "a request in flight has that much of its memory for its text"},
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
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// settingOf is the setting of an environment variable.
func settingOf(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, EnvPrefix), "_", "-"))
}
