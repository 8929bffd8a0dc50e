package blockkey

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// Object is one multimodal object of a prompt, an image for example. Engines
// put placeholder tokens where it stands, so its content must come into the
// keys by its hash. The JSON form is Dynamo's mm_objects entry,
// {"mm_hash":7,"offsets":[[3,9]]}.
type Object struct {
	// Hash names the object's content, see ObjectHash.
	Hash uint64 `json:"mm_hash"`
	// Ranges are the tokens where the object stands.
	Ranges []Range `json:"offsets"`
}

// Range is a half-open range of tokens, [Start, End). It is empty when End is
// not above Start. The JSON form is [start,end].
type Range struct {
	Start, End int
}

// MarshalJSON writes [start,end].
func (r Range) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 24), '[')
	b = strconv.AppendInt(b, int64(r.Start), 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(r.End), 10)
	return append(b, ']'), nil
}

// UnmarshalJSON reads [start,end] with 0 <= start <= end.
func (r *Range) UnmarshalJSON(b []byte) error {
	var v []int
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("blockkey: a range is [start,end] in tokens, not %q: %w", clip(string(b)), err)
	}
	if len(v) != 2 || v[0] < 0 || v[1] < v[0] {
		return fmt.Errorf("blockkey: a range is [start,end] with 0 <= start <= end in tokens, not %q", clip(string(b)))
	}
	r.Start, r.End = v[0], v[1]
	return nil
}

// ObjectHash returns the hash of an object that an engine names by an
// identifier. It is the number that the first 16 of 64 hex digits are (a
// SHA-256 in either case). Of any other text it is XXH3-64 under seed 0. The
// empty identifier names no object, ok is false.
func ObjectHash(identifier string) (hash uint64, ok bool) {
	if identifier == "" {
		return 0, false
	}
	if len(identifier) == 64 && isHex(identifier) {
		if v, err := strconv.ParseUint(identifier[:16], 16, 64); err == nil {
			return v, true
		}
	}
	return xxh3.HashString(identifier), true
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// AppendObjects is Append for tokens with objects in them. Ranges count from
// the first of tokens; what lies outside of them or in a block that is not
// full is ignored. An object counts once in each block that it reaches into,
// and so does each of two objects of one hash.
//
// It allocates a little for each range and nothing for a block. Its time grows
// with blocks plus pairs of a block and a range in it, so a caller bounds
// the objects of a prompt.
func (c *Chain) AppendObjects(dst []Key, tokens []uint32, objects []Object) []Key {
	s := newSweep(objects)
	if len(s.pending) == 0 {
		return c.Append(dst, tokens)
	}
	return c.appendMixed(dst, tokens, func(block int, hashes []uint64) []uint64 {
		return s.block(hashes, block*c.BlockSize, (block+1)*c.BlockSize)
	})
}

// AppendHashes is Append for tokens whose blocks' object hashes are known, as
// engines' events give them. Element hashes[i] has those of block i, in any
// order and not always distinct. There may be fewer or more elements than
// blocks. The hashes are not modified.
func (c *Chain) AppendHashes(dst []Key, tokens []uint32, hashes [][]uint64) []Key {
	return c.appendMixed(dst, tokens, func(block int, to []uint64) []uint64 {
		if block < len(hashes) {
			to = append(to, hashes[block]...)
		}
		return to
	})
}

// appendMixed is Append with the hashes that objects appends for each block,
// sorted, behind the block's tokens.
func (c *Chain) appendMixed(dst []Key, tokens []uint32, objects func(block int, to []uint64) []uint64) []Key {
	n := c.blocks(len(tokens))
	dst, out := grow(dst, n)
	var (
		h      hasher
		hashes []uint64
		input  []uint32
	)
	h.init(uint64(c.Seed)) // any length: blocks differ by their objects
	for i := range out {
		window := tokens[i*c.BlockSize:][:c.window()]
		if hashes = objects(i, hashes[:0]); len(hashes) > 0 {
			slices.Sort(hashes)
			input = append(input[:0], window...)
			for _, v := range hashes {
				input = append(input, uint32(v), uint32(v>>32))
			}
			window = input
		}
		c.step(h.sum(window))
		out[i] = c.Parent
	}
	return dst
}

// sweep walks the blocks of a prompt in order and knows which objects reach
// into each.
type sweep struct {
	objects []Object
	// pending are the ranges that the walk has not reached, ascending by start;
	// active those that it has and that may reach further.
	pending, active []span
	seen            []int // scratch: objects of a block
}

// span is a range that is not empty, of an object.
type span struct {
	Range
	object int
}

func newSweep(objects []Object) *sweep {
	s := &sweep{objects: objects}
	for i, o := range objects {
		for _, r := range o.Ranges {
			if r.Start < r.End {
				s.pending = append(s.pending, span{r, i})
			}
		}
	}
	slices.SortFunc(s.pending, func(a, b span) int { return cmp.Compare(a.Start, b.Start) })
	return s
}

// block appends the hashes of the objects that reach into [start, end). Calls
// must be in ascending order.
func (s *sweep) block(dst []uint64, start, end int) []uint64 {
	for len(s.pending) > 0 && s.pending[0].Start < end {
		s.active = append(s.active, s.pending[0])
		s.pending = s.pending[1:]
	}
	s.active = slices.DeleteFunc(s.active, func(r span) bool { return r.End <= start })
	if len(s.active) == 0 {
		return dst
	}
	s.seen = s.seen[:0]
	for _, r := range s.active {
		s.seen = append(s.seen, r.object)
	}
	slices.Sort(s.seen)
	for _, o := range slices.Compact(s.seen) {
		dst = append(dst, s.objects[o].Hash)
	}
	return dst
}
