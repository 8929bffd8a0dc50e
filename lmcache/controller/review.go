package controller

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// review looks again which pod the worker works for, since its process, or the others with its id, have
// changed. Credit that is another's by now ends first: while that fails nothing is kept, and the next renewal
// tries again.
func (w *worker) review(ctx context.Context) {
	for try := 0; ctx.Err() == nil; try++ {
		err := w.tryReview(ctx)
		if err == nil {
			break
		}
		if !w.failed(ctx, err, try) {
			return
		}
	}
	if !w.barred {
		w.open(ctx)
	}
}

// tryReview is one try of review. Its errors are the index's.
func (w *worker) tryReview(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, w.c.config.Timeout)
	defer cancel()
	reg, err := w.c.config.Index.Registry(within)
	if err != nil {
		return err
	}
	target, err := w.place(reg)
	if err == nil && w.registration != nil && w.registration.Open() && w.registration.Target() == target {
		return nil
	}
	was := w.barred
	if err != nil || w.registration != nil && w.registration.Target() != target {
		if err := w.disown(ctx); err != nil {
			return err
		}
	}
	w.barred = errors.Is(err, feed.ErrShared)
	switch {
	case err == nil:
		w.fresh = w.fresh || was // what it has said until now was not kept
		return nil
	case !w.barred:
		w.setUnmapped(err)
		return nil
	}
	w.setUnmapped(err)
	return w.announce(ctx, target, err)
}

// disown ends the registration of a worker, and all that is known of it.
func (w *worker) disown(ctx context.Context) error {
	if w.registration == nil {
		return nil
	}
	w.barred = true // until it has ended
	if err := w.registration.Retire(ctx); err != nil {
		return err
	}
	fresh := w.fresh
	w.forget()
	w.registration, w.fresh = nil, fresh
	return nil
}

// announce registers a worker whose id others have too, so that doctors and other replicas
// see it. It holds nothing.
func (w *worker) announce(ctx context.Context, target feed.Target, why error) error {
	var by *sharedError
	if target.Pod == "" || !errors.As(why, &by) {
		return nil
	}
	w.name(target)
	w.mu.Lock()
	w.registration.IP, w.registration.Peer = w.ip, ""
	w.mu.Unlock()
	w.registration.Shared = by.by[:min(len(by.by), maxLabel)]
	_, err := w.registration.Renew(ctx)
	if errors.Is(err, store.ErrFull) {
		return nil // it is in the log
	}
	return err
}

// maxLabel is the longest value of a registration's label, in bytes.
const maxLabel = 512

// name makes the registration of the worker for a target. Ids that lead to it by their
// addresses alone may be those of others too, and so the name has the pod.
func (w *worker) name(t feed.Target) {
	c := w.c.config
	if w.registration == nil || w.registration.Target() != t {
		w.registration = feed.NewWorker(feed.Config{Index: c.Index, Lease: c.Lease, Timeout: c.Timeout}, w.id, t, !c.Pods.Names(w.id.Instance, t))
	}
}

// claim looks whose the registration is that the worker would have. A generation that was
// written for a worker from elsewhere is not gone on with. If that has taken it from this
// one, both live: feed.ErrShared, until its lease runs out.
func (w *worker) claim(reg *store.Registry) (host string, inherits bool, err error) {
	w.c.mu.Lock()
	host = w.host
	w.c.mu.Unlock()
	w.mu.Lock()
	ip := w.ip
	w.mu.Unlock()
	i, registered := reg.PodIndex(w.registration.Name())
	if !registered {
		return host, true, nil
	}
	their := reg.Pods[i].Labels
	if from := their[feed.LabelHost]; from == "" || from == host || their[feed.LabelIP] == ip {
		return host, true, nil
	}
	if w.lost && !w.fresh {
		return host, false, shared([]string{where(ip, host), where(their[feed.LabelIP], their[feed.LabelHost]) + " by another replica"})
	}
	return host, false, nil
}
