package redis

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
)

// readCluster reads from a cluster: one MGET a partition, since a command can
// name keys of one slot only, all in one pipeline, which the client splits by
// node and sends to all of them at once.
func (l *lookup) readCluster(ctx context.Context, first bool) (epoch uint64, err error) {
	x := l.x
	for p := range l.groups {
		l.groups[p] = l.groups[p][:0]
	}
	for i, k := range l.keys {
		// The last byte of a name is the lowest of its key.
		p := k[len(k)-1] % blockkey.Partitions
		l.groups[p] = append(l.groups[p], i)
	}
	pipe := x.space.Client.Pipeline()
	var get *redis.StringCmd
	if first {
		get = pipe.Get(ctx, x.space.Names.Epoch)
	}
	var parts []part
	for _, g := range &l.groups {
		for len(g) > 0 {
			n := min(len(g), mgetKeys)
			p := part{keys: g[:n], cmd: redis.NewRawCmd(ctx, l.mget(g[:n])...)}
			_ = pipe.Process(ctx, p.cmd)
			parts = append(parts, p)
			g = g[n:]
		}
	}
	wait := func() {}
	switch {
	case x.source == nil:
		l.askEntries(ctx, pipe)
	case len(l.entries) > 0:
		wait = x.source.begin(ctx, l)
	}
	x.space.Trips.Add(1)
	_, err = pipe.Exec(ctx)
	wait()
	if err != nil && !errors.Is(err, redis.Nil) {
		// It may be that of an entry, which stops nothing.
		if err := firstError(get, parts, len(l.entries) == 0 || x.source != nil, err); err != nil {
			return 0, err
		}
	}
	if err := l.takeEntries(); err != nil {
		return 0, err
	}
	l.joined = l.joined[:0]
	l.order = slices.Grow(l.order[:0], len(l.keys))[:len(l.keys)]
	l.vals = l.order
	for _, p := range parts {
		if err := l.take(ctx, p); err != nil {
			return 0, err
		}
	}
	l.buf = l.joined
	if get == nil {
		return 0, nil
	}
	return x.space.EpochOf(get.Val()), nil
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

func (l *lookup) mget(keys []int) []any {
	args := make([]any, 0, len(keys)+1)
	args = append(args, "mget")
	for _, i := range keys {
		args = append(args, &l.keys[i])
	}
	return args
}

// take puts the values of a part in their places.
func (l *lookup) take(ctx context.Context, p part) (err error) {
	at := len(l.joined)
	l.joined = append(l.joined, p.cmd.Val()...)
	l.spans, err = readArray(l.spans[:0], l.joined, at, len(p.keys))
	if reply := replyError(""); errors.As(err, &reply) {
		// The client does not look into raw replies, so that it has not followed
		// a redirection, which is what this is while slots move or a master is
		// new. Plain commands follow it, and make the client learn the new places.
		return l.takeSingly(ctx, p.keys)
	}
	for j, i := range p.keys[:min(len(p.keys), len(l.spans))] {
		l.vals[i] = l.spans[j]
	}
	return err
}

// takeSingly reads a part key by key, which also works for the keys of a slot
// that are on two nodes while it moves.
func (l *lookup) takeSingly(ctx context.Context, keys []int) error {
	pipe := l.x.space.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(keys))
	for j, i := range keys {
		cmds[j] = pipe.Get(ctx, l.keys[i])
	}
	l.x.space.Trips.Add(1)
	// The pipeline's error is that of some command, and each is looked at.
	_, _ = pipe.Exec(ctx)
	for j, c := range cmds {
		l.vals[keys[j]] = span{0, noValue}
		v, err := c.Result()
		switch {
		case err == nil:
			l.vals[keys[j]] = span{int32(len(l.joined)), int32(len(v))}
			l.joined = append(l.joined, v...)
		case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
		default:
			return err
		}
	}
	return nil
}
