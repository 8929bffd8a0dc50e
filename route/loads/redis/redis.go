// Package redis keeps loads in Redis, so that routers in any number of processes choose by
// the same ones. Each call is one script, in one round trip.
//
// The loads of a model live in one slot, that of the partition which the model's own hash
// falls in, so that a script sees all of them and models spread over a cluster. With {c} for
// the partition's tag and h for the model's hash in 16 hex digits the keys are
//
//	kva{c}:l3:h   hash  rank:pod -> gen life booked work prefill blocks requests since speed samples learnt
//	                    filled filledAt,  @ -> the version of the settings
//	kva{c}:r3:h   hash  id -> a reservation
//	kva{c}:t3:h   zset  id, padded -> when its lease ends at the earliest, in microseconds of TIME
//	kva{c}:x:h    hash  settings: what PutSettings has put, version: how often
//	kva{c}:g:h    hash  rank:pod -> what its engine has told of its own load
//	kva{c}:d:h    hash  pod -> when its engine is to be asked next, how often it did not answer
//	kva{c}:o:h    hash  rank:pod -> when, generation, requests, tokens promised and given
//	kva{c}:a:h:what  hash  until: when a process's claim to do something ends
//	kva{c}:m3:h:rank:pod  hash  block key -> how many running requests have it
//
// The 3 is the version of the form of loads and reservations: processes that know another one
// have loads of their own, and Audit tells of them.
//
// Loads and reservations are numbers of 8 bytes, little-endian doubles: lua/loads.lua says
// which. None of them holds a prompt.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/bound"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

var (
	//go:embed lua/loads.lua
	loadsLua string
	//go:embed lua/book.lua
	bookLua string
	//go:embed lua/leave.lua
	leaveLua string
	//go:embed lua/output.lua
	outputLua string
	//go:embed lua/picture.lua
	pictureLua string
	//go:embed lua/forget.lua
	forgetLua string
	//go:embed lua/settings.lua
	settingsLua string
	//go:embed lua/engines.lua
	enginesLua string
	//go:embed lua/engine.lua
	engineLua string
	//go:embed lua/turns.lua
	turnsLua string
	//go:embed lua/missed.lua
	missedLua string
	//go:embed lua/audit.lua
	auditLua string

	prelude = constants() + loadsLua

	bookScript     = goredis.NewScript(prelude + bookLua)
	leaveScript    = goredis.NewScript(prelude + leaveLua)
	outputScript   = goredis.NewScript(prelude + outputLua)
	pictureScript  = goredis.NewScript(prelude + pictureLua)
	forgetScript   = goredis.NewScript(prelude + forgetLua)
	settingsScript = goredis.NewScript(prelude + settingsLua)
	auditScript    = goredis.NewScript(prelude + auditLua)
	engineScript   = goredis.NewScript(prelude + enginesLua + engineLua)
	turnsScript    = goredis.NewScript(prelude + enginesLua + turnsLua)
	missedScript   = goredis.NewScript(prelude + enginesLua + missedLua)
)

// constants returns the line of those constants that lua/loads.lua says of.
func constants() string {
	const most = 128 // candidates of a call
	var ends []byte
	for _, at := range loads.MarkEnds() {
		ends = appendNumbers(ends, float64(at))
	}
	return fmt.Sprintf("local D, C8, PAD, ENDS = '<%s', '%s', %s, %s\n", strings.Repeat("d", most), strings.Repeat("c8", len(ends)/8),
		luaString(pad), luaString(string(ends)))
}

// luaString writes a string as a script has it.
func luaString(s string) string {
	b := []byte{'\''}
	for i := range len(s) {
		b = fmt.Appendf(b, "\\%03d", s[i])
	}
	return string(append(b, '\''))
}

// What one call does at most, so that no script keeps the server for long.
const (
	overdueAtOnce = 64
	overdueSteps  = 64
	forgotten     = 256
	auditPage     = 512
	auditTries    = 3
	auditIDs      = 1024
)

// What lua/leave.lua is to do.
const (
	leaveEnd = iota
	leaveDone
	leaveOverdue
)

