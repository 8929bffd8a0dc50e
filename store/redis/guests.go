package redis

import (
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// A query may name pods that are not registered (store.Query.Named): guests. They are in
// the registry of that lookup alone, without a model, and count where a value, or an entry
// of LMCache, names them by what they are called. Nothing of them is written.

const (
	// maxGuests is how many of them a lookup has at most.
	maxGuests = 1024
	// guestSets is how many registries with guests are remembered: schedulers name the
	// same pods again and again.
	guestSets = 8
)

// guestSet is a snapshot with guests, and what it was made of.
type guestSet struct {
	base  *snapshot
	names string
	snap  *snapshot
}

// withGuests returns the snapshot with the guests that the queries name.
func (x *Index) withGuests(s *snapshot, queries []*store.Query) *snapshot {
	var names []string
	for _, q := range queries {
		for _, name := range q.Named {
			if _, registered := s.roster.find(name); registered || len(names) == maxGuests || len(name) > maxName || !isText([]byte(name)) || strings.Contains(name, ",") {
				continue
			}
			if at, there := slices.BinarySearch(names, name); !there {
				names = slices.Insert(names, at, name)
			}
		}
	}
	if len(names) == 0 || !s.loaded {
		return s
	}
	text := strings.Join(names, ",")
	x.guestMu.Lock()
	defer x.guestMu.Unlock()
	for _, g := range x.guests {
		if g.base == s && g.names == text {
			return g.snap
		}
	}
	r := s.roster
	r.members = slices.Clone(r.members)
	for _, name := range names {
		r.members = append(r.members, &member{name: name, pod: store.Pod{Name: name}, guest: true})
	}
	made := x.assemble(r, s.late, s.registry.ValidUntil)
	x.guests = append(slices.DeleteFunc(x.guests, func(g guestSet) bool { return g.base != s }), guestSet{s, text, made})
	if len(x.guests) > guestSets {
		x.guests = slices.Delete(x.guests, 0, 1)
	}
	return made
}
