package rechunk

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of what a Chunker takes.
const (
	// MaxIndexBlock is the largest index block in tokens.
	MaxIndexBlock = 2048
	// MaxEngineBlock is the largest engine block in tokens. Blocks beyond it are
	// not indexed.
	MaxEngineBlock = 8192
	// MinRecords is the least that Config.MaxRecords can be.
	MinRecords = 64
)

// Config says how a Chunker works. Only BlockSize has no default.
type Config struct {
	// BlockSize is the model's index block size, 1 to MaxIndexBlock tokens.
	BlockSize int
	// Media maps media to tiers; nil is event's own words.
	Media *event.Media
	// UnknownMedium, if not nil, is called for each Stored of n blocks in a medium that
	// maps to no tier.
	UnknownMedium func(medium string, n int)
	// Copies is what repeated blocks mean.
	Copies Copies
	// Engine is the engine's kind as in store.Pod, "" if it is not known: then it is as
	// the generation's owners before were told, or what the stream shows.
	Engine string
	// Unremoved bounds how many copies of engine blocks are held in each tier but the
	// GPU's whose removals the engine never tells; the oldest are taken for removed. 0 is
	// no bound.
	Unremoved int
	// Fresh says that the generation has just begun and its map is empty, so that
	// nothing has to be read as long as all of it fits in memory.
	Fresh bool
	// MaxRecords is how many engine blocks are kept in memory, 200 to 400 bytes
	// each; the rest is read again when it is needed. It can be exceeded by what one Apply
	// needs and by what Done has not been called for. 0 is 256 Ki, the least is
	// MinRecords.
	MaxRecords int
}

var errConfig = errors.New("rechunk: invalid config")

// ErrRead says that a read failed in Apply or Take, which has done nothing and can be
// called again.
var ErrRead = errors.New("rechunk: the map could not be read")

// errAnswer says that a Reader returned not as many values as it was given keys.
var errAnswer = errors.New("rechunk: the reader answers other than asked")

// withDefaults fills what is not set and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.MaxRecords == 0 {
		c.MaxRecords = 256 << 10
	}
	switch {
	case c.BlockSize < 1 || c.BlockSize > MaxIndexBlock:
		return c, fmt.Errorf("%w: BlockSize is %d, it can be 1 to %d tokens", errConfig, c.BlockSize, MaxIndexBlock)
	case c.MaxRecords < MinRecords:
		return c, fmt.Errorf("%w: MaxRecords is %d, the least is %d", errConfig, c.MaxRecords, MinRecords)
	case c.Unremoved < 0:
		return c, fmt.Errorf("%w: Unremoved is %d, it can be 0 or more", errConfig, c.Unremoved)
	case c.Copies > NoCopies:
		return c, fmt.Errorf("%w: Copies is %d", errConfig, c.Copies)
	}
	return c, nil
}

// Reader reads entries of the generation's map, in the order of the keys, nil where
// there is none: store.Index.ReadMap with the generation filled in. It is given at
// most store.MaxMapOps keys.
type Reader func(ctx context.Context, keys ...store.MapKey) ([][]byte, error)

