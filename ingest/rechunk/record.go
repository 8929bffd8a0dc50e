package rechunk

import (
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// numTiers is the number of tiers in which blocks are counted: those of memory, and the
// window tier of each.
const numTiers = store.NumHolderTiers

// block is what is known of an engine block: where it lies and who has it. It is
// one record of the map.
type block struct {
	hash uint64

	// The place. An engine block covers, in this order and each perhaps not: the
	// rest of an index block that was begun before (it is a part of join), whole
	// index blocks (key and more), the beginning of another (the first part of tail).
	// A block that nobody holds has no place but its runs.
	join ref
	part uint16 // of join, counted over its path
	key  blockkey.Key
	more []blockkey.Key
	seed blockkey.Seed // of the chain; with join it is the run's

	tail   *run // begins with the tokens behind the last whole index block
	branch *run // begins with this block, where a run that was there goes on otherwise

	slot  slot   // the first; copies 0 and none in more when there are none
	slots []slot // the others

	joined, keyed, ambiguous bool
	shared                   bool // others can have the same last key
	dead                     bool // deleted, and the map does not know yet
	dirty                    bool // changed since the last Take
	used                     bool // since the hand of the clock passed

	layer  uint8  // of the groups that have it, if held
	era    uint32 // of the last change
	stamp  uint32 // the Take that wrote it last
	ring   int32  // its place on the clock
	stored lasting
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

// run is a row of parts of one index block, each the stretch of an engine block in
// it and the child of the one before. Runs of one index block form a tree: where a
// row goes on in two ways, the second is a branch of the first.
type run struct {
	ref
	owner   *block // whose record has it
	seed    blockkey.Seed
	prev    blockkey.Key // the index block before
	hasPrev bool
	key     blockkey.Key // of the index block, when closed
	closed  bool
	shared  bool // others can close with the same key
	child   bool // a branch: the first fork parts are parent's
	parent  ref
	fork    uint16
	place   int    // among parent's kids
	start   uint16 // tokens of the index block before the first own part

	ends    []uint16 // tokens of the index block up to the end of each own part
	tokens  []uint32 // of the own parts but the one that closes the index block
	objects []object
	present [numTiers]bitset // which own parts are held
	lacking [numTiers]bitset // which have a block that has copies there, and not of each group that a hit needs
	placed  bitset           // which own parts a block is placed at: it is held, or lacking, somewhere
	held    uint8            // tiers in which the index block is held

	kids  []uint64 // branches by hash, 0 for none
	free  []int    // places of kids that are 0
	count int      // kids that are not 0

	tokensDirty bool // there are more, or, with tokensCut, less or others than in the map
	tokensCut   bool
	pagesDirty  []int
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

// held reports whether anybody can have a copy.
func (b *block) held() bool { return b.slot.some() || len(b.slots) > 0 }

// find returns the slot of a tier and group, nil for none.
func (b *block) find(tier store.Tier, group uint8) *slot {
	if !b.held() {
		return nil
	}
	if b.slot.tier == tier && b.slot.group == group {
		return &b.slot
	}
	for i := range b.slots {
		if s := &b.slots[i]; s.tier == tier && s.group == group {
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

// tiersOf are the tiers of a block.
func (c *Chunker) tiersOf(b *block) (t tiers) {
	if !b.held() || b.ambiguous {
		return t
	}
	need := &c.form.need[b.layer]
	var have [numTiers]uint32
	var mask uint8
	count := func(s *slot) {
		if s.copies > 0 {
			have[s.tier] |= c.form.bit(s.group)
		}
		if s.some() {
			mask |= 1 << s.tier
		}
	}
	count(&b.slot)
	for i := range b.slots {
		count(&b.slots[i])
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
	if len(b.slots) == 0 {
		if drop&(1<<b.slot.tier) != 0 {
			b.slot.copies, b.slot.doubts = 0, 0
		}
		return
	}
	all := append(slices.Clone(b.slots), b.slot)
	kept := all[:0]
	for _, s := range all {
		if s.some() && drop&(1<<s.tier) == 0 {
			kept = append(kept, s)
		}
	}
	switch len(kept) {
	case 0:
		b.slot, b.slots = slot{}, nil
	case 1:
		b.slot, b.slots = kept[0], nil
	default:
		b.slot, b.slots = kept[len(kept)-1], kept[:len(kept)-1:len(kept)-1]
	}
}

// bitset is a set of small numbers, of which those below 64 take no memory of their
// own.
type bitset struct {
	lo uint64
	hi *[]uint64
}

// word is the i-th 64 numbers.
func (s *bitset) word(i int) uint64 {
	switch {
	case i == 0:
		return s.lo
	case s.hi != nil && i-1 < len(*s.hi):
		return (*s.hi)[i-1]
	}
	return 0
}

// words is the number of words that may have numbers.
func (s *bitset) words() int {
	if s.hi == nil {
		return 1
	}
	return 1 + len(*s.hi)
}

// at is the i-th word, to be changed.
func (s *bitset) at(i int) *uint64 {
	if i == 0 {
		return &s.lo
	}
	if s.hi == nil {
		s.hi = new([]uint64)
	}
	for i-1 >= len(*s.hi) {
		*s.hi = append(*s.hi, 0)
	}
	return &(*s.hi)[i-1]
}

func (s *bitset) has(i int) bool { return s.word(i>>6)>>(i&63)&1 != 0 }

func (s *bitset) set(i int, on bool) {
	if on {
		*s.at(i >> 6) |= 1 << (i & 63)
	} else if i>>6 < s.words() {
		*s.at(i >> 6) &^= 1 << (i & 63)
	}
}

// full reports whether 0 to n-1 are all in s.
func (s *bitset) full(n int) bool {
	for i := 0; n > 0; i, n = i+1, n-64 {
		want := ^uint64(0)
		if n < 64 {
			want = 1<<n - 1
		}
		if s.word(i)&want != want {
			return false
		}
	}
	return true
}

func (s *bitset) empty() bool { return s.top() == 0 }

// top is one more than the highest number in s.
func (s *bitset) top() int {
	for i := s.words() - 1; i >= 0; i-- {
		if w := s.word(i); w != 0 {
			return 64*i + bits.Len64(w)
		}
	}
	return 0
}

// void takes from r what it has in some tiers, which were cleared.
func (r *run) void(gone uint8) {
	r.placed = bitset{}
	for t := range numTiers {
		if gone>>t&1 != 0 {
			r.present[t], r.lacking[t] = bitset{}, bitset{}
			continue
		}
		r.placed.add(&r.present[t])
		r.placed.add(&r.lacking[t])
	}
	r.held &^= gone
}

// add adds the numbers of o.
func (s *bitset) add(o *bitset) {
	for i := range o.words() {
		if w := o.word(i); w != 0 {
			*s.at(i) |= w
		}
	}
}
