// Package rechunk turns what an engine says of its blocks into what the index
// knows: index blocks that are held or not.
//
// An engine's blocks have a size of their own, 1 to [MaxEngineBlock] tokens, and
// are named by its own hashes. The index has blocks of one size for a model, named
// by block keys. A [Chunker] follows one generation of one (pod, rank): it takes
// its events in order and says which keys to add and to remove.
//
// # What is held
//
// An index block is held in a tier when every engine block that has a token of it
// is held in that tier. When one of them goes the index block goes. When it comes
// back, so does the index block, and nothing has to be said of the others again.
// An index block whose parts are in different tiers is held in neither. It loses
// up to a block's length of credit at the place where a chain changes tiers. But a
// clear of one tier never has to touch another.
//
// An engine block is held in a tier while there are copies of it. Copies are
// counted for each (hash, tier, group): engines tell of two physical blocks with
// one content by two events, and of each one's end. [Copies] says what counts as
// another copy. Where the stream leaves that open the copy is doubtful: so many may be
// there beside those that are certain. Only groups of full attention count: a window or
// a recurrent state says nothing about a prefix.
//
// # Groups
//
// What a stream has shown of the engine's groups (package groups) is part of the generation's
// state. Each group of full attention that has stored in a tier must have a block there, as
// the engine's own lookup demands. So a removal from one ends it.
//
// Groups with blocks of one size share a record, in which a slot is the copies of one group
// in one tier. Groups with blocks of another size are another layer, with records of its own.
// For vLLM names a larger block by the hash of its last small one. With more than one layer
// an index block is held where each layer holds it.
//
// A group that turns up in a tier later ends what the tier holds, as a clear does: without
// the group it says too much. The same goes for a group that turns out to be of another kind
// or block size.
//
// # What has no place
//
// A block's place is its parent's end. A block whose parent is held nowhere, was
// never announced, or has no place itself has none. It is counted with the reason,
// left out, and never tried again; so are its descendants. The same goes for
// blocks whose tokens are not told, unless their hash is known from another tier.
// It also goes for blocks into which something went that cannot be part of a key.
//
// Blocks without tokens stand for themselves: the order in which an event has them says
// nothing. A hash that another tier knows is the known block. That holds also where the
// event leaves out the salt, the adapter or the images that went into it.
//
// Engines whose hashes are not chained (SGLang before 0.5.6) give two places one
// hash. When a hash that is held is announced at another place, it is open which of
// them a removal means. The hash is Ambiguous from then on until all of its copies
// are gone. Nothing is credited for it meanwhile, and its children have no place.
//
// # State
//
// Everything that is needed to go on is in the generation's map (docs/redis-schema.md
// has its form). A Chunker that begins with nothing on a generation under way does
// what one does that has seen all of it. Entries are absolute values. The Chunker
// keeps what it has seen in memory, up to a limit. It reads the rest by the func that
// Apply is given, a few calls for all of a message.
//
// A Chunker does no I/O of its own, knows no clock, and is a deterministic function
// of the events. It belongs to one goroutine.
package rechunk
