package rechunk

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// numTiers is the number of tiers in which blocks are counted: those of memory, and the
// window tier of each.
const numTiers = store.NumHolderTiers

// block is what is known of an engine block: where it lies and where it is held. It is
// one record of the map.
type block struct {
	hash uint64

	// The place. An engine block covers three things, in this order and each perhaps
	// not. First comes the rest of an index block that was begun before (it is a part
	// of join). Then come whole index blocks (key and more), and the beginning of
	// another (the first part of tail). A block without a holder has no place but its
	// runs.
	joinHash uint64 // see join
	key      blockkey.Key
	seed     blockkey.Seed // of the chain; with join it is the run's

	tail   *run // begins with the tokens behind the last whole index block
	branch *run // begins with this block, where a run that was there goes on otherwise

	slot slot  // the first; copies 0, and none in slots, when there are none
	wide *wide // nil where all of it is empty, as it is of most blocks

	era    uint32 // of the last change
	stamp  uint32 // the Take that wrote it last
	number uint32 // in the table, 0 for a block that is free
	part   uint16 // of join, counted over its path
	stored lasting
	layer  uint8 // of the groups that have it, if held

	joined, joinBranch, keyed, ambiguous bool

	shared bool // others can have the same last key
	dead   bool // deleted, and the map does not know yet
	dirty  bool // changed since the last Take
	used   bool // since the hand of the clock passed
}

// join is the run that b is a part of, if it is joined.
func (b *block) join() ref { return ref{b.joinHash, b.joinBranch} }

func (b *block) setJoin(r ref) { b.joinHash, b.joinBranch = r.hash, r.branch }

// wide is what few blocks have.
type wide struct {
	more  []blockkey.Key // of the whole index blocks behind the first
	slots []slot         // behind the first
}

// more are the keys of the whole index blocks behind the first.
func (b *block) more() []blockkey.Key {
	if b.wide == nil {
		return nil
	}
	return b.wide.more
}

// setMore sets more to a copy of keys.
func (b *block) setMore(keys []blockkey.Key) {
	if b.widen(len(keys) > 0) {
		b.wide.more = append(b.wide.more[:0], keys...)
	}
}

// slots are the slots behind the first.
func (b *block) slots() []slot {
	if b.wide == nil {
		return nil
	}
	return b.wide.slots
}

func (b *block) setSlots(slots []slot) {
	if b.widen(len(slots) > 0) {
		b.wide.slots = slots
	}
}

// widen reports whether b has room for what few blocks have, and makes it if it is wanted.
func (b *block) widen(wanted bool) bool {
	if b.wide == nil && wanted {
		b.wide = &wide{}
	}
	return b.wide != nil
}

// lasting counts the entries that a record has in the map.
type lasting struct {
	record uint16
	tokens [2]uint8
	kids   [2]uint16
}

// slot counts the copies in a tier and group.
type slot struct {
	copies uint32 // which count
	doubts uint8  // copies that may be none: beside those, or among them
	among  bool   // they came before the engine has reported
	tier   store.Tier
	group  uint8
}

const (
	// maxDoubts is how many doubtful copies of a block are counted.
	maxDoubts = 255
	// maxVague is how many slots are kept for the sake of doubtful copies alone. Beyond it
	// such a slot ends, and the engine may hold what is not known (NoteUnseen).
	maxVague = 16384
)

// some reports whether there can be copies.
func (s *slot) some() bool { return s.copies > 0 || s.doubts > 0 }

// vague reports whether all of the copies are doubtful.
func (s *slot) vague() bool { return s.copies == 0 && s.doubts > 0 }

// ref names a run by the block that it begins with.
type ref struct {
	hash   uint64
	branch bool
}

// run is a row of parts of one index block. Each part is the stretch of an engine block in
// it and the child of the one before. Runs of one index block form a tree: where a row
// goes on in two ways, the second is a branch of the first.
type run struct {
	hash    uint64 // of the block that it begins with
	owner   *block // whose record has it
	seed    blockkey.Seed
	prev    blockkey.Key // the index block before
	key     blockkey.Key // of the index block, when closed
	kin     *kin         // nil for one that never had branches
	ends    []uint16     // tokens of the index block up to the end of each own part
	tokens  []uint32     // of the own parts but the one that closes the index block
	objects []object

	parentHash uint64 // of a branch, see parent

	present tierSets // which own parts are held
	lacking tierSets // which have a block that has copies there, and not of each group that a hit needs
	placed  bitset   // which own parts a block is placed at: it is held, or lacking, somewhere

	place int32  // among parent's kids
	fork  uint16 // of a branch: the first fork parts are parent's
	start uint16 // tokens of the index block before the first own part

	held                   uint8 // tiers in which the index block is held
	branch, parentBranch   bool
	hasPrev, closed, child bool // child is one that is a branch
	shared                 bool // others can close with the same key
	tokensDirty            bool // there are more, or, with tokensCut, less or others than in the map
	tokensCut              bool
}

// ref is the run's name.
func (r *run) ref() ref { return ref{r.hash, r.branch} }

// parent is the run that a branch branches from.
func (r *run) parent() ref { return ref{r.parentHash, r.parentBranch} }

