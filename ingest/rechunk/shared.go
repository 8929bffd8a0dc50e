package rechunk

import (
	"context"
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/rechunk/groups"
	"github.com/kvatlas/kvatlas/store"
)

// Two engine blocks can end the same index block when they go on behind it and
// differ only there. They can also when an engine mixes the tokens that follow into
// its hash. So an index block that ends within an engine block is held by a number
// of them. It is counted for each tier, in a record of its own, which is read only
// when something is taken. Until then there is just the difference.
//
// In a generation whose groups have blocks of several sizes every index block is counted so,
// for each layer. It is held where each layer that a hit needs holds it.

// share is how many engine blocks hold an index block.
type share struct {
	key    blockkey.Key
	counts tierCounts    // of layer 0; until known the difference to what the map has
	more   *layersCounts // of the layers behind it, nil for none
	was    uint8         // tiers in which the index has it, when known
	known  bool
	dirty  bool
	stored bool // the map has a record
	era    uint32
	stamp  uint32
	ring   int32
}

// shareSlab is how many shares are allocated together, which with Go's header fill 2 KiB.
const shareSlab = 31

// tierCounts are counts by tier, layersCounts those of the layers from 1 on.
type (
	tierCounts   [numTiers]int32
	layersCounts [groups.MaxLayers - 1]tierCounts
)

// layer are the counts of a layer.
func (s *share) layer(i int) *tierCounts {
	if i == 0 {
		return &s.counts
	}
	if s.more == nil {
		s.more = new(layersCounts)
	}
	return &s.more[i-1]
}

// layers is how many layers have counts.
func (s *share) layers() int {
	if s.more == nil {
		return 1
	}
	return groups.MaxLayers
}

// clear ends what a tier has. It reports whether there was anything.
func (s *share) clear(tier int) (some bool) {
	some = s.was>>tier&1 != 0
	s.was &^= 1 << tier
	for i := range s.layers() {
		n := &s.layer(i)[tier]
		some = some || *n != 0
		*n = 0
	}
	return some
}

// empty reports whether nothing is counted.
func (s *share) empty() bool {
	return s.counts == tierCounts{} && (s.more == nil || *s.more == layersCounts{})
}

func shareKey(k blockkey.Key) store.MapKey {
	return store.MapKey{Hash: uint64(k), Part: partShare}
}

// share returns the record of an index block, up to date with clears.
func (c *Chunker) share(k blockkey.Key) *share {
	s := c.shares[k]
	if s == nil {
		s = c.spareShares.take(shareSlab)
		*s = share{key: k, known: c.sharesComplete, era: c.meta.era, ring: int32(len(c.shareRing))}
		c.shares[k] = s
		c.shareRing = append(c.shareRing, s)
	}
	c.refreshShare(s)
	return s
}

// refreshShare takes from s what clears since its era have ended. Of one that is
// not known yet the era stays: what the map has may be older.
func (c *Chunker) refreshShare(s *share) {
	if s.era == c.meta.era {
		return
	}
	for t, era := range c.meta.cleared {
		if era > s.era && s.clear(t) {
			c.touchShare(s)
		}
	}
	s.era = c.meta.era
}

func (c *Chunker) touchShare(s *share) {
	if !s.dirty {
		s.dirty = true
		c.dirtyShares = append(c.dirtyShares, s)
	}
}

// hold counts one engine block more or less that holds an index block.
func (c *Chunker) hold(k blockkey.Key, layer uint8, tier int, by int32) {
	s := c.share(k)
	s.layer(int(layer))[tier] += by
	c.touchShare(s)
}

