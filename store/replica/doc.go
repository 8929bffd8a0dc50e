// Package replica is a copy of the index in Redis in the memory of one process: an
// opt-in [store.Index] whose lookups take no round trip.
//
// # What it guarantees
//
// The copy is disposable. Truth is in Redis, and writes and the registry go there. The
// copy has a snapshot and all that the change log has had since (see changelog.Feed).
// Whatever goes wrong with that, an answer is one of these:
//
//   - from memory, at most Config.MaxLag old. It is what Redis would have answered
//     at a moment that long ago or later, dead holders included: the registry is
//     that of Redis, followed by its epoch.
//   - from Redis, as without a replica: before the first snapshot is complete, while
//     one has to be read again, while the log is off or the copy lags, and when the
//     index does not fit into Config.MaxBytes.
//   - from memory and older, for as long as Redis cannot be reached, up to
//     Config.MaxStale. Lookup then returns a [store.StaleError], which says how old.
//
// Replica.Status says which, and why; all of it recovers by itself.
//
// A holder whose life has ended counts for nothing from the moment the registry is
// known, a few milliseconds after its end. The copy itself knows no generations: it has
// the holders of blocks as Redis has them. So a registry that is set back, and in which
// holders live again, finds their blocks. They leave memory when Redis is swept.
//
// # How it is laid out
//
//	64 shards, one a partition ─► open addressing: key u64 │ set u32 │ round u32
//	sets: id ─► holder ids, ascending; equal ones are one
//
// Lookups take no lock and allocate nothing. A slot's key is written once and
// before its set, and a set is immutable. A counter tells when a set's number could
// mean another one. A writer holds one mutex, a few microseconds for each entry of
// the log. A block takes 20 to 32 bytes.
package replica
