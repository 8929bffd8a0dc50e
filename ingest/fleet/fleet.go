package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/store"
)

// Fleet is one replica's part in the reading of all ranks.
type Fleet struct {
	config Config
	wake   chan struct{} // a reading has ended

	// What follows belongs to the goroutine of Run.
	known    *store.Registry
	sources  map[store.RankRef]ingest.Source
	ranks    []store.RankRef // of sources, ascending
	leases   map[store.RankRef]store.Lease
	readers  []store.Reader
	version  uint64
	lastCall time.Time
	patient  time.Time // until then dead readers' ranks are left alone
	readings map[store.RankRef]*reading
	giving   map[store.RankRef]bool // to be released when their reading has ended
	failed   map[store.RankRef]failure
	unread   int               // of the last plan
	crowded  int               // ranks for which the index had no room in the last call
	idle     seen              // of which the plan has nothing to do
	telling  map[string]string // unreadable pods that were reported: their registration
	closed   bool              // the ingester is

	mu    sync.Mutex // protects stats
	stats Stats
}

// Stats are figures for metrics.
type Stats struct {
	// Replicas is how many replicas live, as far as this one knows.
	Replicas int
	// Ranks is how many ranks there are to be read; Reading how many this replica
	// reads; Unread how many no replica reads.
	Ranks, Reading, Unread int
	// Asked is when the index was last asked successfully; zero is never.
	Asked time.Time
}

// reading is a rank that is being read, or was.
type reading struct {
	source ingest.Source
	fence  uint64
	cancel context.CancelFunc
	done   chan struct{}
	err    error // when done is closed
	begun  time.Time
}

// failure is a reading that has ended by itself. It is tried again, under a new
// fence.
type failure struct {
	tries int
	at    time.Time // of the next try
	after uint64    // what the fence must be above
}

// refused says that a fence was in the way that is not known yet.
func (f *failure) refused() bool { return f.tries > 0 && f.after == 0 }

// New returns a Fleet that does nothing until Run.
func New(c Config) (*Fleet, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Fleet{
		config: c, wake: make(chan struct{}, 1),
		readings: map[store.RankRef]*reading{}, giving: map[store.RankRef]bool{}, failed: map[store.RankRef]failure{}, telling: map[string]string{},
	}, nil
}

// Stats returns figures as of the last beat.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Run takes part until ctx is done, then ends all reading and gives the ranks up. It
// returns nil then, or ingest.ErrClosed when there is nothing left to read with. It is
// called once.
func (f *Fleet) Run(ctx context.Context) error {
	defer f.end(context.WithoutCancel(ctx))
	for {
		f.beat(ctx)
		if f.closed {
			return ingest.ErrClosed
		}
		timer := time.NewTimer(f.config.Beat)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-f.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// maxRounds bounds the calls of one beat.
const maxRounds = 16

// beat looks at what there is and does what is to be done about it.
func (f *Fleet) beat(ctx context.Context) {
	sees := f.look(ctx)
	for range maxRounds {
		f.reap()
		if f.closed {
			break
		}
		var p plan
		if sees && !f.lastCall.IsZero() {
			p = f.plan()
		}
		if !f.call(ctx, &p) {
			break
		}
		f.settle(ctx)
		// What the view allows us to take now, or says to give up, is done at once,
		// as long as something comes of it.
		if next := f.plan(); !sees || len(next.acquire) == 0 || slices.Equal(next.acquire, p.acquire) {
			break
		}
	}
	f.mu.Lock()
	f.stats = Stats{Replicas: len(f.readers), Ranks: len(f.ranks), Reading: len(f.readings), Unread: f.unread + f.crowded, Asked: f.lastCall}
	f.mu.Unlock()
}

// look brings what is to be read up to date. It asks for one block, since that brings
// the registry along if it has changed, and nothing else.
func (f *Fleet) look(ctx context.Context) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, f.config.TTL)
	defer cancel()
	var b store.OnlyRegistry
	if err := f.config.Index.Lookup(ctx, &store.Query{Keys: make([]blockkey.Key, 1), Fold: &b}); err != nil {
		f.fail(ctx, err)
		return false
	}
	if b.Registry == f.known {
		return true
	}
	f.known = b.Registry
	f.sources = map[store.RankRef]ingest.Source{}
	f.ranks = f.ranks[:0:0]
	telling := map[string]string{}
	for i := range b.Registry.Pods {
		p := &b.Registry.Pods[i]
		list, err := f.config.Wiring.Sources(p)
		if err != nil {
			text := fmt.Sprint(p.Events, " ", p.Replay, " ", p.Ranks, " ", p.Address)
			if f.telling[p.Name] != text {
				f.config.Observer.Unreadable(p.Name, err)
			}
			telling[p.Name] = text
			continue
		}
		for _, s := range list {
			r := store.RankRef{Pod: s.Pod, Rank: s.Rank}
			f.sources[r] = s
			f.ranks = append(f.ranks, r)
		}
	}
	f.telling = telling
	slices.SortFunc(f.ranks, compareRanks)
	return true
}

