package changelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const (
	// readEntries is how many entries of a log one read takes at most. On a cluster,
	// where a node has a third of 65 logs or so, it is clusterEntries of each.
	readEntries, clusterEntries = 256, 64
	// probeEvery is how often a follower looks at more than what comes.
	probeEvery = 250 * time.Millisecond
)

// group is the logs that are on one node, and the one goroutine that follows them
// by one connection.
//
// On a single server it waits for the one log with XREAD BLOCK. A cluster refuses a
// command with several keys unless they share a slot, which the logs cannot. So
// there it reads them all in one pipeline, without waiting, and rests itself. A
// server looks only ten times a second for clients that have waited long enough. So
// no command of the pipeline could wait for a few milliseconds.
type group struct {
	f    *Feed
	node redis.Cmdable
	logs []*following

	// confirmed is when a read was sent that came to the end of all logs. If the one
	// before the present read did, waiting is when the present one was sent, else 0.
	confirmed, waiting atomic.Int64
	atEnd              bool // the last read came to the end of all logs
	probed             time.Time
}

// byNode groups the logs by the nodes that have them.
func (f *Feed) byNode(ctx context.Context) ([]*group, error) {
	c, ok := f.space.Client.(*redis.ClusterClient)
	if !ok {
		return []*group{f.newGroup(f.space.Client, f.logs)}, nil
	}
	byNode := map[*redis.Client]*group{}
	var groups []*group
	for _, l := range f.logs {
		node, err := c.MasterForKey(ctx, f.space.Names.Logs[l.place].Log)
		if err != nil {
			return nil, err
		}
		g := byNode[node]
		if g == nil {
			g = f.newGroup(node, nil)
			byNode[node] = g
			groups = append(groups, g)
		}
		g.logs = append(g.logs, l)
	}
	return groups, nil
}

func (f *Feed) newGroup(node redis.Cmdable, logs []*following) *group {
	g := &group{f: f, node: node, logs: logs}
	g.confirmed.Store(f.confirmed.Load())
	return g
}

// lag is how long ago it was certain last that nothing is unseen.
func (g *group) lag(now int64) int64 {
	// A wait at the end that is not overdue: what comes, comes at once.
	if w := g.waiting.Load(); w != 0 && time.Duration(now-w) < g.wait()+50*time.Millisecond {
		return 0
	}
	return now - g.confirmed.Load()
}

// wait is how long one read waits, or what is not read yet rests.
func (g *group) wait() time.Duration {
	if g.f.space.Cluster {
		return g.f.c.Poll
	}
	return g.f.c.Wait
}

// busyRest is how long the logs of a cluster's node rest after a read that brought
// something.
const busyRest = time.Millisecond

// follow reads the logs until an error.
func (g *group) follow(ctx context.Context) error {
	for {
		if time.Since(g.probed) > probeEvery {
			if err := g.probe(ctx); err != nil {
				return err
			}
		}
		told, err := g.round(ctx)
		if err != nil {
			return err
		}
		if g.f.space.Cluster && g.atEnd {
			rest := g.f.c.Poll
			if told > 0 {
				rest = min(rest, busyRest)
			}
			if err := keyspace.Sleep(ctx, rest); err != nil {
				return err
			}
		}
	}
}

