// Package redis keeps notes in Redis, so that routers in any number of processes share
// them. Each call is one script, in one round trip.
//
// They lie in the slot of the model's loads. With {c} for the partition's tag and h for the
// model's hash in 16 hex digits the keys are
//
//	kva{c}:p:h:rank:pod  string  how many blocks are predicted under which end
//	kva{c}:a:h           hash    session -> rank:pod
//	kva{c}:h:h           hash    process -> when, in microseconds of TIME, and what it has counted of prefixes
//	kva{c}:b:h           zset    session -> when its lease ends, in microseconds of TIME
//
// All of them end by themselves. A session is named by a hash of its name.
package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

var (
	//go:embed lua/slice.lua
	sliceLua string
	//go:embed lua/session.lua
	sessionLua string

	sliceScript   = goredis.NewScript(sliceLua)
	sessionScript = goredis.NewScript(sessionLua)
)

// Config says where notes are kept.
type Config struct {
	// Client is the connection.
	Client goredis.UniversalClient
	// Prefix begins all key names: that of the index.
	Prefix string
	// Timeout bounds a call whose context has no nearer deadline.
	Timeout time.Duration
	// Now, if not nil, is the clock instead of the server's: for time that is simulated.
	Now func() time.Time
}

// Store keeps notes in Redis. It is safe for concurrent use.
type Store struct{ c Config }

var _ notes.Store = (*Store)(nil)

// New returns a Store. It does no I/O. The error says what is wrong with the prefix.
func New(c Config) (*Store, error) {
	if _, _, err := keyspace.BlockName(c.Prefix, 0); err != nil {
		return nil, err
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	return &Store{c}, nil
}

// name is a key of a model.
func (s *Store) name(model, kind string) string {
	return keyspace.ModelKeys(s.c.Prefix, model)(kind)
}

// run runs a script, with the time as its first argument.
func (s *Store) run(ctx context.Context, script *goredis.Script, keys []string, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	now := int64(0)
	if s.c.Now != nil {
		now = s.c.Now().UnixMicro()
	}
	reply, err := script.Run(ctx, s.c.Client, keys, append([]any{now}, args...)...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", notes.ErrUnavailable, err)
	}
	return reply, nil
}

func placeText(at store.RankRef) string { return strconv.Itoa(at.Rank) + ":" + at.Pod }

// Slice implements notes.Store.
func (s *Store) Slice(ctx context.Context, c notes.Slice) (out notes.Sliced, err error) {
	if err := c.Validate(); err != nil {
		return out, err
	}
	reply, err := s.run(ctx, sliceScript, []string{s.name(c.Model, "p") + ":" + placeText(c.RankRef)},
		c.Blocks, c.Step(), c.TTL.Milliseconds(), c.Max, c.Keep)
	if err != nil {
		return out, err
	}
	for i, text := range reply {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return notes.Sliced{}, fmt.Errorf("%w: slice.lua returned %q", notes.ErrUnavailable, text)
		}
		if i == 0 {
			out.Until = time.UnixMilli(ms)
			continue
		}
		out.Over = append(out.Over, time.UnixMilli(ms))
	}
	return out, nil
}

// sessions are the keys and the first argument of lua/session.lua.
func (s *Store) sessions(model, session string) (keys []string, arg []byte) {
	key := notes.SessionKey(session)
	return []string{s.name(model, "a"), s.name(model, "b")}, key[:]
}

// Session implements notes.Store.
func (s *Store) Session(ctx context.Context, model, session string) (notes.Bound, error) {
	if err := notes.CheckSession(session); err != nil {
		return notes.Bound{}, err
	}
	keys, arg := s.sessions(model, session)
	reply, err := s.run(ctx, sessionScript, keys, arg)
	if err != nil || len(reply) != 2 {
		return notes.Bound{}, err
	}
	rank, pod, _ := strings.Cut(reply[0], ":")
	n, err1 := strconv.Atoi(rank)
	left, err2 := strconv.ParseInt(reply[1], 10, 64)
	if err1 != nil || err2 != nil {
		return notes.Bound{}, fmt.Errorf("%w: session.lua returned %q", notes.ErrUnavailable, reply)
	}
	return notes.Bound{RankRef: store.RankRef{Pod: pod, Rank: n}, Left: time.Duration(left) * time.Microsecond}, nil
}

// Bind implements notes.Store.
func (s *Store) Bind(ctx context.Context, model, session string, at store.RankRef, lease time.Duration) error {
	if err := notes.CheckBind(session, at, lease); err != nil {
		return err
	}
	keys, arg := s.sessions(model, session)
	_, err := s.run(ctx, sessionScript, keys, arg, placeText(at), lease.Microseconds(), notes.MaxSessions, notes.MaxLease.Milliseconds())
	return err
}
