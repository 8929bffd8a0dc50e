package keyspace

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// Call is one run of a script.
type Call struct {
	Script *lua.Script
	Keys   []string
	Args   []string
	// Place is where its keys are: a partition, AtRegistry or AtMap.
	Place int
	// Guarded is true when guards keep it from being done late.
	Guarded bool

	// latest is until when it may be done, in ms by the clock of its server, if it is
	// timed.
	latest int64
}

// AtRegistry is the place of the registry beside those of the partitions; AtMap that of a
// generation's map on a cluster.
const (
	AtRegistry = blockkey.Partitions
	AtMap      = AtRegistry + 1
)

// RegistryCall is a call of a script of the registry, with what all of them take first.
func (s *Space) RegistryCall(script *lua.Script, own string, args ...string) *Call {
	n := s.Names
	return &Call{
		Script: script, Place: AtRegistry,
		Keys: []string{n.Meta, n.Count, n.Epoch, n.Pods, n.Live, n.Gen, n.Records, own, n.Logs[AtRegistry].Logged, n.Logs[AtRegistry].Log},
		Args: append([]string{strconv.Itoa(Schema), strconv.Itoa(len(Tags))}, args...),
	}
}

// command returns the call as an EVALSHA or, with the source, an EVAL. The
// strings go in by pointer, which takes no allocation each.
func (c *Call) command(ctx context.Context, source bool) *redis.Cmd {
	args := make([]any, 0, 3+len(c.Keys)+len(c.Args))
	if source {
		args = append(args, "eval", &c.Script.Source, len(c.Keys))
	} else {
		args = append(args, "evalsha", &c.Script.Sum, len(c.Keys))
	}
	for i := range c.Keys {
		args = append(args, &c.Keys[i])
	}
	for i := range c.Args {
		args = append(args, &c.Args[i])
	}
	if c.timed() {
		args[3+len(c.Keys)] = latestArg(c.Args[0], c.latest)
	}
	return redis.NewCmd(ctx, args...)
}

// Run runs the calls in one round trip and returns their replies; the error is
// the first that any of them met. Calls must be harmless to repeat. After a
// restart, a failover or SCRIPT FLUSH the server does not know a call's script.
// The call is then made again with the source, which teaches it.
//
// Calls that are timed are done before Run returns, or never: see clock.go. Only when the
// context is canceled it returns earlier, and they may be done for the timeout more.
func (s *Space) Run(ctx context.Context, calls ...*Call) (cmds []*redis.Cmd, err error) {
	for range lateTries {
		until := s.until(ctx)
		if cmds, err = s.runUntil(ctx, until, calls...); unsure(err) && slices.ContainsFunc(calls, (*Call).timed) {
			_ = Sleep(ctx, time.Until(until))
		}
		if !tooLate(err) || ctx.Err() != nil {
			break
		}
		s.clocks.forget()
	}
	return cmds, err
}

// runUntil is Run for calls that may be done until then, by the clock here.
func (s *Space) runUntil(ctx context.Context, until time.Time, calls ...*Call) ([]*redis.Cmd, error) {
	cmds := make([]*redis.Cmd, len(calls))
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	for source := false; ; source = true {
		if err := s.stamp(ctx, calls, todo, until); err != nil {
			return cmds, err
		}
		err := s.exec(ctx, calls, cmds, todo, source)
		if err == nil || source {
			return cmds, err
		}
		var unknown []int
		for _, i := range todo {
			switch err := cmds[i].Err(); {
			case err == nil:
			case redis.HasErrorPrefix(err, "NOSCRIPT"):
				unknown = append(unknown, i)
			default:
				return cmds, err
			}
		}
		todo = unknown
	}
}

// exec sends the calls of todo.
func (s *Space) exec(ctx context.Context, calls []*Call, cmds []*redis.Cmd, todo []int, source bool) error {
	s.Trips.Add(1)
	for _, i := range todo {
		cmds[i] = calls[i].command(ctx, source)
	}
	if len(todo) == 1 {
		return s.Client.Process(ctx, cmds[todo[0]])
	}
	pipe := s.Client.Pipeline()
	for _, i := range todo {
		_ = pipe.Process(ctx, cmds[i])
	}
	_, err := pipe.Exec(ctx)
	return err
}

// Sleep waits for d or the context's end, which is then its error.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