func (f *Fleet) fail(ctx context.Context, err error) {
	if !errors.Is(context.Cause(ctx), context.Canceled) {
		f.config.Observer.Failed(err)
	}
}

// seen is what a plan depends on.
type seen struct {
	version uint64
	known   *store.Registry
	readers *store.Reader // their list is replaced when it changes
	patient bool
}

// plan works out what the last view and the registry call for. A plan that had nothing
// to do stands while they are the same.
func (f *Fleet) plan() plan {
	now := seen{f.version, f.known, f.first(), time.Now().Before(f.patient)}
	if now == f.idle {
		return plan{}
	}
	p := makePlan(&view{
		self: f.config.Name, readers: f.readers, ranks: f.ranks, leases: f.leases,
		patient: now.patient, moves: f.config.HandOver,
	})
	f.unread, f.idle = p.unread, seen{}
	if len(p.acquire)+len(p.release) == 0 {
		f.idle = now
	}
	return p
}

// first is the list of readers as something that can be compared.
func (f *Fleet) first() *store.Reader {
	if len(f.readers) == 0 {
		return nil
	}
	return &f.readers[0]
}

// call carries out a plan: it renews our life, and sends what is to be acquired and
// what can be released by now.
func (f *Fleet) call(ctx context.Context, p *plan) (ok bool) {
	for _, r := range p.release {
		if g := f.readings[r]; g != nil {
			g.cancel()
		}
		f.giving[r] = true
	}
	c := store.LeaseCall{Reader: store.Reader{Name: f.config.Name, Ranks: f.config.MaxRanks}, TTL: f.config.TTL, Version: f.version}
	for r := range f.giving {
		if f.readings[r] == nil && len(c.Release) < store.MaxLeaseRanks {
			c.Release = append(c.Release, r)
		}
	}
	c.Acquire = p.acquire[:min(len(p.acquire), store.MaxLeaseRanks)]
	now := time.Now()
	for r, was := range f.failed {
		if !was.at.After(now) && !was.refused() && f.readings[r] == nil && !f.giving[r] && f.leases[r].Reader == f.config.Name && len(c.Acquire) < store.MaxLeaseRanks {
			c.Acquire = append(slices.Clip(c.Acquire), r)
			c.After = max(c.After, was.after)
		}
	}

	ctx, cancel := context.WithTimeout(ctx, f.config.TTL)
	defer cancel()
	v, err := f.config.Leases.Lease(ctx, c)
	f.crowded = 0
	if errors.Is(err, store.ErrFull) {
		f.fail(ctx, err)
		v, err = f.callForLess(ctx, &c)
	}
	if err != nil {
		f.fail(ctx, err)
		return false
	}
	for _, r := range c.Release {
		delete(f.giving, r)
	}
	silent := now.Sub(f.lastCall)
	if v.Lapsed && !f.lastCall.IsZero() {
		// The others may be just coming back too.
		f.patient = time.Now().Add(f.config.TTL + f.config.Beat)
		f.config.Observer.Lapsed(silent)
	}
	f.lastCall = time.Now()
	f.version = v.Version
	if !slices.Equal(v.Readers, f.readers) {
		f.readers = v.Readers
		f.config.Observer.Readers(slices.Clone(v.Readers))
	}
	if v.Leases != nil {
		f.take(v.Leases, c.Acquire)
	}
	return true
}

// callForLess calls again when there is no room for so many leases, and so nothing has been done. Our
// life, and what the dead have left, must not wait until there is room. Of the free ranks it asks for half
// as many each time, as the index does not say how many there is room for.
func (f *Fleet) callForLess(ctx context.Context, c *store.LeaseCall) (v store.LeaseView, err error) {
	var leased, fresh []store.RankRef
	for _, r := range c.Acquire {
		if _, ok := f.leases[r]; ok {
			leased = append(leased, r)
		} else {
			fresh = append(fresh, r)
		}
	}
	for left := len(fresh); ; {
		left /= 2
		c.Acquire = slices.Concat(leased, fresh[:left])
		if v, err = f.config.Leases.Lease(ctx, *c); left == 0 || !errors.Is(err, store.ErrFull) {
			f.crowded = len(fresh) - left
			return v, err
		}
	}
}

