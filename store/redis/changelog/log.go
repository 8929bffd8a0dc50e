// Package changelog is the log of an index's changes in Redis, and the feed that follows it. A
// Feed tells a Sink of all blocks, and then of every change in order, or says why it is not
// whole. The form of the log is in docs/redis-log.md.
package changelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// The length of a log, in entries. An entry is what one run of apply.lua has
// changed, 16 bytes and about 10 for each block.
const (
	MinEntries     = 16
	DefaultEntries = 10_000
	MaxEntries     = 10_000_000
)

// ErrOff says that the index keeps no log of its changes.
var ErrOff = errors.New("redis: the change log is switched off")

// Log is the log of one index. It is safe for concurrent use.
type Log struct{ space *keyspace.Space }

// New returns the log of an index.
func New(space *keyspace.Space) *Log { return &Log{space} }

// Set switches the log of changes on, which replicas follow, or with 0 entries
// off. It holds for all writers at once, whatever process they are in, since the
// scripts that change blocks look at it. Argument entries is how many changes a
// log keeps at least, MinEntries to MaxEntries. There is one log on a single
// server, and one for each partition and the registry on a cluster. It can be
// called again after an error.
func (l *Log) Set(ctx context.Context, entries int) error {
	_, err := l.set(ctx, entries, false)
	return err
}

// Ensure switches the log on unless Set has decided before, and returns the
// entries that are in force, 0 for off. It makes a log good that has been lost.
func (l *Log) Ensure(ctx context.Context, entries int) (inForce int, err error) {
	return l.set(ctx, entries, true)
}

func (l *Log) set(ctx context.Context, entries int, keep bool) (inForce int, err error) {
	if err := l.space.Check(ctx, "log"); err != nil {
		return 0, err
	}
	if entries != 0 && (entries < MinEntries || entries > MaxEntries) || entries == 0 && keep {
		return 0, fmt.Errorf("%w: a log of %d entries; it can have %d to %d", store.ErrInvalid, entries, MinEntries, MaxEntries)
	}
	cmds, err := l.space.Run(ctx, l.space.RegistryCall(lua.Want, l.space.Names.Own(""), strconv.Itoa(entries), keyspace.Flag(keep)))
	if err != nil {
		return 0, keyspace.Failed(ctx, "log", err)
	}
	text, _ := cmds[0].Val().(string)
	if inForce, err = strconv.Atoi(text); err != nil || inForce < 0 {
		return 0, fmt.Errorf("%w: kva{reg}:meta has the log %q", store.ErrUnavailable, redisx.Clip(text))
	}
	var calls []*keyspace.Call
	for _, place := range l.places() {
		at := &l.space.Names.Logs[place]
		calls = append(calls, &keyspace.Call{Script: lua.Log, Keys: []string{at.Logged, at.Log}, Args: []string{text}})
	}
	_, err = l.space.Run(ctx, calls...)
	return inForce, keyspace.Failed(ctx, "log", err)
}

// logPlaces are where there are logs: in the slots of what they record.
func (l *Log) places() []int {
	if !l.space.Cluster {
		return []int{keyspace.AtRegistry}
	}
	places := make([]int, keyspace.AtRegistry+1)
	for i := range places {
		places[i] = i
	}
	return places
}

// Kept reports whether changes in any of these places are logged, or may be.
func (l *Log) Kept(ctx context.Context, places []int) bool {
	pipe := l.space.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(places))
	for i, place := range places {
		cmds[i] = pipe.Get(ctx, l.space.Names.Logs[place].Logged)
	}
	l.space.Trips.Add(1)
	_, _ = pipe.Exec(ctx)
	return slices.ContainsFunc(cmds, func(c *redis.StringCmd) bool { return !errors.Is(c.Err(), redis.Nil) })
}

// Offsets returns the id of the last entry of each log, by the name of the
// stream; it is empty when there is none. A reader that goes on behind them misses
// nothing that comes after the call.
func (l *Log) Offsets(ctx context.Context) (map[string]string, error) {
	if err := l.space.Check(ctx, "log"); err != nil {
		return nil, err
	}
	places := l.places()
	tails, err := l.readTails(ctx, l.space.Client, places)
	if err != nil {
		return nil, keyspace.Failed(ctx, "log", err)
	}
	out := map[string]string{}
	for i, t := range tails {
		if t.on {
			out[l.space.Names.Logs[places[i]].Log] = t.last.id
		}
	}
	return out, nil
}

