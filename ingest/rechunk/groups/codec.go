package groups

import (
	"encoding/binary"
	"math"

	"github.com/kvatlas/kvatlas/store"
)

// What is set in the flags of a group, beside four bits of tiers and two of the layer.
const (
	isPrefix  = 0x80
	hasWindow = 0x40
)

// Append appends what is known as the map has it (docs/redis-internals.md).
func (s *Shown) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.window))
	dst = binary.AppendUvarint(dst, uint64(s.full))
	dst = binary.AppendUvarint(dst, uint64(len(s.sizes)))
	for _, size := range s.sizes {
		dst = binary.AppendUvarint(dst, uint64(size))
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.groups)))
	for i := range s.groups {
		g := &s.groups[i]
		flags := g.tiers&allTiers | g.layer<<4
		if g.prefix {
			flags |= isPrefix
		}
		if g.window > 0 {
			flags |= hasWindow
		}
		dst = binary.AppendUvarint(append(dst, g.id, flags), uint64(g.size))
		if g.window > 0 {
			dst = binary.AppendUvarint(dst, uint64(g.window))
		}
	}
	return dst
}

// Decode reads what Append has written, and returns what is behind it. ok is false when
// that cannot be.
func (s *Shown) Decode(v []byte) (rest []byte, ok bool) {
	ok = true
	upTo := func(limit uint64) uint64 {
		n, size := binary.Uvarint(v)
		if size <= 0 || n > limit {
			v, ok = nil, false
			return 0
		}
		v = v[size:]
		return n
	}
	*s = Shown{window: uint32(upTo(math.MaxUint32)), full: uint32(upTo(MaxBlock))}
	for range upTo(MaxLayers) {
		s.sizes = append(s.sizes, uint16(upTo(MaxBlock)))
	}
	for range upTo(maxGroups) {
		if len(v) < 2 {
			return nil, false
		}
		flags := v[1]
		g := group{id: v[0], prefix: flags&isPrefix != 0, layer: flags >> 4 & (MaxLayers - 1), tiers: flags & allTiers}
		v = v[2:]
		g.size = uint16(upTo(MaxBlock))
		if flags&hasWindow != 0 {
			g.window = uint32(upTo(store.MaxWindow))
		}
		s.groups = append(s.groups, g)
	}
	s.derive()
	return v, ok
}
