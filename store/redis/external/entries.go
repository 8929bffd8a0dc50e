package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// LMCache may keep in the same Redis the holders of its chunks, under names of its own, and
// put the chunks' tensors beside. A query of lmcache.EntryNames reads those, in the round
// trips of the blocks. Nothing of them is ever written.
//
// They name pods by host or host:port, as values of texts do (text.go), with two
// differences. The port is that of LMCache's own server, so that a host alone is
// enough where one pod of the model has it. And they do not wait for a sweep: no sweep
// of ours removes what an engine wrote in its former life. What is known of an entry's
// age is what its writer put into it. The hashes have a time, the strings have none.
// To give strings a time to live would be to delete LMCache's data.
//
// Their commands stand beside the MGETs of the blocks in one pipeline. An entry that
// cannot be read, for its type or for want of permission, is nobody's; it is counted
// and stops nothing. So is a hash of more than MaxFields fields. HRANDFIELD sends one more
// than that at most, in random order, and all of a smaller one. HGETALL of 60,000 fields
// holds a server up for 130 ms, which is the budget of all other credit; this for 2.7.

// MaxFields is how many fields a hash of OwnerHash can have: each is a pod that holds the
// chunk.
const MaxFields = 1024

// mgetKeys is how many keys one MGET has at most.
const mgetKeys = 512

// maxAhead is how far in the future the time of a field may be: as much as clocks differ.
const maxAhead = time.Hour

// Names says which holder a text of an entry stands for.
type Names interface {
	Owner(text string) (store.HolderID, bool)
}

// Round is what one round trip reads of entries: a rider of blocks. It is the working memory
// of that, for one goroutine; the zero value needs Reset.
type Round struct {
	s         *Source
	reads     []read
	ids, next []store.HolderID
}

// Reset begins a round of a source; nil keeps nothing alive.
func (r *Round) Reset(s *Source) {
	clear(r.reads[:cap(r.reads)])
	r.s, r.reads = s, r.reads[:0]
}

// Len is how many reads there are.
func (r *Round) Len() int { return len(r.reads) }

// Add adds a read of n blocks of entries, from block at on, and returns its number.
func (r *Round) Add(e *lmcache.EntryNames, at, n int) int {
	p := max(1, e.Parts)
	r.reads = append(r.reads, read{kind: e.Kind, parts: p, names: e.Names[at*p : (at+n)*p], n: n})
	return len(r.reads) - 1
}

// read is what one round trip reads of a query of entries, and what was found.
type read struct {
	n     int // blocks
	kind  lmcache.EntryKind
	parts int
	names []string
	cmds  []redis.Cmder

	owner  []string       // of OwnerString: a value a name, "" for none
	fields [][]ownerField // of OwnerHash
	there  []bool         // of Tensors
}

// ownerField is a field of a hash; meta is only known when entries age.
type ownerField struct{ text, meta string }

// AskBeside implements blocks.Rider. Of another server it asks at the same time.
func (r *Round) AskBeside(ctx context.Context, pipe redis.Pipeliner) (wait func()) {
	for i := range r.reads {
		r.reads[i].cmds = nil // of a round trip that has failed
	}
	if r.s.apart == nil {
		r.ask(ctx, pipe)
		return func() {}
	}
	return r.s.apart.ask(ctx, r)
}

// ask puts the commands into a pipeline.
func (r *Round) ask(ctx context.Context, pipe redis.Pipeliner) {
	for i := range r.reads {
		e := &r.reads[i]
		switch {
		case e.kind == lmcache.OwnerString && !r.s.cluster:
			for part := range slices.Chunk(e.names, mgetKeys) {
				e.cmds = append(e.cmds, pipe.MGet(ctx, part...))
			}
		default:
			for _, name := range e.names {
				e.cmds = append(e.cmds, r.s.askEntry(ctx, pipe, e.kind, name))
			}
		}
	}
}

func (s *Source) askEntry(ctx context.Context, pipe redis.Pipeliner, kind lmcache.EntryKind, name string) redis.Cmder {
	switch {
	case kind == lmcache.OwnerString:
		return pipe.Get(ctx, name)
	case kind == lmcache.Tensors:
		return pipe.Exists(ctx, name)
	case s.age > 0:
		return pipe.HRandFieldWithValues(ctx, name, MaxFields+1)
	default:
		return pipe.HRandField(ctx, name, MaxFields+1)
	}
}

