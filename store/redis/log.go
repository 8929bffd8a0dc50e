package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
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
	MinLogEntries     = 16
	DefaultLogEntries = 10_000
	MaxLogEntries     = 10_000_000
)

// ErrLogOff says that the index keeps no log of its changes.
var ErrLogOff = errors.New("redis: the change log is switched off")

// SetLog switches the log of changes on, which replicas follow, or with 0 entries
// off. It holds for all writers at once, whatever process they are in: the scripts
// that change blocks look at it. entries is how many changes a log keeps at least,
// MinLogEntries to MaxLogEntries; there is one on a single server, and one for each
// partition and the registry on a cluster. It can be called again after an error.
func (x *Index) SetLog(ctx context.Context, entries int) error {
	_, err := x.setLog(ctx, entries, false)
	return err
}

// EnsureLog switches the log on unless SetLog has decided before, and returns the
// entries that are in force, 0 for off. It makes a log good that has been lost.
func (x *Index) EnsureLog(ctx context.Context, entries int) (inForce int, err error) {
	return x.setLog(ctx, entries, true)
}

func (x *Index) setLog(ctx context.Context, entries int, keep bool) (inForce int, err error) {
	if err := x.space.Check(ctx, "log"); err != nil {
		return 0, err
	}
	if entries != 0 && (entries < MinLogEntries || entries > MaxLogEntries) || entries == 0 && keep {
		return 0, fmt.Errorf("%w: a log of %d entries; it can have %d to %d", store.ErrInvalid, entries, MinLogEntries, MaxLogEntries)
	}
	cmds, err := x.space.Run(ctx, x.space.RegistryCall(lua.Want, x.space.Names.Own(""), strconv.Itoa(entries), keyspace.Flag(keep)))
	if err != nil {
		return 0, keyspace.Failed(ctx, "log", err)
	}
	text, _ := cmds[0].Val().(string)
	if inForce, err = strconv.Atoi(text); err != nil || inForce < 0 {
		return 0, fmt.Errorf("%w: kva{reg}:meta has the log %q", store.ErrUnavailable, redisx.Clip(text))
	}
	var calls []*keyspace.Call
	for _, place := range x.logPlaces() {
		l := &x.space.Names.Logs[place]
		calls = append(calls, &keyspace.Call{Script: lua.Log, Keys: []string{l.Logged, l.Log}, Args: []string{text}})
	}
	_, err = x.space.Run(ctx, calls...)
	return inForce, keyspace.Failed(ctx, "log", err)
}

// logPlaces are where there are logs: in the slots of what they tell of.
func (x *Index) logPlaces() []int {
	if !x.space.Cluster {
		return []int{keyspace.AtRegistry}
	}
	places := make([]int, keyspace.AtRegistry+1)
	for i := range places {
		places[i] = i
	}
	return places
}

// logs reports whether any of these runs of apply.lua would be logged, or may be.
func (x *Index) logs(ctx context.Context, calls []*run) bool {
	pipe := x.space.Client.Pipeline()
	var cmds []*redis.StringCmd
	for _, c := range calls {
		if len(c.edits) > 0 {
			cmds = append(cmds, pipe.Get(ctx, x.space.Names.Logs[c.Place].Logged))
		}
	}
	x.space.Trips.Add(1)
	_, _ = pipe.Exec(ctx)
	for _, c := range cmds {
		if !errors.Is(c.Err(), redis.Nil) {
			return true
		}
	}
	return false
}

// LogOffsets returns the id of the last entry of each log, by the name of the
// stream; it is empty when there is none. A reader that goes on behind them misses
// nothing that comes after the call.
func (x *Index) LogOffsets(ctx context.Context) (map[string]string, error) {
	if err := x.space.Check(ctx, "log"); err != nil {
		return nil, err
	}
	places := x.logPlaces()
	tails, err := x.readTails(ctx, places)
	if err != nil {
		return nil, keyspace.Failed(ctx, "log", err)
	}
	out := map[string]string{}
	for i, t := range tails {
		if t.on {
			out[x.space.Names.Logs[places[i]].Log] = t.last.id
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

// readTails reads the ends of the logs of places.
func (x *Index) readTails(ctx context.Context, places []int) ([]tail, error) {
	return readTails(ctx, x, x.space.Client, places)
}

func readTails(ctx context.Context, x *Index, c redis.Cmdable, places []int) ([]tail, error) {
	pipe := c.Pipeline()
	counts := make([]*redis.StringCmd, len(places))
	lasts := make([]*redis.XMessageSliceCmd, len(places))
	for i, p := range places {
		counts[i] = pipe.Get(ctx, x.space.Names.Logs[p].Logged)
		lasts[i] = pipe.XRevRangeN(ctx, x.space.Names.Logs[p].Log, "+", "-", 1)
	}
	x.space.Trips.Add(1)
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
	epoch   uint64 // 0 is none
	changes []logChange
}

// logChange is that blocks have new holders.
type logChange struct {
	holders []store.HolderID
	keys    []blockkey.StoreKey
}

// parseEntry reads an entry. within are the partitions that its log tells of. A
// value that cannot be read is nobody's, as in a lookup, and counted by garbled.
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
