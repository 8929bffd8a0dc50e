package redis

import (
	"bytes"
	"net"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// A query may name pods that are not registered (store.Query.Named): guests. They are in
// the registry of that lookup alone, without a model, and count where a value, or an entry
// of LMCache, names them by what they are called. Nothing of them is written.
//
// Values name others: where the model allows it (store.ModelInfo.Unregistered) these are
// guests too, each a pod that has the text as its name. Their names must be known before
// the folders begin, so that they are those of the first window. What is met later counts
// for nothing, unless an earlier lookup has met it; a prefix that counts begins in the
// first block. A text that a registered pod has is never another's, whether that pod counts
// or not: its life may be over.

const (
	// maxGuests is how many of them a registry has at most.
	maxGuests = 1024
	// maxMet is how many of them a lookup meets at most, those of first blocks before
	// others. A value has room for about 400 addresses.
	maxMet = 512
	// guestSets is how many registries with guests are remembered: schedulers name the
	// same pods again and again, and values do so too.
	guestSets = 8
)

// guestSet is a snapshot with guests, and what it was made of: names of queries, or what
// lookups have met, ascending.
type guestSet struct {
	base  *snapshot
	names string
	met   []string
	snap  *snapshot
}

// openModels returns the models that let texts name guests, nil for none.
func openModels(models map[string]store.ModelInfo) (open map[blockkey.Model]bool) {
	for name, m := range models {
		if m.Unregistered {
			if open == nil {
				open = map[blockkey.Model]bool{}
			}
			open[blockkey.ModelOf(name)] = true
		}
	}
	return open
}

// meet returns the texts that name nobody in what has been read of open models, ascending.
// There are none where queries name pods.
func (l *lookup) meet(queries []*store.Query) (met []string) {
	if slices.ContainsFunc(queries, func(q *store.Query) bool { return q.Named != nil }) {
		return nil
	}
	most := 0
	for i := range l.open {
		most = max(most, l.open[i].n)
	}
	for block := range most { // the first blocks of all chains before the second ones
		for i := range l.open {
			c := &l.open[i]
			switch {
			case block >= c.n || !l.snap.open[c.q.Model]:
			case c.q.Entries != nil:
				met = l.meetEntry(met, c, block)
			default:
				met = l.meetValue(met, c, block)
			}
			if len(met) == maxMet {
				return met
			}
		}
	}
	return met
}

// meetValue is meet of a block's value.
func (l *lookup) meetValue(met []string, c *chain, block int) []string {
	s := l.snap
	v, held := l.vals[c.from+block].of(l.buf)
	if !held || s.roster.swept != s.roster.ended || l.x.config.TextAge < 0 {
		return met
	}
	if block > 0 {
		if last, _ := l.vals[c.from+block-1].of(l.buf); bytes.Equal(last, v) {
			return met
		}
	}
	if _, ids := keyspace.AppendHolders(l.ids[:0], v); ids || !keyspace.IsText(v) {
		return met
	}
	for text := range bytes.SplitSeq(bytes.TrimPrefix(v, []byte{','}), []byte{','}) {
		if !s.knows(string(text)) {
			met = meeting(met, string(text))
		}
	}
	return met
}

// meetEntry is meet of an entry of LMCache. The port is that of LMCache's own server, so
// that a host is enough to be known by.
func (l *lookup) meetEntry(met []string, c *chain, block int) []string {
	e := &l.entries[c.from]
	meet := func(text string) {
		if text == "" || len(text) > keyspace.MaxName || !keyspace.IsText([]byte(text)) || strings.Contains(text, ",") || l.snap.knows(text) {
			return
		}
		if host, _, err := net.SplitHostPort(text); err != nil || !l.snap.knows(host) {
			met = meeting(met, text)
		}
	}
	switch e.form {
	case store.EntryOwner:
		for _, text := range e.owner[block*e.parts : (block+1)*e.parts] {
			meet(text)
		}
	case store.EntryOwners:
		if len(e.fields[block]) <= maxFields {
			for _, f := range e.fields[block] {
				meet(f.text)
			}
		}
	default: // store.EntryPresent is everyone's
	}
	return met
}

// meeting returns met with a text, if there is room.
func meeting(met []string, text string) []string {
	at, there := slices.BinarySearch(met, text)
	if there || len(met) == maxMet {
		return met
	}
	return slices.Insert(met, at, text)
}

// knows reports whether a text is a registered pod's, which need not count.
func (s *snapshot) knows(text string) bool {
	if _, claimed := s.texts()[text]; claimed {
		return true
	}
	_, registered := s.roster.find(text)
	return registered
}

// withGuests returns the snapshot with the guests that the queries name, or those that
// were met.
func (x *Index) withGuests(s *snapshot, queries []*store.Query, met []string) *snapshot {
	var names []string
	for _, q := range queries {
		for _, name := range q.Named {
			if _, registered := s.roster.find(name); registered || len(names) == maxGuests || len(name) > keyspace.MaxName || !keyspace.IsText([]byte(name)) || strings.Contains(name, ",") {
				continue
			}
			if at, there := slices.BinarySearch(names, name); !there {
				names = slices.Insert(names, at, name)
			}
		}
	}
	if len(names)+len(met) == 0 || !s.loaded {
		return s
	}
	text := strings.Join(names, ",")
	x.guestMu.Lock()
	defer x.guestMu.Unlock()
	for i, g := range x.guests {
		if g.base != s || g.names != text {
			continue
		}
		all := slices.Concat(g.met, met)
		slices.Sort(all)
		all = slices.Compact(all)
		if len(all) == len(g.met) {
			return g.snap
		}
		if len(all) <= maxGuests {
			met = all // so that lookups that meet these in turn have one registry
		}
		x.guests = slices.Delete(x.guests, i, i+1)
		break
	}
	r := s.roster
	r.members = slices.Clone(r.members)
	for _, name := range names {
		r.members = append(r.members, &member{name: name, pod: store.Pod{Name: name}, guest: true})
	}
	for _, name := range met {
		r.members = append(r.members, &member{name: name, pod: store.Pod{Name: name}, guest: true, met: true})
	}
	made := x.assemble(r, s.late, s.registry.ValidUntil, s.clock)
	x.guests = append(slices.DeleteFunc(x.guests, func(g guestSet) bool { return g.base != s }), guestSet{s, text, met, made})
	if len(x.guests) > guestSets {
		x.guests = slices.Delete(x.guests, 0, 1)
	}
	return made
}
