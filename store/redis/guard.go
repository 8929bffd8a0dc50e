package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// Guards, and the order of things that makes them hold.
//
// The record of a generation says which writer may write for it and how far it has been
// written. On a single server there is one, at the registry, and each run of
// apply.lua reads and writes it along with the blocks. On a cluster each partition has
// one too, in the slot of the blocks that it guards. The one at the registry is the
// watermark:
//
//	1. holders.lua makes the clears of the sequence, if it has some, and notes that
//	2. apply.lua in each partition: blocks and the partition's record
//	3. apply.lua at the registry: the watermark, when all of 2 are acknowledged
//
// A writer that dies anywhere leaves the watermark where it was. The next one
// raises the fence at the registry, then in all partitions, where it sets the
// records back to the watermark as well. For what it applies from there on may be
// cut otherwise than it was, and ids that it gets may be others.

// guardPlan is a guard of a plan and what has become of it.
type guardPlan struct {
	store.Guard
	pod     string
	rank    int
	batches uint64
	done    bool          // wholly applied
	ended   bool          // refused because the generation has ended
	err     error         // refused
	dup     bool          // a duplicate
	ops     []store.MapOp // changes of its map
	entries int           // that they change
	// tried is true when blocks may have been written by an earlier try.
	tried bool
}

// over reports whether there is nothing more to be done under the guard.
func (g *guardPlan) over() bool { return g.done || g.dup || g.err != nil }

// refuse takes in why nothing is done under the guard.
func (g *guardPlan) refuse(verdict lua.Result) {
	switch verdict {
	case lua.Duplicate:
		g.dup = true
	case lua.Fenced:
		g.err = store.ErrFenced
	case lua.Ended:
		g.err, g.ended = store.ErrEnded, true
	case lua.Lost:
		// The server has a record, and would go by it if this process forgot what it knows.
		g.err = fmt.Errorf("%w: the server has lost writes", store.ErrEnded)
	default: // of no guard
	}
}

// guard returns the guard of a batch, nil if it has none.
func (p *plan) guard(pod *podPlan, b *store.Batch) *guardPlan {
	if b.Guard == nil {
		return nil
	}
	for _, g := range pod.guards {
		if g.Guard == *b.Guard && g.rank == b.Rank {
			g.batches++
			g.ops = append(g.ops, b.Map...)
			return g
		}
	}
	g := &guardPlan{Guard: *b.Guard, pod: pod.name, rank: b.Rank, batches: 1, ops: slices.Clip(b.Map)}
	pod.guards = append(pod.guards, g)
	p.guards = append(p.guards, g)
	return g
}

// openGuards are the guards under which there is still something to do.
func openGuards(guards []*guardPlan) []*guardPlan {
	return slices.DeleteFunc(slices.Clone(guards), (*guardPlan).over)
}

// ack is what this process knows to be written of a generation.
type ack struct {
	fence uint64
	seq   [keyspace.AtMap + 1]uint64
	// tried is the sequence that was last sent, answered or not.
	tried uint64
	// pod and rank are whose generation it is, when rank is not noRank.
	pod  string
	rank int
}

// noRank is the rank of a generation that has been taken over and not written yet.
const noRank = -1

// ackCache remembers acks, of the generations that were used last. A record that
// says less than the writer knows to be written is one of a server that has lost
// writes. What is forgotten of a living generation is learnt anew, but what is lost
// before that is not noticed. So ended generations go when this process hears of
// the end.
type ackCache struct {
	mu   sync.Mutex // protects what follows
	acks *simplelru.LRU[store.Generation, *ack]
	// latest are the latest generations in acks, by pod and rank.
	latest map[string]map[int]store.Generation
}

// newAckCache makes one for so many generations.
func newAckCache(limit int) *ackCache {
	c := &ackCache{latest: map[string]map[int]store.Generation{}}
	c.acks, _ = simplelru.NewLRU(limit, func(gen store.Generation, a *ack) {
		if ranks := c.latest[a.pod]; a.rank != noRank && ranks[a.rank] == gen {
			if delete(ranks, a.rank); len(ranks) == 0 {
				delete(c.latest, a.pod)
			}
		}
	}) // which fails only without room for one
	return c
}

// of returns what is known of a generation under a fence, nil for nothing.
func (c *ackCache) of(gen store.Generation, fence uint64) *ack {
	if a, _ := c.acks.Get(gen); a != nil && a.fence == fence {
		return a
	}
	return nil
}

// is notes whose generation it is, and returns the one before it, 0 for none.
func (c *ackCache) is(gen store.Generation, pod string, rank int) (ended store.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.acks.Peek(gen)
	if a == nil || a.rank != noRank {
		return 0
	}
	a.pod, a.rank = pod, rank
	ranks := c.latest[pod]
	if ranks == nil {
		ranks = map[int]store.Generation{}
		c.latest[pod] = ranks
	}
	ended = ranks[rank]
	if ended > gen {
		return 0 // a straggler, or a server that has begun anew: the writer hears which
	}
	ranks[rank] = gen
	return ended
}

