package changelog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// run holds one session after the other until the index is closed.
func (f *Feed) run() {
	defer close(f.done)
	ctx := f.space.Life
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
		if keyspace.Sleep(ctx, d) != nil {
			return
		}
		rest = min(2*rest, most)
	}
}

// judge takes note of why a session has ended.
func (f *Feed) judge(err error) {
	switch {
	case errors.Is(err, errSink) || errors.Is(err, errTexts) || errors.Is(err, ErrOff):
		for _, l := range f.logs {
			l.attached = false
		}
		f.broken(err)
		f.say(&f.down, nil)
		return
	case errors.Is(err, errGap) || errors.Is(err, errEntry):
		f.broken(err) // the next session finds out which
		f.space.Log(fmt.Sprintf("replica: %v: reading a snapshot again", err))
		return
	case errors.Is(err, errMoved):
		if c, ok := f.space.Client.(*redis.ClusterClient); ok {
			c.ReloadState(f.space.Life)
		}
	}
	f.say(&f.down, keyspace.Failed(f.space.Life, "following the change log", err))
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

// attach finds the places in all logs from which to go on. These are where they were
// left, if the entry there is still the same one, and else their ends. An entry that is
// still there proves that all before it are as they were. For a server that takes over,
// or comes back from its file, has a beginning of what there was. Where pages have been
// read ahead of the log, it is the last entry that they may show that must be there.
func (f *Feed) attach(ctx context.Context) error {
	if f.c.Entries > 0 {
		if tails, err := f.tails(ctx); err == nil && !usable(tails) {
			switch _, err := f.log.Ensure(ctx, f.c.Entries); {
			case err == nil:
			case strings.Contains(err.Error(), "NOPERM"):
				return fmt.Errorf("%w, and this user may not switch it on: kvatlas changelog --on does: %w", ErrOff, err)
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
		return ErrOff
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
			f.broken(fmt.Errorf("%w: of %s", errGap, f.space.Names.Logs[l.place].Log))
		}
		l.attached, l.at, l.ahead = true, t.last.id, mark{}
		l.n.Store(t.end())
		f.noteEpoch(0)
		if l.parts != 0 {
			f.todo, f.at = f.todo|l.parts, blocks.Cursor{}
		}
	}
	if f.todo != 0 && said(&f.why) == nil {
		f.say(&f.why, ErrCatchingUp)
	}
	return nil
}

// usable reports whether all logs are on, and not empty.
func usable(tails []tail) bool {
	for _, t := range tails {
		if !t.on || t.last.id == "" {
			return false
		}
	}
	return true
}

// stillThere reports for each log whether the entries where it was left, and up to which pages
// have been read, are still there.
func (f *Feed) stillThere(ctx context.Context) ([]bool, error) {
	type wanted struct {
		log   int
		n     uint64
		found *redis.XMessageSliceCmd
	}
	var all []wanted
	pipe := f.space.Client.Pipeline()
	want := func(log int, m mark) {
		all = append(all, wanted{log, m.n, pipe.XRange(ctx, f.space.Names.Logs[f.logs[log].place].Log, m.id, m.id)})
	}
	same := make([]bool, len(f.logs))
	for i, l := range f.logs {
		if !l.attached {
			continue
		}
		same[i] = true
		want(i, mark{l.at, l.n.Load()})
		if l.ahead.n > l.n.Load() {
			want(i, l.ahead)
		}
	}
	if len(all) == 0 {
		return same, nil
	}
	f.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for _, w := range all {
		ok := len(w.found.Val()) == 1
		if ok {
			var n uint64
			n, ok = entryNumber(w.found.Val()[0].Values)
			ok = ok && n == w.n
		}
		same[w.log] = same[w.log] && ok
	}
	return same, nil
}
