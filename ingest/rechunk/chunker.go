package rechunk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk/groups"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of what a Chunker takes.
const (
	// MaxIndexBlock is the largest index block in tokens.
	MaxIndexBlock = 2048
	// MaxEngineBlock is the largest engine block in tokens, 8,192. Blocks beyond it are
	// not indexed.
	MaxEngineBlock = groups.MaxBlock
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
	// Engine is the engine's kind as in store.Pod, "" if it is not known. Then it is as
	// the generation's owners before were told, or what the stream shows.
	Engine string
	// Unremoved bounds how many copies of engine blocks are held in each tier, but the
	// GPU's, whose removals the engine never tells. The oldest are taken for removed. 0 is
	// no bound.
	Unremoved int
	// Fresh says that the generation has just begun and its map is empty. So nothing
	// has to be read as long as all of it fits in memory.
	Fresh bool
	// Alone says that only this Chunker, which is Fresh, will go on with the generation while this process
	// lives. It writes nothing to the map while all of it fits in memory, but a mark by which Torn has others
	// leave it. What does not fit is written, and from then on the map is kept as ever.
	Alone bool
	// MaxRecords is how many engine blocks are kept in memory, 100 to 250 bytes
	// each; the rest is read again when it is needed. What one Apply needs, and what Done
	// has not been called for, can exceed it. 0 is 256 Ki, the least is MinRecords.
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
	blocks blockTable
	warmed uint64   // of blocks.warm
	hand   int      // of the clock, over the numbers of blocks
	buried []*block // dead and taken
	ended  []*run   // that no block has any more
	runs   pool[run]
	wides  pool[wide]
	room   struct {
		ends   []uint16
		tokens []uint32
	} // for lists of new runs

	complete bool // what is not in blocks is not in the map
	alone    bool // the map has nothing but perhaps its mark
	marked   bool // it has that
	begun    bool // the meta record has been read
	meta     meta
	form     form
	flipped  uint8 // the layer of the block that is flipped
	agings   [store.NumTiers]aging
	sweep    int // up to which number blocks are still to be looked at after a clear

	dirty          []*block // none while alone: then all that says so is
	taken          uint32   // number of Takes
	done           uint32   // ... that are written
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
	spareShares    pool[share]
	shareHand      int
	shareSweep     int
	sharesComplete bool // what is not in shares is not in the map
	dirtyShares    []*share
	goneShares     []*share // that are nothing, and taken

	absent    map[uint64]struct{} // looked for and not in the map, during Apply
	missing   []uint64
	lastHash  uint64 // of the block that was looked up last
	lastBlock *block // nil for none
	lastNone  bool   // the table does not have lastHash
	lastOwner *block // the one whose run was asked for last
	damaged   bool   // by a test: the map was, so runs need not agree with blocks (mustHold)
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
		config: config, size: config.BlockSize, blocks: blockTable{seed: rand.Uint64()}, absent: map[uint64]struct{}{}, shares: map[blockkey.Key]*share{},
		complete: config.Fresh, alone: config.Fresh && config.Alone, begun: config.Fresh, sharesComplete: config.Fresh, agings: newAgings(),
	}, nil
}

// Stats returns figures.
func (c *Chunker) Stats() Stats {
	s := c.stats
	s.Records = c.blocks.n
	return s
}

// Alone reports whether all that is known of the generation is in this Chunker, and the map
// is of no use.
func (c *Chunker) Alone() bool { return c.alone }

// GoOn is for another owner of a Chunker that is alone, in place of New. Its figures begin
// anew, and the engine's kind is as with Tell.
func (c *Chunker) GoOn(engine string) {
	c.stats = Stats{}
	c.Tell(engine)
}

// Apply takes in the events of one message. Their changes come on top of those that
// Take has not given yet. Func read is used when something of the map is needed
// that is not in memory, and not kept. A Chunker that is Fresh and has room does
// not need it. The error is one of read, wrapped in ErrRead, and means that nothing
// has been taken in.
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
			if c.store(e, told); c.stats.Skipped != before && c.form.Counts(e) && isGPU(e, c.config.Media) {
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
	c.mustHold()
	return nil
}

// op notes that an engine block of the layer that is flipped holds an index block from
// now on, or not any more. Argument shared says that others can hold it too.
func (c *Chunker) op(add bool, tier int, shared bool, key blockkey.Key) {
	switch {
	case !shared && c.form.Layers() <= 1:
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
