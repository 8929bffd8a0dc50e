package changelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

// Sink takes in what a Feed tells. Set is called from several goroutines; Anew and
// Whole are for the partitions of a walk, which are one at a time.
type Sink interface {
	// Anew says that all blocks of these partitions, which are bits, are about to be
	// told. What is known of them stays until then.
	Anew(partitions uint64)
	// Set says that these are the holders of these blocks from now on, ascending;
	// none when they are not held. The slices are for reading during the call. An
	// error ends what the feed tells for a while; it then begins from nothing.
	Set(keys []blockkey.StoreKey, holders []store.HolderID) error
	// Whole says that blocks of these partitions that Set has not named since Anew
	// are not held.
	Whole(partitions uint64)
}

// Config is how an index is followed. Zero fields but Sink mean defaults.
type Config struct {
	// Sink is told. Required.
	Sink Sink
	// Entries is the length of the log that the feed switches on where it has not been
	// decided yet; 0 leaves it off.
	Entries int
	// Verify is how often all blocks are read anew while the log is followed. That finds what changed
	// without it: blocks that the server has evicted, or that were deleted by hand. The default is 10
	// minutes; below 0 is never.
	Verify time.Duration
	// Texts says that values of blocks may name pods by text, with which no feed is whole.
	Texts bool
	// Wait is how long one read waits for entries; it bounds how late it is noticed that
	// the server has gone. The default is 250 ms, at most half of the index's timeout.
	Wait time.Duration
	// Poll is how long the logs of a cluster's node may rest while nothing comes from
	// the one that is waited at. The default is 5 ms.
	Poll time.Duration
	// Retry is how long to rest after an error of Sink, or when blocks were found that
	// name pods by text; 1 minute by default.
	Retry time.Duration
}

func (c Config) withDefaults(timeout time.Duration) (Config, error) {
	c.Verify = cmp.Or(c.Verify, 10*time.Minute)
	c.Wait, c.Poll = cmp.Or(c.Wait, 250*time.Millisecond), cmp.Or(c.Poll, 5*time.Millisecond)
	c.Retry = cmp.Or(c.Retry, time.Minute)
	switch {
	case c.Sink == nil:
		return c, errors.New("redis: a feed without a sink")
	case c.Entries != 0 && (c.Entries < MinEntries || c.Entries > MaxEntries):
		return c, fmt.Errorf("redis: a log of %d entries; it can have %d to %d", c.Entries, MinEntries, MaxEntries)
	case c.Wait < 0 || c.Poll < 0 || c.Retry < 0:
		return c, errors.New("redis: a wait of a feed is negative")
	}
	// Redis waits in whole milliseconds, and for ever when there is none.
	c.Wait = max(min(c.Wait, timeout/2), time.Millisecond)
	c.Poll = max(min(c.Poll, c.Wait), time.Millisecond)
	return c, nil
}

// What a Feed may say about why it is not whole.
var (
	// ErrCatchingUp says that a snapshot is being read.
	ErrCatchingUp = errors.New("redis: reading a snapshot")
	// errGap says that entries of a log are missing: it has been cut before they
	// were read, or the server has lost them.
	errGap = errors.New("redis: entries of the change log are missing")
	// errMoved says that a log is not where it was.
	errMoved = errors.New("redis: the change log has moved to another node")
	errSink  = errors.New("redis: the feed's sink has failed")
	// errTexts says that no feed can be whole: a writer of texts writes by SET, which
	// is in no log.
	errTexts = errors.New("redis: some blocks name pods by text, which the change log does not record")
)

// State is how a feed stands.
type State struct {
	// Whole is true when the sink has got all blocks and, since then, of
	// every change, up to Lag ago. Why is why not.
	Whole bool
	Why   error
	// Down is the error of the last try to read, nil when it went well.
	Down error
	// Lag is how long ago it was certain last that nothing is unseen. It is 0 while
	// the feed waits at the end of all logs.
	Lag time.Duration
	// Behind is how many entries are known to be there that have not been told.
	Behind uint64
	// Snapshots counts complete walks over all blocks of some partitions. Gaps counts logs that were found
	// not to go on where they were left, and Entries entries told.
	Snapshots, Gaps, Entries uint64
}

