package event

import "slices"

// arena has the memory of a Batch's slices, kept from one decoding to the next.
// A slice that grows while a batch is decoded leaves what events already hold in
// the old array, so those stay right.
type arena struct {
	hashes  []Hash
	tokens  []uint32
	extra   []Extra
	objects []Object

	idle int // decodings in a row that used little of tokens
}

// idleDecodings is after how many decodings in a row that used less than an
// eighth of its memory a Batch gives it back. One long prompt in an hour must not
// cost its size for each of hundreds of ranks for ever.
const idleDecodings = 256

// reset makes the arena empty.
func (a *arena) reset() {
	if cap(a.tokens) > 4096 && len(a.tokens) < cap(a.tokens)/8 {
		if a.idle++; a.idle >= idleDecodings {
			*a = arena{}
			return
		}
	} else {
		a.idle = 0
	}
	a.release(marks{})
}

// newHashes returns n hashes to write.
func (a *arena) newHashes(n int) []Hash {
	at := len(a.hashes)
	a.hashes = slices.Grow(a.hashes, n)[:at+n]
	return a.hashes[at : at+n : at+n]
}

// newTokens returns n tokens to write.
func (a *arena) newTokens(n int) []uint32 {
	at := len(a.tokens)
	a.tokens = slices.Grow(a.tokens, n)[:at+n]
	return a.tokens[at : at+n : at+n]
}

// newExtra returns n empty extras.
func (a *arena) newExtra(n int) []Extra {
	at := len(a.extra)
	a.extra = slices.Grow(a.extra, n)[:at+n]
	out := a.extra[at : at+n : at+n]
	clear(out)
	return out
}

// marks are how much of an arena is used.
type marks struct {
	hashes, tokens, extra, objects int
}

func (a *arena) mark() marks {
	return marks{len(a.hashes), len(a.tokens), len(a.extra), len(a.objects)}
}

// release frees what was taken since the mark.
func (a *arena) release(m marks) {
	clear(a.objects[m.objects:]) // they hold strings
	a.hashes, a.tokens = a.hashes[:m.hashes], a.tokens[:m.tokens]
	a.extra, a.objects = a.extra[:m.extra], a.objects[:m.objects]
}