// pad is PAD in lua/loads.lua.
var pad = strings.Repeat("\x00", 65)

// form is the version of what lua/loads.lua says of loads and reservations. It is one more
// whenever that changes; before the first, 2, there was none.
const form = "3"

// otherForms are those that processes of other versions may have: the earlier ones, and the next.
var otherForms = []string{"", "2", "4"}

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
	if _, _, err := keyspace.BlockName(c.Prefix, 0); err != nil {
		return nil, err
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	return &Store{c: c}, nil
}

// keys are the key names of a model.
func (s *Store) keys(model string) []string {
	name := keyspace.ModelKeys(s.c.Prefix, model)
	return []string{name("l" + form), name("r" + form), name("t" + form), name("m"+form) + ":", name("x"), name("g"), name("d")}
}

// bookKeys and reportKeys are those of keys that what is done with every request goes by: each costs
// the server time.
func (s *Store) bookKeys(model string) []string   { return s.keys(model)[:5] }
func (s *Store) reportKeys(model string) []string { return s.keys(model)[:4] }

// micros is the time in scripts, 0 for the server's own.
func (s *Store) micros() int64 {
	if s.c.Now == nil {
		return 0
	}
	return s.c.Now().UnixMicro()
}

// now is the first argument of every script that begins with lua/loads.lua; some have more numbers in it.
func (s *Store) now(more ...float64) []byte {
	return appendNumbers(appendNumbers(make([]byte, 0, 8*(1+len(more))), float64(s.micros())), more...)
}

// run runs a script whose reply is a list.
func (s *Store) run(ctx context.Context, script *goredis.Script, keys []string, args []any) ([]any, error) {
	reply, err := s.eval(ctx, script, keys, args)
	if err != nil {
		return nil, err
	}
	list, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: a script's reply is %.80q", loads.ErrUnavailable, fmt.Sprint(reply))
	}
	return list, nil
}

// eval runs a script.
func (s *Store) eval(ctx context.Context, script *goredis.Script, keys []string, args []any) (any, error) {
	ctx, cancel := bound.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	reply, err := script.Run(ctx, s.c.Client, keys, args...).Result()
	switch {
	case err == nil:
		return reply, nil
	case redisx.RefusedCommand(err) || goredis.HasErrorPrefix(err, "READONLY"):
		return nil, fmt.Errorf("%w: %w", loads.ErrReadOnly, err)
	case goredis.HasErrorPrefix(err, "OOM"):
		return nil, fmt.Errorf("%w: %w", loads.ErrNoMemory, err)
	}
	return nil, fmt.Errorf("%w: %w%s", loads.ErrUnavailable, err, s.explain(ctx, err, keys))
}

// explain names the key that is to blame for an error, or all that can be, and the cure, where it is of another
// type than scripts expect. A model's keys are all hashes but for the leases, a sorted set.
func (s *Store) explain(ctx context.Context, err error, keys []string) string {
	if !goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return ""
	}
	for i, key := range keys {
		want := "hash"
		if i == 2 {
			want = "zset"
		}
		t, err := s.c.Client.Type(ctx, key).Result()
		if err != nil {
			break // the user may not ask
		}
		if t != want && t != "none" {
			return fmt.Sprintf(": the loads have the key %q, which is a %s: UNLINK it", key, t)
		}
	}
	return fmt.Sprintf(": one of the keys that begin with one of %q is to blame: UNLINK it", keys)
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
	out, err := s.book(ctx, &loads.PairCall{Call: *c})
	return out.Booked, err
}

// BookPair implements loads.Store. The loads of a model lie in one slot, so one script sees
// both places.
func (s *Store) BookPair(ctx context.Context, c *loads.PairCall) (loads.BookedPair, error) {
	if err := c.Validate(); err != nil {
		return loads.BookedPair{}, err
	}
	return s.book(ctx, c)
}

