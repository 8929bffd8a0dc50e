package redisx

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// glances is a hook that keeps the client from arming contexts. For each command the client
// takes a connection from its pool, and first looks whether the context is over by selecting on
// Done. A context of package bound starts its timer with Done, for a look that Err answers too.
// It is a hook of clients, and safe for concurrent use.
type glances struct{}

// DialHook implements redis.Hook.
func (glances) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (glances) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(&glanced{Context: ctx}, cmd) }
}

// ProcessPipelineHook implements redis.Hook.
func (glances) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return next(&glanced{Context: ctx}, cmds) }
}

// glanced is the context of one command: the first Done is a glance, which finds it over or
// not. Each later one is a wait, for a turn in the pool, a dial or the next try.
type glanced struct {
	context.Context
	was atomic.Bool
}

// Done implements context.Context.
func (c *glanced) Done() <-chan struct{} {
	if c.was.Swap(true) || c.Err() != nil {
		return c.Context.Done()
	}
	return nil
}
