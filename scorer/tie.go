package scorer

import (
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
)

// Several pods may hold a prompt equally long, such as a system prompt that the
// whole fleet has. It would always go to the same pod if names broke the tie. So
// each pod draws a lot from its name and the prompt, and the highest wins:
// rendezvous hashing. Every scorer gives one prompt the same answer, and
// different prompts spread evenly over the pods. A pod that leaves moves only
// the prompts that it had.

// best returns which of all is to be chosen among those of the highest score, -1 where that is 0.
func (r *ranking) best(f *fold, lot uint64) (at int) {
	at = -1
	most, drawn := 0.0, uint64(0)
	for i := range r.all {
		c := &r.all[i]
		if c.score < most || c.score == 0 {
			continue
		}
		if h := xxh3.HashStringSeed(r.name(&f.Match, c), lot); c.score > most || h > drawn {
			at, most, drawn = i, c.score, h
		}
	}
	return at
}

// lot is the part of the draw that comes from the prompt. It is made of the key of
// its last block and the tokens behind that, which make no whole block.
func lot(keys []blockkey.Key, rest []uint32) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 by the golden ratio
	var seed uint64
	if len(keys) > 0 {
		seed = uint64(keys[len(keys)-1])
	}
	for _, t := range rest {
		seed = (seed ^ (uint64(t) + 1)) * odd
	}
	return seed
}
