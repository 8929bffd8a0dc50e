package engine

import "github.com/kvatlas/kvatlas/ingest/event"

// cache is an engine's prefix cache, and the memory that its requests compute in.
type cache interface {
	// begin is told that an iteration begins.
	begin()
	// admit finds what can be reused of q, pins it and brings it up from below. It
	// sets q.computed to its length and q.hit to where it was. It returns false, and
	// has changed nothing, where all tokens of q and the blocks that it is to reserve
	// behind them have no room.
	admit(q *sequence, reserve int) bool
	// extend gives q room for its first n tokens. It returns false where there is none.
	extend(q *sequence, n int) bool
	// fill is told that the first q.computed tokens of q have been computed.
	fill(q *sequence)
	// release takes back what q has. ended is false for one that goes on later, or
	// never.
	release(q *sequence, ended bool)
	// clear empties the cache. It returns false where a request or a fault holds blocks.
	clear() bool
	// reusable is what would be reused of q, which was not admitted.
	reusable(q *sequence) Hit
	// occupy holds n blocks that no request uses, or as many as there are, and returns how
	// many it holds.
	occupy(n int) int
	// capacity is how many tokens of one request have room.
	capacity() int
	// usage counts the blocks.
	usage() Usage
}

// Usage counts an engine's blocks.
type Usage struct {
	// Total is how many the GPU has for requests, and Used those of them that requests, or
	// a fault, hold. Cached are those that are in the prefix cache, used or not. Idle are
	// those that are cached and that no request uses (of a tree; vLLM does not say).
	Total, Used, Cached, Idle int
	// Host and Disk are how many blocks are there, HostTotal and DiskTotal how many
	// have room.
	Host, HostTotal, Disk, DiskTotal int
	// Evicted counts the blocks that have left the GPU's cache since the engine began.
	Evicted uint64
}

// tell collects events. Sequences' hashes and tokens are only ever appended to, so that an
// event may share them.
type tell struct{ events []event.Event }

func (t *tell) add(e event.Event) { t.events = append(t.events, e) }

// removed reports blocks that are gone.
func (t *tell) removed(medium string, group int, hashes ...event.Hash) {
	t.add(event.Event{Kind: event.Removed, Hashes: hashes, Medium: medium, Group: group})
}

// ceil returns how many blocks of a size n tokens need.
func ceil(n, size int) int { return (n + size - 1) / size }

// mostReusable is how many blocks of q can be reused at the most: its last token is
// computed always.
func mostReusable(q *sequence, size int) int { return (len(q.tokens) - 1) / size }
