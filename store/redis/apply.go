package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

const (
	// callKeys is how many blocks one run of apply.lua changes at most, and callBytes how many bytes of
	// values it may meet. So it keeps the server from others for less than 2 ms.
	callKeys  = 512
	callBytes = 64 << 10
	// tripCalls is how many runs go in one round trip at most.
	tripCalls = 64
	// applyTries is how often Apply begins anew because others have ended the
	// lives of the holders that it was about to write under.
	applyTries = 32
)

// Apply implements store.Index.
//
// The writer believes that certain holders have certain ids; the server checks
// that in the call that writes (on a cluster: beside it), so that
//
//	A: looks up that pod/0/gpu is holder 17
//	B: clears the pod, whose next life is holder 18
//	A: writes blocks of 17
//
// does not lose A's blocks to a life that is over: A is told, asks for the ids
// again and writes as 18.
func (x *Index) Apply(ctx context.Context, batches ...store.Batch) error {
	if err := x.space.Check(ctx, "apply"); err != nil {
		return err
	}
	for i := range batches {
		if err := batches[i].Validate(); err != nil {
			return fmt.Errorf("batch %d: %w", i, err)
		}
	}
	return store.ApplyRounds(batches, func(round []store.Batch, refused *store.RefusedError) error {
		return x.applyRound(ctx, round, refused)
	})
}

// applyRound applies batches that can be applied at once. Those whose guards
// refuse go to refused.
func (x *Index) applyRound(ctx context.Context, batches []store.Batch, refused *store.RefusedError) error {
	p := newPlan(batches, x.predicted)
	for _, g := range p.guards {
		// What came before it in this call was refused.
		g.err = refused.Generations[g.Generation]
	}
	defer func() {
		for _, g := range p.guards {
			if g.ended {
				x.forget(g.Generation)
			}
			if g.dup {
				x.duplicates.Add(g.batches)
			}
			if g.err != nil {
				if refused.Generations == nil {
					refused.Generations = map[store.Generation]error{}
				}
				refused.Generations[g.Generation] = g.err
			}
		}
	}()
	if err := x.compactDue(ctx, p.guards); err != nil {
		return keyspace.Failed(ctx, "apply", err)
	}
	for try := range applyTries {
		status, err := x.carryOut(ctx, p)
		if err != nil {
			// What the server was told before it failed is not known.
			for _, pod := range p.pods {
				x.holders.drop(pod.name)
			}
			return keyspace.Failed(ctx, "apply", err)
		}
		if !status.Refused() {
			for _, g := range p.guards {
				if g.done {
					x.forget(x.acks.is(g.Generation, g.pod, g.rank))
				}
			}
			return nil
		}
		for _, pod := range p.pods {
			x.holders.drop(pod.name)
		}
		if status == lua.Late {
			if err := x.retireAllLate(ctx); err != nil {
				return keyspace.Failed(ctx, "apply", err)
			}
		}
		// Writers that end each other's holders in turn get out of step.
		if try > 2 {
			if err := keyspace.Sleep(ctx, rand.N(time.Millisecond<<min(try, 6))); err != nil {
				return keyspace.Failed(ctx, "apply", err)
			}
		}
	}
	return fmt.Errorf("%w: apply: the holders of pod %s ended %d times while their blocks were being written, or its blocks are moving between nodes", store.ErrUnavailable, p.pods[0].name, applyTries)
}

// predicted returns the ends of the predictions of a rank that the registry of the last
// lookup has, or that this process has made since.
func (x *Index) predicted(pod string, rank int) []int64 {
	ends := x.holders.predicted(pod, rank)
	for _, h := range x.Cached().Predicted(pod, rank) {
		ends = append(ends, h.Until.UnixMilli())
	}
	return ends
}

// retireAllLate retires the pods whose leases have run out.
func (x *Index) retireAllLate(ctx context.Context) error {
	late, err := x.roster.Late(ctx)
	if err == nil {
		err = x.retireLate(ctx, late)
	}
	return err
}

