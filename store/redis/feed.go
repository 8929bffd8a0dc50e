package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Sink takes in what a Feed tells. Set is called from several goroutines; Anew and
// Whole are for the partitions of a walk, which are one at a time.
type Sink interface {
	// Anew says that all blocks of these partitions, which are bits, are about to be
	// told. What is known of them stays until then.
	Anew(partitions uint64)
	// Set says that these are the holders of these blocks from now on, ascending;
	// none when nobody holds them. The slices are for reading during the call. An
	// error ends what the feed tells for a while; it then begins from nothing.
	Set(keys []blockkey.StoreKey, holders []store.HolderID) error
	// Whole says that blocks of these partitions that Set has not named since Anew
	// are held by nobody.
	Whole(partitions uint64)
}

// FeedConfig is how an index is followed. Zero fields but Sink mean defaults.
type FeedConfig struct {
	// Sink is told. Required.
	Sink Sink
	// Entries is the length of the log that the feed switches on where nobody has
	// decided yet; 0 leaves it off.
	Entries int
	// Verify is how often all blocks are read anew while the log is followed, which
	// finds what changed without it: blocks that the server has evicted, or that
	// somebody deleted by hand. 10 minutes by default; below 0 is never.
	Verify time.Duration
	// VerifyDuty is the part of one connection's time that this may take; 0.1 by
	// default.
	VerifyDuty float64
	// Wait is how long one read waits for entries; it bounds how late it is noticed
	// that the server has gone. 250 ms by default, at most half of Config.Timeout.
	Wait time.Duration
	// Poll is how long the logs of a cluster's node may rest while nothing comes from
	// the one that is waited at; 5 ms by default.
	Poll time.Duration
	// Retry is how long to rest after an error of Sink, or when blocks were found that
	// name pods by text; 1 minute by default.
	Retry time.Duration
}

