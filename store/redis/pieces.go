package redis

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Pieces keeps sealed pieces of tokenized texts beside the index, for scorers that
// share them (tokenpool.Shared). Each is a string of its own under prefix + "{t" +
// the name in hex + "}", spread over the slots of a cluster. It is dropped a while
// after it was put. The server's maxmemory bounds them, with the index. It is safe
// for concurrent use.
type Pieces struct {
	x   *Index
	ttl time.Duration
}

// Pieces returns the pieces beside the index. They live for ttl.
func (x *Index) Pieces(ttl time.Duration) *Pieces { return &Pieces{x, ttl} }

func (p *Pieces) key(name string) string {
	return p.x.config.Prefix + "{t" + hex.EncodeToString([]byte(name)) + "}"
}

// GetPieces returns the values of names, in their order, in one round trip; nil
// where there is none, or something else than a string. An error means that the
// server has not answered in full.
func (p *Pieces) GetPieces(ctx context.Context, names []string) ([][]byte, error) {
	if err := p.x.space.Check(ctx, "pieces"); err != nil {
		return nil, err
	}
	p.x.space.Trips.Add(1)
	cmds, err := p.x.space.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, n := range names {
			pipe.Get(ctx, p.key(n))
		}
		return nil
	})
	if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
		return nil, keyspace.Failed(ctx, "pieces", err)
	}
	out := make([][]byte, len(names))
	for i, c := range cmds {
		get, _ := c.(*redis.StringCmd)
		switch v, err := get.Bytes(); {
		case err == nil:
			out[i] = v
		case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
		default:
			return nil, keyspace.Failed(ctx, "pieces", err)
		}
	}
	return out, nil
}

// PutPieces keeps values, in one round trip. A piece that is there already lives
// anew.
func (p *Pieces) PutPieces(ctx context.Context, names []string, values [][]byte) error {
	if err := p.x.space.Check(ctx, "pieces"); err != nil {
		return err
	}
	p.x.space.Trips.Add(1)
	_, err := p.x.space.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, n := range names {
			pipe.Set(ctx, p.key(n), values[i], p.ttl)
		}
		return nil
	})
	return keyspace.Failed(ctx, "pieces", err)
}
