package rechunk

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// LMCache reports through vLLM what it stores in the host's memory and never what it evicts there. What such
// an engine holds is bounded here, in each tier but the GPU's. The copies are numbered as they come, and
// beyond Config.Unremoved of them the oldest counts as removed. In that order a cache of that size forgets
// what is not asked for again. A block that is stored again is a copy with a number of its own, and so stays
// for as long as its youngest. An engine that reports one removal in a tier is believed to report all, and
// its tier is counted no more.
//
// The numbers are in the generation's map, an entry each, so that another owner goes on
// with them.

// aging is the numbered copies of a tier: tail to head-1. Of these, those before void
// have ended by another way and are only to be forgotten. Numbers begin with 1.
type aging struct {
	head, tail, void uint64
	// mem are the copies from base on; older ones are in the map alone, and in old
	// during an Apply that needs them.
	base uint64
	mem  []aged
	old  map[uint64]aged
	// What the map has.
	savedHead, savedTail uint64
	dirty                bool
}

// aged is a copy: of what, and in which group.
type aged struct {
	hash  uint64
	group uint8
}

// forEver is the void of a tier whose removals are told.
const forEver = math.MaxUint64

// agingHash is the hash whose entries have heads and tails.
const agingHash = 0x6b76612d61676564

func agingKey(tier int) store.MapKey {
	return store.MapKey{Hash: agingHash, Part: partAging + uint16(tier)}
}

func agedKey(tier int, number uint64) store.MapKey {
	return store.MapKey{Hash: number, Part: partAged + uint16(tier)}
}

// newAgings are those of a generation that has just begun.
func newAgings() (a [store.NumTiers]aging) {
	for t := range a {
		a[t] = aging{head: 1, tail: 1, base: 1, savedHead: 1, savedTail: 1}
	}
	return a
}

// decodeAging takes in what the map has of a tier.
func (c *Chunker) decodeAging(tier int, v []byte) {
	if v == nil {
		return
	}
	var n [3]uint64
	for i := range n {
		var size int
		if n[i], size = binary.Uvarint(v); size <= 0 {
			c.stats.Garbled++
			return
		}
		v = v[size:]
	}
	head, tail, void := n[0], n[1], n[2]
	if len(v) > 0 || tail < 1 || head < tail {
		c.stats.Garbled++
		return
	}
	c.agings[tier] = aging{head: head, tail: tail, void: void, base: head, savedHead: head, savedTail: tail}
}

// age numbers a copy that has come.
func (c *Chunker) age(tier store.Tier, hash uint64, group uint8) {
	if c.config.Unremoved == 0 || tier == store.GPU || tier.IsWindow() || c.agings[tier].void == forEver {
		return
	}
	a := &c.agings[tier]
	a.head++
	a.mem = append(a.mem, aged{hash, group})
	a.dirty = true
}

// voidAged ends the numbering of what a tier has: told says that the engine reports removals there, otherwise
// it has cleared it.
func (c *Chunker) voidAged(tier store.Tier, told bool) {
	if tier.IsWindow() {
		return
	}
	a := &c.agings[tier]
	void := a.head
	if told {
		void = forEver
	}
	if c.config.Unremoved == 0 || tier == store.GPU || a.void == forEver || a.void == void {
		return
	}
	a.void, a.dirty = void, true
}

// due is how many copies are to be removed by age when more of them come.
func (a *aging) due(limit, more int) int {
	live := a.head - min(max(a.tail, a.void), a.head)
	if n := int(live) + more - limit; n > 0 {
		return min(n, more+sweepStep)
	}
	return 0
}

// expire removes the oldest copies beyond the limit, a step at a time.
func (c *Chunker) expire() {
	if c.config.Unremoved == 0 {
		return
	}
	for t := range c.agings {
		a := &c.agings[t]
		for i := 0; i < sweepStep && a.tail < min(a.void, a.head); i++ {
			a.pop()
		}
		if a.tail < a.void {
			a.old = nil
			continue
		}
		for range a.due(c.config.Unremoved, 0) {
			at, ok := a.pop()
			if !ok {
				c.stats.Garbled++
				continue
			}
			if b := c.get(at.hash); b != nil {
				if s := b.find(store.Tier(t), at.group); s != nil && s.copies > 0 {
					c.stats.Expired++
					c.dropCopy(b, s)
				}
			}
		}
		a.old = nil
	}
}

