package rechunk

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// meta is what there is once for a generation: it makes a clear O(1).
type meta struct {
	// era counts the clears. In cleared is the era in which a tier was cleared last;
	// what records of older eras say of the tier is void.
	era     uint32
	cleared [numTiers]uint32
	dirty   bool
	stored  bool
}

// metaKey is the entry of meta. A hash of an engine does not get in its way: no
// record has this part.
var metaKey = store.MapKey{Hash: 0x6b76612d6d657461, Part: partMeta}

// sweepStep is how many records are looked at after a clear with each message.
const sweepStep = 512

// clear takes in a Cleared.
func (c *Chunker) clear(e *event.Event) {
	c.stats.Cleared++
	if e.Spec == event.SpecWidest { // the engine begins anew
		c.void(allTiers)
		c.noteSeen()
		return
	}
	tier, known := c.config.Media.TierOf(e)
	if !known {
		return
	}
	c.clearTier(tier)
	if tier != store.GPU {
		return
	}
	c.noteSeen()
	if c.form.engine == unique {
		c.clearTier(store.CPU) // a tree is flushed with what it has on the host, and this alone reports it
	}
}

// clearTier ends all that is held in a tier of memory, and in its window tier.
func (c *Chunker) clearTier(tier store.Tier) {
	c.meta.era++
	c.meta.cleared[tier], c.meta.cleared[tier.Window()] = c.meta.era, c.meta.era
	c.meta.dirty = true
	c.ops = append(c.ops, opRange{store.Clear, tier, len(c.opKeys), len(c.opKeys)})
	c.sweep, c.shareSweep = c.blocks.top(), len(c.shareRing)
	c.voidAged(tier, false)
	if tier == store.GPU && c.form.vague > 0 {
		c.form.vague, c.form.dirty = 0, true
	}
}

// refresh takes from b what clears since its era have ended. The index knows of
// that already.
func (c *Chunker) refresh(b *block) {
	var gone uint8
	for t, era := range c.meta.cleared {
		if era > b.era {
			gone |= 1 << t
		}
	}
	b.era = c.meta.era
	if gone == 0 {
		return
	}
	held := b.held()
	b.tidy(gone)
	c.touch(b)
	for _, r := range [2]*run{b.tail, b.branch} {
		if r == nil {
			continue
		}
		r.void(gone)
	}
	if held && !b.held() {
		// The run that it is a part of knows that by itself, and may have another
		// block in its place by now.
		b.joined, b.keyed = false, false
		b.setMore(nil)
	}
	for _, r := range [2]*run{b.tail, b.branch} {
		if r != nil {
			c.settle(r)
		}
	}
	c.bury(b)
}

// sweepSome deletes what clears have left, a step at a time.
func (c *Chunker) sweepSome() {
	for range min(sweepStep, c.sweep) {
		b := c.blocks.at(c.sweep)
		c.sweep--
		if b != nil && !b.dead && b.era != c.meta.era {
			c.refresh(b)
		}
	}
}

// markKey is the entry that says up to which sequence the map has changed. It is the
// first of all in the order in which store/redis sends entries.
var markKey = store.MapKey{Part: partMark}

// Torn reports whether a writer of the generation has stopped in the middle of a
// write. Then its map is not that of its watermark, which TakeOver has returned. A
// batch that store/redis can send in one call, and any to store/memory, is whole or
// not there. A larger one, and any on a cluster, may be there in part. Events that
// are taken in twice would count twice then: a generation whose map is torn has to
// be given up for a new one.
func Torn(ctx context.Context, watermark uint64, read Reader) (bool, error) {
	values, err := read(ctx, markKey)
	switch {
	case err != nil:
		return false, err
	case len(values) != 1:
		return false, errAnswer
	case values[0] == nil:
		return false, nil
	}
	mark, n := binary.Uvarint(values[0])
	return n != len(values[0]) || mark > watermark, nil
}

