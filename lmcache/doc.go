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
//	model@kv_rank@object_group@hash[@cache_salt]       ObjectKey
//	model@hash                                         ForkKey
//
// A Key may go on with a layer's number and with tags, "@name%value".
//
// # Hashes
//
// A Config says what an engine is: version, algorithm, chunk size, seed and Python.
// New makes a Hasher of it, or says why its hashes cannot be known outside of the engine and what to set
// there. Such an error is an ErrUnknowable. Keys goes from tokens to the strings that a lookup has to
// read.
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