// book books a pair or, where no place is there to prefill, one place.
func (s *Store) book(ctx context.Context, c *loads.PairCall) (loads.BookedPair, error) {
	keys := s.bookKeys(c.Model)
	reply, err := s.eval(ctx, bookScript, keys, s.bookArgs(c, overdueAtOnce))
	if ids, ok := reply.([]any); ok && err == nil {
		if err = s.endOverdue(ctx, keys, ids); err == nil {
			reply, err = s.eval(ctx, bookScript, keys, s.bookArgs(c, 0))
		}
	}
	if err != nil {
		return loads.BookedPair{}, err
	}
	text, _ := reply.(string)
	return readBooked(text, c)
}

// endOverdue ends the reservations of which a script has found that their leases are over.
func (s *Store) endOverdue(ctx context.Context, keys []string, ids []any) error {
	r := reader{reply: ids}
	args := []any{s.now(leaveOverdue)}
	for r.more() {
		args = append(args, strings.TrimSuffix(r.text(), pad))
	}
	if len(args) == 1 || r.err != nil {
		return r.err
	}
	_, err := s.eval(ctx, leaveScript, keys, args)
	return err
}

// Done implements loads.Store.
func (s *Store) Done(ctx context.Context, model, id string, d loads.Done) (loads.Report, error) {
	learn := 1.0
	if d.Shape == (loads.Shape{}) {
		learn = 0
	}
	v, out, err := s.report(ctx, leaveScript, model, id, s.now(leaveDone, float64(max(-1, d.Cached)), d.Shape.Quadratic, d.Shape.Overhead, learn), id)
	out.RankRef, out.First = v.prefills, out.Known && !v.prefilled
	return out, err
}

// Output implements loads.Store.
func (s *Store) Output(ctx context.Context, model, id string, tokens int) (loads.Report, error) {
	if err := loads.CheckOutput(tokens); err != nil {
		return loads.Report{}, err
	}
	v, out, err := s.report(ctx, outputScript, model, id, s.now(), id, tokens)
	out.First = out.Known && tokens > v.output
	return out, err
}

// End implements loads.Store.
func (s *Store) End(ctx context.Context, model, id string) (loads.Report, error) {
	v, out, err := s.report(ctx, leaveScript, model, id, s.now(leaveEnd), id)
	out.First, out.Prefill, out.WithoutDone = out.Known, v.prefills, out.Known && !v.prefilled
	return out, err
}

// report runs a script that reports on a request. It returns the reservation as it was before, and
// what all reports tell of it; both are empty where none runs.
func (s *Store) report(ctx context.Context, script *goredis.Script, model, id string, args ...any) (v reservation, out loads.Report, err error) {
	if err := loads.CheckID(id); err != nil {
		return v, out, err
	}
	reply, err := s.eval(ctx, script, s.reportKeys(model), args)
	if err != nil || reply == "" {
		return v, out, err
	}
	text, _ := reply.(string)
	if v, err = readReservation(text); err != nil {
		return reservation{}, out, err
	}
	return v, loads.Report{Known: true, RankRef: v.at, Predicted: v.predicted, Tokens: v.tokens}, nil
}

// Loads implements loads.Store. A user that may only read gets the loads as they stand,
// those of reservations whose lease is over included.
func (s *Store) Loads(ctx context.Context, model string) (loads.Picture, error) {
	keys := s.keys(model)
	for step := 0; ; step++ {
		reply, err := s.run(ctx, pictureScript, keys, []any{s.now(), overdueAtOnce})
		if errors.Is(err, loads.ErrReadOnly) {
			return s.read(ctx, model)
		}
		if err != nil {
			return loads.Picture{}, err
		}
		r := reader{reply: reply}
		overdue, now := r.list(), r.time()
		rows, settings, version, engines, lacks := r.list(), r.text(), r.int(), r.list(), r.int()
		if r.err != nil {
			return loads.Picture{}, r.err
		}
		if lacks == 1 && step == 0 && s.renewLeases(ctx, keys) == nil {
			continue // those that are over are found now; what could not be done is left for the next one
		}
		if len(overdue.reply) > 0 && step < overdueSteps {
			err := s.endOverdue(ctx, keys[:4], overdue.reply)
			if errors.Is(err, loads.ErrReadOnly) {
				return s.read(ctx, model)
			}
			if err != nil {
				return loads.Picture{}, err
			}
			continue
		}
		p, old, err := picture(now, rows, engines, settings, version)
		if err == nil && len(old) > 0 {
			// What is not forgotten now is left for the next one.
			_, _ = s.run(ctx, forgetScript, keys, append([]any{s.now(), loads.ForgetSpeed.Microseconds(), loads.EngineForget.Microseconds()}, old[:min(len(old), forgotten)]...))
		}
		return p, err
	}
}

