package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/registry.lua
var registryLua string

//go:embed lua/register.lua
var registerLua string

//go:embed lua/retire.lua
var retireLua string

//go:embed lua/holders.lua
var holdersLua string

//go:embed lua/model.lua
var modelLua string

//go:embed lua/apply.lua
var applyLua string

//go:embed lua/sweep.lua
var sweepLua string

//go:embed lua/relive.lua
var reliveLua string

//go:embed lua/text.lua
var textLua string

//go:embed lua/reserve.lua
var reserveLua string

//go:embed lua/mark.lua
var markLua string

//go:embed lua/guard.lua
var guardLua string

//go:embed lua/begin.lua
var beginLua string

//go:embed lua/fence.lua
var fenceLua string

//go:embed lua/map.lua
var mapLua string

//go:embed lua/fold.lua
var foldLua string

//go:embed lua/life.lua
var lifeLua string

// script is a Lua script and the hash that the server knows it by.
type script struct {
	src, sha string
	// timed is true when it takes a latest time: see clock.go.
	timed bool
}

func newScript(src ...string) *script {
	s := &script{}
	for _, part := range src {
		s.src += part
	}
	sum := sha1.Sum([]byte(s.src))
	s.sha = hex.EncodeToString(sum[:])
	s.timed = src[0] == registryLua || src[len(src)-1] == applyLua
	return s
}

var (
	registerScript = newScript(registryLua, registerLua)
	retireScript   = newScript(registryLua, retireLua)
	holdersScript  = newScript(registryLua, guardLua, holdersLua)
	modelScript    = newScript(registryLua, modelLua)
	applyScript    = newScript(guardLua, applyLua)
	sweepScript    = newScript(registryLua, sweepLua)
	reliveScript   = newScript(registryLua, reliveLua)
	textScript     = newScript(textLua)
	reserveScript  = newScript(registryLua, reserveLua)
	markScript     = newScript(markLua)
	beginScript    = newScript(registryLua, beginLua)
	fenceScript    = newScript(fenceLua)
	mapScript      = newScript(mapLua)
	foldScript     = newScript(foldLua)
	lifeScript     = newScript(lifeLua)
)

// untimed makes the script one that may be run at any time.
func (s *script) untimed() *script {
	s.timed = false
	return s
}

// call is one run of a script.
type call struct {
	script *script
	keys   []string
	args   []string
	// place is where its keys are: a partition, atRegistry or atMap.
	place int
	// latest is until when it may be done, in ms by the clock of its server, if it is
	// timed.
	latest int64

	// Of a run of apply.lua: what it changes, and which parts of which guards it is.
	edits   []edit
	maps    []mapEdit
	attempt uint64
	parts   []guardPart
}

// command returns the call as an EVALSHA or, with the source, an EVAL. The
// strings go in by pointer, which takes no allocation each.
func (c *call) command(ctx context.Context, source bool) *redis.Cmd {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	if source {
		args = append(args, "eval", &c.script.src, len(c.keys))
	} else {
		args = append(args, "evalsha", &c.script.sha, len(c.keys))
	}
	for i := range c.keys {
		args = append(args, &c.keys[i])
	}
	for i := range c.args {
		args = append(args, &c.args[i])
	}
	if c.timed() {
		args[3+len(c.keys)] = latestArg(c.args[0], c.latest)
	}
	return redis.NewCmd(ctx, args...)
}

// run runs the calls in one round trip and returns their replies; the error is
// the first that any of them met. Calls must be harmless to repeat: one whose
// script the server does not know, after a restart, a failover or SCRIPT FLUSH,
// is made again with the source, which teaches it.
//
// Calls that are timed are done before run returns, or never: see clock.go. Only when the
// context is canceled it returns earlier, and they may be done for Config.Timeout more.
func (x *Index) run(ctx context.Context, calls ...*call) (cmds []*redis.Cmd, err error) {
	for range lateTries {
		until := x.until(ctx)
		if cmds, err = x.runUntil(ctx, until, calls...); unsure(err) && slices.ContainsFunc(calls, (*call).timed) {
			_ = sleep(ctx, time.Until(until))
		}
		if !tooLate(err) || ctx.Err() != nil {
			break
		}
		x.clocks.forget()
	}
	return cmds, err
}

// runUntil is run for calls that may be done until then, by the clock here.
func (x *Index) runUntil(ctx context.Context, until time.Time, calls ...*call) ([]*redis.Cmd, error) {
	cmds := make([]*redis.Cmd, len(calls))
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	for source := false; ; source = true {
		if err := x.stamp(ctx, calls, todo, until); err != nil {
			return cmds, err
		}
		err := x.exec(ctx, calls, cmds, todo, source)
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
func (x *Index) exec(ctx context.Context, calls []*call, cmds []*redis.Cmd, todo []int, source bool) error {
	x.roundTrips.Add(1)
	for _, i := range todo {
		cmds[i] = calls[i].command(ctx, source)
	}
	if len(todo) == 1 {
		return x.client.Process(ctx, cmds[todo[0]])
	}
	pipe := x.client.Pipeline()
	for _, i := range todo {
		_ = pipe.Process(ctx, cmds[i])
	}
	_, err := pipe.Exec(ctx)
	return err
}
