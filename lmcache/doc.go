// Package lmcache knows the keys under which LMCache 0.1 to 0.5.6 files what it holds.
// It parses and builds every string form of them. It recomputes from tokens each hash
// of a chunk that a process other than the engine can recompute.
//
// # Keys
//
// A Key is LMCache's CacheEngineKey, an ObjectKey that of its multi-process (MP)
// mode, a ForkKey the key of the fork that llm-d v0.1 used. Parse tells which of
// them a string is:
//
//	vllm@model@world_size@worker_id@hash               Key up to 0.3.9
//	vllm@model@world_size@worker_id@hash@dtype         Key of 0.3.10 to 0.3.12
//	model@world_size@worker_id@hash@dtype              Key of 0.3.13 to 0.5.6
//	model@kv_rank@object_group@hash[@cache_salt]       ObjectKey, 0.4.7 to 0.5.6
//	model@hash                                         ForkKey
//
// The hash in a Key is 64 hex digits up to 0.3.2, a signed decimal number in 0.3.3 to 0.3.5,
// and a signed number in hex, not padded, from 0.3.6 on. Up to 0.4.5 it may also be bytes, 32
// or 64 hex digits. Those of the other two are bytes.
//
// A Key may go on with a layer's number and, from 0.3.4, with tags, "@name%value". Model names
// may have "/" and, but for ObjectKey, "@": keys are read from the right. Those of remote
// stores have "kv_bytes" or "metadata" behind them, without a separator.
//
// # Hashes
//
// A Config says what an engine is: version, algorithm, chunk size, seed and Python.
// New makes a Hasher of it, or says why its hashes cannot be known outside of the engine and what to set
// there. Such an error is an ErrUnknowable. Keys goes from tokens to the strings that a lookup has to
// read.
//
// The hash of a chunk is made of the hash before it and its tokens:
//
//	up to 0.3.2            SHA-256 of the hash before in hex, then the tokens as 32 bits
//	                       little-endian, in 0.1 as 64
//	builtin                Python's hash((before, tokens)) in 0.3.3, hash((before, tokens, None))
//	                       in 0.3.4 to 0.3.15, hash((before, tokens, ())) in 0.4.1 to 0.5.6
//	sha256_cbor,           SHA-256 or XXH3-128 of canonical CBOR: [before, tokens, null] in
//	xxhash_cbor            0.3.13 to 0.3.15 and MP mode, [before, tokens, []] from 0.4.1. From
//	                       0.4.6 its first 8 bytes as a number, also as the next chunk's before
//	sha256, xxhash         as these, of Python's pickle, 0.3.13 to 0.5.6
//	blake3                 MP mode: BLAKE3 of the hash before, then the tokens as 32 bits
//	                       big-endian
//
// Before the first chunk stands nothing (up to 0.3.2), 0 (without vLLM), the algorithm's hash
// of PYTHONHASHSEED (with vLLM), or a constant (blake3).
//
// A Profile adds what else stands in an engine's keys. A Reader has what a scorer must ask
// for of a model whose engines have some profiles. That is chunk keys in the index
// (Hash.ChunkKey), and entries that LMCache has written to Redis itself.
//
// # Guarantees
//
// Everything is a pure function of its arguments and does no I/O. What String makes,
// Parse reads as the same value, and the other way round. All of it is safe for
// concurrent use. testdata holds what LMCache's own code gave, of 22 versions.
package lmcache