// Take returns what has changed since the last Take, to be written under the
// sequence. It is valid, and must be kept for another try of a write that failed,
// until Done. Func read is used as by Apply. The error is one of it, wrapped in
// ErrRead, and means that nothing has been taken.
func (c *Chunker) Take(ctx context.Context, seq uint64, read Reader) (Changes, error) {
	if c.alone && max(c.blocks.n, len(c.shareRing)) > c.config.MaxRecords {
		c.beginMap()
	}
	if err := c.resolve(ctx, read); err != nil {
		return Changes{}, fmt.Errorf("%w: %w", ErrRead, err)
	}
	if c.taken != c.done { // the last is not written yet
		c.values, c.mapOps, c.storeOps, c.givenKeys = nil, nil, nil, nil
	}
	c.taken++
	c.values, c.mapOps, c.storeOps = c.values[:0], c.mapOps[:0], c.storeOps[:0]
	c.writeShares()
	for _, o := range c.ops {
		c.storeOps = append(c.storeOps, store.Op{Kind: o.kind, Tier: o.tier, Keys: c.opKeys[o.from:o.to:o.to]})
	}
	c.ops, c.opKeys, c.givenKeys = c.ops[:0], c.givenKeys[:0], c.opKeys
	if c.alone {
		if !c.marked {
			c.marked = true
			c.values = binary.AppendUvarint(c.values, math.MaxUint64)
			c.put1(markKey, 0)
		}
		return Changes{Ops: c.storeOps, Map: c.mapOps, Reuse: c.form.Reuse()}, nil
	}
	for _, b := range c.dirty {
		b.dirty, b.stamp = false, c.taken
		c.write(b)
		if b.dead {
			c.buried = append(c.buried, b)
		}
	}
	c.dirty = c.dirty[:0]
	c.writeAged()
	c.writeForm()
	if len(c.mapOps) > 0 {
		from := len(c.values)
		c.values = binary.AppendUvarint(c.values, seq)
		c.put1(markKey, from)
	}
	if c.meta.dirty {
		c.meta.dirty, c.meta.stored = false, true
		from := len(c.values)
		c.values = binary.AppendUvarint(c.values, uint64(c.meta.era))
		for _, era := range c.meta.cleared {
			c.values = binary.AppendUvarint(c.values, uint64(era))
		}
		c.put1(metaKey, from)
	}
	return Changes{Ops: c.storeOps, Map: c.mapOps, Reuse: c.form.Reuse()}, nil
}

// beginMap ends that the Chunker is alone: the next Take gives all that it knows.
func (c *Chunker) beginMap() {
	c.alone = false
	for b := range c.blocks.all() {
		if b.dirty {
			c.dirty = append(c.dirty, b)
		}
		for _, r := range [2]*run{b.tail, b.branch} {
			for place := 0; r != nil && place < len(r.kids()); place += kidsPage {
				r.kin.pagesDirty = append(r.kin.pagesDirty, place/kidsPage)
			}
		}
	}
	for _, s := range c.shareRing {
		c.touchShare(s)
	}
	c.buried, c.goneShares = c.buried[:0], c.goneShares[:0] // Take finds them again
}

// Done says that all that Take has given is written.
func (c *Chunker) Done() {
	c.done = c.taken
	buried := c.buried[:0]
	for _, b := range c.buried {
		switch {
		case !b.dead: // back again, or forgotten already
		case !c.alone && (b.dirty || b.stamp > c.done):
			buried = append(buried, b)
		case c.blocks.get(b.hash) == b:
			c.forget(b)
		}
	}
	clear(c.buried[len(buried):])
	c.buried = buried
	for _, r := range c.ended {
		c.reuseRun(r)
	}
	clear(c.ended)
	c.ended = c.ended[:0]
	c.dropShares()
	// Two rounds of the hand: the first takes the marks of use away.
	for left := 2 * c.blocks.top(); !c.alone && c.blocks.n > c.config.MaxRecords && left > 0; left-- {
		c.hand = c.hand%c.blocks.top() + 1
		b := c.blocks.at(c.hand)
		if b == nil {
			continue
		}
		if b.used || b.dirty || b.dead || b.stamp > c.done {
			b.used = false
			continue
		}
		c.complete = false
		c.forget(b)
	}
}

// put1 makes a map op that sets an entry to values[from:].
func (c *Chunker) put1(k store.MapKey, from int) {
	c.mapOps = append(c.mapOps, store.MapOp{MapKey: k, Value: c.values[from:len(c.values):len(c.values)]})
}