// Chunker follows the blocks of one generation of one (pod, rank). It is not safe
// for concurrent use.
//
// Apply takes messages in, as many as are to be written together. Take gives what
// they change, Done says that it is written; one Take may be under way. When a
// write fails for good the Chunker is of no use any more: it knows of changes that
// the map does not.
type Chunker struct {
	config Config
	size   int
	blocks map[uint64]*block
	ring   []*block // all of blocks, for the clock
	hand   int
	buried []*block // dead and taken
	spare  []*block

	complete bool // what is not in blocks is not in the map
	begun    bool // the meta record has been read
	meta     meta
	form     form
	flipped  uint8 // the layer of the block that is flipped
	agings   [store.NumTiers]aging
	sweep    int // how much of ring is still to be looked at after a clear

	dirty          []*block
	taken          uint32 // number of Takes
	done           uint32 // ... that are written
	ops            []opRange
	opKeys         []blockkey.Key
	givenKeys      []blockkey.Key // of the last Take
	values         []byte
	mapOps         []store.MapOp
	storeOps       []store.Op
	blob           []byte
	tokens         []uint32
	keys           []blockkey.Key
	keyBuf         []blockkey.Key
	shares         map[blockkey.Key]*share
	shareRing      []*share
	shareHand      int
	shareSweep     int
	sharesComplete bool // what is not in shares is not in the map
	dirtyShares    []*share
	goneShares     []*share // that are nothing, and taken

	absent    map[uint64]struct{} // looked for and not in the map, during Apply
	missing   []uint64
	lastHash  uint64 // of the block that was looked up last
	lastBlock *block
	stats     Stats
}

// opRange is an op whose keys are opKeys[from:to].
type opRange struct {
	kind     store.OpKind
	tier     store.Tier
	from, to int
}

// New returns a Chunker for a generation.
func New(config Config) (*Chunker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Chunker{
		config: config, size: config.BlockSize, blocks: map[uint64]*block{}, absent: map[uint64]struct{}{}, shares: map[blockkey.Key]*share{},
		complete: config.Fresh, begun: config.Fresh, sharesComplete: config.Fresh, agings: newAgings(),
	}, nil
}

// Stats returns figures.
func (c *Chunker) Stats() Stats {
	s := c.stats
	s.Records = len(c.blocks)
	return s
}

// Apply takes in the events of one message. Their changes come on top of those that
// Take has not given yet. read is used when something of the map is needed that is
// not in memory, and not kept; a Chunker that is Fresh and has room does not need
// it. The error is one of read, wrapped in ErrRead, and means that nothing has been
// taken in.
//
// Events can say anything without harm. The batch is not kept.
func (c *Chunker) Apply(ctx context.Context, b *event.Batch, read Reader) error {
	return c.ApplyEach(ctx, b, read, func(int) {})
}

// ApplyEach is Apply, and calls done after each event, with its place in the batch.
func (c *Chunker) ApplyEach(ctx context.Context, b *event.Batch, read Reader, done func(i int)) error {
	if !c.begun {
		if err := c.begin(ctx, read); err != nil {
			return fmt.Errorf("%w: %w", ErrRead, err)
		}
	}
	c.survey(b)
	if !c.complete {
		if err := c.prefetch(ctx, b, read); err != nil {
			return fmt.Errorf("%w: %w", ErrRead, err)
		}
	}
	var told telling
	for i, judged := 0, 0; i < len(b.Events); i++ {
		switch e := &b.Events[i]; e.Kind {
		case event.Stored:
			if i >= judged {
				told, judged = c.tells(b.Events[i:])
				judged += i
			}
			before := c.stats.Skipped
			if c.store(e, told); c.stats.Skipped != before && c.counts(e) && isGPU(e, c.config.Media) {
				c.NoteUnseen()
			}
		case event.Removed:
			c.remove(e)
		case event.Cleared:
			c.clear(e)
		}
		done(i)
	}
	c.expire()
	c.sweepSome()
	c.sweepShares()
	return nil
}

// get returns what is known of a hash, nil for nothing.
func (c *Chunker) get(hash uint64) *block {
	b := c.lastBlock
	if b == nil || c.lastHash != hash {
		if b = c.blocks[hash]; b == nil {
			return nil
		}
		c.lastHash, c.lastBlock = hash, b
	}
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
	b := c.get(r.hash)
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
	if b := c.blocks[hash]; b != nil { // dead: the map still has it
		*b = block{hash: hash, ring: b.ring, stored: b.stored, dirty: b.dirty, era: c.meta.era, used: true, stamp: b.stamp}
		return b
	}
	var b *block
	if n := len(c.spare); n > 0 {
		b, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		slab := make([]block, 64)
		for i := range slab[1:] {
			c.spare = append(c.spare, &slab[1+i])
		}
		b = &slab[0]
	}
	*b = block{hash: hash, era: c.meta.era, used: true}
	c.insert(b)
	return b
}

