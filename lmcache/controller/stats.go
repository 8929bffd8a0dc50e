package controller

import "sync/atomic"

// Stats are figures for metrics. Those without another word count since the start.
type Stats struct {
	// Workers is how many workers there are now, and Unmapped how many of them have no pod, or no room in the
	// index. Syncing is how many are in a full sync, and Peers how many connections there are.
	Workers, Unmapped, Syncing, Peers int
	// QueueKeys is how many keys wait to be written now, SyncKeys how many are gathered.
	QueueKeys, SyncKeys int64
	// Messages counts those that were understood, Malformed frames that were not. Refused
	// counts messages that asked for something that does not exist, or went beyond a limit.
	Messages, Malformed, Refused uint64
	// Stale counts messages that did not count: on connections that have spoken for a worker
	// before it registered on another one.
	Stale uint64
	// Admitted and Evicted count keys.
	Admitted, Evicted uint64
	// Unknown counts operations in locations of unknown tier, Unplaced those of
	// workers without a pod, and Dropped those that found no room.
	Unknown, Unplaced, Dropped uint64
	// Gaps counts holes in the numbers of operations, Cleared the tiers that lost their
	// credit because something may have been missed.
	Gaps, Cleared uint64
	// Asked counts requests for full syncs, Synced those that were written, Unsynced
	// those that ended otherwise.
	Asked, Synced, Unsynced uint64
	// Began counts lives, TookOver generations that another process had written, and Fenced those that
	// another one has taken from this one. Lapsed counts workers that fell silent, and Failures calls of the
	// index that failed.
	Began, TookOver, Fenced, Lapsed, Failures uint64
}

// counters are what Stats is read from.
type counters struct {
	queueKeys, syncKeys          atomic.Int64
	messages, malformed, refused atomic.Uint64
	stale                        atomic.Uint64
	admitted, evicted            atomic.Uint64
	unknown, unplaced, dropped   atomic.Uint64
	gaps, cleared                atomic.Uint64
	asked, synced, unsynced      atomic.Uint64
	began, tookOver, fenced      atomic.Uint64
	lapsed, failures             atomic.Uint64
}

// Stats returns figures as of now.
func (c *Controller) Stats() Stats {
	n := &c.count
	s := Stats{
		QueueKeys: n.queueKeys.Load(), SyncKeys: n.syncKeys.Load(),
		Messages: n.messages.Load(), Malformed: n.malformed.Load(), Refused: n.refused.Load(), Stale: n.stale.Load(),
		Admitted: n.admitted.Load(), Evicted: n.evicted.Load(),
		Unknown: n.unknown.Load(), Unplaced: n.unplaced.Load(), Dropped: n.dropped.Load(),
		Gaps: n.gaps.Load(), Cleared: n.cleared.Load(),
		Asked: n.asked.Load(), Synced: n.synced.Load(), Unsynced: n.unsynced.Load(),
		Began: n.began.Load(), TookOver: n.tookOver.Load(), Fenced: n.fenced.Load(), Lapsed: n.lapsed.Load(), Failures: n.failures.Load(),
	}
	for _, l := range c.sockets {
		s.Peers += l.Peers()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Workers = c.roll.n
	for w := range c.roll.all() {
		w.mu.Lock()
		if w.unmapped {
			s.Unmapped++
		}
		if w.sync != nil {
			s.Syncing++
		}
		w.mu.Unlock()
	}
	return s
}