// round reads once from all logs, and returns how many entries there were.
func (g *group) round(ctx context.Context) (told int, err error) {
	f := g.f
	sent := f.now()
	if g.atEnd {
		g.waiting.Store(sent)
	}
	block, count := g.f.c.Wait, readEntries
	if f.space.Cluster {
		block, count = -1, clusterEntries // it waits not at all
	}
	// A frozen server is noticed a moment after the wait.
	bounded, cancel := context.WithTimeout(ctx, g.wait()+f.space.Timeout)
	defer cancel()
	pipe := g.node.Pipeline()
	cmds := make([]*redis.XStreamSliceCmd, len(g.logs))
	for i, l := range g.logs {
		cmds[i] = pipe.XRead(bounded, &redis.XReadArgs{Streams: []string{f.space.Names.Logs[l.place].Log, l.at}, Count: int64(count), Block: block})
	}
	f.space.Trips.Add(1)
	_, err = pipe.Exec(bounded)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	g.atEnd = true
	for i, c := range cmds {
		switch err := c.Err(); {
		case err == nil || errors.Is(err, redis.Nil):
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			return 0, fmt.Errorf("%w: %w", ErrOff, err)
		case moved(err):
			return 0, fmt.Errorf("%w: %w", errMoved, err)
		default:
			return 0, err
		}
		for _, s := range c.Val() {
			g.atEnd = g.atEnd && len(s.Messages) < count
			told += len(s.Messages)
			if err := g.tell(g.logs[i], s.Messages); err != nil {
				return 0, err
			}
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if !g.atEnd {
		g.waiting.Store(0)
		return told, nil
	}
	g.confirmed.Store(sent)
	return told, nil
}

// moved reports whether an error says that a slot is, or is going, elsewhere.
func moved(err error) bool {
	s := err.Error()
	return strings.HasPrefix(s, "MOVED ") || strings.HasPrefix(s, "ASK ") || strings.HasPrefix(s, "READONLY") || strings.HasPrefix(s, "UNBLOCKED")
}

// tell tells the entries of a log.
func (g *group) tell(l *following, msgs []redis.XMessage) error {
	f := g.f
	f.gate.RLock()
	defer f.gate.RUnlock()
	for i := range msgs {
		e, err := parseEntry(msgs[i].Values, l.parts, func() { f.space.Garbled.Add(1) })
		if err == nil && e.n != l.n.Load()+1 {
			err = fmt.Errorf("%w: %s goes on with entry %d after %d", errGap, f.space.Names.Logs[l.place].Log, e.n, l.n.Load())
		}
		if err == nil && e.n == l.ahead.n && msgs[i].ID != l.ahead.id {
			err = fmt.Errorf("%w: %s has another entry %d than when blocks were read", errGap, f.space.Names.Logs[l.place].Log, e.n)
		}
		if err != nil {
			// What stillThere will not find, so that the partitions are read again.
			l.at = "0-0"
			f.broken(err)
			return err
		}
		for _, c := range e.changes {
			if err := f.c.Sink.Set(c.keys, c.holders); err != nil {
				return fmt.Errorf("%w: %w", errSink, err)
			}
		}
		if e.epoch != 0 {
			f.noteEpoch(e.epoch)
		}
		l.at = msgs[i].ID
		l.n.Store(e.n)
		f.entries.Add(1)
	}
	return nil
}

// probe compares the logs with what the sink has got of them. All entries that they have must be there, and
// the last one the same. It also reads the epoch, which writers that know no log do not record.
func (g *group) probe(ctx context.Context) error {
	f := g.f
	ctx, cancel := context.WithTimeout(ctx, f.space.Timeout)
	defer cancel()
	g.probed = time.Now()
	places := make([]int, len(g.logs))
	for i, l := range g.logs {
		places[i] = l.place
		if l.place != keyspace.AtRegistry {
			continue
		}
		epoch, err := g.node.Get(ctx, f.space.Names.Epoch).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			if moved(err) {
				err = fmt.Errorf("%w: %w", errMoved, err)
			}
			return err
		}
		if e := f.space.EpochOf(epoch); e != f.epoch.Load() {
			f.epoch.Store(e)
			f.noteEpoch(0)
		}
	}
	ahead := make([]uint64, len(g.logs))
	f.gate.RLock()
	for i, l := range g.logs {
		ahead[i] = l.ahead.n
	}
	f.gate.RUnlock()
	tails, err := f.log.readTails(ctx, g.node, places)
	if err != nil {
		if moved(err) {
			err = fmt.Errorf("%w: %w", errMoved, err)
		}
		return err
	}
	for i, t := range tails {
		l := g.logs[i]
		if !t.on {
			return ErrOff
		}
		n := l.n.Load()
		l.known.Store(t.end())
		// Behind the entry that was told last there are none, or later ones. The count
		// was read first, so that an entry that it counts is there or has been deleted.
		missing := t.count > n
		if t.last.id != l.at {
			missing = t.count < n || t.last.n < t.count || t.last.n <= n || !later(t.last.id, l.at)
		}
		missing = missing || t.end() < ahead[i]
		if missing {
			err := fmt.Errorf("%w: %s has entries up to %d, not those told up to %d", errGap, f.space.Names.Logs[l.place].Log, t.last.n, n)
			l.at = "0-0"
			f.broken(err)
			return err
		}
	}
	return nil
}

// later reports whether the id of an entry is above another one.
func later(a, b string) bool {
	var x, y [2]uint64
	_, wrongA := fmt.Sscanf(a, "%d-%d", &x[0], &x[1])
	_, wrongB := fmt.Sscanf(b, "%d-%d", &y[0], &y[1])
	return wrongA == nil && wrongB == nil && slices.Compare(x[:], y[:]) > 0
}
