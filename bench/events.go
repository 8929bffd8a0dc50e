package bench

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// A writer puts events of a rank that come within a few milliseconds into one call.
	// They are fullCall when more wait, an ingester's window, and someCall when not.
	fullCall = 64
	someCall = 16
	// eventRanks is how many ranks have the events, and maxEntries how many entries
	// their maps have before: engines have been running for a while.
	eventRanks = 2
	maxEntries = 1 << 15
)

// eventWriters are the numbers of writers at the same time. The peer has four by
// default, ours as many as there are ranks.
var eventWriters = []int{1, 4}

// events compares the writing of engines' events, and then their removal.
func (r *redisRun) events(ctx context.Context, pods []string, peers []*peer) error {
	n := r.c.EventBlocks
	// A generation begins with nothing, so that those with maps are other pods'.
	others := make([]string, eventRanks)
	for i := range others {
		others[i] = podName(len(pods) + i)
	}
	guarded, err := r.ours.withMaps(ctx, others)
	if err != nil {
		return err
	}
	entries := min(maxEntries, max(1024, r.c.Keys/16))
	r.c.Progress(fmt.Sprintf("writing maps of %d entries", entries))
	err = newCorpus(19, entries, 1024).each(1024, func(keys []blockkey.Key) error { return guarded.fillMaps(ctx, others, keys) })
	if err != nil {
		return err
	}
	sample := 2*fullCall + r.c.Rounds*r.c.EventBurst // two calls before the first sample
	// Each side has blocks of its own.
	events := func(side int) corpus {
		return newCorpus(uint64(20+side), (sample*len(eventWriters)/2+1)*n, n)
	}
	for i, p := range peers {
		r.willForget(p, "events", events(i))
	}
	single := func(l layout, kind store.OpKind, pods []string, events corpus, first int) contender {
		do := l.store
		if kind == store.Remove {
			do = l.remove
		}
		return contender{name: l.name(), trips: l.trips, run: func(ctx context.Context, seq int) error {
			pod, keys := events.event(first+seq, n, pods)
			return do(ctx, pod, keys)
		}}
	}
	many := func(perCall int, kind store.OpKind, events corpus, first int) contender {
		name := fmt.Sprintf("%s, %d events a call", guarded.name(), perCall)
		return contender{name: name, trips: guarded.trips, ops: perCall, run: func(ctx context.Context, seq int) error {
			// All of a call are one rank's, and those of the next another's that stores
			// the same, as single events do.
			batches := make([]store.Batch, perCall)
			for j := range batches {
				_, keys := events.event(2*((first/perCall+seq)/2*perCall+j), n, others)
				batches[j] = guarded.event(others[seq%len(others)], kind, keys)
			}
			return guarded.apply(ctx, coalesce(batches)...)
		}}
	}
	for _, kind := range []store.OpKind{store.Add, store.Remove} {
		rows, burst := &r.report.Ingest, r.c.EventBurst
		what := "writing"
		if kind == store.Remove {
			rows, burst = &r.report.Evict, burst/4
			what = "removing"
		}
		for i, writers := range eventWriters {
			first := i * sample
			sides := []contender{
				many(fullCall, kind, events(len(peers)+1), first), many(someCall, kind, events(len(peers)+2), first),
				single(guarded, kind, others, events(len(peers)+3), first), single(r.ours, kind, pods, events(len(peers)), first),
			}
			for i, p := range peers {
				sides = append(sides, single(p, kind, pods, events(i), first))
			}
			r.c.Progress(fmt.Sprintf("%s events of %d blocks, %d at a time", what, n, writers))
			got, err := compare(ctx, r.s, turns{rounds: r.c.Rounds, burst: burst, workers: writers, second: 1}, sides)
			if err != nil {
				return err
			}
			*rows = append(*rows, EventRow{Blocks: n, Writers: writers, Sides: got})
		}
	}
	for _, p := range peers {
		if err := r.forgetNow(ctx, p, "events"); err != nil {
			return err
		}
	}
	if !r.wants(partRetire) {
		return nil
	}
	// A sweep is to find nothing but what it is measured with.
	r.c.Progress("removing what is left of the events")
	for side := range 4 {
		if err := forgetAll(ctx, r.ours, events(len(peers)+side)); err != nil {
			return err
		}
	}
	return nil
}
