package groups

import (
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Survey takes in what a message shows, before any of its events is applied: an engine
// announces a block for all of its groups in one message. It returns the tiers whose blocks
// of earlier messages are not what a hit needs any more, as a set of tiers of memory.
func (s *Shown) Survey(b *event.Batch, media *event.Media) (void uint8) {
	used := s.used()
	left := used // tiers in which blocks of earlier messages count
	for i := range b.Events {
		switch e := &b.Events[i]; {
		case e.Kind == event.Cleared && e.Spec == event.SpecWidest: // the engine begins anew
			s.forget(&left)
		case e.Kind == event.Stored && e.Group >= 0 && e.Group <= 255 && e.BlockSize <= MaxBlock:
			s.learn(e, media, &left)
		}
	}
	return used &^ left
}

// used are the tiers of memory in which a group that counts has stored.
func (s *Shown) used() (tiers uint8) {
	for i := range s.groups {
		if s.groups[i].counts() {
			tiers |= s.groups[i].tiers
		}
	}
	return tiers
}

// forget forgets the groups, and with them what is held.
func (s *Shown) forget(left *uint8) {
	if len(s.groups) == 0 && s.window == 0 && s.full == 0 {
		return
	}
	*s = Shown{Changed: true}
	*left = 0
}

// learn takes in what one Stored shows.
func (s *Shown) learn(e *event.Event, media *event.Media, left *uint8) {
	if e.Spec == event.SpecWidest {
		if uint32(e.SlidingWindow) > s.window {
			s.forget(left)
			s.window, s.Changed = uint32(e.SlidingWindow), true
		}
		if uint32(e.BlockSize) > s.full {
			s.full, s.Changed = uint32(e.BlockSize), true
		}
		if s.Narrow(e) {
			return
		}
	}
	if len(e.Hashes) == 0 && e.Spec == "" {
		return // nothing of a window or of states was kept, where the kind is told
	}
	id := s.Of(e)
	g := s.find(id)
	switch {
	case g == nil:
		g = s.add(id, e.Spec)
	case e.Spec != "" && g.prefix != prefixSpec(e.Spec):
		g.prefix, g.window = !g.prefix, 0
		s.change(allTiers, left)
	}
	if w := windowOf(e); !g.prefix && w > g.window {
		g.window = w
		s.change(allTiers, left)
	}
	tier, known := media.TierOf(e)
	if !g.counts() || !known {
		return
	}
	if (tier == store.GPU || g.size == 0) && len(e.Tokens) > 0 && e.BlockSize > int(g.size) && s.resize(g, uint16(e.BlockSize)) {
		s.change(allTiers, left)
	}
	if g.tiers>>tier&1 == 0 {
		g.tiers |= 1 << tier
		s.change(1<<tier, left)
	}
}

// change notes that what tiers hold of earlier messages is not what a hit needs any more.
func (s *Shown) change(tiers uint8, left *uint8) {
	s.Changed = true
	s.derive()
	*left &^= tiers
}

// derive works out Need and Needs, which follow from the groups.
func (s *Shown) derive() {
	s.Need, s.Needs = [MaxLayers][store.NumHolderTiers]uint32{}, [MaxLayers]uint8{}
	for i := range s.groups {
		g := &s.groups[i]
		if !g.counts() {
			continue
		}
		for t := range store.Tier(store.NumTiers) {
			if g.tiers>>t&1 != 0 {
				s.Need[g.layer][g.tier(t)] |= 1 << min(i, maxCounted)
				s.Needs[g.layer] |= 1 << g.tier(t)
			}
		}
	}
}

// add notes a group that the stream has not shown yet.
func (s *Shown) add(id uint8, spec string) *group {
	s.Changed = true
	// Before 0.22 vLLM does not tell; a model with one group has just group 0.
	prefix := prefixSpec(spec) || spec == "" && id == 0
	if len(s.groups) == maxGroups {
		g := &s.groups[maxGroups-1]
		g.prefix = g.prefix || prefix
		return g
	}
	s.groups = append(s.groups, group{id: id, prefix: prefix})
	return &s.groups[len(s.groups)-1]
}

// resize notes that a group has blocks of a size. It reports whether that gives a group
// another layer than it had.
func (s *Shown) resize(g *group, size uint16) (moved bool) {
	s.Changed = true
	g.size = size
	alone := true
	for i := range s.groups {
		if o := &s.groups[i]; o != g && o.counts() && o.size > 0 {
			alone = false
		}
	}
	if alone && len(s.sizes) <= 1 {
		s.sizes = []uint16{size}
		return false
	}
	layer := 0
	for layer < len(s.sizes) && s.sizes[layer] != size {
		layer++
	}
	if layer == len(s.sizes) && layer < MaxLayers {
		s.sizes = append(s.sizes, size)
	}
	layer = min(layer, MaxLayers-1)
	moved = uint8(layer) != g.layer
	g.layer = uint8(layer)
	return moved
}
