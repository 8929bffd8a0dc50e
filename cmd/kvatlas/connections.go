package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/store"
)

// How soon and how often the log names a rank whose engine is away. An engine is away for
// minutes while it loads its model, and for good where its address is wrong.
const (
	awayGrace = 5 * time.Second // nothing is said of what is shorter
	awayAgain = time.Minute     // it doubles with each line
	awayMost  = time.Hour
)

// connections writes to the log which engines' events cannot be had and which can. It is
// safe for concurrent use.
type connections struct {
	log zerolog.Logger

	mu    sync.Mutex // protects ranks
	ranks map[store.RankRef]*connection
}

// connection is that of one rank which this process reads.
type connection struct {
	source ingest.Source
	peer   string    // the connected engine's address; "" means none
	since  time.Time // when that began; a connection shorter than awayGrace does not count
	away   time.Time // since when no engine has been connected
	err    error     // of the last try
	told   bool      // that it is connected
	next   time.Time // no warning before
	pause  time.Duration
}

func newConnections(log zerolog.Logger) *connections {
	return &connections{log: log, ranks: map[store.RankRef]*connection{}}
}

// begun notes a rank that is to be read from now on.
func (c *connections) begun(s ingest.Source, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks[store.RankRef{Pod: s.Pod, Rank: s.Rank}] = &connection{source: s, away: now, next: now.Add(awayGrace), pause: awayAgain}
}

// ended forgets a rank.
func (c *connections) ended(s ingest.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ranks, store.RankRef{Pod: s.Pod, Rank: s.Rank})
}

// connected notes that the rank's events can be had, and says so if it is news: the first
// time, and after a warning.
func (c *connections) connected(pod string, rank int, peer string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.ranks[store.RankRef{Pod: pod, Rank: rank}]
	if r == nil {
		return
	}
	r.peer, r.since = cmp.Or(peer, "somebody"), now
	if !r.told {
		r.told = true
		c.log.Info().Str("pod", pod).Int("rank", rank).Str("events", r.source.Events).Str("peer", peer).Msg("connected to the engine's events")
	}
}

// disconnected notes that they cannot be had, and why.
func (c *connections) disconnected(pod string, rank int, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.ranks[store.RankRef{Pod: pod, Rank: rank}]
	if r == nil {
		return
	}
	r.err = err
	if r.peer != "" && now.Sub(r.since) >= awayGrace {
		r.away, r.pause = now, awayAgain
		if at := now.Add(awayGrace); r.next.Before(at) {
			r.next = at
		}
	}
	r.peer = ""
}

// look warns of all ranks that have been away for long.
func (c *connections) look(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.ranks {
		if r.peer != "" || now.Sub(r.away) < awayGrace || now.Before(r.next) {
			continue
		}
		r.next, r.pause, r.told = now.Add(r.pause), min(2*r.pause, awayMost), false
		line := c.log.Warn().Str("pod", r.source.Pod).Int("rank", r.source.Rank).Str("events", r.source.Events).Dur("away", now.Sub(r.away))
		if r.err != nil {
			line = line.Str("error", strings.TrimPrefix(r.err.Error(), "zmq: "))
		}
		line.Msg(awayMessage(&r.source))
	}
}

// awayMessage says that an engine's events cannot be had, and what to look at.
func awayMessage(s *ingest.Source) string {
	const enabled = "does the engine publish events (vLLM and SGLang: --kv-events-config)"
	if s.Bind {
		return fmt.Sprintf("no engine has connected to where its events are awaited; does it reach this host and port, and %s?", enabled)
	}
	return fmt.Sprintf("cannot connect to the engine's events, and goes on trying; are host and port right, does the engine run, and %s?", enabled)
}

// run looks until ctx is done.
func (c *connections) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.look(now)
		}
	}
}