// take takes in new leases, and begins to read what is ours of them.
func (f *Fleet) take(leases map[store.RankRef]store.Lease, asked []store.RankRef) {
	before := f.leases
	f.leases = leases
	for _, r := range asked {
		l := leases[r]
		if l.Reader != f.config.Name || f.readings[r] != nil || f.giving[r] {
			continue
		}
		s, ok := f.sources[r]
		if !ok {
			f.giving[r] = true
			continue
		}
		f.start(r, s, l.Fence, before[r].Reader)
	}
}

// start begins to read a rank.
func (f *Fleet) start(r store.RankRef, s ingest.Source, fence uint64, took string) {
	ctx, cancel := context.WithCancel(context.Background()) // its life ends with reap or end
	g := &reading{source: s, fence: fence, cancel: cancel, done: make(chan struct{}), begun: time.Now()}
	f.readings[r] = g
	f.config.Observer.Started(s, fence, took)
	go func() {
		g.err = f.config.Read(ctx, s, fence)
		if errors.Is(g.err, context.Canceled) && ctx.Err() != nil {
			g.err = nil
		}
		close(g.done)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}()
}

// settle ends the readings that the last view or the registry calls off.
func (f *Fleet) settle(ctx context.Context) {
	for r, g := range f.readings {
		l := f.leases[r]
		switch s, ok := f.sources[r]; {
		case l.Reader != f.config.Name || l.Fence != g.fence: // another's by now
			g.cancel()
		case ok && s != g.source: // it is to be read in another way, under a new fence
			g.cancel()
		}
	}
	for r := range f.leases {
		if f.leases[r].Reader != f.config.Name || f.readings[r] != nil || f.giving[r] {
			continue
		}
		// Ours, and not read: its reading has ended.
		if _, ok := f.failed[r]; !ok {
			f.failed[r] = failure{}
		}
	}
	for r := range f.failed {
		if f.leases[r].Reader != f.config.Name {
			delete(f.failed, r)
		}
	}
	// After a refusal the fence that refused us is what ours must be above. What the
	// index does not say within a beat is asked for in the next one: our life must not
	// wait for it.
	ctx, cancel := context.WithTimeout(ctx, f.config.Beat)
	defer cancel()
	for r, was := range f.failed {
		if !was.refused() {
			continue
		}
		life, err := f.config.Index.Life(ctx, r.Pod, r.Rank)
		if err != nil {
			f.fail(ctx, err)
			return
		}
		was.after = max(1, life.Fence)
		f.failed[r] = was
	}
}

// Pauses before a reading that has failed is begun again.
const (
	minPause = 200 * time.Millisecond
	maxPause = 30 * time.Second
)

// reap clears away readings that have ended.
func (f *Fleet) reap() {
	for r, g := range f.readings {
		select {
		case <-g.done:
		default:
			continue
		}
		delete(f.readings, r)
		g.cancel()
		f.config.Observer.Stopped(g.source, g.fence, g.err)
		switch {
		case errors.Is(g.err, ingest.ErrClosed):
			f.closed = true
		case g.err == nil: // it was called off; if the rank is still ours it begins anew
			delete(f.failed, r)
		default:
			was := f.failed[r]
			if time.Since(g.begun) > maxPause {
				was = failure{}
			}
			was.tries++
			was.after = 0
			if !errors.Is(g.err, store.ErrFenced) {
				was.after = 1 // no fence was in the way
			}
			was.at = time.Now().Add(min(maxPause, minPause<<min(was.tries, 10)))
			f.failed[r] = was
		}
	}
}

// end ends all reading, then our life among the readers, which leaves the ranks free
// at once.
func (f *Fleet) end(ctx context.Context) {
	for _, g := range f.readings {
		g.cancel()
	}
	timer := time.NewTimer(f.config.Stop)
	defer timer.Stop()
wait:
	for _, g := range f.readings {
		select {
		case <-g.done:
		case <-timer.C:
			break wait
		}
	}
	f.reap()
	f.mu.Lock()
	f.stats.Reading = len(f.readings)
	f.mu.Unlock()
	if f.lastCall.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.config.TTL)
	defer cancel()
	if _, err := f.config.Leases.Lease(ctx, store.LeaseCall{Reader: store.Reader{Name: f.config.Name}}); err != nil {
		f.fail(ctx, err)
	}
}
