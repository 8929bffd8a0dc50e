package rechunk

// get returns what is known of a hash, nil for nothing.
func (c *Chunker) get(hash uint64) *block {
	b := c.lastBlock
	if b == nil || c.lastHash != hash {
		if b = c.blocks.get(hash); b == nil {
			c.lastHash, c.lastBlock, c.lastNone = hash, nil, true
			return nil
		}
		c.lastHash, c.lastBlock, c.lastNone = hash, b, false
	}
	return c.used(b)
}

// used notes that b is used, and takes clears in. It returns nil for a block that is dead.
func (c *Chunker) used(b *block) *block {
	if b.dead {
		return nil
	}
	b.used = true
	if b.era != c.meta.era {
		c.refresh(b)
		if b.dead {
			return nil
		}
	}
	return b
}

// run returns a run, nil for one that is not there.
func (c *Chunker) run(r ref) *run {
	// The blocks of a run come one behind the other, and ask for the one that begins it.
	b := c.lastOwner
	if b != nil && b.hash == r.hash {
		b = c.used(b)
	} else {
		b = c.get(r.hash)
		c.lastOwner = b
	}
	if b == nil {
		return nil
	}
	if r.branch {
		return b.branch
	}
	return b.tail
}

// fresh returns a block for a hash of which nothing is known.
func (c *Chunker) fresh(hash uint64) *block {
	b := c.lastBlock
	if !c.lastNone || c.lastHash != hash {
		b = c.blocks.get(hash)
	}
	if b != nil { // dead: the map still has it
		*b = block{hash: hash, number: b.number, stored: b.stored, dirty: b.dirty, stamp: b.stamp}
	} else {
		b = c.blocks.add(hash)
		c.lastHash, c.lastBlock, c.lastNone = hash, b, false
	}
	b.era, b.used = c.meta.era, true
	return b
}

// insert takes a block into memory that was read.
func (c *Chunker) insert(read *block) {
	b := c.blocks.add(read.hash)
	read.number = b.number
	*b = *read
	for _, r := range [2]*run{b.tail, b.branch} {
		if r != nil {
			r.owner = b
		}
	}
	c.lastHash, c.lastBlock, c.lastNone = b.hash, b, false
}

// forget takes b out of memory. It is called by Done alone, when no cursor is anywhere.
func (c *Chunker) forget(b *block) {
	c.lastBlock, c.lastOwner, c.lastNone = nil, nil, false
	for _, r := range [2]*run{b.tail, b.branch} {
		if r != nil {
			c.reuseRun(r)
		}
	}
	if w := b.wide; w != nil && cap(w.more) <= wideKeys {
		*w = wide{more: w.more[:0]}
		c.wides.give(w)
	}
	c.blocks.remove(b)
}

// touch notes that b has to be written.
func (c *Chunker) touch(b *block) {
	if !b.dirty {
		b.dirty = true
		if !c.alone {
			c.dirty = append(c.dirty, b)
		}
	}
}

// runSlab is how many runs are allocated together, which with Go's header fill 4 KiB, and arena
// how many tokens or ends of them.
const (
	runSlab = 18
	arena   = 1024
)

// allot returns an empty list with room for n, cut from what is left of an arena.
func allot[T any](left *[]T, n int) []T {
	if len(*left) < n {
		*left = make([]T, max(n, arena))
	}
	list := (*left)[:0:n]
	*left = (*left)[n:]
	return list
}

// pool has room for Ts, to be used for the first time or again.
type pool[T any] []*T

// maxSpare is how much of a kind a pool keeps at most to be used again.
const maxSpare = 1024

// take returns room for a T, of which n are allocated together. What is used again is as it
// was given.
func (p *pool[T]) take(n int) *T {
	if len(*p) == 0 {
		for slab := make([]T, n); len(slab) > 0; slab = slab[1:] {
			*p = append(*p, &slab[0])
		}
	}
	last := len(*p) - 1
	x := (*p)[last]
	*p = (*p)[:last]
	return x
}

// give keeps x to be used again. It returns false when there is enough.
func (p *pool[T]) give(x *T) bool {
	if len(*p) >= maxSpare {
		return false
	}
	*p = append(*p, x)
	return true
}

// wideKeys is for how many keys a wide that is kept has room at most.
const wideKeys = 64

// newRun returns a run that b begins.
func (c *Chunker) newRun(b *block, branch bool) *run {
	r := c.runs.take(runSlab)
	r.hash, r.branch, r.owner, r.tokensDirty, r.tokensCut = b.hash, branch, b, true, true
	return r
}

// reuseRun keeps a run, which nothing refers to any more, and the room of its lists.
func (c *Chunker) reuseRun(r *run) {
	*r = run{ends: r.ends[:0], tokens: r.tokens[:0]}
	if !c.runs.give(r) {
		*r = run{} // the others of its slab keep it
	}
}
