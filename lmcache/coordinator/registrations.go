package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// workerID is a worker of an instance for one of its pods.
type workerID struct {
	target feed.Target
	worker int
}

// maxWorkers bounds the workers of an instance for each pod.
const maxWorkers = 64

// join makes a worker of the instance known, nil if there are too many. registered says
// that the index has it already.
func (in *instance) join(id workerID, shared, registered bool) *feed.Worker {
	if len(in.workers) >= maxWorkers*max(1, len(in.c.config.Pods.Map[in.id])) {
		return nil
	}
	if !in.c.room(in, registered) {
		if !in.full {
			in.c.config.Observer.Unmapped(in.id, fmt.Errorf("coordinator: there is no room for another worker of LMCache beside %d (2/5 of index-max-pods)", in.c.config.MaxRegistrations))
		}
		in.full = true
		return nil
	}
	in.full = false
	w := feed.NewWorker(in.c.feed(), feed.ID{Instance: in.id, Worker: id.worker}, id.target, shared)
	w.IP, _ = in.ip()
	w.Host = in.host
	in.workers[id] = w
	return w
}

// room takes a place for another worker of the instance. It is false when there is none.
func (c *Coordinator) room(in *instance, registered bool) bool {
	n := 0
	if !registered {
		n = feed.Registered(c.config.Index.Cached())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := 0
	for _, other := range c.instances {
		if other == in || other.silent() <= 2*c.config.Lease {
			own += int(other.held.Load())
		}
	}
	if max(n, own) >= c.config.MaxRegistrations {
		return false
	}
	in.held.Add(1)
	return true
}

// apply writes for all workers of the instance at once, so that they have one cursor.
func (in *instance) apply(ctx context.Context, next cursor, clears map[store.Tier]bool, changes map[workerID]*feed.Ops) error {
	var workers []*feed.Worker
	var batches []store.Batch
	for id, w := range in.workers {
		incarnation := strconv.FormatUint(next.incarnation-1, 10)
		if !w.Open() || w.Incarnation != incarnation {
			w.Incarnation = incarnation
			if err := in.open(ctx, w); err != nil {
				return err
			}
		}
		var ops feed.Ops
		for tier := range clears {
			ops.Clear(tier)
		}
		if o := changes[id]; o != nil {
			ops.List = append(ops.List, o.List...)
		}
		workers = append(workers, w)
		batches = append(batches, w.Batch(ops.List, feed.Mark{Kind: markIncarnation, Value: next.incarnation}, feed.Mark{Kind: markSeq, Value: next.seq}))
	}
	if len(workers) == 0 {
		return nil
	}
	return feed.Apply(ctx, in.c.feed(), workers, batches)
}

// open makes sure that a worker can be written for: a new one begins.
func (in *instance) open(ctx context.Context, w *feed.Worker) error {
	if w.Open() {
		_, err := w.Renew(ctx) // its incarnation has changed
		return err
	}
	return w.Begin(ctx)
}

// load takes over what is registered of the instance, and finds out how far it was
// written.
func (in *instance) load(ctx context.Context, reg *store.Registry, targets []feed.Target) error {
	in.known = false // until all of it has been taken over
	in.workers = map[workerID]*feed.Worker{}
	in.held.Store(0)
	in.incarnation, in.seq, in.suspect = 0, 0, ""
	first := true
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf == nil || p.Labels[feed.LabelInstance] != in.id {
			continue
		}
		id := workerID{feed.Target{Pod: p.PartOf.Pod, Rank: p.PartOf.Rank, Model: p.Model}, p.PartOf.Worker}
		if !slices.Contains(targets, id.target) { // another server's of this id
			continue
		}
		w := in.join(id, in.named(targets), true)
		if w == nil {
			continue
		}
		w.Workers, w.Incarnation = p.PartOf.Workers, p.Labels[feed.LabelIncarnation]
		marks, took, err := w.TakeOver(ctx, markIncarnation, markSeq)
		if err != nil {
			return err
		}
		at := cursor{marks[0], marks[1]}
		if !took || !first && at != (cursor{in.incarnation, in.seq}) {
			in.suspect = "its workers were not written alike"
		}
		if at.incarnation > in.incarnation || at.incarnation == in.incarnation && at.seq > in.seq {
			in.incarnation, in.seq = at.incarnation, at.seq
		}
		first = false
	}
	if !first {
		in.c.count.tookOver.Add(1)
	}
	in.known = true
	return nil
}

// renew keeps the registrations of the instance alive.
func (in *instance) renew(ctx context.Context) error {
	if time.Since(in.renewed) < in.c.config.Lease/3 {
		return nil
	}
	for _, w := range in.workers {
		if !w.Open() {
			continue
		}
		created, err := w.Renew(ctx)
		if err != nil {
			return err
		}
		if created {
			w.Shut()
			in.known = false
		}
	}
	in.renewed = time.Now()
	return nil
}

// named reports whether the names of registrations have the pod: where the instance works
// for several, or others may have its id.
func (in *instance) named(targets []feed.Target) bool {
	return len(targets) > 1 || !in.c.config.Pods.Names(in.id, targets[0])
}

// disown ends the registrations of workers for others than these targets; in.mu is held.
func (in *instance) disown(ctx context.Context, targets []feed.Target) error {
	for id, w := range in.workers {
		if slices.Contains(targets, id.target) {
			continue
		}
		if err := w.Retire(ctx); err != nil {
			return err
		}
		delete(in.workers, id)
		in.held.Add(-1)
	}
	return nil
}

// owns reports whether a registration is of this server, and not of another one that has
// its id.
func (in *instance) owns(p *store.Pod) bool {
	if p.PartOf == nil || p.Labels[feed.LabelInstance] != in.id {
		return false
	}
	host := p.Labels[feed.LabelHost]
	ip, _ := in.ip()
	return host == "" || host == in.host || p.Labels[feed.LabelIP] == ip
}

// retire ends the registrations of the instance.
func (in *instance) retire(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	reg, err := in.c.registry(ctx)
	if err != nil {
		return err
	}
	in.known = false
	for i := range reg.Pods {
		if p := &reg.Pods[i]; in.owns(p) {
			if _, err := in.c.config.Index.Retire(ctx, p.Name); err != nil {
				return err
			}
		}
	}
	clear(in.workers)
	in.held.Store(0)
	return nil
}

// beat keeps alive what the index has of the instance.
func (in *instance) beat(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.known && len(in.workers) > 0 {
		return in.renew(ctx)
	}
	if time.Since(in.renewed) < in.c.config.Lease/3 {
		return nil
	}
	// Its events go to another replica, which may not hear its heartbeats.
	reg, err := in.c.registry(ctx)
	if err != nil {
		return err
	}
	for i := range reg.Pods {
		if p := reg.Pods[i]; in.owns(&p) {
			if _, err := in.c.config.Index.Register(ctx, p); err != nil {
				return err
			}
		}
	}
	in.renewed = time.Now()
	return nil
}