// ofPod returns the generations that are known of a pod.
func (c *ackCache) ofPod(pod string) []store.Generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.latest[pod]))
}

// drop forgets a generation.
func (c *ackCache) drop(gen store.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks.Remove(gen)
}

// forget drops what this process remembers of generations that have ended.
func (x *Index) forget(gens ...store.Generation) {
	for _, gen := range gens {
		x.acks.drop(gen)
		x.lists.drop(gen)
		x.views.Take(gen)
	}
}

// after is up to which sequence a place is known to have been written.
func (c *ackCache) after(g *guardPlan, place int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.of(g.Generation, g.Fence); a != nil {
		return a.seq[place]
	}
	return 0
}

// learn notes that a place has been written, as long as the fence is the one
// that this process knows.
func (c *ackCache) learn(g *guardPlan, place int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.acks.Get(g.Generation)
	switch {
	case a == nil:
		a = &ack{fence: g.Fence, rank: noRank}
		c.acks.Add(g.Generation, a)
	case a.fence != g.Fence:
		return
	}
	a.seq[place] = max(a.seq[place], g.Seq)
}

// doubtful reports whether an earlier call has sent the guard's batch and not learnt
// what became of it. Some partitions of a cluster may have applied it, under ids
// that may have ended since:
//
//	A: sends 5, which partition 3 applies under holder 17; the connection breaks
//	B: clears the rank without a guard; its next holder is 18
//	A: sends 5 again: partition 3 must apply it again, under 18
//
// unless the watermark is 5 by now, and B's clear came after it.
func (c *ackCache) doubtful(g *guardPlan) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.of(g.Generation, g.Fence)
	return a != nil && a.tried == g.Seq && a.seq[keyspace.AtRegistry] < g.Seq
}

// try notes that the guard's batch is sent.
func (c *ackCache) try(g *guardPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.of(g.Generation, g.Fence); a != nil {
		a.tried = g.Seq
	}
}

// set notes that all places have been written up to seq under a new fence.
func (c *ackCache) set(gen store.Generation, fence, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &ack{fence: fence, rank: noRank}
	if old, _ := c.acks.Peek(gen); old != nil {
		a.pod, a.rank = old.pod, old.rank
	}
	for i := range a.seq {
		a.seq[i] = seq
	}
	c.acks.Add(gen, a)
}

// guardPart is one of the runs that a sequence of a guard takes in one place.
type guardPart struct {
	guard    *guardPlan
	n, parts int // parts is 0 to look at the guard only
}

// guardArgs appends what apply.lua takes for guards.
func (x *Index) guardArgs(args []string, place int, attempt uint64, parts []guardPart) []string {
	for _, p := range parts {
		for _, v := range []uint64{uint64(p.guard.Generation), p.guard.Fence, p.guard.Seq, x.acks.after(p.guard, place)} {
			args = append(args, strconv.FormatUint(v, 10))
		}
		args = append(args, keyspace.Flag(p.guard.tried && place != keyspace.AtRegistry), strconv.FormatUint(attempt, 10), strconv.Itoa(p.n), strconv.Itoa(p.parts))
	}
	return args
}

// Begin implements store.Index.
func (x *Index) Begin(ctx context.Context, pod string, rank int, fence uint64) (store.Generation, error) {
	if err := x.space.Check(ctx, "begin"); err != nil {
		return 0, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank), store.CheckFence(fence)); err != nil {
		return 0, err
	}
	c := x.space.RegistryCall(lua.Begin, x.space.Names.Own(pod), pod, strconv.Itoa(rank), strconv.FormatUint(fence, 10))
	cmds, err := x.runReserving(ctx, c)
	if err != nil {
		return 0, keyspace.Failed(ctx, "begin", err)
	}
	text, err := cmds[0].Text()
	if err != nil {
		return 0, keyspace.Failed(ctx, "begin", err)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil && lua.Result(n) == lua.Unregistered:
		return 0, fmt.Errorf("%w: %s", store.ErrUnknownPod, pod)
	case err == nil && lua.Result(n) == lua.Fenced:
		return 0, fmt.Errorf("%w: pod %s rank %d", store.ErrFenced, pod, rank)
	case err != nil || n < 1 || n > math.MaxUint32:
		return 0, fmt.Errorf("%w: begin.lua returned %q", store.ErrUnavailable, redisx.Clip(text))
	}
	gen := store.Generation(n)
	x.holders.drop(pod)
	// Until all partitions have it, the generation can be taken over.
	if err := x.fence(ctx, gen, fence, 0, true); err != nil {
		return 0, keyspace.Failed(ctx, "begin", err)
	}
	x.forget(x.acks.is(gen, pod, rank))
	if err := x.beginMap(ctx, gen); err != nil {
		return 0, keyspace.Failed(ctx, "begin", err)
	}
	x.lists.open(gen, fence, 0)
	return gen, nil
}

