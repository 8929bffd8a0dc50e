package rechunk

import (
	"context"
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Two engine blocks can end the same index block when they go on behind it and
// differ only there, or when an engine mixes the tokens that follow into its hash.
// So an index block that ends within an engine block is held by a number of them.
// It is counted for each tier, in a record of its own, which is read only when
// something is taken: until then there is just the difference.
//
// In a generation whose groups have blocks of several sizes every index block is counted
// so, for each layer: it is held where each layer that a hit needs holds it.

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

// tierCounts are counts by tier, layersCounts those of the layers from 1 on.
type (
	tierCounts   [numTiers]int32
	layersCounts [maxLayers - 1]tierCounts
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
	return maxLayers
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
		s = &share{key: k, known: c.sharesComplete, era: c.meta.era, ring: int32(len(c.shareRing))}
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
		var counts [maxLayers]tierCounts
		for i := 0; i < maxLayers*numTiers && len(d.b) > 0; i++ {
			counts[i/numTiers][i%numTiers] = int32(d.upTo(1 << 30))
		}
		if d.bad || len(d.b) > 0 {
			c.stats.Garbled++
			continue
		}
		s.was |= c.heldBy(&counts, era)
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

// heldBy are the tiers in which counts that were written in an era say that the index has
// a block: those in which each layer that a hit needs has it.
func (c *Chunker) heldBy(counts *[maxLayers]tierCounts, era uint32) (tiers uint8) {
	for t := range numTiers {
		some, all := false, true
		for i := range counts {
			some = some || counts[i][t] > 0
			all = all && (counts[i][t] > 0 || c.form.need[i][t] == 0)
		}
		if some && all && c.meta.cleared[t] <= era {
			tiers |= 1 << t
		}
	}
	return tiers
}

// writeShares makes the ops of shares that have changed.
func (c *Chunker) writeShares() {
	for _, s := range c.dirtyShares {
		c.refreshShare(s)
		s.dirty, s.stamp = false, c.taken
		var counts [maxLayers]tierCounts
		last := -1
		for i := range s.layers() {
			l := s.layer(i)
			for t := range l {
				if l[t] = max(l[t], 0); l[t] > 0 { // below in a torn map alone
					last = i*numTiers + t
				}
			}
			counts[i] = *l
		}
		now := c.heldBy(&counts, s.era)
		for t := range numTiers {
			if (now^s.was)>>t&1 != 0 {
				c.emit(now>>t&1 != 0, t, s.key)
			}
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
				c.values = binary.AppendUvarint(c.values, uint64(counts[i/numTiers][i%numTiers]))
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
}
