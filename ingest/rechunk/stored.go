package rechunk

import (
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// maxSlots is how many tiers and groups of a block are counted.
const maxSlots = 32

// store takes in a Stored and what it says of what is held.
func (c *Chunker) store(e *event.Event, told telling) {
	n := len(e.Hashes)
	c.stats.Stored += uint64(n)
	if e.BlockSize < 0 || e.BlockSize > MaxEngineBlock || e.Group < 0 || e.Group > 255 {
		c.stats.Skipped[OverLimit] += uint64(n)
		return
	}
	if !c.form.Counts(e) {
		c.stats.Skipped[NoPrefix] += uint64(n)
		return
	}
	tier, known := c.tierOf(e)
	if !known {
		c.stats.Skipped[UnknownMedium] += uint64(n)
		if c.config.UnknownMedium != nil {
			c.config.UnknownMedium(e.Medium, n)
		}
		return
	}
	if c.form.Partial(e) {
		c.stats.Skipped[Partial] += uint64(n)
		return
	}
	tokens, ok := tokensOf(e)
	if !ok && !tier.IsWindow() {
		c.stats.Skipped[Masked] += uint64(n)
		return
	}
	reused := c.form.ReusedFrom(e)
	if !ok {
		tokens = nil // blocks out of a window are left out; the others are known by their hashes
	}
	var at cursor
	switch {
	case tokens == nil:
		at = lost(NoTokens)
	case e.HasParent:
		at = lost(NoParent)
		if p := c.parent(e); p != nil {
			if s := p.find(tier, c.form.Of(e)); s != nil && tier == store.GPU {
				c.ensure(p, s) // a request has it, and goes on behind it
			}
			at = c.after(p)
		}
	case e.LoRAID != 0 && e.LoRA == "":
		at = lost(UnnamedLoRA)
	default:
		at = cursor{ok: true, seed: c.seed(e.LoRA, e.Salt)}
	}
	at.shared = len(e.Lookahead) > 0
	layer, group := c.form.Layer(e), c.form.Of(e)
	for i, h := range e.Hashes {
		if i%warmAhead == 0 {
			c.warmed = c.blocks.warm(layer, e.Hashes[i:min(i+warmAhead, n)])
		}
		b := stored{hash: inLayer(layer, h), tier: tier, group: group, told: told, reused: i >= reused}
		if tokens != nil {
			b.tokens = tokens[i*e.BlockSize : (i+1)*e.BlockSize]
		}
		if i < len(e.Extra) {
			b.objects = e.Extra[i].Objects
		}
		shared := at.shared
		at = c.storeBlock(e, &b, at)
		at.shared = shared
	}
}

// parent returns the block behind which an event's blocks lie, nil if it is held nowhere. A
// window group, which leaves blocks out, may have none of its own there: then it is another
// layer's.
func (c *Chunker) parent(e *event.Event) *block {
	if p := c.get(inLayer(c.form.Layer(e), e.Parent)); p != nil && p.held() {
		return p
	}
	if c.form.Prefix(e) {
		return nil
	}
	for layer := range c.form.Layers() {
		if p := c.get(inLayer(uint8(layer), e.Parent)); p != nil && p.held() {
			return p
		}
	}
	return nil
}

// tokensOf returns the tokens of the blocks of a Stored, nil when it has none. It
// returns false when the tokens are not those of the blocks.
func tokensOf(e *event.Event) ([]uint32, bool) {
	n := len(e.Hashes) * e.BlockSize
	switch {
	case len(e.Tokens) == 0 || n == 0:
		return nil, len(e.Tokens) == 0
	case e.Bigram:
		// What a block has is the first of each pair; the second of the last belongs
		// to the next block.
		return e.Tokens[:min(n, len(e.Tokens))], len(e.Tokens) == n+1
	case len(e.Hashes) == 1 && len(e.Tokens) == n+1:
		return e.Tokens[:n], true // LMCache tells one token of the next chunk
	}
	return e.Tokens, len(e.Tokens) == n
}

// seed is the seed of chains of a scope.
func (c *Chunker) seed(lora, salt string) blockkey.Seed { return blockkey.NativeSeed(lora, salt) }

// stored is one block of a Stored.
type stored struct {
	hash    uint64
	tier    store.Tier
	group   uint8
	tokens  []uint32 // nil if they are not told
	objects []event.Object
	told    telling // what that is if its group has the block in the tier already
	reused  bool    // if that is a report, the block is held
}

// storeBlock takes in one block that lies at a cursor, and returns the cursor behind it.
// Blocks without tokens stand for themselves: their order says nothing.
func (c *Chunker) storeBlock(e *event.Event, n *stored, at cursor) cursor {
	b := c.get(n.hash)
	if b != nil && b.held() {
		// Behind a hash of two places it is open which place is meant, too.
		behind := n.tokens != nil && n.tier == store.GPU && at.why == Ambiguous
		if !b.ambiguous && (behind && !at.ok || at.ok && !c.known(e, n, b, at)) {
			c.confuse(b)
		}
		if b.ambiguous {
			c.stats.Skipped[Ambiguous]++
		}
		if s := b.find(n.tier, n.group); s != nil && n.told >= repeated {
			c.ensure(b, s)
			c.stats.Reports++
		} else {
			c.addCopy(b, n)
		}
		if n.tokens == nil {
			return at
		}
		return c.after(b)
	}
	if !at.ok {
		c.stats.Skipped[at.why]++
		return at
	}
	p, ok := c.locate(&at, b, n.tokens, n.objects)
	if !ok {
		c.stats.Skipped[Unplaced]++
		return lost(Unplaced)
	}
	if b == nil {
		b = c.fresh(n.hash)
	}
	b.ambiguous = false // that ended with its last copy
	if !c.put(b, &p) {
		b.ambiguous = true
		c.stats.Conflicts++
		c.stats.Skipped[Ambiguous]++
	}
	c.addCopy(b, n)
	return c.after(b)
}

// known reports whether a Stored means the block that is held under its hash. An engine
// does not always tell again what else went into the hash: vLLM's offloading leaves salt
// and images out. Such an event says nothing against what is known.
func (c *Chunker) known(e *event.Event, n *stored, b *block, at cursor) bool {
	if p, ok := c.locate(&at, b, n.tokens, n.objects); ok && b.is(&p) {
		return true
	}
	if e.Salt != "" || len(n.objects) > 0 {
		return false
	}
	if n.tier != store.GPU {
		return true // engines whose hashes are not chained have no other tier
	}
	if e.HasParent || e.LoRA != "" {
		return false
	}
	if at.seed = b.seed; !b.keyed && b.tail != nil {
		at.seed = b.tail.seed
	}
	p, ok := c.locate(&at, b, n.tokens, n.objects)
	return ok && b.is(&p)
}

// confuse makes b ambiguous.
func (c *Chunker) confuse(b *block) {
	c.flip(b, c.tiersOf(b), tiers{})
	b.ambiguous = true
	c.stats.Conflicts++
	c.leave(b)
}

// addCopy counts a copy of b.
func (c *Chunker) addCopy(b *block, n *stored) {
	s := b.find(n.tier, n.group)
	switch {
	case s != nil:
		c.stats.Copies++
	case !b.held():
		b.layer = c.form.LayerOf(n.group)
		b.slot = slot{tier: n.tier, group: n.group}
		s = &b.slot
	case len(b.slots()) >= maxSlots:
		c.stats.Skipped[OverLimit]++
		return
	default:
		b.setSlots(append(b.slots(), slot{tier: n.tier, group: n.group}))
		s = &b.wide.slots[len(b.wide.slots)-1]
	}
	copies, doubts := c.tally(s)
	// Where none is certain, one that is told is there for certain.
	certain := n.told != doubtful || n.reused && copies == 0
	if !certain {
		doubts = min(doubts, maxDoubts-1) + 1
	}
	if certain || !c.form.reports {
		copies = min(copies, 1<<31-1) + 1
	}
	c.count(b, s, copies, doubts)
	c.age(n.tier, b.hash, n.group)
}

// dropCopy takes a copy from a slot of b.
func (c *Chunker) dropCopy(b *block, s *slot) {
	copies, doubts := c.tally(s)
	switch {
	case copies > 0:
		copies--
	case doubts < maxDoubts: // else there may be more
		doubts--
	}
	if !c.form.reports {
		doubts = uint8(min(uint32(doubts), copies))
	}
	c.count(b, s, copies, doubts)
}

// ensure takes in that b is held for certain, where all copies of a slot were doubtful.
func (c *Chunker) ensure(b *block, s *slot) {
	switch copies, doubts := c.tally(s); {
	case copies > 0:
	case doubts < maxDoubts:
		c.count(b, s, 1, doubts-1)
	default:
		c.count(b, s, 1, doubts)
	}
}

// tally returns how many copies of a slot are certain, or count as such. It returns how
// many more are doubtful or among these: before the engine has reported, they count.
func (c *Chunker) tally(s *slot) (copies uint32, doubts uint8) {
	if c.form.reports {
		return s.certain(), s.doubts
	}
	return s.copies, s.doubts
}

// count sets how many copies a slot of b has.
func (c *Chunker) count(b *block, s *slot, copies uint32, doubts uint8) {
	old, was := c.tiersOf(b), s.vague()
	s.copies, s.doubts, s.among = copies, doubts, doubts > 0 && !c.form.reports
	switch is := s.vague(); {
	case is && !was && c.form.vague >= maxVague:
		s.doubts = 0
		c.NoteUnseen()
	case is && !was:
		c.form.vague, c.form.dirty = c.form.vague+1, true
	case was && !is:
		c.form.vague, c.form.dirty = max(c.form.vague, 1)-1, true
	}
	if !s.some() {
		b.tidy(0)
	}
	c.touch(b)
	c.flip(b, old, c.tiersOf(b))
	if !b.held() {
		c.leave(b)
	}
}

// remove takes in a Removed.
func (c *Chunker) remove(e *event.Event) {
	c.stats.Removed += uint64(len(e.Hashes))
	tier, known := c.tierOf(e)
	if !known || e.Group < 0 || e.Group > 255 {
		c.stats.UnknownRemoved += uint64(len(e.Hashes))
		return
	}
	if c.form.Narrow(e) {
		return
	}
	c.voidAged(tier, true)
	group, layer := c.form.Of(e), c.form.Layer(e)
	for i, h := range e.Hashes {
		if i%warmAhead == 0 {
			c.warmed = c.blocks.warm(layer, e.Hashes[i:min(i+warmAhead, len(e.Hashes))])
		}
		b := c.get(inLayer(layer, h))
		if b == nil {
			c.stats.UnknownRemoved++
			continue
		}
		s := b.find(tier, group)
		if s == nil {
			c.stats.UnknownRemoved++
			continue
		}
		c.dropCopy(b, s)
	}
}
