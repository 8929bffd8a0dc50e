package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
)

// MemoryRow is what a block takes in Redis.
type MemoryRow struct {
	Layout string `json:"layout"`
	// Holders is the number of pods that hold each block.
	Holders int `json:"holders"`
	// Bytes is all memory that the server has taken for a block: value, name, and
	// their part of the table of keys. Maps is that of the engines' hashes, with
	// which the sum is WithMaps.
	Bytes    float64 `json:"bytes"`
	Maps     float64 `json:"maps_bytes"`
	WithMaps float64 `json:"with_maps_bytes"`
	// Usage is MEMORY USAGE of a block's key, which knows no table of keys.
	Usage float64 `json:"memory_usage"`
	// Ratio and RatioWithMaps are parts of what the peer's present form takes.
	Ratio         float64 `json:"ratio"`
	RatioWithMaps float64 `json:"ratio_with_maps"`
}

// memory measures what blocks take, from an empty database each time.
func (r *redisRun) memory(ctx context.Context) error {
	blocks := newCorpus(3, r.c.MemoryKeys, 1024)
	// Scripts, connections and the registry are there before anything is measured.
	warm := blocks.append(nil, 0, 0, blocks.depth)
	for _, l := range []layout{r.ours, newPeer(r.s, false, true), newPeer(r.s, true, true)} {
		r.willForget(l, "memory", blocks)
		if err := errors.Join(l.fill(ctx, podNames(r.c.Pods), warm), r.forgetNow(ctx, l, "memory")); err != nil {
			return err
		}
	}
	for _, holders := range []int{1, r.c.Pods} {
		pods := podNames(holders)
		var rows []MemoryRow
		add := func(row MemoryRow, err error) error {
			row.Holders, row.WithMaps = holders, row.Bytes+row.Maps
			rows = append(rows, row)
			return err
		}
		for _, used := range []int{0, r.c.usedIDs} {
			if err := add(r.oursMemory(ctx, blocks, pods, used)); err != nil {
				return err
			}
		}
		for _, asJSON := range []bool{false, true} {
			if err := add(r.peerMemory(ctx, blocks, pods, asJSON)); err != nil {
				return err
			}
		}
		whole := rows[len(rows)-1]
		for i := range rows {
			rows[i].Ratio = rows[i].Bytes / whole.Bytes
			rows[i].RatioWithMaps = rows[i].WithMaps / whole.WithMaps
		}
		r.report.Memory = append(r.report.Memory, rows...)
	}
	return nil
}

// growth is by how many bytes a block the memory grows while f runs.
func (r *redisRun) growth(ctx context.Context, blocks int, f func() error) (float64, error) {
	before, err := r.s.settledMemory(ctx, r.c.settle)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := r.s.settledMemory(ctx, r.c.settle)
	if err != nil {
		return 0, err
	}
	return (after - before) / float64(blocks), nil
}

func (r *redisRun) oursMemory(ctx context.Context, blocks corpus, pods []string, used int) (row MemoryRow, err error) {
	row.Layout = "kvatlas"
	if used > 0 {
		row.Layout = fmt.Sprintf("kvatlas, ids from %d", used)
	}
	r.c.Progress(fmt.Sprintf("memory of %d blocks with %d holders: %s", blocks.keys(), len(pods), row.Layout))
	if err := r.ours.useUp(ctx, used); err != nil {
		return row, err
	}
	row.Bytes, err = r.growth(ctx, blocks.keys(), func() error { return fillAll(ctx, r.ours, blocks, pods) })
	if err != nil {
		return row, err
	}
	if row.Usage, err = r.usage(ctx, prefix+"{?}????????"); err != nil {
		return row, err
	}
	// Begin ends what was held, but what lies there stays until it is swept.
	g, err := r.ours.withMaps(ctx, pods)
	if err != nil {
		return row, err
	}
	row.Maps, err = r.growth(ctx, blocks.keys(), func() error {
		return blocks.each(1024, func(keys []blockkey.Key) error { return g.fillMaps(ctx, pods, keys) })
	})
	if err != nil {
		return row, err
	}
	return row, r.forgetNow(ctx, r.ours, "")
}

func (r *redisRun) peerMemory(ctx context.Context, blocks corpus, pods []string, asJSON bool) (row MemoryRow, err error) {
	bare, whole := newPeer(r.s, asJSON, false), newPeer(r.s, asJSON, true)
	row.Layout = bare.name()
	r.c.Progress(fmt.Sprintf("memory of %d blocks with %d holders: %s", blocks.keys(), len(pods), row.Layout))
	r.willForget(bare, "memory", blocks)
	row.Bytes, err = r.growth(ctx, blocks.keys(), func() error { return fillAll(ctx, bare, blocks, pods) })
	if err != nil {
		return row, err
	}
	if row.Usage, err = r.usage(ctx, "[0-9]*"); err != nil {
		return row, err
	}
	r.willForget(whole, "memory", blocks)
	row.Maps, err = r.growth(ctx, blocks.keys(), func() error {
		return blocks.each(1024, func(keys []blockkey.Key) error { return whole.fillMap(ctx, keys) })
	})
	if err != nil {
		return row, err
	}
	if err := r.forgetNow(ctx, bare, "memory"); err != nil {
		return row, err
	}
	return row, r.forgetNow(ctx, whole, "memory")
}

// usage is the mean of MEMORY USAGE over some keys that match the pattern.
func (r *redisRun) usage(ctx context.Context, pattern string) (float64, error) {
	const enough = 1000
	node := r.s.nodes[0]
	var names []string
	for cursor := uint64(0); len(names) < enough; {
		page, next, err := node.Scan(ctx, cursor, pattern, 1024).Result()
		if err != nil {
			return 0, err
		}
		names = append(names, page...)
		if cursor = next; cursor == 0 {
			break
		}
	}
	if len(names) == 0 {
		return 0, fmt.Errorf("no key matches %s", strconv.Quote(pattern))
	}
	pipe := node.Pipeline()
	cmds := make([]*redis.IntCmd, len(names))
	for i, n := range names {
		cmds[i] = pipe.MemoryUsage(ctx, n, 0) // all elements
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, c := range cmds {
		sum += float64(c.Val())
	}
	return sum / float64(len(names)), nil
}
