package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
)

// The registry can be lost while blocks live on: a cluster's node restarts empty,
// a policy evicts the counters, somebody deletes them. Were ids then given from 1
// again, the old blocks would credit new holders. So ids are given up to a limit
// only, and before the limit is raised each partition remembers the new one. A
// registry that has lost its counters begins above what any partition remembers.

// reserveStep is by how much the limit is raised.
const reserveStep = 4096

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
	pipe := x.client.Pipeline()
	var marks [blockkey.Partitions]*redis.StringCmd
	for p := range marks {
		marks[p] = pipe.Get(ctx, x.names.high(p))
	}
	x.roundTrips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	marked := uint64(0)
	for p, m := range &marks {
		if m.Val() == "" {
			continue
		}
		v, err := strconv.ParseUint(m.Val(), 10, 64)
		if err != nil {
			return fmt.Errorf("redis: the mark %s is %q, which is no number", x.names.high(p), clip(m.Val()))
		}
		marked = max(marked, v)
	}
	limit := max(marked, next) + reserveStep
	if limit > math.MaxUint32 {
		return fmt.Errorf("redis: all %d ids have been given; use another prefix", uint32(math.MaxUint32))
	}
	calls := make([]*call, len(marks))
	for p := range marks {
		calls[p] = &call{script: markScript, keys: []string{x.names.high(p)}, args: []string{strconv.FormatUint(limit, 10)}}
	}
	if _, err := x.run(ctx, calls...); err != nil {
		return err
	}
	_, err := x.run(ctx, x.registryCall(reserveScript, x.names.own(""), strconv.FormatUint(marked, 10), strconv.FormatUint(limit, 10)))
	return err
}