// TakeOver implements store.Index.
func (x *Index) TakeOver(ctx context.Context, gen store.Generation, fence uint64) (watermark uint64, err error) {
	if err := x.space.Check(ctx, "take over"); err != nil {
		return 0, err
	}
	if gen == 0 {
		return 0, fmt.Errorf("%w: no generation", store.ErrInvalid)
	}
	if err := store.CheckFence(fence); err != nil {
		return 0, err
	}
	c := fenceCall(x.space.Names.Records, gen, fence, "", false)
	c.Keys = append(c.Keys, x.space.Names.Live)
	for range applyTries {
		var cmds []*redis.Cmd
		if cmds, err = x.space.Run(ctx, c); err == nil {
			watermark, err = fenced(cmds[0])
		}
		if !errors.Is(err, errLate) {
			break
		}
		if err := x.retireAllLate(ctx); err != nil {
			return 0, keyspace.Failed(ctx, "take over", err)
		}
	}
	if errors.Is(err, store.ErrEnded) {
		x.forget(gen)
	}
	if err == nil {
		// A partition without a record is one that Begin had no time for, or that
		// has been lost.
		err = x.fence(ctx, gen, fence, watermark, watermark == 0)
	}
	if err != nil {
		return 0, keyspace.Failed(ctx, "take over", err)
	}
	x.takeMap(gen, fence)
	if watermark == 0 {
		// Begin may have had no time for this either.
		if err := x.beginMap(ctx, gen); err != nil {
			return 0, keyspace.Failed(ctx, "take over", err)
		}
	}
	return watermark, nil
}

// fence writes the records of a generation in all partitions of a cluster.
func (x *Index) fence(ctx context.Context, gen store.Generation, fence, seq uint64, create bool) error {
	if x.space.Cluster {
		calls := make([]*keyspace.Call, blockkey.Partitions, keyspace.AtMap)
		for p := range calls {
			calls[p] = fenceCall(x.space.Names.Guards(p), gen, fence, strconv.FormatUint(seq, 10), create)
		}
		calls = append(calls, fenceCall(x.space.Names.MapRecords(gen, true), gen, fence, strconv.FormatUint(seq, 10), create))
		cmds, err := x.space.Run(ctx, calls...)
		if err != nil {
			return err
		}
		for _, c := range cmds {
			if _, err := fenced(c); err != nil {
				return err
			}
		}
	}
	x.acks.set(gen, fence, seq)
	return nil
}

func fenceCall(records string, gen store.Generation, fence uint64, seq string, create bool) *keyspace.Call {
	return &keyspace.Call{Script: lua.Fence, Keys: []string{records}, Args: []string{
		strconv.FormatUint(uint64(gen), 10), strconv.FormatUint(fence, 10), seq, keyspace.Flag(create),
	}}
}

// errLate says that the lease of some pod has run out.
var errLate = errors.New("redis: a lease has run out")

// fenced reads the reply of fence.lua.
func fenced(c *redis.Cmd) (seq uint64, err error) {
	v, _ := c.Slice()
	if len(v) == 2 {
		verdict, _ := v[0].(int64)
		text, _ := v[1].(string)
		switch lua.Result(verdict) {
		case lua.Applied:
			return strconv.ParseUint(text, 10, 64)
		case lua.Fenced:
			return 0, store.ErrFenced
		case lua.Ended:
			return 0, store.ErrEnded
		case lua.Late:
			return 0, errLate
		default: // fence.lua answers no other
		}
	}
	return 0, fmt.Errorf("redis: fence.lua returned %v", c.Val())
}

// Life implements store.Index.
func (x *Index) Life(ctx context.Context, pod string, rank int) (store.Life, error) {
	if err := x.space.Check(ctx, "life"); err != nil {
		return store.Life{}, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank)); err != nil {
		return store.Life{}, err
	}
	cmds, err := x.space.Run(ctx, &keyspace.Call{Script: lua.Generation, Keys: []string{x.space.Names.Live, x.space.Names.Own(pod), x.space.Names.Records}, Args: []string{pod, strconv.Itoa(rank)}})
	if err != nil {
		return store.Life{}, keyspace.Failed(ctx, "life", err)
	}
	v, err := cmds[0].StringSlice()
	switch {
	case err != nil:
		return store.Life{}, keyspace.Failed(ctx, "life", err)
	case len(v) != 2:
		return store.Life{}, nil
	}
	return parseLife(v[0], v[1])
}

// parseLife reads a record of the registry.
func parseLife(gen, record string) (store.Life, error) {
	f := strings.SplitN(record, ",", 3)
	if len(f) >= 2 {
		g, err1 := strconv.ParseUint(gen, 10, 32)
		fence, err2 := strconv.ParseUint(f[0], 10, 64)
		seq, err3 := strconv.ParseUint(f[1], 10, 64)
		if errors.Join(err1, err2, err3) == nil {
			return store.Life{Generation: store.Generation(g), Fence: fence, Seq: seq}, nil
		}
	}
	return store.Life{}, fmt.Errorf("%w: the record of generation %q is %q", store.ErrUnavailable, redisx.Clip(gen), redisx.Clip(record))
}