// Feed gives a Sink all blocks of an index and then of every change, in order,
// and keeps the index's registry up to date meanwhile. It is made by Log.Follow.
//
// It reads the ends of all logs, then walks through the blocks (as Page does) while
// it follows the logs from those ends on. A page is read and told with no entry
// being told meanwhile:
//
//	walk: reads block k: held by 17
//	writer: k has no holder: entry 5
//	feed: tells entry 5; must not tell 17 after that
//
// An entry may be told after a page and have been written before it. For a moment
// it may tell of an older state than the page did. The entries behind it make up
// for that. Only when all that were there at the end of the walk have been told is
// the sink whole. Values in entries are absolute, so that none needs the one before
// it.
//
// Entries are numbered. A number may be missing, or a server know fewer entries than it did, or another one
// under the same number. Then the partitions of that log are walked through again. The sink is not whole
// until then.
type Feed struct {
	log    *Log
	space  *keyspace.Space
	roster *roster.Cache
	c      Config

	// gate is held shared to tell entries, alone to read and tell a page.
	gate  sync.RWMutex
	began time.Time
	logs  []*following

	// todo are the partitions that must be walked through, at is where that walk is.
	// They are the session's and, while it runs, its walker's.
	todo uint64
	at   blocks.Cursor

	whole     atomic.Bool
	why, down atomic.Pointer[error]
	// confirmed is Lag's moment, as of the end of the last session; groups are the
	// nodes of the present one.
	confirmed atomic.Int64
	groups    atomic.Pointer[[]*group]
	epoch     atomic.Uint64 // the newest that has been heard of
	moved     chan struct{} // has room for one: epoch has moved

	snapshots, gaps, entries atomic.Uint64
	done                     chan struct{} // closed when all has ended
}

// following is one log and how far it has been told.
type following struct {
	place int
	parts uint64 // the partitions that it records; 0 is the registry's of a cluster
	// attached is true when at is an entry that was there, and all up to it have
	// been told, or are part of the walk.
	attached bool
	at       string
	n        atomic.Uint64 // the number of that entry
	known    atomic.Uint64 // that there are entries up to this number
	// ahead is the last entry that pages may have the effect of. What they tell is right
	// only if that one is still met: a server that has lost it has undone what they show.
	// It is for the holder of the gate, and between sessions.
	ahead mark
}

// Follow starts a feed, which ends with the index.
func (l *Log) Follow(r *roster.Cache, c Config) (*Feed, error) {
	c, err := c.withDefaults(l.space.Timeout)
	if err != nil {
		return nil, err
	}
	f := &Feed{log: l, space: l.space, roster: r, c: c, began: time.Now(), moved: make(chan struct{}, 1), done: make(chan struct{})}
	for _, place := range l.places() {
		at := &following{place: place, parts: blocks.AllPartitions}
		if l.space.Cluster {
			at.parts = 1 << place // none for the registry
		}
		f.logs = append(f.logs, at)
	}
	f.say(&f.why, ErrCatchingUp)
	if !l.space.Spawn(f.run) {
		return nil, store.ErrClosed
	}
	return f, nil
}

// Done is closed when the feed tells nothing any more, after the index's Close.
func (f *Feed) Done() <-chan struct{} { return f.done }

func (f *Feed) say(to *atomic.Pointer[error], err error) {
	if err == nil {
		to.Store(nil)
		return
	}
	to.Store(&err)
}

func said(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *Feed) now() int64 { return int64(time.Since(f.began)) }

// State returns how the feed stands. It does no I/O.
func (f *Feed) State() State {
	s := State{
		Whole: f.whole.Load(), Down: said(&f.down), Lag: f.lag(),
		Snapshots: f.snapshots.Load(), Gaps: f.gaps.Load(), Entries: f.entries.Load(),
	}
	if !s.Whole {
		s.Why = said(&f.why)
	}
	for _, l := range f.logs {
		if known, n := l.known.Load(), l.n.Load(); known > n && n > 0 {
			s.Behind += known - n
		}
	}
	return s
}

// Current returns the lag alone, below 0 when the sink is not whole. It is for callers that ask often.
func (f *Feed) Current() (lag time.Duration) {
	if !f.whole.Load() {
		return -1
	}
	return f.lag()
}

func (f *Feed) lag() time.Duration {
	now := f.now()
	groups := f.groups.Load()
	if groups == nil {
		return time.Duration(now - f.confirmed.Load())
	}
	lag := int64(0)
	for _, g := range *groups {
		lag = max(lag, g.lag(now))
	}
	return time.Duration(lag)
}

// CatchUp waits until the sink has got all that was written before the
// call, and the registry is not older than it.
func (f *Feed) CatchUp(ctx context.Context) error {
	if err := f.space.Check(ctx, "catch up"); err != nil {
		return err
	}
	tails, err := f.tails(ctx)
	if err != nil {
		return keyspace.Failed(ctx, "catch up", err)
	}
	if _, err := f.roster.Load(ctx); err != nil {
		return err
	}
	for !f.whole.Load() || !f.reached(tails) {
		if f.space.Life.Err() != nil {
			return store.ErrClosed
		}
		if err := keyspace.Sleep(ctx, 200*time.Microsecond); err != nil {
			return keyspace.Failed(ctx, "catch up", err)
		}
	}
	return nil
}

// tails reads the ends of all logs.
func (f *Feed) tails(ctx context.Context) ([]tail, error) {
	places := make([]int, len(f.logs))
	for i, l := range f.logs {
		places[i] = l.place
	}
	return f.log.readTails(ctx, f.space.Client, places)
}

// reached reports whether all entries up to these tails have been told.
func (f *Feed) reached(tails []tail) bool {
	for i, t := range tails {
		if t.on && f.logs[i].n.Load() < t.end() {
			return false
		}
	}
	return true
}