// renewLeases gives each reservation that has no lease its own: Redis has lost some. A request that is booked
// again is known by its lease, and would count twice without. A reservation that cannot be read becomes
// overdue. One that ends meanwhile leaves a lease behind, which does no harm.
func (s *Store) renewLeases(ctx context.Context, keys []string) error {
	ctx, cancel := bound.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	for cursor := uint64(0); ; {
		page, next, err := s.c.Client.HScan(ctx, keys[1], cursor, "", auditPage).Result()
		if err != nil {
			return err
		}
		leases := make([]goredis.Z, 0, len(page)/2)
		for i := 0; i+1 < len(page); i += 2 {
			z := goredis.Z{Member: page[i] + pad}
			if v := page[i+1]; len(v) >= reservationSize {
				if till := number(v, 0); till > 0 && till < 1<<53 {
					z.Score = till
				}
			}
			leases = append(leases, z)
		}
		if len(leases) > 0 {
			if err := s.c.Client.ZAddNX(ctx, keys[2], leases...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// read is Loads for a user that may not run the script.
func (s *Store) read(ctx context.Context, model string) (loads.Picture, error) {
	ctx, cancel := bound.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	keys := s.keys(model)
	var rows, settings, engines *goredis.MapStringStringCmd
	_, err := s.c.Client.Pipelined(ctx, func(p goredis.Pipeliner) error {
		rows, settings, engines = p.HGetAll(ctx, keys[0]), p.HGetAll(ctx, keys[4]), p.HGetAll(ctx, keys[5])
		return nil
	})
	if err != nil {
		return loads.Picture{}, fmt.Errorf("%w: %w%s", loads.ErrUnavailable, err, s.explain(ctx, err, keys))
	}
	now := time.Now().UnixMicro()
	if s.c.Now != nil {
		now = s.micros()
	}
	version, _ := strconv.ParseInt(settings.Val()["version"], 10, 64)
	p, _, err := picture(now, flat(rows.Val()), flat(engines.Val()), settings.Val()["settings"], version)
	return p, err
}

func flat(m map[string]string) *reader {
	r := &reader{}
	for k, v := range m {
		r.reply = append(r.reply, k, v)
	}
	return r
}

// picture reads loads and what engines say. It leaves out the version of the settings, and what cannot be
// read. old names those without a report for so long that they are to be forgotten.
func picture(now int64, rows, engines *reader, settings string, version int64) (p loads.Picture, old []any, err error) {
	p = loads.Picture{Now: now, Loads: make(map[store.RankRef]loads.Load, len(rows.reply)/2), Engines: map[store.RankRef]loads.Engine{}, Version: version}
	if settings != "" {
		p.Settings = []byte(settings)
	}
	for rows.more() {
		name, row := rows.text(), rows.text()
		at, err := parseField(name)
		l := readLoad(row)
		switch {
		case err != nil || l.Requests == 0 && l.Samples == 0 && l.FilledAt == 0:
		case l.IsForgotten(now):
			old = append(old, name)
		default:
			p.Loads[at] = l
		}
	}
	for engines.more() {
		name := engines.text()
		at, err := parseField(name)
		e, told := engines.engine(at.Rank)
		if now-told > loads.EngineForget.Microseconds() {
			old = append(old, name)
		} else if err == nil && e.IsFresh(now) {
			p.Engines[at] = e
		}
	}
	return p, old, errors.Join(rows.err, engines.err)
}

// PutSettings implements loads.Store.
func (s *Store) PutSettings(ctx context.Context, model string, settings []byte) error {
	if err := loads.CheckSettings(settings); err != nil {
		return err
	}
	_, err := s.run(ctx, settingsScript, s.keys(model), []any{s.now(), settings})
	return err
}
