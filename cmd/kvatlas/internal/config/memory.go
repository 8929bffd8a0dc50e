package config

// MemoryBounds are the bytes that the limits let this process take at most: of Go's heap,
// without what the collector has not collected yet, and of the tokenizers' library beside it.
// Loaded tokenizers, some 90 MiB each, and what the process is made of come on top.
func (c *Config) MemoryBounds() (heap, native int64) {
	heap = int64(c.MaxInFlightBytes + c.PrefixCacheBytes + c.PieceCacheBytes)
	if c.TokenizerFast {
		heap += int64(c.TokenizersLoaded) * fastTokenizerBytes
	}
	switch {
	case c.Redis == "":
		heap += int64(c.IndexMaxBytes)
	case c.Replica:
		heap += int64(c.ReplicaMaxBytes)
	}
	if c.Roles.Has(RoleIngest) {
		heap += int64(c.IngestQueueBytes) + IngestReplays*int64(IngestReplayBytes)
		if c.Redis != "" {
			heap += int64(RedisMapCache)
		}
	}
	return heap, c.TokenizerWorkBytes()
}

// fastTokenizerBytes is what a fast tokenizer of 200,000 tokens takes: 15 MB of tables, and
// the words that eight texts at a time have left.
const fastTokenizerBytes = 26 << 20
