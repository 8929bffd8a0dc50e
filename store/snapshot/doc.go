// Package snapshot writes all that a block index holds as lines of JSON, and
// reads that back into the same or another index. It keeps such a file up to
// date for an index in memory.
//
// docs/snapshots.md is the format, line by line, for programs in any language.
//
// It guarantees:
//
//   - A dump takes memory for one page, whatever the size of the index, and locks
//     nothing for longer than a page's part of it. What a pod holds from the
//     dump's beginning to its end is in it; what comes or goes meanwhile may be.
//     A page has no holder whose life was over when it was read.
//   - A dump that was cut off is noticed, at the latest at its end, and can be
//     gone on with behind its last whole page.
//   - A dump that was changed on its way is noticed before any block of the
//     changed page is loaded.
//   - To restore is to add: nothing is credited that the dump does not say, and
//     to do it twice is the same as once. What is cut off or refused half way
//     leaves only missing credit.
//   - Reading is bounded: by the longest line, by the blocks of a page, and by
//     the pods and holders that the index accepts.
//
// Dump, Restore, Reset and Verify may run at the same time, on the same index. A
// Reader belongs to one goroutine, a Keeper is safe for concurrent use.
package snapshot
