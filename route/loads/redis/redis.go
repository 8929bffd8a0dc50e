// Package redis keeps loads in Redis, so that routers in any number of processes choose by
// the same ones. Each call is one script, in one round trip.
//
// The loads of a model live in one slot, that of the partition which the model's own hash
// falls in, so that a script sees all of them and models spread over a cluster. With {c} for
// the partition's tag and h for the model's hash in 16 hex digits the keys are
//
//	kva{c}:l:h    hash  rank:pod -> gen life booked work prefill blocks requests since
//	kva{c}:r:h    hash  id -> a reservation
//	kva{c}:t:h    zset  id -> when its lease ends, in microseconds of TIME
//	kva{c}:e:h    hash  rank:pod -> learnt speed, samples, when
//	kva{c}:x:h    hash  settings: what PutSettings has put, version: how often
//	kva{c}:g:h    hash  rank:pod -> what its engine has told of its own load
//	kva{c}:d:h    hash  pod -> when its engine is to be asked next, how often it did not answer
//	kva{c}:m:h:rank:pod  hash  block key -> how many running requests have it
//
// lua/loads.lua says how their values are written. None of them holds a prompt.
package redis

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
	index "github.com/kvatlas/kvatlas/store/redis"
)

var (
	//go:embed lua/loads.lua
	loadsLua string
	//go:embed lua/weigh.lua
	weighLua string
	//go:embed lua/book.lua
	bookLua string
	//go:embed lua/pair.lua
	pairLua string
	//go:embed lua/done.lua
	doneLua string
	//go:embed lua/output.lua
	outputLua string
	//go:embed lua/end.lua
	endLua string
	//go:embed lua/picture.lua
	pictureLua string
	//go:embed lua/settings.lua
	settingsLua string
	//go:embed lua/engine.lua
	engineLua string
	//go:embed lua/turns.lua
	turnsLua string
	//go:embed lua/missed.lua
	missedLua string
	//go:embed lua/audit.lua
	auditLua string

	bookScript     = goredis.NewScript(loadsLua + weighLua + bookLua)
	pairScript     = goredis.NewScript(loadsLua + weighLua + pairLua)
	doneScript     = goredis.NewScript(loadsLua + doneLua)
	outputScript   = goredis.NewScript(loadsLua + outputLua)
	endScript      = goredis.NewScript(loadsLua + endLua)
	pictureScript  = goredis.NewScript(loadsLua + pictureLua)
	settingsScript = goredis.NewScript(loadsLua + settingsLua)
	auditScript    = goredis.NewScript(loadsLua + auditLua)
	engineScript   = goredis.NewScript(loadsLua + engineLua)
	turnsScript    = goredis.NewScript(loadsLua + turnsLua)
	missedScript   = goredis.NewScript(loadsLua + missedLua)
)

// What one call does at most, so that no script keeps the server for long.
const (
	overdueInPicture = 64
	auditPage        = 512
	auditTries       = 3
	auditIDs         = 1024
)

// Config says where loads are kept.
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

// Store keeps loads in Redis. It is safe for concurrent use.
type Store struct {
	c     Config
	close func() error
}

var _ loads.Store = (*Store)(nil)

