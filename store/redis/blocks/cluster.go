package blocks

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// readCluster reads from a cluster. It sends one MGET a partition, since a
// command can name keys of one slot only. All are in one pipeline, which the
// client splits by node and sends to all of them at once.
func (b *Batch) readCluster(ctx context.Context, first bool, rider Rider) (epoch uint64, err error) {
	for p := range b.groups {
		b.groups[p] = b.groups[p][:0]
	}
	for i, k := range b.keys {
		// The last byte of a name is the lowest of its key.
		p := k[len(k)-1] % blockkey.Partitions
		b.groups[p] = append(b.groups[p], i)
	}
	pipe := b.space.Client.Pipeline()
	var get *redis.StringCmd
	if first {
		get = pipe.Get(ctx, b.space.Names.Epoch)
	}
	var parts []part
	for _, g := range &b.groups {
		for len(g) > 0 {
			n := min(len(g), mgetKeys)
			p := part{keys: g[:n], cmd: redis.NewRawCmd(ctx, b.mget(g[:n])...)}
			_ = pipe.Process(ctx, p.cmd)
			parts = append(parts, p)
			g = g[n:]
		}
	}
	wait := func() {}
	if rider != nil {
		wait = rider.AskBeside(ctx, pipe)
	}
	b.space.Trips.Add(1)
	_, err = pipe.Exec(ctx)
	wait()
	if err != nil && !errors.Is(err, redis.Nil) {
		// It may be that of the rider, which stops nothing.
		if err := firstError(get, parts, rider == nil, err); err != nil {
			return 0, err
		}
	}
	if rider != nil {
		if err := rider.TakeReplies(); err != nil {
			return 0, err
		}
	}
	b.joined = b.joined[:0]
	b.order = slices.Grow(b.order[:0], len(b.keys))[:len(b.keys)]
	b.vals = b.order
	for _, p := range parts {
		if err := b.takePart(ctx, p); err != nil {
			return 0, err
		}
	}
	b.buf = b.joined
	if get == nil {
		return 0, nil
	}
	return b.space.EpochOf(get.Val()), nil
}

// firstError returns the error of a pipeline that is about blocks. all tells that there
// was nothing else in it.
func firstError(get *redis.StringCmd, parts []part, all bool, err error) error {
	if all {
		return err
	}
	if get != nil && get.Err() != nil && !errors.Is(get.Err(), redis.Nil) {
		return get.Err()
	}
	for _, p := range parts {
		if p.cmd.Err() != nil {
			return p.cmd.Err()
		}
	}
	return nil
}

// part is one MGET: the numbers of its keys, and the command.
type part struct {
	keys []int
	cmd  *redis.RawCmd
}

func (b *Batch) mget(keys []int) []any {
	args := make([]any, 0, len(keys)+1)
	args = append(args, "mget")
	for _, i := range keys {
		args = append(args, &b.keys[i])
	}
	return args
}

// takePart puts the values of a part in their places.
func (b *Batch) takePart(ctx context.Context, p part) (err error) {
	at := len(b.joined)
	b.joined = append(b.joined, p.cmd.Val()...)
	b.spans, err = readArray(b.spans[:0], b.joined, at, len(p.keys))
	if redisx.Refused(err) {
		// The client does not look into raw replies, so it has not followed a
		// redirection. That is what this is while slots move or a master is new. Plain
		// commands follow it, and make the client learn the new places.
		return b.takeSingly(ctx, p.keys)
	}
	for j, i := range p.keys[:min(len(p.keys), len(b.spans))] {
		b.vals[i] = b.spans[j]
	}
	return err
}

// takeSingly reads a part key by key, which also works for the keys of a slot
// that are on two nodes while it moves.
func (b *Batch) takeSingly(ctx context.Context, keys []int) error {
	pipe := b.space.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(keys))
	for j, i := range keys {
		cmds[j] = pipe.Get(ctx, b.keys[i])
	}
	b.space.Trips.Add(1)
	// The pipeline's error is that of some command, and each is looked at.
	_, _ = pipe.Exec(ctx)
	for j, c := range cmds {
		b.vals[keys[j]] = span{0, noValue}
		v, err := c.Result()
		switch {
		case err == nil:
			b.vals[keys[j]] = span{int32(len(b.joined)), int32(len(v))}
			b.joined = append(b.joined, v...)
		case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
		default:
			return err
		}
	}
	return nil
}