// tail is the end of a log.
type tail struct {
	// on says that writers log, and count that the last entry has this number at
	// least.
	on    bool
	count uint64
	last  mark // the zero mark when the stream is empty
}

// end is the number of the last entry. An entry that has none of ours is counted
// over.
func (t *tail) end() uint64 { return max(t.count, t.last.n) }

// mark is an entry of a log: its id and its number.
type mark struct {
	id string
	n  uint64
}

// readTails reads the ends of the logs of places, at one node or all.
func (l *Log) readTails(ctx context.Context, c redis.Cmdable, places []int) ([]tail, error) {
	pipe := c.Pipeline()
	counts := make([]*redis.StringCmd, len(places))
	lasts := make([]*redis.XMessageSliceCmd, len(places))
	for i, p := range places {
		counts[i] = pipe.Get(ctx, l.space.Names.Logs[p].Logged)
		lasts[i] = pipe.XRevRangeN(ctx, l.space.Names.Logs[p].Log, "+", "-", 1)
	}
	l.space.Trips.Add(1)
	_, _ = pipe.Exec(ctx) // each is looked at
	tails := make([]tail, len(places))
	for i := range places {
		switch err := counts[i].Err(); {
		case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
			continue
		case err != nil:
			return nil, err
		}
		t := &tails[i]
		t.count, t.on = parseLogged(counts[i].Val())
		msgs, err := lasts[i].Result()
		switch {
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			t.on = false
		case err != nil:
			return nil, err
		case len(msgs) == 1:
			t.last.id = msgs[0].ID
			t.last.n, _ = entryNumber(msgs[0].Values)
		}
	}
	return tails, nil
}

// parseLogged reads "entries n".
func parseLogged(s string) (n uint64, ok bool) {
	_, text, _ := strings.Cut(s, " ")
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// entryNumber returns the number of an entry; ok is false when it has none.
func entryNumber(values map[string]any) (n uint64, ok bool) {
	text, _ := values["n"].(string)
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// errEntry says that an entry of a log cannot be read.
var errEntry = errors.New("redis: an entry of the change log is garbled")

// entry is what an entry of a log tells: an epoch, or changes of blocks.
type entry struct {
	n       uint64
	epoch   uint64 // 0 means none
	changes []logChange
}

// logChange is that blocks have new holders.
type logChange struct {
	holders []store.HolderID
	keys    []blockkey.StoreKey
}

// parseEntry reads an entry. within are the partitions that its log records. A value that cannot be read has
// no holder, as in a lookup, and counted by garbled.
func parseEntry(values map[string]any, within uint64, garbled func()) (e entry, err error) {
	var ok bool
	if e.n, ok = entryNumber(values); !ok {
		return e, fmt.Errorf("%w: it has no number", errEntry)
	}
	for field, value := range values {
		text, ok := value.(string)
		switch {
		case !ok:
			return e, fmt.Errorf("%w: entry %d has a %T", errEntry, e.n, value)
		case field == "n":
		case field == "e":
			if e.epoch, err = strconv.ParseUint(text, 10, 64); err != nil {
				return e, fmt.Errorf("%w: entry %d has the epoch %q", errEntry, e.n, redisx.Clip(text))
			}
		case strings.HasPrefix(field, "="):
			c := logChange{keys: make([]blockkey.StoreKey, 0, len(text)/8)}
			if field != "=" {
				if c.holders, ok = keyspace.AppendHolders(nil, []byte(field[1:])); !ok {
					garbled()
				}
			}
			if len(text)%8 != 0 {
				return e, fmt.Errorf("%w: entry %d has names of %d bytes", errEntry, e.n, len(text))
			}
			for ; len(text) > 0; text = text[8:] {
				var k blockkey.StoreKey
				for i := range 8 {
					k = k<<8 | blockkey.StoreKey(text[i])
				}
				if within>>k.Partition()&1 == 0 {
					return e, fmt.Errorf("%w: entry %d has a block of partition %d", errEntry, e.n, k.Partition())
				}
				c.keys = append(c.keys, k)
			}
			e.changes = append(e.changes, c)
		default:
			return e, fmt.Errorf("%w: entry %d has a field %q", errEntry, e.n, redisx.Clip(field))
		}
	}
	return e, nil
}