func (c *Chunker) insert(b *block) {
	b.ring = int32(len(c.ring))
	c.ring = append(c.ring, b)
	c.blocks[b.hash] = b
	c.lastHash, c.lastBlock = b.hash, b
}

// forget takes b out of memory.
func (c *Chunker) forget(b *block) {
	delete(c.blocks, b.hash)
	last := len(c.ring) - 1
	c.ring[b.ring] = c.ring[last]
	c.ring[b.ring].ring = b.ring
	c.ring = c.ring[:last]
	c.lastBlock = nil
	*b = block{}
	c.spare = append(c.spare, b)
}

// touch notes that b has to be written.
func (c *Chunker) touch(b *block) {
	if !b.dirty {
		b.dirty = true
		c.dirty = append(c.dirty, b)
	}
}

// op notes that an engine block of the layer that is flipped holds an index block from
// now on, or not any more. shared says that others can hold it too.
func (c *Chunker) op(add bool, tier int, shared bool, key blockkey.Key) {
	switch {
	case !shared && !c.form.layered():
		c.emit(add, tier, key)
	case add:
		c.hold(key, c.flipped, tier, 1)
	default:
		c.hold(key, c.flipped, tier, -1)
	}
}

// emit makes the op for one index block.
func (c *Chunker) emit(add bool, tier int, key blockkey.Key) {
	kind := store.Remove
	if add {
		kind = store.Add
		c.stats.IndexAdded++
	} else {
		c.stats.IndexRemoved++
	}
	if m := len(c.ops); m == 0 || c.ops[m-1].kind != kind || c.ops[m-1].tier != store.Tier(tier) || c.ops[m-1].to-c.ops[m-1].from == store.MaxOpKeys {
		c.ops = append(c.ops, opRange{kind, store.Tier(tier), len(c.opKeys), len(c.opKeys)})
	}
	c.opKeys = append(c.opKeys, key)
	c.ops[len(c.ops)-1].to++
}

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
	if !c.counts(e) {
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
	if e.Spec == event.SpecWidest && e.BlockSize > 0 && e.BlockSize < int(c.form.full) {
		c.stats.Skipped[Partial] += uint64(n)
		return
	}
	tokens, ok := tokensOf(e)
	if !ok && !tier.IsWindow() {
		c.stats.Skipped[Masked] += uint64(n)
		return
	}
	reused := c.reusedFrom(e)
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
			if s := p.find(tier, c.groupOf(e)); s != nil && tier == store.GPU {
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
	for i, h := range e.Hashes {
		b := stored{hash: inLayer(c.layer(e), h), tier: tier, group: c.groupOf(e), told: told, reused: i >= reused}
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
	if p := c.get(inLayer(c.layer(e), e.Parent)); p != nil && p.held() {
		return p
	}
	if c.prefix(e) {
		return nil
	}
	for layer := range c.form.sizes {
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
		// Behind a hash of two places nobody can tell which place is meant either.
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
		b.layer = c.form.layerOf(n.group)
		b.slot = slot{tier: n.tier, group: n.group}
		s = &b.slot
	case len(b.slots) >= maxSlots:
		c.stats.Skipped[OverLimit]++
		return
	default:
		b.slots = append(b.slots, slot{tier: n.tier, group: n.group})
		s = &b.slots[len(b.slots)-1]
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

// tally returns how many copies of a slot are certain, or count as such, and how many more
// are doubtful or among these: before the engine has reported, they count.
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
	if c.narrow(e) {
		return
	}
	c.voidAged(tier, true)
	group, layer := c.groupOf(e), c.layer(e)
	for _, h := range e.Hashes {
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