// pop takes the oldest copy; ok is false when it is not known what it was.
func (a *aging) pop() (at aged, ok bool) {
	n := a.tail
	a.tail++
	a.dirty = true
	if n < a.base {
		at, ok = a.old[n]
		return at, ok
	}
	at = a.mem[0]
	a.mem = a.mem[1:]
	a.base++
	return at, true
}

// wantAged collects what the expiry behind this batch will need.
func (c *Chunker) wantAged(ctx context.Context, b *event.Batch, read Reader) error {
	if c.config.Unremoved == 0 {
		return nil
	}
	var more [store.NumTiers]int
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == event.Stored {
			if tier, known := c.tierOf(e); known && !tier.IsWindow() {
				more[tier] += len(e.Hashes)
			}
		}
	}
	for t := range c.agings {
		a := &c.agings[t]
		if store.Tier(t) == store.GPU || a.void == forEver {
			continue
		}
		first := max(a.tail, a.void)
		n := uint64(a.due(c.config.Unremoved, more[t]))
		if first+n > a.head {
			// Some of this batch's own will have come and gone.
			c.wantOwn(b, store.Tier(t))
		}
		if a.old == nil && first < a.base && n > 0 {
			if err := c.readAged(ctx, t, first, min(first+n, a.base), read); err != nil {
				return err
			}
		}
		for number := first; number < first+n; number++ {
			if at, ok := a.at(number); ok {
				c.wantBlock(at.hash, event.Removed, store.Tier(t))
			}
		}
	}
	return nil
}

// wantOwn collects what the removal of what a batch stores in a tier will need.
func (c *Chunker) wantOwn(b *event.Batch, tier store.Tier) {
	for i := range b.Events {
		e := &b.Events[i]
		if at, known := c.tierOf(e); e.Kind != event.Stored || !known || at != tier {
			continue
		}
		for _, h := range e.Hashes {
			c.wantBlock(inLayer(c.form.Layer(e), h), event.Removed, tier)
		}
	}
}

// at is the copy of a number.
func (a *aging) at(number uint64) (at aged, ok bool) {
	switch {
	case number >= a.head:
		return aged{}, false // still to come: its event is looked at by itself
	case number < a.base:
		at, ok = a.old[number]
		return at, ok
	}
	return a.mem[number-a.base], true
}

// readAged reads the copies from to to-1.
func (c *Chunker) readAged(ctx context.Context, tier int, from, to uint64, read Reader) error {
	keys := make([]store.MapKey, 0, to-from)
	for n := from; n < to; n++ {
		keys = append(keys, agedKey(tier, n))
	}
	values, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	a := &c.agings[tier]
	a.old = make(map[uint64]aged, len(values))
	for i, v := range values {
		if len(v) == 9 {
			a.old[from+uint64(i)] = aged{binary.BigEndian.Uint64(v), v[8]}
		}
	}
	return nil
}

// writeAged makes the map ops that bring the map up to date with the numbers.
func (c *Chunker) writeAged() {
	for t := range c.agings {
		a := &c.agings[t]
		if !a.dirty {
			continue
		}
		a.dirty = false
		for n := max(a.savedHead, a.tail); n < a.head; n++ {
			from := len(c.values)
			c.values = append(binary.BigEndian.AppendUint64(c.values, a.mem[n-a.base].hash), a.mem[n-a.base].group)
			c.put1(agedKey(t, n), from)
		}
		for n := a.savedTail; n < min(a.tail, a.savedHead); n++ {
			c.mapOps = append(c.mapOps, store.MapOp{MapKey: agedKey(t, n)})
		}
		a.savedHead, a.savedTail = a.head, a.tail
		from := len(c.values)
		for _, v := range []uint64{a.head, a.tail, a.void} {
			c.values = binary.AppendUvarint(c.values, v)
		}
		c.put1(agingKey(t), from)
	}
}
