package rechunk

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/store"
)

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

// add adds the numbers of o.
func (s *bitset) add(o *bitset) {
	for i := range o.words() {
		if w := o.word(i); w != 0 {
			*s.at(i) |= w
		}
	}
}

// equal reports whether both have the same numbers.
func (s *bitset) equal(o *bitset) bool {
	for i := range max(s.words(), o.words()) {
		if s.word(i) != o.word(i) {
			return false
		}
	}
	return true
}

// tierSets are a bitset for each tier. Those of other tiers than the GPU's, which most runs
// never have, are somewhere else.
type tierSets struct {
	gpu    bitset
	others *[numTiers]bitset // nil where all are empty
}

// none is the set of a tier that has none; it stays empty.
var none bitset

// of returns the set of a tier, to be read.
func (s *tierSets) of(tier int) *bitset {
	switch {
	case tier == int(store.GPU):
		return &s.gpu
	case s.others == nil:
		return &none
	}
	return &s.others[tier]
}

// put replaces the set of a tier.
func (s *tierSets) put(tier int, set bitset) {
	switch {
	case tier == int(store.GPU):
		s.gpu = set
	case s.others != nil:
		s.others[tier] = set
	case !set.empty():
		s.others = new([numTiers]bitset)
		s.others[tier] = set
	}
}

// turn says, for the tiers of changed, whether a number is in their sets.
func (s *tierSets) turn(i int, changed, now uint8) {
	if changed&(1<<store.GPU) != 0 {
		s.gpu.set(i, now&(1<<store.GPU) != 0)
	}
	changed &^= 1 << store.GPU
	if changed == 0 {
		return
	}
	if s.others == nil {
		if changed&now == 0 {
			return
		}
		s.others = new([numTiers]bitset)
	}
	for t := range s.others {
		if changed>>t&1 != 0 {
			s.others[t].set(i, now>>t&1 != 0)
		}
	}
}
