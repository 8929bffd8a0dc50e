package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// open makes sure that there is a generation to write to. It is false when there is no
// pod for the worker, or ctx is done.
func (w *worker) open(ctx context.Context) bool {
	for try := 0; ctx.Err() == nil; try++ {
		if w.barred {
			return false
		}
		if w.registration != nil && w.registration.Open() {
			return true
		}
		err := w.tryOpen(ctx)
		switch {
		case err == nil:
			return true
		case homeless(err):
			w.setUnmapped(err)
			return false
		case !w.failed(ctx, err, try):
			return false
		}
	}
	return false
}

// pause waits before the next try. It is false when there is none.
func pause(ctx context.Context, try int) bool {
	t := time.NewTimer(min(5*time.Second, 50*time.Millisecond<<min(try, 10)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// failed notes an error of the index and waits. It is false when the same call makes no
// sense again.
func (w *worker) failed(ctx context.Context, err error, try int) bool {
	if ctx.Err() != nil {
		return false
	}
	w.c.count.failures.Add(1)
	w.c.config.Observer.Failed(w.id, err)
	if errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrClosed) {
		return false
	}
	return pause(ctx, try)
}

func (w *worker) setUnmapped(err error) {
	w.mu.Lock()
	w.unmapped = true
	why := err.Error()
	tell := w.told != why
	w.told = why
	w.mu.Unlock()
	if tell {
		w.c.config.Observer.Unmapped(w.id, err)
	}
}

// tryOpen finds the worker's pod and begins or takes over its generation.
func (w *worker) tryOpen(ctx context.Context) error {
	c := w.c
	within, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	reg, err := c.config.Index.Registry(within)
	if err != nil {
		return err
	}
	target, err := w.place(reg)
	if err != nil {
		return err
	}
	w.name(target)
	host, inherits, err := w.claim(reg)
	if err != nil {
		return err
	}
	w.mu.Lock()
	ip, peer, was := w.ip, w.peer, w.unmapped
	w.mu.Unlock()
	// Of the index as of this process: each worker is a registration there, from all processes.
	if _, registered := reg.PodIndex(w.registration.Name()); !registered && feed.Registered(reg) >= c.config.MaxWorkers {
		return fmt.Errorf("%w: the index has %d workers of LMCache or more (2/5 of index-max-pods)", ErrFull, c.config.MaxWorkers)
	}
	w.registration.IP, w.registration.Peer, w.registration.Host, w.registration.Shared = ip, peer, host, ""
	w.registration.Workers = c.workersOf(reg, w.id, host, target)

	took := false
	switch {
	case w.fresh:
		if err = w.registration.Begin(ctx); err == nil && was {
			w.wantSync("pod_known") // what it has said until now was not kept
		}
	case !inherits:
		if err = w.registration.Begin(ctx); err == nil {
			w.wantSync("controller_restart")
		}
	default:
		kinds := make([]uint64, numLocations)
		for i := range kinds {
			kinds[i] = uint64(i) + 1
		}
		var marks []uint64
		if marks, took, err = w.registration.TakeOver(ctx, kinds...); err == nil {
			copy(w.next[:], marks)
			w.wantSync("controller_restart")
		}
	}
	if err != nil {
		return err
	}
	w.fresh, w.lost = false, false
	w.mu.Lock()
	w.unmapped, w.told = false, ""
	w.mu.Unlock()
	c.count.began.Add(1)
	if took {
		c.count.tookOver.Add(1)
	}
	c.config.Observer.Began(w.id, target, took)
	c.nudge(w.id)
	return nil
}

// tryOnce opens the worker if that can be done now.
func (w *worker) tryOnce(ctx context.Context) error {
	err := w.tryOpen(ctx)
	if homeless(err) {
		w.setUnmapped(err)
	}
	return err
}

// homeless reports whether a worker cannot be registered for now: nothing is kept of what it
// says until it can. To wait would take the room of others in the queue.
func homeless(err error) bool {
	return errors.Is(err, feed.ErrUnmapped) || errors.Is(err, feed.ErrShared) || errors.Is(err, ErrFull) || errors.Is(err, store.ErrFull)
}

// lostLife says that the generation is another writer's, or over. Since the worker talks
// to this process, it is to be taken over, and what is missing comes with a full sync.
func (w *worker) lostLife(err error) {
	w.lost = true
	if errors.Is(err, store.ErrFenced) {
		w.c.count.fenced.Add(1)
	}
	w.c.config.Observer.Lost(w.id, "", err.Error())
	w.wantSync("controller_restart")
}

// renew keeps the registration alive, and does what time asks for.
func (w *worker) renew(ctx context.Context) {
	c := w.c
	w.mu.Lock()
	if s := w.sync; s != nil && time.Since(s.heard) > c.config.SyncWait {
		w.endSync(false)
	}
	w.mu.Unlock()
	if w.barred {
		w.review(ctx)
		return
	}
	if w.registration == nil || !w.registration.Open() {
		_ = w.tryOnce(ctx)
		return
	}
	w.registration.Workers = max(w.registration.Workers, c.workersOf(c.config.Index.Cached(), w.id, w.registration.Host, w.registration.Target()))
	created, err := w.registration.Renew(ctx)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			c.count.failures.Add(1)
			c.config.Observer.Failed(w.id, err)
		}
		return
	case created:
		w.forget()
		c.config.Observer.Lost(w.id, "", "its lease had run out")
		w.open(ctx)
		return
	}
	for t := range w.doubt {
		if since := w.doubt[t].since; !since.IsZero() && time.Since(since) > c.config.SyncWait {
			w.clear(store.Tier(t))
		}
	}
	w.flush(ctx)
}

// retire ends the worker, as it wishes.
func (w *worker) retire(ctx context.Context) {
	for try := 0; w.open(ctx); try++ {
		err := w.registration.Retire(ctx)
		if err == nil || !w.failed(ctx, err, try) {
			break
		}
	}
	w.c.remove(w, false)
}
