package rechunk

import (
	"fmt"

	"github.com/kvatlas/kvatlas/internal/invariants"
)

// mustHold panics, in a build with invariants, where what has changed since the last Take is
// not as it must be after each message. All of it would be looked at for nothing: what has
// not changed was right before.
func (c *Chunker) mustHold() {
	if !invariants.Enabled {
		return
	}
	if c.blocks.n+len(c.blocks.spare) != c.blocks.top() {
		panic(fmt.Sprintf("rechunk: %d blocks and %d free ones of %d", c.blocks.n, len(c.blocks.spare), c.blocks.top()))
	}
	for _, b := range [2]*block{c.lastBlock, c.lastOwner} {
		if b != nil && c.blocks.get(b.hash) != b {
			panic(fmt.Sprintf("rechunk: block %x was looked up last and is not there", b.hash))
		}
	}
	for _, b := range c.dirty {
		if why := c.fault(b); why != "" {
			panic(fmt.Sprintf("rechunk: block %x %s: %+v", b.hash, why, *b))
		}
		for _, r := range [2]*run{b.tail, b.branch} {
			if r == nil || c.damaged {
				continue
			}
			if why := r.fault(b, r == b.branch); why != "" {
				panic(fmt.Sprintf("rechunk: a run of block %x %s: %+v", b.hash, why, *r))
			}
		}
	}
}

// fault says what is wrong with a block, "" for nothing.
func (c *Chunker) fault(b *block) string {
	switch {
	case c.blocks.get(b.hash) != b:
		return "is not in the table"
	case c.blocks.at(int(b.number)) != b:
		return "is not the one of its number"
	case !b.dirty:
		return "is to be written and does not know it"
	case b.dead && (b.held() || b.tail != nil || b.branch != nil):
		return "is dead and has something"
	case !b.dead && !b.held() && b.tail == nil && b.branch == nil:
		return "has nothing and is not dead"
	case !b.held() && (b.joined || b.keyed):
		return "has a place, and nobody holds it"
	}
	return ""
}

// fault says what is wrong with a run that b begins, "" for nothing.
func (r *run) fault(b *block, branch bool) string {
	last := r.start
	for _, e := range r.ends {
		if e <= last {
			return "has parts that do not ascend"
		}
		last = e
	}
	placed := *r
	placed.void(0)
	switch {
	case r.owner != b || r.hash != b.hash || r.branch != branch:
		return "is another block's"
	case r.child != branch:
		return "is a branch of nothing, or none with a parent"
	case len(r.ends) == 0:
		return "has no parts"
	case len(r.tokens) != r.kept():
		return "has not the tokens of its parts"
	case r.placed.top() > len(r.ends):
		return "has blocks at parts that it does not have"
	case !placed.placed.equal(&r.placed):
		return "has blocks at other parts than are held or lacking"
	}
	for t := range numTiers {
		held := r.held>>t&1 != 0
		if full := r.closed && r.present.of(t).full(len(r.ends)); held && !full || !held && full && !r.child {
			return fmt.Sprintf("has tier %d held: %v", t, held)
		}
	}
	return ""
}
