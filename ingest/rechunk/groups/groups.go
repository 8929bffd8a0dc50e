// Package groups says what a generation's stream has shown of the engine's cache groups: of
// which a hit needs blocks, where, and of which size.
//
// A group of full attention holds prefixes: a hit needs its blocks from the first on. Of a
// group with a sliding window or with states it needs the last ones alone, and these are
// counted in window tiers ([store.Tier.Window]). A group of another kind says nothing about
// a prefix.
//
// Prefix groups whose blocks have one size are a layer. They name the same stretch by the
// same hash; groups with blocks of another size do not.
//
// An engine that tells windows and not which group is full attention ([event.SpecWidest]) is
// judged by its widest window, and by its largest block.
//
// Package groups does no I/O. What it knows is a function of the events alone, so every
// owner of a generation judges an event as the owner before would have.
package groups

import (
	"strings"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// MaxLayers is how many block sizes prefix groups can have. Groups beyond share
	// the last layer, where blocks of two sizes under one hash count for nothing.
	MaxLayers = 4
	// MaxBlock is the largest block in tokens; an event of a larger one shows nothing.
	MaxBlock = 8192
	// maxCounted is how many groups are told apart. A group beyond is needed, and never
	// there.
	maxCounted = 31
	// maxGroups is how many groups are kept. Those beyond are taken for the last.
	maxGroups = 32
	// allTiers is the set of all tiers of memory.
	allTiers = 1<<store.NumTiers - 1
)

// Shown is what a stream has shown. The zero value is nothing. It is not safe for
// concurrent use.
type Shown struct {
	// Need are, by layer and tier, the groups that have stored there: prefix groups in
	// tiers of memory, window groups in window tiers. A group is its Bit.
	Need [MaxLayers][store.NumHolderTiers]uint32
	// Needs are, by layer, the tiers in which Need has groups.
	Needs [MaxLayers]uint8
	// Changed says that there is something that the map does not have yet.
	Changed bool

	groups []group
	// sizes are the block sizes of prefix groups, in the order in which they came: the
	// layers.
	sizes []uint16
	// window is the widest window and full the largest block, where the stream has
	// event.SpecWidest.
	window, full uint32
}

// group is one of the engine's cache groups.
type group struct {
	id     uint8
	prefix bool   // a hit needs its blocks from the first on
	window uint32 // of a window group: how many tokens before its end a hit needs; else 0
	layer  uint8
	tiers  uint8  // in which it has stored
	size   uint16 // of its blocks in tokens: the first, or the largest on the GPU; 0 for not known yet
}

// counts reports whether a hit needs blocks of the group.
func (g *group) counts() bool { return g.prefix || g.window > 0 }

// tier is the tier in which the group's blocks in a tier of memory count.
func (g *group) tier(memory store.Tier) store.Tier {
	if g.prefix {
		return memory
	}
	return memory.Window()
}

// find returns the group of a number, nil if the stream has not shown it.
func (s *Shown) find(id uint8) *group {
	for i := range s.groups {
		if s.groups[i].id == id {
			return &s.groups[i]
		}
	}
	return nil
}

// Bit is the bit of a group in Need, 0 for a group that cannot be counted.
func (s *Shown) Bit(id uint8) uint32 {
	for i := range s.groups {
		if s.groups[i].id == id {
			if i < maxCounted {
				return 1 << i
			}
			return 0
		}
	}
	return 0
}

// Needed are the groups that have stored in a tier of memory, as in Need.
func (s *Shown) Needed(memory store.Tier) (groups uint32) {
	for layer := range s.Need {
		groups |= s.Need[layer][memory] | s.Need[layer][memory.Window()]
	}
	return groups
}

// Layers is how many layers there are.
func (s *Shown) Layers() int { return len(s.sizes) }

// LayerOf is the layer of a group.
func (s *Shown) LayerOf(id uint8) uint8 {
	if len(s.sizes) > 1 {
		if g := s.find(id); g != nil {
			return g.layer
		}
	}
	return 0
}

