package changelog

import (
	"context"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const (
	// pageBlocks is how many blocks a page has, about.
	pageBlocks = 4096
	// verifyRest is how many times as long as it takes to read a page all blocks are rested
	// from when they are read anew: a tenth of one connection's time is for that.
	verifyRest = 9
)

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
			if err := keyspace.Sleep(ctx, f.c.Verify); err != nil {
				return err
			}
			f.todo, f.at, verify = blocks.AllPartitions, blocks.Cursor{}, true
		}
		if err := f.walkOnce(ctx, verify); err != nil {
			return err
		}
		verify = false
	}
}

func (f *Feed) walkOnce(ctx context.Context, verify bool) error {
	mask := f.todo
	if f.at == (blocks.Cursor{}) {
		f.c.Sink.Anew(mask)
		f.at = blocks.Cursor{Done: ^mask}
	}
	for f.at.Done != blocks.AllPartitions {
		begin := time.Now()
		if err := f.page(ctx); err != nil {
			return err
		}
		if verify {
			if err := keyspace.Sleep(ctx, verifyRest*time.Since(begin)); err != nil {
				return err
			}
		}
	}
	f.c.Sink.Whole(mask)
	if err := f.settle(ctx); err != nil {
		return err
	}
	f.todo, f.at = 0, blocks.Cursor{}
	f.snapshots.Add(1)
	return nil
}

// settle waits until all that is in the logs by now has been told, and all that pages may show
// already. The sink is whole then.
func (f *Feed) settle(ctx context.Context) error {
	tails, err := f.tails(ctx)
	if err != nil {
		return err
	}
	for i, l := range f.logs {
		if l.ahead.n > tails[i].end() {
			tails[i].last = l.ahead // has been lost, which the follower will find
		}
	}
	for !f.reached(tails) {
		if err := keyspace.Sleep(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	// A registry that knows all holders of the page.
	if _, err := f.roster.Load(ctx); err != nil {
		return err
	}
	f.say(&f.why, nil)
	f.whole.Store(true)
	return nil
}

// page reads one page of one master and tells it: all holders that the blocks have, dead
// or alive, as the log does. Which of them live is for lookups to ask. A registry that has been set
// back brings holders to life again, and nothing would tell their blocks anew.
func (f *Feed) page(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.space.Timeout)
	defer cancel()
	f.gate.Lock()
	defer f.gate.Unlock()
	p := blocks.NewPager(f.space, f.c.Texts, f.at)
	same, err := p.Walk(ctx, pageBlocks)
	if err != nil {
		return err
	}
	// The page has the effect of no entry behind these, if it is still the same server that
	// they are read from.
	tails, err := f.tails(ctx)
	if err == nil && same {
		same, err = p.Same(ctx)
	}
	switch {
	case err != nil:
		return err
	case !same:
		f.at = p.At.Anew()
		return fmt.Errorf("%w: another server has the blocks now", errMoved)
	case !usable(tails):
		return fmt.Errorf("%w: they have been lost while blocks were read", errGap)
	case p.Texts:
		return errTexts
	}
	parts := p.At.Mask
	for _, b := range p.Blocks {
		parts |= 1 << b.Key.Partition()
	}
	if p.At.Shown() {
		if _, err := p.Finish(ctx); err != nil {
			return err
		}
	}
	// Blocks of one set are told at once.
	bySet := map[*store.HolderID][]blockkey.StoreKey{}
	sets := map[*store.HolderID][]store.HolderID{}
	for _, b := range p.Blocks {
		first := &b.Holders[0]
		bySet[first] = append(bySet[first], b.Key)
		sets[first] = b.Holders
	}
	for first, keys := range bySet {
		if err := f.c.Sink.Set(keys, sets[first]); err != nil {
			return fmt.Errorf("%w: %w", errSink, err)
		}
	}
	for i, l := range f.logs {
		if l.parts&parts != 0 {
			l.ahead = tails[i].last
		}
	}
	f.at = p.At
	return nil
}
