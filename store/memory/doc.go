// Package memory is the embedded block index: [store.Index] within one process,
// for one machine without Redis and as the disposable replica of a scorer.
//
// # What it guarantees
//
// Lookups take no lock, write no shared line and allocate nothing: they scale
// over cores and never wait for a writer. A write that has returned is seen by
// every lookup that begins after it. Writers of different shards do not meet.
// Retiring a pod and clearing a tier cost the same for one block and for a
// hundred million. Blocks, bytes, pods, holders and models have limits that
// [Config] sets; a full index evicts what nobody has added or looked up for the
// longest time.
//
// # How it is laid out
//
//	view ─► 256 shards ─► []bucket, 64 bytes each: one cache line, 5 blocks
//
//	bucket: meta u32 │ 5 refs u32: age·6 set·26 │ 5 keys u64
//	                              │
//	                              └─► sets: id ─► holder ids, ascending
//
// A block is 12 bytes: its key and a reference to the set of its holders. Sets
// are interned: all blocks that are held by the same holders share one, so that
// a lookup compares neighbours by one integer and hands a whole stretch of the
// chain to the folder at once. A lookup touches one cache line a block, and
// touches many of them before it reads the first, which overlaps the misses.
//
// # How readers stay right without locks
//
// Writers lock the shard. A block never moves within a table, a removal moves
// the bucket's version, and a slot is filled key last: so a reader who finds the
// key, reads the reference and finds the version as it was has the block's own
// reference (see table.go). Whatever would give old words a new meaning, a
// resized table or a freed set id, publishes a new view first; a reader who
// finds that the view has changed reads the blocks again that it has not yet
// told the folder (see lookup.go). Old tables and sets are the garbage
// collector's.
//
// # Lock order
//
// gate, then registry.mu or shard.mu, then sets.mu; viewMu is taken last. Nobody
// holds two shards.
package memory
