// Package memory is the embedded block index: [store.Index] within one process,
// for one machine without Redis and as the disposable replica of a scorer.
//
// # What it guarantees
//
// Lookups take no lock, write no shared line and allocate nothing: they scale
// over cores and never wait for a writer. (Nearly full, they note the age of
// what they find, each block once an age.) A write that has returned is seen by
// every lookup that begins after it. Writers of different blocks hardly meet.
// Retiring a pod and clearing a tier cost the same for one block and for a
// hundred million. Blocks, bytes, pods, holders and models have limits that
// [Config] sets. A full index evicts what was not added or looked up for the
// longest time. Memory follows what lives: what is dead goes within moments,
// also without further writes.
//
// # How it is laid out
//
//	256 shards ─► table: buckets of 64 bytes, 7 entries each: tag u32 │ position u32
//	                                                                       │
//	log of chunks, 126 blocks each  ◄──────────────────────────────────────┘
//	  keys  u64 │ u64 │ u64 │ ...     in the order in which they were added
//	  refs  u32 │ u32 │ u32 │ ...     age·6 set·26
//	                     │
//	  sets: id ─► holder ids, ascending
//
// The blocks of a chain come together, in one event or in one after the other,
// and so lie together in the log. A lookup seeks the first block by the table,
// and then reads on in the log for as long as the chain does. These are two
// streams that the hardware fetches ahead, where a table of blocks would cost a
// cache miss a block. Where the chain goes on elsewhere, it seeks anew. When
// that happens at every block, it looks for up to 32 of them at once, so that
// their misses overlap.
//
// Sets of holders are interned: all blocks that are held by the same holders share
// one. So a lookup compares neighbours by one integer and hands a whole stretch of
// the chain to the folder at once.
//
// A block takes 12 bytes in the log and 11 to 23 in its table, up to 27 when
// others have gone.
//
// # How readers stay right without locks
//
// A change of a block holds the lock of its shard. The log is the truth and the
// tables only lead there. A slot is filled once, its key never changes, and a ref
// of 0 says that the block is not, or not any more, there. Writers keep to an
// order (see Index.seek). By it a reader that is led to a dead slot finds the
// right place when it looks again. So tables can be resized, blocks moved and
// chunk ids used again while lookups go on. Only a set's id could come to mean
// other holders. Frees of sets are rare, and a lookup that meets one reads its run
// again (see Index.walk). Old tables, chunks and sets are the garbage collector's.
//
// # Lock order
//
// life.mu or janitor.mu, then gate, then registry.mu or lane.mu, then shard.mu, then sets.mu
// or blockLog.mu. No goroutine holds two shards or two lanes.
package memory