// drop makes map ops that delete the entries from to to-1 of b, counted from part.
func (c *Chunker) drop(b *block, part uint16, from, to int) {
	for i := from; i < to; i++ {
		c.mapOps = append(c.mapOps, store.MapOp{MapKey: store.MapKey{Hash: b.hash, Part: part + uint16(i)}})
	}
}

// write makes the map ops that bring the map up to date with b.
func (c *Chunker) write(b *block) {
	record := 0
	if !b.dead {
		record = c.writeRecord(b)
	}
	if b.stored.record > 0 && record == 0 {
		c.drop(b, partRecord, 0, 1)
	}
	c.drop(b, partMore, max(record, 1)-1, max(int(b.stored.record), 1)-1)
	b.stored.record = uint16(record)
	for i, r := range [2]*run{b.tail, b.branch} {
		if r == nil && b.stored.tokens[i] == 0 && b.stored.kids[i] == 0 {
			continue
		}
		tokens, kids := 0, 0
		if r != nil {
			tokens = int(b.stored.tokens[i])
			if r.tokensDirty {
				if r.tokensCut {
					tokens = 0
				}
				r.tokensDirty, r.tokensCut = false, false
				tokens = c.writeTokens(b, partTokens[i], r, tokens)
			}
			kids = (len(r.kids()) + kidsPage - 1) / kidsPage
			c.writeKids(b, partKids[i], r.kin, kids)
		}
		c.drop(b, partTokens[i], tokens, int(b.stored.tokens[i]))
		c.drop(b, partKids[i], kids, int(b.stored.kids[i]))
		b.stored.tokens[i], b.stored.kids[i] = uint8(tokens), uint16(kids)
	}
}

// writeKids makes the map ops for those pages of a run's branches that have changed.
func (c *Chunker) writeKids(b *block, part uint16, k *kin, pages int) {
	if k == nil {
		return
	}
	for _, page := range k.pagesDirty {
		if page >= pages {
			continue
		}
		from := len(c.values)
		for _, kid := range k.kids[page*kidsPage : min((page+1)*kidsPage, len(k.kids))] {
			c.values = binary.BigEndian.AppendUint64(c.values, kid)
		}
		c.put1(store.MapKey{Hash: b.hash, Part: part + uint16(page)}, from)
	}
	k.pagesDirty = k.pagesDirty[:0]
}

// writeTokens makes the map ops for a run's tokens, of which the first have chunks
// already that have not changed but perhaps the last. It returns how many there are.
func (c *Chunker) writeTokens(b *block, part uint16, r *run, have int) int {
	n := 0
	for tokens := r.tokens; len(tokens) > 0; n++ {
		count, width := chunkOf(tokens)
		if n >= have-1 {
			from := len(c.values)
			c.values = appendChunk(c.values, tokens[:count], width)
			c.put1(store.MapKey{Hash: b.hash, Part: part + uint16(n)}, from)
		}
		tokens = tokens[count:]
	}
	return n
}

// writeRecord makes the map ops for b's record and returns how many there are.
func (c *Chunker) writeRecord(b *block) int {
	tokens := [2]int{}
	for i, r := range [2]*run{b.tail, b.branch} {
		if r == nil {
			continue
		}
		tokens[i] = int(b.stored.tokens[i])
		if r.tokensDirty {
			tokens[i] = chunks(r.tokens)
		}
	}
	c.blob = appendRecord(c.blob[:0], b, c.size, tokens)
	return c.putPieces(c.blob, func(i int) store.MapKey {
		if i == 0 {
			return store.MapKey{Hash: b.hash}
		}
		return store.MapKey{Hash: b.hash, Part: partMore + uint16(i-1)}
	})
}

// putPieces makes the map ops that set a blob, an entry each for as much as one can have, and
// returns how many there are. Func key is the key of the i-th.
func (c *Chunker) putPieces(blob []byte, key func(i int) store.MapKey) (n int) {
	for piece := range slices.Chunk(blob, store.MaxMapValue) {
		from := len(c.values)
		c.values = append(c.values, piece...)
		c.put1(key(n), from)
		n++
	}
	return n
}
