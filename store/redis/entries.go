package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// LMCache may file in the same Redis who holds its chunks, under names of its own, and
// put the chunks' tensors beside. A query of store.Entries reads those, in the round
// trips of the blocks. Nothing of them is ever written.
//
// They name pods by host or host:port, as values of texts do (text.go), with two
// differences. The port is that of LMCache's own server, so that a host alone is
// enough where one pod of the model has it. And they do not wait for a sweep: no sweep
// of ours removes what an engine wrote in its former life. What is known of an
// entry's age is what its writer put into it: the hashes have a time, the strings have
// none, and to give them a time to live would be to delete LMCache's data.
//
// Their commands stand beside the MGETs of the blocks in one pipeline. An entry that
// cannot be read, for its type or for want of permission, is nobody's; it is counted
// and stops nothing. So is a hash of more than maxFields fields: HRANDFIELD sends one more
// than that at most, in random order, and all of a smaller one. HGETALL of 60,000 fields
// holds a server up for 130 ms, which is the budget of all other credit; this for 2.7.

// maxFields is how many fields a hash of EntryOwners can have: each is a pod that holds the
// chunk.
const maxFields = 1024

// maxAhead is how far in the future the time of a field may be: as much as clocks differ.
const maxAhead = time.Hour

// The ids by which entries name pods within a snapshot: local ones, after those of texts.
const firstOwner = store.FirstLocal + 1<<26

// owners finds out whom entries of a model mean.
type owners struct {
	r    roster
	late map[string]bool
	mu   sync.Mutex               // protects by
	by   map[blockkey.Model]texts // made when the first entry of the model is met
}

// newOwners returns what entries can name, and the holders that the registry has to
// know for it: rank 0 of each pod, in tier cpu. nil when entries are not read.
func (x *Index) newOwners(r roster, late map[string]bool) (o *owners, extra []store.Holder) {
	if !x.config.Entries {
		return nil, nil
	}
	for i, m := range r.members {
		if !late[m.name] && m.pod.PartOf == nil {
			extra = append(extra, store.Holder{ID: firstOwner + store.HolderID(i), Pod: m.name, Rank: 0, Tier: store.CPU})
		}
	}
	return &owners{r: r, late: late, by: map[blockkey.Model]texts{}}, extra
}

// of returns the texts that name the pods of a model.
func (o *owners) of(m blockkey.Model) texts {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t, made := o.by[m]
	if made {
		return t
	}
	part := roster{}
	ids := map[string]store.HolderID{}
	for i, member := range o.r.members {
		if !o.late[member.name] && member.pod.PartOf == nil && (member.guest || blockkey.ModelOf(member.pod.Model) == m) {
			part.members = append(part.members, member)
			ids[member.name] = firstOwner + store.HolderID(i)
		}
	}
	t = newTexts(part, nil, ids)
	o.by[m] = t
	return t
}

// owner returns the holder that an entry's text stands for.
func (t texts) owner(text string) (store.HolderID, bool) {
	if id := t[text]; id != 0 {
		return id, true
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return 0, false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return 0, false
	}
	id := t[host]
	return id, id != 0
}

// entryRead is what one round trip reads of a query of entries, and what was found.
type entryRead struct {
	form  store.EntryForm
	parts int
	names []string
	cmds  []redis.Cmder

	owner  []string       // of EntryOwner: a value a name, "" for none
	fields [][]ownerField // of EntryOwners
	there  []bool         // of EntryPresent
}

// ownerField is a field of a hash; meta is only known when entries age.
type ownerField struct{ text, meta string }

// entriesSplit reports whether an MGET cannot name entries of several slots.
func (x *Index) entriesSplit() bool {
	if x.source != nil {
		return x.source.cluster
	}
	return x.space.Cluster
}

func (x *Index) aging() bool { return x.config.EntryAge > 0 }

// askEntries puts the commands of a round trip's entries into its pipeline.
func (l *lookup) askEntries(ctx context.Context, pipe redis.Pipeliner) {
	for i := range l.entries {
		e := &l.entries[i]
		switch {
		case e.form == store.EntryOwner && !l.x.entriesSplit():
			for part := range slices.Chunk(e.names, mgetKeys) {
				e.cmds = append(e.cmds, pipe.MGet(ctx, part...))
			}
		default:
			for _, name := range e.names {
				e.cmds = append(e.cmds, l.askEntry(ctx, pipe, e.form, name))
			}
		}
	}
}

func (l *lookup) askEntry(ctx context.Context, pipe redis.Pipeliner, form store.EntryForm, name string) redis.Cmder {
	switch {
	case form == store.EntryOwner:
		return pipe.Get(ctx, name)
	case form == store.EntryPresent:
		return pipe.Exists(ctx, name)
	case l.x.aging():
		return pipe.HRandFieldWithValues(ctx, name, maxFields+1)
	default:
		return pipe.HRandField(ctx, name, maxFields+1)
	}
}