func (c FeedConfig) withDefaults(timeout time.Duration) (FeedConfig, error) {
	def(&c.Verify, 10*time.Minute)
	def(&c.VerifyDuty, 0.1)
	def(&c.Wait, 250*time.Millisecond)
	def(&c.Poll, 5*time.Millisecond)
	def(&c.Retry, time.Minute)
	switch {
	case c.Sink == nil:
		return c, errors.New("redis: a feed without a sink")
	case c.Entries != 0 && (c.Entries < MinLogEntries || c.Entries > MaxLogEntries):
		return c, fmt.Errorf("redis: a log of %d entries; it can have %d to %d", c.Entries, MinLogEntries, MaxLogEntries)
	case c.VerifyDuty < 0 || c.VerifyDuty > 1:
		return c, fmt.Errorf("redis: verify duty %v; it can be 0 to 1", c.VerifyDuty)
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
	// errTexts says that no feed can be whole: who writes texts writes by SET, which
	// is in no log.
	errTexts = errors.New("redis: some blocks name pods by text, which the change log does not tell of")
)

// FeedState is how a feed stands.
type FeedState struct {
	// Whole is true when the sink has been told of all blocks and, since then, of
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
	// Snapshots, Gaps and Entries count complete walks over all blocks of some
	// partitions, logs that were found not to go on where they were left, and entries told.
	Snapshots, Gaps, Entries uint64
}

// Feed tells a Sink of all blocks of an index and then of every change, in order,
// and keeps the index's registry up to date meanwhile. It is made by Index.Follow.
//
// It reads the ends of all logs, then walks through the blocks (as Page does) while
// it follows the logs from those ends on. A page is read and told with no entry
// being told meanwhile:
//
//	walk: reads block k: held by 17
//	writer: k is held by nobody: entry 5
//	feed: tells entry 5; must not tell 17 after that
//
// An entry that is told after a page, and was written before it, may for a moment
// tell of an older state than the page did; the entries behind it make up for that,
// and only when all that were there at the end of the walk have been told is the
// sink whole. Values in entries are absolute, so that none needs the one before it.
//
// Entries are numbered. Where a number is missing, or a server knows fewer entries
// than it did, or another one under the same number, the partitions of that log
// are walked through again, and the sink is not whole until then.
type Feed struct {
	x *Index
	c FeedConfig

	// gate is held shared by who tells entries, alone by who reads and tells a page.
	gate  sync.RWMutex
	began time.Time
	logs  []*following

	// todo are the partitions that must be walked through, at is where that walk is.
	// They are the session's and, while it runs, its walker's.
	todo uint64
	at   pageCursor

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
	parts uint64 // the partitions that it tells of; 0 is the registry's of a cluster
	// attached is true when at is an entry that was there, and all up to it have
	// been told, or are part of the walk.
	attached bool
	at       string
	n        atomic.Uint64 // the number of that entry
	known    atomic.Uint64 // that there are entries up to this number
}

// Follow starts a feed, which ends with the index.
func (x *Index) Follow(c FeedConfig) (*Feed, error) {
	c, err := c.withDefaults(x.config.Timeout)
	if err != nil {
		return nil, err
	}
	f := &Feed{x: x, c: c, began: time.Now(), moved: make(chan struct{}, 1), done: make(chan struct{})}
	for _, place := range x.logPlaces() {
		l := &following{place: place, parts: allPartitions}
		if x.cluster {
			l.parts = 1 << place // none for the registry
		}
		f.logs = append(f.logs, l)
	}
	f.say(&f.why, ErrCatchingUp)
	if !x.spawn(f.run) {
		return nil, store.ErrClosed
	}
	return f, nil
}

// Done is closed when the feed tells nothing any more, after the index's Close.
func (f *Feed) Done() <-chan struct{} { return f.done }

// EndedHolders returns a func that knows which holders have ended for good at the
// time of the call. It reads the ids of all who live.
func (f *Feed) EndedHolders(ctx context.Context) (func(store.HolderID) bool, error) {
	s := &sweeper{x: f.x}
	if err := s.look(ctx); err != nil {
		return nil, failed(ctx, "holders", err)
	}
	return s.ended, nil
}

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
func (f *Feed) State() FeedState {
	s := FeedState{
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

// Current returns the lag alone, below 0 when the sink is not whole. It is for who
// asks often.
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

// Registry returns the registry as the feed knows it, which is a moment old at
// most; it is read anew when a lease has run out since.
func (f *Feed) Registry(ctx context.Context) (*store.Registry, error) {
	s := f.x.registry.current.Load()
	if s.loaded && !s.stale() {
		return s.registry, nil
	}
	return f.x.registryAt(ctx, s.registry.Epoch, s.registry)
}

// CatchUp waits until the sink has been told of all that was written before the
// call, and the registry is not older than it.
func (f *Feed) CatchUp(ctx context.Context) error {
	if err := f.x.begin(ctx, "catch up"); err != nil {
		return err
	}
	tails, err := f.tails(ctx)
	if err != nil {
		return failed(ctx, "catch up", err)
	}
	if _, err := f.x.Registry(ctx); err != nil {
		return err
	}
	for !f.whole.Load() || !f.reached(tails) {
		if f.x.life.Err() != nil {
			return store.ErrClosed
		}
		if err := sleep(ctx, 200*time.Microsecond); err != nil {
			return failed(ctx, "catch up", err)
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
	return f.x.readTails(ctx, places)
}

// reached tells whether all entries up to these tails have been told.
func (f *Feed) reached(tails []tail) bool {
	for i, t := range tails {
		if t.on && f.logs[i].n.Load() < t.end() {
			return false
		}
	}
	return true
}

// run holds one session after the other until the index is closed.
func (f *Feed) run() {
	defer close(f.done)
	ctx := f.x.life
	var registry sync.WaitGroup
	registry.Go(f.keepRegistry)
	defer registry.Wait()
	const least, most = 20 * time.Millisecond, time.Second
	rest := least
	for ctx.Err() == nil {
		begin := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > 2*most {
			rest = least
		}
		f.judge(err)
		d := rest
		if errors.Is(err, errSink) || errors.Is(err, errTexts) {
			d = f.c.Retry
		}
		if sleep(ctx, d) != nil {
			return
		}
		rest = min(2*rest, most)
	}
}

// judge takes note of why a session has ended.
func (f *Feed) judge(err error) {
	switch {
	case errors.Is(err, errSink) || errors.Is(err, errTexts) || errors.Is(err, ErrLogOff):
		for _, l := range f.logs {
			l.attached = false
		}
		f.broken(err)
		f.say(&f.down, nil)
		return
	case errors.Is(err, errGap) || errors.Is(err, errEntry):
		f.broken(err) // the next session finds out which
		f.x.log(fmt.Sprintf("replica: %v: reading a snapshot again", err))
		return
	case errors.Is(err, errMoved):
		if c, ok := f.x.client.(*redis.ClusterClient); ok {
			c.ReloadState(f.x.life)
		}
	}
	f.say(&f.down, failed(f.x.life, "following the change log", err))
}

// broken says that the sink is not whole.
func (f *Feed) broken(why error) {
	f.say(&f.why, why)
	f.whole.Store(false)
}

// session attaches to the logs and follows them until something goes wrong.
func (f *Feed) session(ctx context.Context) error {
	if err := f.attach(ctx); err != nil {
		return err
	}
	groups, err := f.byNode(ctx)
	if err != nil {
		return err
	}
	f.say(&f.down, nil)
	f.groups.Store(&groups)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make(chan error, len(groups)+1) // room for all
	var running sync.WaitGroup
	for _, g := range groups {
		running.Go(func() { failures <- g.follow(ctx) })
	}
	running.Go(func() { failures <- f.walk(ctx) })
	err = <-failures
	cancel()
	running.Wait()
	least := f.now()
	for _, g := range groups {
		least = min(least, g.confirmed.Load())
	}
	f.confirmed.Store(least)
	f.groups.Store(nil)
	return err
}

// attach finds the places in all logs from which to go on: where they were left,
// if the entry there is still the same one, and else their ends. An entry that is
// still there proves that all before it are as they were: a server that takes over,
// or comes back from its file, has a beginning of what there was.
func (f *Feed) attach(ctx context.Context) error {
	if f.c.Entries > 0 {
		if tails, err := f.tails(ctx); err == nil && !usable(tails) {
			switch _, err := f.x.EnsureLog(ctx, f.c.Entries); {
			case err == nil:
			case strings.Contains(err.Error(), "NOPERM"):
				return fmt.Errorf("%w, and this user may not switch it on: kvatlas changelog --on does: %w", ErrLogOff, err)
			default:
				return err
			}
		}
	}
	tails, err := f.tails(ctx)
	if err != nil {
		return err
	}
	if !usable(tails) {
		return ErrLogOff
	}
	same, err := f.stillThere(ctx)
	if err != nil {
		return err
	}
	for i, l := range f.logs {
		t := tails[i]
		l.known.Store(t.end())
		if l.attached && same[i] && t.last.n >= t.count {
			continue
		}
		if l.attached {
			f.gaps.Add(1)
			f.broken(fmt.Errorf("%w: of %s", errGap, f.x.names.logs[l.place].log))
		}
		l.attached, l.at = true, t.last.id
		l.n.Store(t.end())
		f.hear(0)
		if l.parts != 0 {
			f.todo, f.at = f.todo|l.parts, pageCursor{}
		}
	}
	if f.todo != 0 && said(&f.why) == nil {
		f.say(&f.why, ErrCatchingUp)
	}
	return nil
}

// usable tells whether all logs are on, and not empty.
func usable(tails []tail) bool {
	for _, t := range tails {
		if !t.on || t.last.id == "" {
			return false
		}
	}
	return true
}

// stillThere tells of each log whether the entry where it was left is still there.
func (f *Feed) stillThere(ctx context.Context) ([]bool, error) {
	same := make([]bool, len(f.logs))
	cmds := make([]*redis.XMessageSliceCmd, len(f.logs))
	pipe := f.x.client.Pipeline()
	for i, l := range f.logs {
		if l.attached {
			cmds[i] = pipe.XRange(ctx, f.x.names.logs[l.place].log, l.at, l.at)
		}
	}
	if pipe.Len() == 0 {
		return same, nil
	}
	f.x.roundTrips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for i, c := range cmds {
		if c != nil && len(c.Val()) == 1 {
			n, ok := entryNumber(c.Val()[0].Values)
			same[i] = ok && n == f.logs[i].n.Load()
		}
	}
	return same, nil
}

// walk reads the blocks of partitions that are due, and later all of them again
// from time to time.
func (f *Feed) walk(ctx context.Context) error {
	verify := false
	for {
		if f.todo == 0 && !f.whole.Load() {
			// It was the registry's log alone.
			if err := f.settle(ctx); err != nil {
				return err
			}
		}
		if f.todo == 0 {
			if f.c.Verify < 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			if err := sleep(ctx, f.c.Verify); err != nil {
				return err
			}
			f.todo, f.at, verify = allPartitions, pageCursor{}, true
		}
		if err := f.walkOnce(ctx, verify); err != nil {
			return err
		}
		verify = false
	}
}

func (f *Feed) walkOnce(ctx context.Context, verify bool) error {
	mask := f.todo
	if f.at == (pageCursor{}) {
		f.c.Sink.Anew(mask)
		f.at = pageCursor{done: ^mask}
	}
	for f.at.done != allPartitions {
		begin := time.Now()
		if err := f.page(ctx); err != nil {
			return err
		}
		if verify {
			rest := time.Duration(float64(time.Since(begin)) * (1 - f.c.VerifyDuty) / max(f.c.VerifyDuty, 0.001))
			if err := sleep(ctx, rest); err != nil {
				return err
			}
		}
	}
	f.c.Sink.Whole(mask)
	if err := f.settle(ctx); err != nil {
		return err
	}
	f.todo, f.at = 0, pageCursor{}
	f.snapshots.Add(1)
	return nil
}

// settle waits until all that is in the logs by now has been told; the sink is
// whole then.
func (f *Feed) settle(ctx context.Context) error {
	tails, err := f.tails(ctx)
	if err != nil {
		return err
	}
	for !f.reached(tails) {
		if err := sleep(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	// A registry that knows all holders told of.
	if _, err := f.x.Registry(ctx); err != nil {
		return err
	}
	f.say(&f.why, nil)
	f.whole.Store(true)
	return nil
}

// page reads one page and tells it.
func (f *Feed) page(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.x.config.Timeout)
	defer cancel()
	f.gate.Lock()
	defer f.gate.Unlock()
	p := &pager{x: f.x, at: f.at, sets: map[string][]store.HolderID{}}
	if err := p.walk(ctx, defaultPage); err != nil {
		return err
	}
	if p.texts {
		return errTexts
	}
	// Blocks of one set are told at once.
	bySet := map[*store.HolderID][]blockkey.StoreKey{}
	sets := map[*store.HolderID][]store.HolderID{}
	for _, b := range p.blocks {
		first := &b.Holders[0]
		bySet[first] = append(bySet[first], b.Key)
		sets[first] = b.Holders
	}
	for first, keys := range bySet {
		if err := f.c.Sink.Set(keys, sets[first]); err != nil {
			return fmt.Errorf("%w: %w", errSink, err)
		}
	}
	f.at = p.at
	return nil
}

// hear takes note of an epoch; 0 is one that is not known.
func (f *Feed) hear(epoch uint64) {
	if epoch != 0 && f.epoch.Swap(epoch) == epoch {
		return
	}
	select {
	case f.moved <- struct{}{}:
	default:
	}
}

// keepRegistry loads the registry when its epoch has moved, and before a lease in
// it runs out, so that no lookup has to.
func (f *Feed) keepRegistry() {
	ctx := f.x.life
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.moved:
		}
		reg, err := f.x.registryAt(ctx, f.epoch.Load(), nil)
		if err == nil && leaseEndsSoon(reg.ValidUntil) {
			reg, err = f.x.Registry(ctx)
		}
		if err != nil {
			timer.Reset(100 * time.Millisecond)
			continue
		}
		timer.Reset(nextLoad(reg.ValidUntil))
	}
}

// leaseMargin is how long before a lease seems to run out the registry is looked
// at again: leases are renewed without a word to anybody.
const leaseMargin = time.Second

func leaseEndsSoon(until time.Time) bool {
	return !until.IsZero() && time.Until(until) <= leaseMargin
}

// nextLoad is how long to wait before the registry is loaded for its leases.
func nextLoad(until time.Time) time.Duration {
	switch left := time.Until(until); {
	case until.IsZero():
		return time.Hour
	case left > leaseMargin:
		return left - leaseMargin
	default:
		return max(left, time.Millisecond)
	}
}
