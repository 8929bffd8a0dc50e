// Package ingest keeps an index true to what engines say of their caches.
//
// An [Ingester] reads the event streams of ranks and writes what they change to one
// [store.Index]. There is one [Ingester.Read] for each (pod, rank) that this
// process holds the fence of. What it guarantees of each stream:
//
//   - Events are applied in their order, each once. A number that is missing is
//     asked for again at the engine's replay socket, from the first hole, and what
//     comes back is checked in the same way: that the engine says it is done proves
//     nothing.
//   - What cannot be got again ends the generation: all of its blocks are gone from
//     the index in one step, and a new one begins with what the engine tells from
//     there on. So the index holds what a plain model of the events since the
//     generation's first holds, or less while it is behind. Observer.Begun says it.
//   - A process that was restarted behind the same address is noticed, whatever its
//     numbers are: after each connection the last message that was applied is asked
//     for again, and its bytes must be the same.
//   - The number that is applied stands in the index, with the blocks. Another
//     process that takes the rank over goes on from there.
//   - It never holds an engine up, and drops nothing. Queues are bounded, by rank and in
//     all; while one is full, its connection is not read. What an engine then drops,
//     because its own queue is full, is a gap like any other.
//
// Engines that push over HTTP come in by [Ingester.Push]. The last messages of each
// rank can be asked for by [Ingester.Recent].
//
// An Ingester and all of its methods are safe for concurrent use.
package ingest
