package keyspace

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// Failed wraps an error of a call to the server into what an index promises.
// That is the context's error when it is why the call ended. It is
// store.ErrUnavailable for whatever the caller can do nothing about but try
// again later.
func Failed(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	for _, mine := range []error{store.ErrClosed, store.ErrFull, store.ErrInvalid, store.ErrUnavailable, store.ErrFenced, store.ErrEnded, store.ErrNoRank, ErrSchema} {
		if errors.Is(err, mine) {
			return err
		}
	}
	if errors.Is(err, redis.ErrClosed) {
		return store.ErrClosed
	}
	if schema, ok := strings.CutPrefix(err.Error(), "KVASCHEMA "); ok {
		s, p, _ := strings.Cut(schema, " ")
		return SchemaError(s, p)
	}
	if full, ok := strings.CutPrefix(err.Error(), "KVAFULL "); ok {
		what, limit, _ := strings.Cut(full, " ")
		return fmt.Errorf("%w: there are %s %s already, the limit of the configuration", store.ErrFull, limit, what)
	}
	if err := absentRank(err); err != nil {
		return err
	}
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.Canceled):
		return fmt.Errorf("redis: %s: %w", doing, cause)
	case cause != nil:
		return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, cause)
	}
	if why := refusal(err); why != nil {
		return fmt.Errorf("%w: %w: %s: %w", store.ErrUnavailable, why, doing, err)
	}
	return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, err)
}

// ErrSchema says that the prefix is in use with another data model. The remedy
// is another prefix, or a version of kvatlas that knows that model.
var ErrSchema = errors.New("redis: the prefix is in use with another schema")

// ErrProtocol says that a reply is not what the command answers.
var ErrProtocol = errors.New("redis: the server's reply cannot be read")

// absentRank reads the answer KVARANK of a script; it returns nil for any other.
func absentRank(err error) error {
	rest, ok := strings.CutPrefix(err.Error(), "KVARANK ")
	if !ok {
		return nil
	}
	var p store.Pod
	var rank int
	words := strings.SplitN(rest, " ", 3)
	if len(words) == 3 {
		p.Name = words[2]
		rank, _ = strconv.Atoi(words[0])
		p.Ranks, _ = strconv.Atoi(words[1])
	}
	if err := p.CheckRank(rank); err != nil {
		return err
	}
	return store.ErrNoRank
}

// refusal returns what the server means by an error, nil if it says nothing that
// another call could not change.
func refusal(err error) error {
	if redis.HasErrorPrefix(err, "OOM") {
		return store.ErrNoMemory
	}
	if redisx.RefusedCommand(err) {
		return store.ErrRefused
	}
	for _, prefix := range []string{"READONLY", "NOAUTH", "WRONGPASS", "WRONGTYPE", "MISCONF"} {
		if redis.HasErrorPrefix(err, prefix) {
			return store.ErrRefused
		}
	}
	return nil
}

// SchemaError is ErrSchema for an index that has this schema with these partitions.
func SchemaError(schema, partitions string) error {
	return fmt.Errorf("%w: it has schema %s with %s partitions, this version has schema %d with %d", ErrSchema, schema, partitions, Schema, len(Tags))
}