// TakeReplies implements blocks.Rider. Its error is that of the connection.
func (r *Round) TakeReplies() error {
	for i := range r.reads {
		e := &r.reads[i]
		at := 0 // names taken
		for _, cmd := range e.cmds {
			n := 1
			if m, ok := cmd.(*redis.SliceCmd); ok {
				n = len(m.Args()) - 1
			}
			if err := r.s.readable(cmd.Err(), n); err != nil {
				if r.s.apart == nil {
					return err
				}
				r.s.apart.fail(err)
			}
			e.takeReply(cmd, n)
			at += n
		}
		if len(e.cmds) > 0 && at != len(e.names) {
			return fmt.Errorf("%w: %d entries for %d names", keyspace.ErrProtocol, at, len(e.names))
		}
	}
	return nil
}

// takeReply takes what a command found of the next n names.
func (e *read) takeReply(cmd redis.Cmder, n int) {
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

// readable tells the server's refusals of n entries, which are counted and leave the entries without a
// holder, from errors that the lookup fails by.
func (s *Source) readable(err error, n int) error {
	var refused redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return nil
	case errors.As(err, &refused):
		s.space.Garbled.Add(uint64(n))
		if !redis.HasErrorPrefix(err, "WRONGTYPE") {
			s.refused.Do(func() {
				s.space.Log("entries of LMCache cannot be read and count for no pod: " + redisx.Clip(err.Error()))
			})
		}
		return nil
	default:
		return err
	}
}

// Fold tells a folder of the blocks of a read, equal neighbours at once, and reports whether
// it wants more.
func (r *Round) Fold(i int, names Names, f store.Folder) (more bool) {
	e := &r.reads[i]
	now := r.s.now()
	run := 0
	for i := range e.n {
		r.next = r.appendHolders(r.next[:0], e, i, names, now)
		if run > 0 && slices.Equal(r.next, r.ids) {
			run++
			continue
		}
		if run > 0 && !f.Run(run, r.ids) {
			return false
		}
		r.ids, r.next, run = r.next, r.ids, 1
	}
	return run == 0 || f.Run(run, r.ids)
}

// appendHolders appends the holders of block i.
func (r *Round) appendHolders(ids []store.HolderID, e *read, i int, names Names, now time.Time) []store.HolderID {
	switch e.kind {
	case lmcache.OwnerString:
		var first store.HolderID
		for k, text := range e.owner[i*e.parts : (i+1)*e.parts] {
			id, ok := r.s.named(names, text)
			if !ok || k > 0 && id != first {
				return ids
			}
			first = id
		}
		return append(ids, first)
	case lmcache.OwnerHash:
		if len(e.fields[i]) > MaxFields {
			r.s.space.Garbled.Add(1)
			return ids
		}
		for _, f := range e.fields[i] {
			if r.s.age > 0 && !r.s.young(f.meta, now) {
				continue
			}
			if id, ok := r.s.named(names, f.text); ok {
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

// EachText calls f with the texts that a block of a read has and that can name a pod.
func (r *Round) EachText(i, block int, f func(text string)) {
	e := &r.reads[i]
	tell := func(text string) {
		if text != "" && len(text) <= keyspace.MaxName && keyspace.IsText([]byte(text)) && !strings.Contains(text, ",") {
			f(text)
		}
	}
	switch e.kind {
	case lmcache.OwnerString:
		for _, text := range e.owner[block*e.parts : (block+1)*e.parts] {
			tell(text)
		}
	case lmcache.OwnerHash:
		if len(e.fields[block]) <= MaxFields {
			for _, f := range e.fields[block] {
				tell(f.text)
			}
		}
	default: // lmcache.Tensors is everyone's
	}
}

// named returns the holder that an entry's text names, and counts it; "" is no entry.
func (s *Source) named(names Names, text string) (store.HolderID, bool) {
	if text == "" {
		return 0, false
	}
	if len(text) > keyspace.MaxName || !keyspace.IsText([]byte(text)) {
		s.space.Garbled.Add(1)
		return 0, false
	}
	id, ok := names.Owner(text)
	s.space.Texts.Add(1)
	if !ok {
		s.space.UnknownTexts.Add(1)
	}
	return id, ok
}

// young reports whether a field's value, fmt@world_size@worker_id@time, is of a time that
// counts. It is not older than EntryAge, and not so far ahead that it would never become so.
// The time is the writer's clock, in seconds.
func (s *Source) young(meta string, now time.Time) bool {
	at, err := strconv.ParseFloat(meta[strings.LastIndexByte(meta, '@')+1:], 64)
	if err != nil || !(at <= float64(now.Add(maxAhead).UnixNano())/1e9) { // NaN neither
		s.space.Garbled.Add(1)
		return false
	}
	return at >= float64(now.Add(-s.age).UnixNano())/1e9
}