func (r *run) setParent(p ref) { r.parentHash, r.parentBranch = p.hash, p.branch }

// kin are the branches of a run.
type kin struct {
	kids       []uint64 // by hash, 0 for none
	free       []int    // places of kids that are 0
	count      int      // kids that are not 0
	pagesDirty []int
}

// branches reports whether r has any.
func (r *run) branches() bool { return r.kin != nil && r.kin.count > 0 }

// kids are the branches of r by hash, 0 for none.
func (r *run) kids() []uint64 {
	if r.kin == nil {
		return nil
	}
	return r.kin.kids
}

// object is a multimodal object that reaches into parts first to last of a run.
type object struct {
	hash        uint64
	first, last uint16
}

// parts is the number of parts on the run's path.
func (r *run) parts() int { return int(r.fork) + len(r.ends) }

// isLast reports whether part closes the index block.
func (r *run) isLast(part uint16) bool { return r.closed && int(part) == r.parts()-1 }

// end is where an own part ends.
func (r *run) end(part int) int { return int(r.ends[part-int(r.fork)]) }

// begin is where an own part begins.
func (r *run) begin(part int) int {
	if part == int(r.fork) {
		return int(r.start)
	}
	return r.end(part - 1)
}

// partTokens are the tokens of an own part that does not close.
func (r *run) partTokens(part int) []uint32 {
	return r.tokens[r.begin(part)-int(r.start) : r.end(part)-int(r.start)]
}

// kept is how many of the tokens of the own parts are kept.
func (r *run) kept() int {
	n := len(r.ends)
	if r.closed {
		n--
	}
	if n <= 0 {
		return 0
	}
	return int(r.ends[n-1]) - int(r.start)
}

// held reports whether any tier can have a copy.
func (b *block) held() bool { return b.slot.some() || len(b.slots()) > 0 }

// find returns the slot of a tier and group, nil for none.
func (b *block) find(tier store.Tier, group uint8) *slot {
	if !b.held() {
		return nil
	}
	if b.slot.tier == tier && b.slot.group == group {
		return &b.slot
	}
	for i := range b.slots() {
		if s := &b.wide.slots[i]; s.tier == tier && s.group == group {
			return s
		}
	}
	return nil
}

// certain is how many copies are there for certain.
func (s *slot) certain() uint32 {
	switch {
	case !s.among:
		return s.copies
	case s.doubts == maxDoubts: // there may be more
		return 0
	}
	return s.copies - uint32(s.doubts)
}

// tiers are two sets of tiers of a block. It is present where each group that a hit
// needs there has it. It is lacking where only some have.
type tiers struct{ present, lacking uint8 }

// eachTier are the tiers of a set.
func eachTier(set uint8) iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(bits.TrailingZeros8(set)) {
				return
			}
		}
	}
}

// tiersOf are the tiers of a block.
func (c *Chunker) tiersOf(b *block) (t tiers) {
	if !b.held() || b.ambiguous {
		return t
	}
	need := &c.form.Need[b.layer]
	if len(b.slots()) == 0 {
		var have uint32
		if b.slot.copies > 0 {
			have = c.form.Bit(b.slot.group)
		}
		if tier := b.slot.tier; have&need[tier] == need[tier] {
			t.present = 1 << tier
		} else {
			t.lacking = 1 << tier
		}
		return t
	}
	var have [numTiers]uint32
	var mask uint8
	count := func(s *slot) {
		if s.copies > 0 {
			have[s.tier] |= c.form.Bit(s.group)
		}
		if s.some() {
			mask |= 1 << s.tier
		}
	}
	count(&b.slot)
	for i := range b.slots() {
		count(&b.wide.slots[i])
	}
	for i := range have {
		switch {
		case mask>>i&1 == 0:
		case have[i]&need[i] == need[i]:
			t.present |= 1 << i
		default:
			t.lacking |= 1 << i
		}
	}
	return t
}

// tidy drops the slots without copies, and those of the tiers in drop.
func (b *block) tidy(drop uint8) {
	if len(b.slots()) == 0 {
		if drop&(1<<b.slot.tier) != 0 {
			b.slot.copies, b.slot.doubts = 0, 0
		}
		return
	}
	all := append(slices.Clone(b.slots()), b.slot)
	kept := all[:0]
	for _, s := range all {
		if s.some() && drop&(1<<s.tier) == 0 {
			kept = append(kept, s)
		}
	}
	switch len(kept) {
	case 0:
		b.slot = slot{}
		b.setSlots(nil)
	case 1:
		b.slot = kept[0]
		b.setSlots(nil)
	default:
		b.slot = kept[len(kept)-1]
		b.setSlots(kept[: len(kept)-1 : len(kept)-1])
	}
}

// void takes from r what it has in some tiers, which were cleared.
func (r *run) void(gone uint8) {
	r.placed = bitset{}
	for t := range numTiers {
		if gone>>t&1 != 0 {
			r.present.put(t, bitset{})
			r.lacking.put(t, bitset{})
			continue
		}
		r.placed.add(r.present.of(t))
		r.placed.add(r.lacking.of(t))
	}
	r.held &^= gone
}
