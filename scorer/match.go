package scorer

import (
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// TierCounts are numbers of blocks, indexed by store.Tier.
type TierCounts [store.NumTiers]int32

// Total returns the number of blocks in all tiers.
func (c TierCounts) Total() (n int) {
	for _, in := range c {
		n += int(in)
	}
	return n
}

// Extent is which of the blocks that a rank holds count.
type Extent uint8

// The extents.
const (
	// Prefix counts blocks from the start of the prompt on, up to the first that the rank does
	// not hold. That is what a prefix cache can reuse. The index is read as far as anyone goes
	// on.
	Prefix Extent = iota
	// Anywhere counts all blocks. The index is read to the end of the prompt.
	Anywhere
)

// Match is what the ranks of pods hold of one prompt, in whole blocks. It is all that the index
// has told, before any weight: what chooses a pod by it is a pure function.
//
// Ranks are slots of the registry, dense integers that ascend by pod and rank. Pods that the
// request does not ask for, and cache workers, hold nothing here.
//
// A Match that a Response has belongs to the caller.
type Match struct {
	// Registry says which (pod, rank) a slot is; nil when the index has told nothing.
	Registry *store.Registry
	// Keys are the block keys of the prompt's full blocks.
	Keys []blockkey.Key
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// Extent is which blocks count.
	Extent Extent
	// Held is, by slot, the blocks that count, each in the best tier that the rank holds it in.
	Held []TierCounts
	// Predicted is, by slot, how many of the blocks of Held, in tier gpu, are only predicted.
	// It is empty where predictions were not asked for.
	Predicted []int32
	// Highest is, by slot, the 1-based index of the highest block that counts; 0 means none.
	Highest []int32
	// Reach is the number of leading blocks of which each is held by some rank.
	Reach int32

	room    int     // the most tokens that an engine can reuse of the prompt
	limits  []limit // of slots that cannot reuse all that they hold
	limitOf []int32 // by slot: 1-based index in limits; empty where there are none
}

// Usable returns the blocks of Held that the engine of a slot can resume behind. Of a prefix
// they are those before the last place where one of its own blocks ends and its windows are
// held.
func (m *Match) Usable(slot int) TierCounts {
	if l := m.limitFor(int32(slot)); l != nil {
		return l.sure
	}
	return m.Held[slot]
}

// UsablePredicted returns how many of the blocks of Usable are only predicted.
func (m *Match) UsablePredicted(slot int) int {
	switch l := m.limitFor(int32(slot)); {
	case len(m.Predicted) == 0:
		return 0
	case l != nil:
		return int(l.predicted)
	}
	return int(m.Predicted[slot])
}

// Reusable returns how many tokens the engine of a slot can reuse of a prefix, -1 where blocks
// count anywhere.
func (m *Match) Reusable(slot int) int {
	if m.Extent != Prefix {
		return -1
	}
	if l := m.limitFor(int32(slot)); l != nil {
		return l.end
	}
	tokens := min(m.Held[slot].Total()*m.BlockSize, m.room)
	block := m.Registry.Reuse(slot).Block
	if block == 0 {
		block = m.BlockSize
	}
	return tokens - tokens%block
}

// clone returns a copy that shares nothing with m but the registry, which does not change.
func (m *Match) clone() *Match {
	c := *m
	c.Keys = slices.Clone(m.Keys)
	c.Held, c.Predicted, c.Highest = slices.Clone(m.Held), slices.Clone(m.Predicted), slices.Clone(m.Highest)
	c.limits, c.limitOf = slices.Clone(m.limits), slices.Clone(m.limitOf)
	return &c
}