// takeEntries takes what the commands found. Its error is that of the connection.
func (l *lookup) takeEntries() error {
	for i := range l.entries {
		e := &l.entries[i]
		at := 0 // names taken
		for _, cmd := range e.cmds {
			n := 1
			if m, ok := cmd.(*redis.SliceCmd); ok {
				n = len(m.Args()) - 1
			}
			if err := l.x.readable(cmd.Err(), n); err != nil {
				if l.x.source == nil {
					return err
				}
				l.x.source.failed(err)
			}
			e.take(cmd, n)
			at += n
		}
		if len(e.cmds) > 0 && at != len(e.names) {
			return fmt.Errorf("%w: %d entries for %d names", keyspace.ErrProtocol, at, len(e.names))
		}
	}
	return nil
}

// take takes what a command found of the next n names.
func (e *entryRead) take(cmd redis.Cmder, n int) {
	switch c := cmd.(type) {
	case *redis.SliceCmd:
		vals := c.Val()
		for i := range n {
			v := ""
			if i < len(vals) {
				v = keyspace.Word(vals[i])
			}
			e.owner = append(e.owner, v)
		}
	case *redis.StringCmd:
		e.owner = append(e.owner, c.Val())
	case *redis.IntCmd:
		e.there = append(e.there, c.Val() > 0)
	case *redis.StringSliceCmd:
		var f []ownerField
		for _, text := range c.Val() {
			f = append(f, ownerField{text: text})
		}
		e.fields = append(e.fields, f)
	case *redis.KeyValueSliceCmd:
		var f []ownerField
		for _, v := range c.Val() {
			f = append(f, ownerField{v.Key, v.Value})
		}
		e.fields = append(e.fields, f)
	}
}

// readable tells the server's refusals of n entries, which are counted and make the
// entries nobody's, from errors that the lookup fails by.
func (x *Index) readable(err error, n int) error {
	var refused redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return nil
	case errors.As(err, &refused):
		x.space.Garbled.Add(uint64(n))
		if !redis.HasErrorPrefix(err, "WRONGTYPE") {
			x.entriesRefused.Do(func() {
				x.space.Log("entries of LMCache cannot be read and count for nobody: " + redisx.Clip(err.Error()))
			})
		}
		return nil
	default:
		return err
	}
}

// entryRuns tells a folder of the blocks of one window, equal neighbours at once.
func (l *lookup) entryRuns(c *chain) (more bool) {
	e := &l.entries[c.from]
	names := l.snap.owners.of(c.q.Model)
	now := time.Now()
	run := 0
	for i := range c.n {
		l.next = l.entryHolders(l.next[:0], e, i, names, now)
		if run > 0 && slices.Equal(l.next, l.ids) {
			run++
			continue
		}
		if run > 0 && !c.q.Fold.Run(run, l.ids) {
			return false
		}
		l.ids, l.next, run = l.next, l.ids, 1
	}
	return run == 0 || c.q.Fold.Run(run, l.ids)
}

// entryHolders appends who holds block i.
func (l *lookup) entryHolders(ids []store.HolderID, e *entryRead, i int, names texts, now time.Time) []store.HolderID {
	switch e.form {
	case store.EntryOwner:
		var first store.HolderID
		for k, text := range e.owner[i*e.parts : (i+1)*e.parts] {
			id, ok := l.named(names, text)
			if !ok || k > 0 && id != first {
				return ids
			}
			first = id
		}
		return append(ids, first)
	case store.EntryOwners:
		if len(e.fields[i]) > maxFields {
			l.x.space.Garbled.Add(1)
			return ids
		}
		for _, f := range e.fields[i] {
			if l.x.aging() && !l.young(f.meta, now) {
				continue
			}
			if id, ok := l.named(names, f.text); ok {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return slices.Compact(ids)
	default:
		if slices.Contains(e.there[i*e.parts:(i+1)*e.parts], false) {
			return ids
		}
		return append(ids, store.Everyone)
	}
}

// named returns whom an entry's text names, and counts it; "" is no entry.
func (l *lookup) named(names texts, text string) (store.HolderID, bool) {
	if text == "" {
		return 0, false
	}
	if len(text) > keyspace.MaxName || !keyspace.IsText([]byte(text)) {
		l.x.space.Garbled.Add(1)
		return 0, false
	}
	id, ok := names.owner(text)
	l.x.texts.Add(1)
	if !ok {
		l.x.unknownTexts.Add(1)
	}
	return id, ok
}

// young reports whether a field's value, fmt@world_size@worker_id@time, is of no other time
// than counts: not older than EntryAge, and not so far ahead that it would never become so.
// The time is the writer's clock, in seconds.
func (l *lookup) young(meta string, now time.Time) bool {
	at, err := strconv.ParseFloat(meta[strings.LastIndexByte(meta, '@')+1:], 64)
	if err != nil || !(at <= float64(now.Add(maxAhead).UnixNano())/1e9) { // NaN neither
		l.x.space.Garbled.Add(1)
		return false
	}
	return at >= float64(now.Add(-l.x.config.EntryAge).UnixNano())/1e9
}
