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

// slab is how many blocks are allocated together.
const slab = 64

// fresh returns a block for a hash of which nothing is known.
func (c *Chunker) fresh(hash uint64) *block {
	if !c.lastNone || c.lastHash != hash {
		if b := c.blocks.get(hash); b != nil { // dead: the map still has it
			*b = block{hash: hash, ring: b.ring, stored: b.stored, dirty: b.dirty, era: c.meta.era, used: true, stamp: b.stamp}
			return b
		}
	}
	if len(c.spare) == 0 {
		blocks := make([]block, slab)
		for i := range blocks {
			c.spare = append(c.spare, &blocks[i])
		}
	}
	n := len(c.spare) - 1
	b := c.spare[n] // which is empty
	c.spare = c.spare[:n]
	b.hash, b.era, b.used = hash, c.meta.era, true
	c.insert(b)
	return b
}

func (c *Chunker) insert(b *block) {
	b.ring = int32(len(c.ring))
	c.ring = append(c.ring, b)
	c.blocks.put(b)
	c.lastHash, c.lastBlock, c.lastNone = b.hash, b, false
}

// forget takes b out of memory. It is called by Done alone, when no cursor is anywhere.
func (c *Chunker) forget(b *block) {
	c.blocks.remove(b.hash)
	last := len(c.ring) - 1
	c.ring[b.ring] = c.ring[last]
	c.ring[b.ring].ring = b.ring
	c.ring[last] = nil
	c.ring = c.ring[:last]
	c.lastBlock, c.lastOwner, c.lastNone = nil, nil, false
	for _, r := range [2]*run{b.tail, b.branch} {
		if r != nil {
			c.reuseRun(r)
		}
	}
	*b = block{}
	c.spare = append(c.spare, b)
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

// spareRuns is how many runs are kept to be used again at most.
const spareRuns = 1024

// newRun returns a run that b begins.
func (c *Chunker) newRun(b *block, branch bool) *run {
	var r *run
	if n := len(c.runs); n > 0 {
		r, c.runs = c.runs[n-1], c.runs[:n-1]
	} else {
		r = &run{}
	}
	r.ref, r.owner, r.tokensDirty, r.tokensCut = ref{b.hash, branch}, b, true, true
	return r
}

// reuseRun keeps a run, which nothing refers to any more, and the room of its lists.
func (c *Chunker) reuseRun(r *run) {
	if len(c.runs) < spareRuns {
		*r = run{ends: r.ends[:0], tokens: r.tokens[:0]}
		c.runs = append(c.runs, r)
	}
}