// resolve reads the shares that have changed and are not known, and adds what the
// map has to the differences.
func (c *Chunker) resolve(ctx context.Context, read Reader) error {
	var keys []store.MapKey
	var unknown []*share
	for _, s := range c.dirtyShares {
		if !s.known {
			keys = append(keys, shareKey(s.key))
			unknown = append(unknown, s)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	values, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	for i, s := range unknown {
		s.known = true
		if values[i] == nil {
			continue
		}
		s.stored = true
		d := decoder{b: values[i]}
		era := uint32(d.upTo(1<<32 - 1))
		var counts [groups.MaxLayers]tierCounts
		var has [groups.MaxLayers]uint8
		for i := 0; i < groups.MaxLayers*numTiers && len(d.b) > 0; i++ {
			n := int32(d.upTo(1 << 30))
			counts[i/numTiers][i%numTiers] = n
			if n > 0 {
				has[i/numTiers] |= 1 << (i % numTiers)
			}
		}
		if d.bad || len(d.b) > 0 {
			c.stats.Garbled++
			continue
		}
		s.was |= c.heldBy(&has, era)
		for i := range counts {
			for t, n := range counts[i] {
				if n > 0 && c.meta.cleared[t] <= era {
					s.layer(i)[t] += n
				}
			}
		}
	}
	return nil
}

// heldBy returns the tiers in which the index has a block. They are those in which each layer
// that a hit needs has it. Array has gives the tiers in which layers had it in an era.
func (c *Chunker) heldBy(has *[groups.MaxLayers]uint8, era uint32) (tiers uint8) {
	some, all := uint8(0), ^uint8(0)
	for i, in := range has {
		some |= in
		all &= in | ^c.form.Needs[i]
	}
	tiers = some & all
	if era != c.meta.era {
		for t, cleared := range c.meta.cleared {
			if cleared > era {
				tiers &^= 1 << t
			}
		}
	}
	return tiers
}

// writeShares makes the ops of shares that have changed.
func (c *Chunker) writeShares() {
	for _, s := range c.dirtyShares {
		c.refreshShare(s)
		s.dirty, s.stamp = false, c.taken
		var has [groups.MaxLayers]uint8
		last := -1
		for i := range s.layers() {
			l := s.layer(i)
			for t := range l {
				if l[t] = max(l[t], 0); l[t] > 0 { // below in a torn map alone
					has[i] |= 1 << t
					last = i*numTiers + t
				}
			}
		}
		now := c.heldBy(&has, s.era)
		for t := range eachTier(now ^ s.was) {
			c.emit(now>>t&1 != 0, t, s.key)
		}
		s.was = now
		switch {
		case c.alone:
			if last < 0 {
				c.goneShares = append(c.goneShares, s)
			}
			continue
		case last < 0 && s.stored:
			c.mapOps = append(c.mapOps, store.MapOp{MapKey: shareKey(s.key)})
		case last >= 0:
			from := len(c.values)
			c.values = binary.AppendUvarint(c.values, uint64(s.era))
			for i := range last + 1 {
				c.values = binary.AppendUvarint(c.values, uint64(s.layer(i / numTiers)[i%numTiers]))
			}
			c.put1(shareKey(s.key), from)
		}
		if s.stored = last >= 0; !s.stored {
			c.goneShares = append(c.goneShares, s)
		}
	}
	c.dirtyShares = c.dirtyShares[:0]
}

// sweepShares is sweepSome for shares.
func (c *Chunker) sweepShares() {
	c.shareSweep = min(c.shareSweep, len(c.shareRing))
	for range min(sweepStep, c.shareSweep) {
		c.shareSweep--
		c.refreshShare(c.shareRing[c.shareSweep])
	}
}

// dropShares takes shares out of memory that are written: those that are nothing,
// and any while there are too many.
func (c *Chunker) dropShares() {
	gone := c.goneShares[:0]
	for _, s := range c.goneShares {
		switch {
		case s.stored || c.shares[s.key] != s || c.alone && !s.empty(): // back again, or dropped already
		case s.dirty || s.stamp > c.done:
			gone = append(gone, s)
		default:
			c.dropShare(s)
		}
	}
	clear(c.goneShares[len(gone):])
	c.goneShares = gone
	for left := len(c.shareRing); !c.alone && len(c.shareRing) > c.config.MaxRecords && left > 0; left-- {
		if c.shareHand >= len(c.shareRing) {
			c.shareHand = 0
		}
		if s := c.shareRing[c.shareHand]; s.dirty || s.stamp > c.done {
			c.shareHand++
		} else {
			c.sharesComplete = false
			c.dropShare(s)
		}
	}
}

func (c *Chunker) dropShare(s *share) {
	delete(c.shares, s.key)
	last := len(c.shareRing) - 1
	c.shareRing[s.ring] = c.shareRing[last]
	c.shareRing[s.ring].ring = s.ring
	c.shareRing[last] = nil
	c.shareRing = c.shareRing[:last]
	c.spareShares.give(s)
}
