package redisx

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// refusalQuiet is for how long a command must not have been refused before one that is
// taken ends the spell. Old connections may go on beside new ones that are refused.
const refusalQuiet = time.Second

// refusals reports what a server refuses to the client's user. That is being let in
// (WRONGPASS, NOAUTH), and commands that it may not call (NOPERM). A server that has been
// restarted without its ACL file does so. There is one line when a spell of it begins, and
// one when it is over. A spell that comes and goes is reported once a minute. It is a hook
// of clients, and safe for concurrent use.
type refusals struct {
	user, where string
	log         func(string)
	now         func() time.Time

	mu sync.Mutex // protects spells
	// spells are by the command, in capitals; "" is being let in. Commands are few.
	spells map[string]*refusal
}

// refusal is what there is to know of refusals of one kind.
type refusal struct {
	begun, last, next time.Time // next: no line before
	on, told          bool
}

// newRefusals returns the refusals of a client's connections; a nil log is deaf.
func newRefusals(c *Config) *refusals {
	r := &refusals{user: cmp.Or(c.Target.username, "default"), where: c.Target.String(), log: c.Log, now: time.Now, spells: map[string]*refusal{}}
	if r.log == nil {
		r.log = func(string) {}
	}
	return r
}

type quietKey struct{}

// Unasked returns a context for commands that the user need not be allowed: that one of
// them is refused is the caller's to tell.
func Unasked(ctx context.Context) context.Context { return context.WithValue(ctx, quietKey{}, true) }

// DialHook implements redis.Hook.
func (r *refusals) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r *refusals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		r.hear(ctx, err, func(redis.Cmder) error { return err }, cmd)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r *refusals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		r.hear(ctx, err, redis.Cmder.Err, cmds...)
		return err
	}
}

// refusedEntry reports whether err says that the server does not let the user in. It has no user of
// that name, the password is wrong, or it needs one and the URL has none.
func refusedEntry(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH")
}

// RefusedCommand reports whether err says that the user may not call a command. It also
// holds when a script may not call one, or not with this key.
func RefusedCommand(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || err != nil &&
		(strings.Contains(err.Error(), "can't run this command") || strings.Contains(err.Error(), "can't access at least one of the keys"))
}

// hear takes in how commands of one round trip went; of tells that of each.
func (r *refusals) hear(ctx context.Context, err error, of func(redis.Cmder) error, cmds ...redis.Cmder) {
	if err == nil && !r.any() && !slices.ContainsFunc(cmds, isRawError) {
		return // as always
	}
	refused, taken := map[string]error{}, map[string]bool{}
	if refusedEntry(err) {
		refused[""] = err
	}
	for _, c := range cmds {
		err := of(c)
		if reply, raw := rawReply(c); raw && err == nil {
			err = ReplyError(reply)
		}
		switch {
		case refusedEntry(err):
			refused[""] = err
		case RefusedCommand(err):
			taken[""] = true
			if ctx.Value(quietKey{}) == nil {
				refused[strings.ToUpper(c.Name())] = err
			}
		case err == nil, redis.HasErrorPrefix(err, "NOSCRIPT"), errors.Is(err, redis.Nil):
			taken[""], taken[strings.ToUpper(c.Name())] = true, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		r.begin(name, refused[name])
		delete(taken, name)
	}
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		r.end(name)
	}
}

// replyError is an error that a server has replied.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError makes it a redis.Error.
func (replyError) RedisError() {}

// ReplyError returns the error that a reply in bytes is, as go-redis has it; nil for another
// reply.
func ReplyError(reply []byte) error {
	if len(reply) == 0 || reply[0] != '-' && reply[0] != '!' {
		return nil
	}
	line, rest, _ := bytes.Cut(reply[1:], []byte("\r\n"))
	if reply[0] == '!' { // RESP3 has errors that begin with their length
		line, _, _ = bytes.Cut(rest, []byte("\r\n"))
	}
	return replyError(line)
}

func isRawError(c redis.Cmder) bool {
	reply, _ := rawReply(c)
	return ReplyError(reply) != nil
}

// any reports whether some spell is on.
func (r *refusals) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spells {
		if s.on {
			return true
		}
	}
	return false
}

func (r *refusals) begin(name string, err error) {
	now := r.now()
	r.mu.Lock()
	s := r.spells[name]
	if s == nil {
		s = &refusal{}
		r.spells[name] = s
	}
	if !s.on {
		s.begun, s.on = now, true
	}
	s.last = now
	tell := !s.told && !now.Before(s.next)
	if tell {
		s.told, s.next = true, now.Add(dialAgain)
	}
	r.mu.Unlock()
	if !tell {
		return
	}
	said := strings.TrimRight(Clip(err.Error()), ".")
	switch {
	case name != "":
		r.log(fmt.Sprintf("redis: %s does not let user %s call %s: %s. If it was restarted without its ACL file, load that; else grant what docs/operations.md lists for the user, of which kvatlas doctor tells what is missing",
			r.where, r.user, name, said))
	case redis.HasErrorPrefix(err, "NOAUTH"):
		r.log(fmt.Sprintf("redis: %s does not let this process in: %s. Put the user and the password into the URL, or take the password off the server; until then nothing is read or written", r.where, said))
	default:
		r.log(fmt.Sprintf("redis: %s does not let user %s in: %s. If it was restarted without its ACL file, load that, or make the user again (ACL SETUSER); if the password was changed, correct the URL; until then nothing is read or written",
			r.where, r.user, said))
	}
}

func (r *refusals) end(name string) {
	now := r.now()
	r.mu.Lock()
	s := r.spells[name]
	if s == nil || !s.on || now.Sub(s.last) < refusalQuiet {
		r.mu.Unlock()
		return
	}
	tell, lasted := s.told, now.Sub(s.begun).Round(time.Millisecond)
	s.on, s.told = false, false
	r.mu.Unlock()
	switch {
	case !tell:
	case name == "":
		r.log(fmt.Sprintf("redis: %s lets user %s in again, after %v", r.where, r.user, lasted))
	default:
		r.log(fmt.Sprintf("redis: %s lets user %s call %s again, after %v", r.where, r.user, name, lasted))
	}
}
