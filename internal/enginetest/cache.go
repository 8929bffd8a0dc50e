package enginetest

import (
	_ "embed"
	"encoding/binary"
	"strconv"
	"testing"
	"time"
)

//go:embed caches.py
var cachesScript string

//go:embed cache.py
var cacheScript string

// CacheOptions are those of a Cache.
type CacheOptions struct {
	// Release is whose code caches and publishes.
	Release Release
	// Endpoint and Replay are where it publishes; * as the host binds.
	Endpoint, Replay string
	// Seed determines the load, and with it all that happens.
	Seed uint64
	// Blocks is the size of the cache, in blocks (SGLang's pages) of BlockSize tokens.
	Blocks, BlockSize int
	// IndexBlock is the tokens of an index block, for Question.Whole.
	IndexBlock int
	// Window adds a group with a sliding window of this many tokens; 0 means none. vLLM
	// only.
	Window int
	// States adds a group with Mamba's states; vLLM only.
	States bool
	// Retention is what vLLM 0.33 keeps of windows and states: before each so many tokens,
	// 0 before the ends of prompts alone, -1 all.
	Retention int
	// LoRAs, Salts and Reports are the parts, 0 to 1, of conversations with an adapter
	// and with a salt, and of requests with vLLM's kv_cache_report_mode=full.
	LoRAs, Salts, Reports float64
	// ShortChunks has prompts begin with less than a block now and then, so that two
	// requests compute one prompt from its first block on.
	ShortChunks bool
}

// Cache is an engine's own cache that runs under a random load: conversations with
// shared beginnings, in chunks and concurrently, with evictions, preemptions and
// resets. Its events are published by the engine's own publisher. Its methods are for
// one goroutine.
type Cache struct{ *process }

// Question is a request that has come and of which nothing is computed yet.
type Question struct {
	Tokens     []uint32 `json:"-"`
	LoRA, Salt string
	// Held is how many leading tokens the cache has, Whole the most of them, in whole index
	// blocks, behind which it can go on. FirstGroup is what its first group has alone.
	Held, Whole int
	FirstGroup  int `json:"first_group"`
	// Doubted are the first tokens of blocks of Whole that have a doubtful copy. The event
	// that told of the copy may as well have been a report.
	Doubted []int
	// Published is how many messages have been published before.
	Published uint64
}

// StartCache runs a cache until the test ends.
func StartCache(tb testing.TB, o CacheOptions) *Cache {
	tb.Helper()
	args := []string{"--engine", o.Release.Engine, "--module", module(tb, o.Release), "--endpoint", o.Endpoint, "--replay=" + o.Replay}
	for _, a := range []struct {
		name  string
		value int
	}{{"--blocks", o.Blocks}, {"--block-size", o.BlockSize}, {"--window", o.Window}, {"--retention", o.Retention}, {"--index-block", o.IndexBlock}} {
		args = append(args, a.name, strconv.Itoa(a.value))
	}
	for _, a := range []struct {
		name  string
		value float64
	}{{"--loras", o.LoRAs}, {"--salts", o.Salts}, {"--reports", o.Reports}} {
		args = append(args, a.name, strconv.FormatFloat(a.value, 'g', -1, 64))
	}
	if o.States {
		args = append(args, "--states")
	}
	if o.ShortChunks {
		args = append(args, "--short-chunks")
	}
	args = append(args, "--seed", strconv.FormatUint(o.Seed, 10))
	return &Cache{startProcess(tb, o.Release.String(), loadScript+cachesScript+cacheScript, args)}
}

// Next plays on to the next request.
func (c *Cache) Next() Question {
	c.tb.Helper()
	var r struct {
		Question
		Packed []byte `json:"tokens"` // 32 bits each, the lowest byte first
	}
	c.ask(map[string]any{"op": "next"}, time.Minute, &r)
	for at := 0; at+4 <= len(r.Packed); at += 4 {
		r.Tokens = append(r.Tokens, binary.LittleEndian.Uint32(r.Packed[at:]))
	}
	return r.Question
}

// History returns what was published of the blocks of the last request's prompt. It has a
// line an event, and each block as the place of its first token.
func (c *Cache) History() []string {
	c.tb.Helper()
	var r struct{ Lines []string }
	c.ask(map[string]any{"op": "history"}, time.Minute, &r)
	return r.Lines
}