// New returns a Store. It does no I/O. The error says what is wrong with the prefix.
func New(c Config) (*Store, error) {
	if _, _, err := index.BlockName(c.Prefix, 0); err != nil {
		return nil, err
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	return &Store{c: c}, nil
}

// keys are the key names of a model.
func (s *Store) keys(model string) []string {
	mask := blockkey.ModelOf(model)
	_, tag, _ := index.BlockName(s.c.Prefix, blockkey.StoreKey(mask))
	name := func(kind string) string {
		return s.c.Prefix + "{" + tag + "}:" + kind + ":" + blockkey.Key(mask).String()
	}
	return []string{name("l"), name("r"), name("t"), name("e"), name("m") + ":", name("x"), name("g"), name("d")}
}

// now is the first argument of every script.
func (s *Store) now() int64 {
	if s.c.Now == nil {
		return 0
	}
	return s.c.Now().UnixMicro()
}

// run runs a script.
func (s *Store) run(ctx context.Context, script *goredis.Script, keys []string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	reply, err := script.Run(ctx, s.c.Client, keys, append([]any{s.now()}, args...)...).Slice()
	switch {
	case err == nil:
		return reply, nil
	case goredis.HasErrorPrefix(err, "NOPERM") || goredis.HasErrorPrefix(err, "READONLY"):
		return nil, fmt.Errorf("%w: %w", loads.ErrReadOnly, err)
	}
	return nil, fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
}

// field is the name of a rank's fields. The rank comes first, since a pod's name may have
// any character.
func field(at store.RankRef) string { return strconv.Itoa(at.Rank) + ":" + at.Pod }

func parseField(s string) (store.RankRef, error) {
	rank, pod, ok := strings.Cut(s, ":")
	n, err := strconv.Atoi(rank)
	if !ok || err != nil {
		return store.RankRef{}, fmt.Errorf("%w: %q is no rank and pod", loads.ErrUnavailable, s)
	}
	return store.RankRef{Pod: pod, Rank: n}, nil
}

// Book implements loads.Store.
func (s *Store) Book(ctx context.Context, c *loads.Call) (loads.Booked, error) {
	if err := c.Validate(); err != nil {
		return loads.Booked{}, err
	}
	args := appendCandidates(callArgs(c, 11*len(c.Candidates)), c.Candidates)
	reply, err := s.run(ctx, bookScript, s.keys(c.Model), args...)
	if err != nil {
		return loads.Booked{}, err
	}
	return readBooked(reply)
}

// callArgs are the arguments that booking scripts begin with, with room for more.
func callArgs(c *loads.Call, room int) []any {
	marks, tail := c.Marked()
	packed := make([]byte, 0, 8*len(marks))
	for _, k := range marks {
		b := blockkey.StoreKey(k).Bytes()
		packed = append(packed, b[:]...)
	}
	args := make([]any, 0, 16+room)
	args = append(args, c.ID, c.Lease.Microseconds(), c.Tokens, tail, packed, c.Expected, c.BlockSize)
	args = appendWeights(args, c.Weights)
	return append(args, c.Temperature, c.Draw, loads.MaxReservations, c.Settings)
}

func appendWeights(args []any, w loads.Weights) []any {
	return append(args, w.Wait, w.Prefill, w.Decode, w.Blocks, w.Requests)
}

func appendCandidates(args []any, cs []loads.Candidate) []any {
	for i := range cs {
		d := &cs[i]
		args = append(args, field(d.RankRef), uint64(d.Generation), d.Uncached, d.Work, d.Base, d.Floor, d.Factor, d.Prior, d.Limits.Requests, d.Limits.Prefill, d.Limits.Blocks)
	}
	return args
}

// readBooked reads the reply of lua/book.lua.
func readBooked(reply []any) (out loads.Booked, err error) {
	r := reader{reply: reply}
	state, err := r.state(&out)
	if err != nil || r.err != nil {
		return out, cmp.Or(r.err, err)
	}
	name := r.text()
	if out.Again = state == "again"; !out.Again {
		out.Costs, out.Loads = r.weighed()
	}
	if r.err != nil {
		return loads.Booked{}, r.err
	}
	if state == "busy" {
		return out, loads.ErrBusy
	}
	out.RankRef, err = parseField(name)
	return out, err
}

// Done implements loads.Store.
func (s *Store) Done(ctx context.Context, model, id string, d loads.Done) (loads.Report, error) {
	learn := 1
	if d.Shape == (loads.Shape{}) {
		learn = 0
	}
	return s.report(ctx, doneScript, model, id, max(-1, d.Cached), d.Shape.Quadratic, d.Shape.Overhead, learn)
}

// Output implements loads.Store.
func (s *Store) Output(ctx context.Context, model, id string, tokens int) (loads.Report, error) {
	if err := loads.CheckOutput(tokens); err != nil {
		return loads.Report{}, err
	}
	return s.report(ctx, outputScript, model, id, tokens)
}

// End implements loads.Store.
func (s *Store) End(ctx context.Context, model, id string) (loads.Report, error) {
	return s.report(ctx, endScript, model, id)
}

func (s *Store) report(ctx context.Context, script *goredis.Script, model, id string, args ...any) (loads.Report, error) {
	if err := loads.CheckID(id); err != nil {
		return loads.Report{}, err
	}
	reply, err := s.run(ctx, script, s.keys(model), append([]any{id}, args...)...)
	if err != nil || len(reply) == 0 {
		return loads.Report{}, err
	}
	r := reader{reply: reply}
	name := r.text()
	out := loads.Report{Known: true, Predicted: int(r.int()), Tokens: int(r.int()), First: r.int() == 1}
	if r.err != nil {
		return loads.Report{}, r.err
	}
	out.RankRef, err = parseField(name)
	return out, err
}

// Loads implements loads.Store. A user who may only read gets the loads as they stand,
// those of reservations whose lease is over included.
func (s *Store) Loads(ctx context.Context, model string) (loads.Picture, error) {
	for {
		reply, err := s.run(ctx, pictureScript, s.keys(model), loads.ForgetSpeed.Microseconds(), loads.EngineForget.Microseconds())
		if errors.Is(err, loads.ErrReadOnly) {
			return s.read(ctx, model)
		}
		if err != nil {
			return loads.Picture{}, err
		}
		r := reader{reply: reply}
		ended, now := r.int(), r.int()
		rows, speeds := r.list(), r.list()
		settings, version := r.text(), r.int()
		engines := r.list()
		if r.err != nil {
			return loads.Picture{}, r.err
		}
		if ended == overdueInPicture {
			continue
		}
		return picture(now, rows, speeds, engines, settings, version)
	}
}

// read is Loads for a user who may not run the script.
func (s *Store) read(ctx context.Context, model string) (loads.Picture, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	keys := s.keys(model)
	var rows, speeds, settings, engines *goredis.MapStringStringCmd
	_, err := s.c.Client.Pipelined(ctx, func(p goredis.Pipeliner) error {
		rows, speeds, settings = p.HGetAll(ctx, keys[0]), p.HGetAll(ctx, keys[3]), p.HGetAll(ctx, keys[5])
		engines = p.HGetAll(ctx, keys[6])
		return nil
	})
	if err != nil {
		return loads.Picture{}, fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
	}
	now := time.Now().UnixMicro()
	if s.c.Now != nil {
		now = s.now()
	}
	version, _ := strconv.ParseInt(settings.Val()["version"], 10, 64)
	return picture(now, flat(rows.Val()), flat(speeds.Val()), flat(engines.Val()), settings.Val()["settings"], version)
}

func flat(m map[string]string) *reader {
	r := &reader{}
	for k, v := range m {
		r.reply = append(r.reply, k, v)
	}
	return r
}

func picture(now int64, rows, speeds, engines *reader, settings string, version int64) (loads.Picture, error) {
	p := loads.Picture{Now: now, Loads: map[store.RankRef]loads.Load{}, Engines: map[store.RankRef]loads.Engine{}, Version: version}
	if settings != "" {
		p.Settings = []byte(settings)
	}
	for rows.more() {
		at, err := parseField(rows.text())
		l := rows.load()
		if err == nil {
			p.Loads[at] = l
		}
	}
	for speeds.more() {
		at, err := parseField(speeds.text())
		l := p.Loads[at]
		speeds.speed(&l)
		if err == nil {
			p.Loads[at] = l
		}
	}
	for engines.more() {
		at, err := parseField(engines.text())
		if e, ok := engines.engine(at.Rank); err == nil && ok && e.IsFresh(now) {
			p.Engines[at] = e
		}
	}
	return p, errors.Join(rows.err, speeds.err, engines.err)
}

// PutSettings implements loads.Store.
func (s *Store) PutSettings(ctx context.Context, model string, settings []byte) error {
	if err := loads.CheckSettings(settings); err != nil {
		return err
	}
	_, err := s.run(ctx, settingsScript, s.keys(model), settings)
	return err
}
