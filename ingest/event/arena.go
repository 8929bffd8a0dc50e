package event

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
// eighth of its memory a Batch gives it back: one long prompt in an hour must not
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
	clear(a.objects) // they hold strings
	a.hashes, a.tokens, a.extra, a.objects = a.hashes[:0], a.tokens[:0], a.extra[:0], a.objects[:0]
}