// carryOut makes one try at a plan.
func (x *Index) carryOut(ctx context.Context, p *plan) (status lua.Result, err error) {
	if err := x.resolve(ctx, p); err != nil {
		return 0, err
	}
	guards := openGuards(p.guards)
	if x.space.Cluster && slices.ContainsFunc(guards, x.acks.doubtful) {
		// The watermark decides, before any block is written.
		c := x.guardCall(x.checkCall(p), guards, 0)
		if status, _, err := x.runPhase(ctx, []*run{c}, true); err != nil || status.Refused() {
			return status, err
		}
		guards = openGuards(p.guards)
		for _, g := range guards {
			g.tried = g.tried || x.acks.doubtful(g)
		}
	}
	steps := p.steps()
	switch {
	case len(guards) > 0:
	case len(p.guards) > 0:
		return lua.Applied, nil
	case len(steps) == 0 && !slices.ContainsFunc(p.pods, func(pod *podPlan) bool { return !pod.resolved }):
		return lua.Applied, nil
	}
	phases := x.applyCalls(p, guards, steps)
	for _, g := range guards {
		g.tried = true
		x.acks.try(g)
	}
	defer func() {
		for _, g := range guards {
			// A try that fails may have written to the map. On a cluster the map's node may have room
			// while another is full each time anew.
			if g.done || !g.dup && (err != nil || status.Refused()) {
				x.lists.add(g.Generation, g.Fence, g.entries)
			}
		}
	}()
	bytes := int64(0)
	for _, calls := range phases {
		status, met, err := x.runPhase(ctx, calls, len(guards) > 0)
		if err != nil || status.Refused() {
			return status, err
		}
		bytes += met
	}
	x.pace.learn(len(steps), bytes)
	return lua.Applied, x.commit(ctx, p)
}

// runPhase makes runs of apply.lua.
func (x *Index) runPhase(ctx context.Context, calls []*run, guarded bool) (status lua.Result, bytes int64, err error) {
	status = lua.Applied
	for len(calls) > 0 {
		n := min(len(calls), tripCalls)
		cmds, err := x.space.Run(ctx, callsOf(calls[:n])...)
		if x.space.Cluster && redis.HasErrorPrefix(err, "TRYAGAIN") {
			if guarded || x.changes.Kept(ctx, editPlaces(calls[:n])) {
				// The record, or the log, and the blocks are on different nodes for a
				// moment.
				return lua.Gap, 0, nil
			}
			cmds, err = x.runSingly(ctx, calls[:n])
		}
		if err != nil {
			return 0, 0, err
		}
		for i, c := range cmds {
			s, met, err := x.readReply(calls, i, c)
			if err != nil {
				return 0, 0, err
			}
			status, bytes = min(status, s), bytes+met
		}
		if status.Refused() && !guarded {
			break
		}
		calls = calls[n:]
	}
	return status, bytes, nil
}

// readReply takes in the reply to calls[i]; the reply to a call that has been made
// block by block has none.
func (x *Index) readReply(calls []*run, i int, c *redis.Cmd) (status lua.Result, bytes int64, err error) {
	switch v := c.Val().(type) {
	case int64:
		return min(lua.Result(v), lua.Applied), max(v, 0), nil
	case []any:
		parts := calls[i].parts
		if len(v) != 1+len(parts) {
			break
		}
		bytes, _ = v[0].(int64)
		for j, p := range parts {
			n, _ := v[1+j].(int64)
			switch verdict := lua.Result(n); {
			case verdict == lua.Gap:
				status = lua.Gap
			case verdict == lua.Applied:
				if last := p.parts > 0 && p.n == p.parts-1; last {
					x.acks.learn(p.guard, calls[i].Place)
					p.guard.done = p.guard.done || calls[i].Place == keyspace.AtRegistry
				}
			case verdict == lua.Duplicate && calls[i].Place != keyspace.AtRegistry:
				// This partition has it from an earlier try.
			case !p.guard.done:
				p.guard.refuse(verdict)
			}
		}
		return status, bytes, nil
	}
	return 0, 0, fmt.Errorf("redis: apply.lua returned %v", c.Val())
}

// commit writes the watermarks on a cluster. On a single server they are written
// with the blocks.
func (x *Index) commit(ctx context.Context, p *plan) error {
	guards := openGuards(p.guards)
	if len(guards) == 0 {
		return nil
	}
	c := x.guardCall(unchecked, guards, 1)
	cmds, err := x.space.Run(ctx, &c.Call)
	if err == nil {
		_, _, err = x.readReply([]*run{c}, 0, cmds[0])
	}
	return err
}
