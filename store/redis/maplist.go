package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kvatlas/kvatlas/store"
)

// mapLog is what the owner of a generation knows of its list of changes.
type mapLog struct {
	fence   uint64
	changes int // that are in the list, at least; -1 is not known
	added   int // since the last compaction began
	limit   int // at which it is compacted
	queued  bool
	lost    error     // why the map cannot be gone on with
	rest    time.Time // before which it is not tried again
}

// mapLogs are those of the generations that this process writes, as far as they were
// used last. What is missing is looked at again.
type mapLogs struct {
	least int        // changes that are worth a compaction, however small the map
	mu    sync.Mutex // protects logs
	logs  *simplelru.LRU[store.Generation, *mapLog]
}

// newMapLogs makes one for so many generations.
func newMapLogs(least, limit int) *mapLogs {
	l := &mapLogs{least: least}
	l.logs, _ = simplelru.NewLRU[store.Generation, *mapLog](limit, nil) // which fails only without room for one
	return l
}

// of returns what is known of a generation's list under a fence, nil for nothing.
func (l *mapLogs) of(gen store.Generation, fence uint64) *mapLog {
	if g, _ := l.logs.Get(gen); g != nil && g.fence == fence {
		return g
	}
	return nil
}

// open begins with a list of so many changes, -1 when that is not known. What this process
// knows of a list that others have written on meanwhile is as good as nothing. But it is
// enough to keep the list from growing without end.
func (l *mapLogs) open(gen store.Generation, fence uint64, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, _ := l.logs.Get(gen); g != nil && changes < 0 {
		g.fence, g.lost, g.queued = fence, nil, false
		return
	}
	l.logs.Add(gen, &mapLog{fence: fence, changes: changes, limit: l.least})
}

// drop forgets a generation.
func (l *mapLogs) drop(gen store.Generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logs.Remove(gen)
}

// add notes changes that have been written.
func (l *mapLogs) add(gen store.Generation, fence uint64, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.of(gen, fence); g != nil {
		g.added += changes
		if g.changes >= 0 {
			g.changes += changes
		}
	}
}

// due reports whether a list should be compacted, which is said once; must, whether that has
// to be before it grows any more. The error says that the map has been lost.
func (l *mapLogs) due(gen store.Generation, fence uint64) (due, must bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, _ := l.logs.Get(gen)
	if g == nil {
		g = &mapLog{fence: fence, changes: -1, limit: l.least}
		l.logs.Add(gen, g)
	}
	if g.fence != fence {
		return false, false, nil
	}
	due = !g.queued && (g.changes < 0 || g.changes >= g.limit) && time.Now().After(g.rest)
	g.queued = g.queued || due
	return due, max(g.changes, g.added) >= 4*g.limit, g.lost
}

// begin says that a compaction reads the list from now on.
func (l *mapLogs) begin(gen store.Generation, fence uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.of(gen, fence); g != nil {
		g.added = 0
	}
}

// end says how a compaction has ended.
func (l *mapLogs) end(f *compaction, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.of(f.gen, f.fence)
	if g == nil {
		return
	}
	g.queued = false
	switch {
	case f.lost:
		g.lost = err
	case err != nil:
		g.added = max(g.added, g.changes) // what was added before it is still there
		g.rest = time.Now().Add(compactRest)
	case f.more:
		g.changes = -1
	default:
		// What was added meanwhile may have been read already, and is counted again.
		g.changes = f.had - f.taken + g.added
		g.limit = l.worth(f.entries)
	}
}

// worth is how many changes are worth a compaction into pages of so many entries.
func (l *mapLogs) worth(entries int) int { return max(l.least, min(entries/2, maxChanges)) }

// compactDue compacts the lists of guards that have become long, in the background. One that has
// become very long is compacted before anything more is written: no list grows without end.
func (x *Index) compactDue(ctx context.Context, guards []*guardPlan) error {
	for _, g := range guards {
		if g.over() || len(g.ops) == 0 {
			continue
		}
		due, must, lost := x.lists.due(g.Generation, g.Fence)
		switch {
		case lost != nil:
			g.err = lost
		case must:
			if err := x.compact(ctx, g.Generation, g.Fence); err != nil {
				return err
			}
		case due:
			x.space.Spawn(func() {
				// That another process has compacted it is as good.
				if err := x.compactLater(g.Generation, g.Fence); err != nil && !errors.Is(err, errCompacted) && x.space.Life.Err() == nil {
					x.space.Log(fmt.Sprintf("the changes of the map of generation %d are not in its pages: %v", g.Generation, err))
				}
			})
		}
	}
	return nil
}
