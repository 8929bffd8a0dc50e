package rechunk

import (
	"slices"
)

// flip tells runs and index blocks that the tiers of b have changed from old to
// new.
func (c *Chunker) flip(b *block, old, now tiers) {
	if old == now {
		return
	}
	c.flipped = b.layer
	if b.joined {
		if r := c.run(b.join()); r != nil && b.part >= r.fork && int(b.part) < r.parts() {
			c.turn(r, int(b.part), old, now)
		}
	}
	if changed := old.present ^ now.present; b.keyed {
		for t := range eachTier(changed) {
			b.ops(c, now.present>>t&1 != 0, t)
		}
	}
	if b.tail != nil {
		c.turn(b.tail, 0, old, now)
	}
}

// ops reports the whole index blocks of b. Those behind whose end it goes on can be
// held by others.
func (b *block) ops(c *Chunker, add bool, tier int) {
	more := b.more()
	n := len(more)
	c.op(add, tier, b.shared || n > 0 || b.tail != nil, b.key)
	for i, k := range more {
		c.op(add, tier, b.shared || i < n-1 || b.tail != nil, k)
	}
}

// turn says that the tiers of the block at an own part of r have changed.
func (c *Chunker) turn(r *run, part int, old, now tiers) {
	own := part - int(r.fork)
	r.lacking.turn(own, old.lacking^now.lacking, now.lacking)
	r.present.turn(own, old.present^now.present, now.present)
	c.touch(r.owner)
	if old.present == now.present {
		return
	}
	c.judge(r)
	if r.branches() {
		c.judgeKids(r, part)
	}
}

// judge finds in which tiers the index block of r is held, and says what changes.
func (c *Chunker) judge(r *run) {
	if !r.closed {
		return
	}
	var held uint8
	for t := range numTiers {
		if c.full(r, r.parts(), t) {
			held |= 1 << t
		}
	}
	if held == r.held {
		return
	}
	for t := range eachTier(held ^ r.held) {
		c.op(held>>t&1 != 0, t, r.shared, r.key)
	}
	r.held = held
	c.touch(r.owner)
}

// full reports whether the first parts of r's path are all held in a tier.
func (c *Chunker) full(r *run, parts, tier int) bool {
	for r.child {
		if !r.present.of(tier).full(parts - int(r.fork)) {
			return false
		}
		parts = int(r.fork)
		if r = c.up(r); r == nil {
			return false
		}
	}
	return r.present.of(tier).full(parts)
}

// up is the run that r is a branch of, nil if it is not a branch or if the map is torn.
func (c *Chunker) up(r *run) *run {
	if !r.child {
		return nil
	}
	p := c.run(r.parent())
	if p == nil || p.fork >= r.fork || p.parts() < int(r.fork) {
		return nil
	}
	return p
}

// judgeKids judges all branches whose path has the part of r.
func (c *Chunker) judgeKids(r *run, part int) {
	for _, h := range r.kids() {
		if h == 0 {
			continue
		}
		b := c.get(h)
		if b == nil || b.branch == nil || b.branch.parent() != r.ref() {
			continue
		}
		if k := b.branch; int(k.fork) > part && k.fork > r.fork {
			c.judge(k)
			if k.branches() {
				c.judgeKids(k, part)
			}
		}
	}
}

// leave takes b's place from it, once it is in no tier.
func (c *Chunker) leave(b *block) {
	if b.joined {
		b.joined = false
		if r := c.run(b.join()); r != nil && b.part >= r.fork && int(b.part) < r.parts() {
			r.placed.set(int(b.part-r.fork), false)
			c.touch(r.owner)
			c.settle(r)
		}
	}
	b.keyed = false
	b.setMore(nil)
	if t := b.tail; t != nil {
		t.placed.set(0, false)
		c.settle(t)
	}
	c.touch(b)
	c.bury(b)
}

// settle cuts the parts at r's end without a holder, which come back as they went,
// and ends r when that is all of it. A run with branches is left as it is.
func (c *Chunker) settle(r *run) {
	if r.branches() {
		return
	}
	n := r.placed.top()
	if n == len(r.ends) || n == 0 && r.branch && c.blocks.get(r.parentHash) == nil {
		return // or its parent, which has to know, is not in memory
	}
	c.touch(r.owner)
	if n > 0 {
		r.closed, r.key, r.held = false, 0, 0
		r.ends = r.ends[:n]
		r.tokens = r.tokens[:min(r.kept(), len(r.tokens))]
		r.tokensDirty, r.tokensCut = true, true
		parts := uint16(r.parts())
		r.objects = slices.DeleteFunc(r.objects, func(o object) bool { return o.first >= parts })
		for i := range r.objects {
			r.objects[i].last = min(r.objects[i].last, parts-1)
		}
		return
	}
	b := r.owner
	if !r.branch {
		if b.tail == r {
			b.tail = nil
			c.ended = append(c.ended, r)
		}
		c.bury(b)
		return
	}
	if b.branch == r {
		b.branch = nil
		c.ended = append(c.ended, r)
	}
	if p := c.up(r); p != nil && int(r.place) < len(p.kids()) && p.kin.kids[r.place] == r.hash {
		k := p.kin
		k.kids[r.place] = 0
		k.free = append(k.free, int(r.place))
		k.count--
		c.pageChanged(k, int(r.place))
		if k.count == 0 {
			k.kids, k.free = k.kids[:0], k.free[:0]
		}
		c.touch(p.owner)
		c.settle(p)
	}
	c.bury(b)
}

// bury deletes b when there is nothing left to know of it.
func (c *Chunker) bury(b *block) {
	if !b.held() && b.tail == nil && b.branch == nil && !b.dead {
		b.dead, b.ambiguous = true, false
		c.touch(b)
		if c.alone {
			c.buried = append(c.buried, b)
		}
	}
}