// Reuse is what the engine can reuse, as far as the stream has shown it: it resumes where
// blocks of all groups end. It is zero where that is beyond store.MaxBlockSize.
func (s *Shown) Reuse() (r store.Reuse) {
	for i := range s.groups {
		g := &s.groups[i]
		if !g.counts() || g.size == 0 {
			continue
		}
		r.Block = lcm(max(r.Block, 1), int(g.size))
		r.Window = max(r.Window, int(g.window))
		if r.Block > store.MaxBlockSize {
			return store.Reuse{}
		}
	}
	return r
}

// lcm is the least common multiple.
func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Of is the number of the group of an event. An event that tells none, in a stream whose
// group 0 holds no prefixes, is of the first group that does.
func (s *Shown) Of(e *event.Event) uint8 {
	if e.HasGroup || e.Group != 0 {
		return uint8(e.Group)
	}
	if g := s.find(0); g != nil && !g.prefix && e.Spec == "" {
		for i := range s.groups {
			if s.groups[i].prefix {
				return s.groups[i].id
			}
		}
	}
	return 0
}

// TierOf is the tier in which an event's blocks count. known is false for a medium that has
// no tier.
func (s *Shown) TierOf(e *event.Event, media *event.Media) (tier store.Tier, known bool) {
	tier, known = media.TierOf(e)
	if g := s.find(s.Of(e)); known && g != nil {
		tier = g.tier(tier)
	}
	return tier, known
}

// Layer is the layer of an event's group.
func (s *Shown) Layer(e *event.Event) uint8 {
	if len(s.sizes) <= 1 {
		return 0
	}
	return s.LayerOf(s.Of(e))
}

// Counts reports whether a hit needs blocks of an event's group.
func (s *Shown) Counts(e *event.Event) bool {
	g := s.find(s.Of(e))
	return s.Prefix(e) || g != nil && g.window > 0
}

// Prefix reports whether an event is of a group that holds prefixes.
func (s *Shown) Prefix(e *event.Event) bool {
	if s.Narrow(e) {
		return false
	}
	if g := s.find(s.Of(e)); g != nil {
		return g.prefix
	}
	return e.Group == 0 || prefixSpec(e.Spec)
}

// Narrow reports whether an event is of a window that is not the widest.
func (s *Shown) Narrow(e *event.Event) bool {
	return e.Spec == event.SpecWidest && e.SlidingWindow > 0 && uint32(e.SlidingWindow) < s.window
}

// Partial reports whether an event is of blocks that the engine goes on filling, under other
// hashes.
func (s *Shown) Partial(e *event.Event) bool {
	return e.Spec == event.SpecWidest && e.BlockSize > 0 && e.BlockSize < int(s.full)
}

// ReusedFrom is the first of an event's blocks that a hit needs which ends with the last.
func (s *Shown) ReusedFrom(e *event.Event) int {
	if g := s.find(s.Of(e)); g != nil && !g.prefix && e.BlockSize > 0 {
		return max(len(e.Hashes)-(int(g.window)+e.BlockSize-1)/e.BlockSize, 0)
	}
	return 0
}

// prefixSpec reports whether a kind of group holds prefixes.
func prefixSpec(spec string) bool {
	switch spec {
	case "full_attention", "mla_attention", "full", "mla", "sink_full_attention", "full_attention_sink", "sink", event.SpecWidest:
		return true
	}
	return false
}

// windowOf is how many tokens before its end a hit needs of a group that holds no prefixes.
// Of vLLM's sliding windows it needs all blocks that the next token sees, and of its states
// the last block. Of its chunks it needs what the chunk has so far, at most all of it. For a
// kind of which that is not known it is 0.
func windowOf(e *event.Event) uint32 {
	size := e.BlockSize
	switch {
	case size <= 0:
		return 0
	case strings.Contains(e.Spec, "mamba"):
		return uint32(size)
	case e.SlidingWindow > 0:
		return uint32(min((e.SlidingWindow-1+size-1)/size*size, store.MaxWindow)) // no prompt is longer
	}
	return 0
}
