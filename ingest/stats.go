package ingest

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// Stats are figures of an Ingester.
type Stats struct {
	// Ranks are those that are read, ascending by pod and rank.
	Ranks []RankStats
	// QueueBytes is what waits in the queues of all.
	QueueBytes int64
	// Pushers is the number of ranks that push and of which state is kept.
	Pushers int
}

// RankStats are figures of one rank since Read began.
type RankStats struct {
	Pod, Model string
	Rank       int
	// Generation is the present one, 0 when there is none yet; Next is the engine's
	// sequence that comes next.
	Generation store.Generation
	Next       uint64
	// Connected says that the publisher is; Connections counts how often it was.
	Connected   bool
	Connections uint64
	// Messages counts those that were followed, and Events those that are in the index, by
	// kind. Undecodable counts those that were left out because they could not be
	// understood.
	Messages    uint64
	Events      [event.NumKinds]uint64
	Undecodable uint64
	// Gaps, Replays, Failures and Generations count what Observer gets.
	Gaps, Replays, Failures, Generations uint64
	// Begun are the generations by reason. Doubts counts how often the replay began to
	// contradict the live stream.
	Begun  [NumReasons]uint64
	Doubts uint64
	// Paused says that the connection is not read because the queue is full; Pauses counts
	// how often it was.
	Paused bool
	Pauses uint64
	// QueueMessages and QueueBytes are what waits.
	QueueMessages int
	QueueBytes    int64
	// Lag is how old the newest event was when it had been applied. It is 0 while none has
	// told a time that can be (from 2020 on).
	Lag time.Duration
	// LastMessage is when the last message came, zero for never. A rank that is
	// connected, whose engine works, and that has sent nothing for long publishes
	// nothing: its engine is not configured to.
	LastMessage time.Time
	// FirstBlock is when the first block was indexed, zero for never.
	FirstBlock time.Time
	// LastMatch is when Matched last got the pod, zero for never. Where Events
	// grow and this does not, keys are not computed as they are asked for: see
	// Unmatched.
	LastMatch time.Time
	// LastAsked is when Asked last got the model, zero for never, as in a process
	// that does not score.
	LastAsked time.Time
	// Blocks are figures of the blocks that the present generation has named, Skipped
	// those that were not indexed, by reason, since Read began.
	Blocks  rechunk.Stats
	Skipped [rechunk.NumReasons]uint64
}

// Unmatched reports whether blocks were indexed that long before a lookup of their model,
// and none has matched one since.
func (s *RankStats) Unmatched(long time.Duration) bool {
	return !s.FirstBlock.IsZero() && s.LastAsked.Sub(s.FirstBlock) >= long && s.LastMatch.Before(s.FirstBlock)
}

// counters are the figures of a rank that is read.
type counters struct {
	connections, messages, undecodable   atomic.Uint64
	gaps, replays, failures, generations atomic.Uint64
	doubts                               atomic.Uint64
	begun                                [NumReasons]atomic.Uint64
	lag, lastMessage                     atomic.Int64 // nanoseconds; of 1970

	mu     sync.Mutex // protects all below
	gen    store.Generation
	next   uint64
	events [event.NumKinds]uint64
	blocks rechunk.Stats
	// skipped are those of the Chunkers before the present one.
	skipped [rechunk.NumReasons]uint64
	first   time.Time // when the first block was indexed
}

// rechunked notes that another Chunker takes over.
func (c *counters) rechunked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range c.blocks.Skipped {
		c.skipped[i] += n
	}
	c.blocks = rechunk.Stats{}
}

func (c *counters) generation(gen store.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen = gen
}

func (c *counters) accepted(seq uint64) {
	c.messages.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = seq + 1
}

func (c *counters) applied(w *window, blocks rechunk.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range w.kinds {
		c.events[i] += uint64(n)
	}
	c.blocks = blocks
	if blocks.IndexAdded > 0 && c.first.IsZero() {
		c.first = time.Now()
	}
}

// stats returns the figures of a reader.
func (r *reader) stats() RankStats {
	c := &r.count
	s := RankStats{
		Pod: r.s.Pod, Model: r.s.Model, Rank: r.s.Rank,
		Connections: c.connections.Load(), Messages: c.messages.Load(), Undecodable: c.undecodable.Load(),
		Gaps: c.gaps.Load(), Replays: c.replays.Load(), Failures: c.failures.Load(), Generations: c.generations.Load(),
		Lag: time.Duration(c.lag.Load()),
	}
	s.Doubts = c.doubts.Load()
	for i := range c.begun {
		s.Begun[i] = c.begun[i].Load()
	}
	if t := c.lastMessage.Load(); t != 0 {
		s.LastMessage = time.Unix(0, t)
	}
	s.QueueMessages, s.QueueBytes = r.q.depth()
	s.Paused, s.Pauses = r.q.pausing()
	_, s.Connected = r.q.connection()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range c.skipped {
		s.Skipped[i] = n + c.blocks.Skipped[i]
	}
	s.Generation, s.Next, s.Events, s.Blocks, s.FirstBlock = c.gen, c.next, c.events, c.blocks, c.first
	return s
}

// Stats returns figures.
func (in *Ingester) Stats() Stats {
	in.mu.Lock()
	readers := make([]*reader, 0, len(in.readers))
	for _, r := range in.readers {
		readers = append(readers, r)
	}
	in.mu.Unlock()
	s := Stats{QueueBytes: in.queues.bytes(), Pushers: in.pushers.len()}
	for _, r := range readers {
		rs := r.stats()
		rs.LastMatch, rs.LastAsked = stamped(&in.matched, rs.Pod), stamped(&in.asked, r.s.Model)
		s.Ranks = append(s.Ranks, rs)
	}
	slices.SortFunc(s.Ranks, func(a, b RankStats) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank)) })
	return s
}
