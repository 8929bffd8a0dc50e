package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// The registry can be lost while blocks live on: a cluster's node restarts empty,
// a policy evicts the counters, a hand deletes them. Were ids then given from 1
// again, the old blocks would credit new holders. So ids are given up to a limit
// only, and before the limit is raised each partition remembers the new one. A
// registry that has lost its counters begins above what any partition remembers.
//
// A policy that evicts what is seldom used evicts these memories first. So where
// no partition remembers anything although there are blocks, ids begin at the
// time. That is above all that can have been given, unless they were given
// faster than timeIDs a second over the years.

// reserveStep is by how much the limit is raised.
const reserveStep = 4096

const (
	// timeIDs is how many ids there are for each second since timeZero, 2026.
	timeIDs, timeZero = 8, 1767225600
	// newSteps and newStep bound the search for blocks of an index that seems to be new. It
	// takes newSteps steps of SCAN on a node, of newStep keys each.
	newSteps, newStep = 64, 1000
)

// isNew reports whether there is certainly no block yet.
func (x *Index) isNew(ctx context.Context) (bool, error) {
	var found atomic.Bool
	look := func(ctx context.Context, c *redis.Client) error {
		cursor := uint64(0)
		for range newSteps {
			x.space.Trips.Add(1)
			names, next, err := c.Scan(ctx, cursor, x.space.Names.Prefix+"{*", newStep).Result()
			if err != nil {
				if redisx.Refused(err) {
					found.Store(true) // not known
					return nil
				}
				return err
			}
			for _, name := range names {
				if _, ok := x.space.Names.ParseBlock(name); ok {
					found.Store(true)
				}
			}
			if cursor = next; cursor == 0 || found.Load() {
				return nil
			}
		}
		found.Store(true)
		return nil
	}
	err := x.space.EachMaster(ctx, look)
	return err == nil && !found.Load(), err
}

// timeFloor is the id to begin above when all that was known is lost.
func (x *Index) timeFloor(ctx context.Context) (uint64, error) {
	ms, err := x.space.Time(ctx)
	return uint64(max(ms/1000-timeZero, 0)) * timeIDs, err
}

// reserveNeeded is what holders.lua says when it needs a higher limit; next is
// the id that it would have given.
func reserveNeeded(err error) (next uint64, yes bool) {
	if err == nil {
		return 0, false
	}
	s, yes := strings.CutPrefix(err.Error(), "KVARESERVE ")
	if !yes {
		return 0, false
	}
	next, err = strconv.ParseUint(s, 10, 64)
	return next, err == nil
}

// reserve raises the limit to above next.
func (x *Index) reserve(ctx context.Context, next uint64) error {
	pipe := x.space.Client.Pipeline()
	var marks [blockkey.Partitions]*redis.StringCmd
	for p := range marks {
		marks[p] = pipe.Get(ctx, x.space.Names.High(p))
	}
	x.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	marked := uint64(0)
	for p, m := range &marks {
		if m.Val() == "" {
			continue
		}
		v, err := strconv.ParseUint(m.Val(), 10, 64)
		if err == nil && v >= uint64(store.FirstLocal) {
			err = fmt.Errorf("it is above all ids")
		}
		if err != nil {
			// The others know better, and it is written anew below.
			x.space.Unreadable("the mark "+x.space.Names.High(p)+", "+strconv.Quote(redisx.Clip(m.Val()))+",", m.Val(), err)
			continue
		}
		marked = max(marked, v)
	}
	if marked == 0 && next == 1 {
		isNew, err := x.isNew(ctx)
		if err != nil {
			return err
		}
		if !isNew {
			if marked, err = x.timeFloor(ctx); err != nil {
				return err
			}
		}
	}
	limit, err := x.raiseMarks(ctx, &marked, next)
	if err != nil {
		return err
	}
	_, err = x.space.Run(ctx, x.space.RegistryCall(lua.Reserve, x.space.Names.Own(""), strconv.FormatUint(marked, 10), strconv.FormatUint(limit, 10)))
	return err
}

// raiseMarks raises the marks of all partitions to a limit that no other process has raised
// them to. So the ids above marked are for one registry to give:
//
//	A and B: read 4097, as the counters have been lost
//	A: raises the marks to 8193, gives 4098, and the counters are lost again
//	B: must not begin at 4098
//
// marked is the highest of them before, as it was read, and as it turns out to be.
func (x *Index) raiseMarks(ctx context.Context, marked *uint64, next uint64) (limit uint64, err error) {
	for range applyTries {
		limit = max(*marked, next) + reserveStep
		if limit >= uint64(store.FirstLocal) {
			return 0, fmt.Errorf("redis: all %d ids have been given; use another prefix", uint32(store.FirstLocal-1))
		}
		var calls [blockkey.Partitions]*keyspace.Call
		for p := range calls {
			calls[p] = &keyspace.Call{Script: lua.Mark, Keys: []string{x.space.Names.High(p)}, Args: []string{strconv.FormatUint(limit, 10)}}
		}
		cmds, err := x.space.Run(ctx, calls[:]...)
		if err != nil {
			return 0, err
		}
		was := *marked
		for _, c := range cmds {
			if v, ok := c.Val().(int64); ok && v > 0 {
				was = max(was, uint64(v))
			}
		}
		if was == *marked {
			return limit, nil
		}
		*marked = was
	}
	return 0, fmt.Errorf("%w: others have raised the limit of ids %d times meanwhile", store.ErrUnavailable, applyTries)
}
