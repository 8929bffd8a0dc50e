// Package redis is the block index in Redis: the implementation of
// [store.Index] that any number of processes share.
//
// Truth lives in Redis alone. An Index keeps only what it can read again. That
// is the registry of pods and holders, which an epoch brings up to date that
// each lookup reads along with its blocks. It is also the holder ids that it
// writes under, which the server checks in the call that writes them. So a pod
// that dies, restarts or is cleared anywhere is gone from the next lookup
// everywhere. The cost does not depend on how many blocks it held.
//
// Engines that know nothing of ids may write addresses of pods as values; they
// age, and are never credited to a pod's next life. See Config.TextAge.
//
// What the keys and values are, and how any program may read and write them,
// is docs/redis-schema.md.
//
// All methods of Index are safe for concurrent use. Open does not need the
// server to be up: calls fail with [store.ErrUnavailable] until it is, and
// recover by themselves. Every call ends at its context's deadline, whatever the
// server does. That a context is cancelled is noticed between round trips, of
// which each is bounded by Config.Timeout too.
package redis
