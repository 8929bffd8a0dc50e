package roster

import (
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// A query may name pods that are not registered (store.Query.Named): guests. They are in
// the registry of that lookup alone, without a model. They count where a value, or an entry
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
	// MaxMet is how many of them a lookup meets at most, those of first blocks before
	// others. A value has room for about 400 addresses.
	MaxMet = 512
	// guestSets is how many registries with guests are remembered: schedulers name the
	// same pods again and again, and values do so too.
	guestSets = 8
)

// guestSet is a snapshot with guests, and what it was made of: names of queries, or what
// lookups have met, ascending.
type guestSet struct {
	base  *Snapshot
	names string
	met   []string
	snap  *Snapshot
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

// Knows reports whether a text is a registered pod's, which need not count.
func (s *Snapshot) Knows(text string) bool {
	if _, claimed := s.texts()[text]; claimed {
		return true
	}
	_, registered := s.roster.find(text)
	return registered
}

// WithGuests returns the snapshot with the guests that the queries name, or those that
// were met.
func (c *Cache) WithGuests(s *Snapshot, queries []*store.Query, met []string) *Snapshot {
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
	c.guestMu.Lock()
	defer c.guestMu.Unlock()
	for i, g := range c.guests {
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
		c.guests = slices.Delete(c.guests, i, i+1)
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
	made := c.assemble(r, s.late, s.Registry.ValidUntil, s.clock)
	c.guests = append(slices.DeleteFunc(c.guests, func(g guestSet) bool { return g.base != s }), guestSet{s, text, met, made})
	if len(c.guests) > guestSets {
		c.guests = slices.Delete(c.guests, 0, 1)
	}
	return made
}
