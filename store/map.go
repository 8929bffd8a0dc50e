package store

import "fmt"

// Limits of a generation's map.
const (
	// MaxMapValue is the longest value in bytes.
	MaxMapValue = 64
	// MaxMapOps is the number of map ops that a batch can carry, and of keys that
	// ReadMap takes.
	MaxMapOps = MaxOpKeys
)

// MapKey names an entry of a generation's map: a part of what is kept of a block
// as the engine names it.
//
// Engines report evictions by their own hashes, which do not tell the block key.
// The map keeps for each what its owner needs to know to follow, so that the next
// owner can go on where it was left. It lives as long as its generation. A Clear
// does not touch it.
type MapKey struct {
	// Hash is the engine's hash of the block.
	Hash uint64
	// Part numbers the entries of one hash, in any way that suits the owner. Part
	// 0 takes the least memory, those below 256 the next.
	Part uint16
}

// MapOp sets an entry of a generation's map, or deletes it.
type MapOp struct {
	MapKey
	// Value is an opaque value of 1 to MaxMapValue bytes; nil deletes the entry.
	// It is what the entry is from then on, never an increment.
	Value []byte
}

func (b *Batch) validateMap() error {
	switch {
	case len(b.Map) == 0:
		return nil
	case b.Guard == nil:
		return fmt.Errorf("%w: map ops without a guard", ErrInvalid)
	case len(b.Map) > MaxMapOps:
		return fmt.Errorf("%w: %d map ops, the limit is %d", ErrInvalid, len(b.Map), MaxMapOps)
	}
	for i := range b.Map {
		op := &b.Map[i]
		if n := len(op.Value); n > MaxMapValue || (n == 0 && op.Value != nil) {
			return fmt.Errorf("map op %d: %w: a value of %d bytes, it can have 1 to %d", i, ErrInvalid, n, MaxMapValue)
		}
	}
	return nil
}
