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
// is held in that tier. When one of them goes the index block goes; when it comes
// back, so does the index block, and nothing has to be said of the others again.
// An index block whose parts are in different tiers is held in neither: it loses
// up to a block's length of credit at the place where a chain changes tiers, and a
// clear of one tier never has to touch another.
//
// An engine block is held in a tier while there are copies of it. Copies are
// counted for each (hash, tier, group): engines tell of two physical blocks with
// one content by two events, and of each one's end. [Copies] says what counts as
// another copy. Where several groups of a model have announced a hash in a tier,
// each of them must have it, as the engine's own lookup demands; so a removal from
// one group ends it. Only groups of full attention count: a window or a recurrent
// state says nothing about a prefix.
//
// # What has no place
//
// A block's place is its parent's end. A block whose parent is held nowhere, was
// never announced, or has no place itself has none. It is counted with the reason,
// left out, and never tried again; so are its descendants. The same goes for
// blocks whose tokens are not told, unless their hash is known from another tier,
// and for blocks into which something went that cannot be part of a key.
//
// Engines whose hashes are not chained (SGLang before 0.5.6) give two places one
// hash. When a hash that is held is announced at another place, nobody can tell
// any more which of them a removal means: the hash is Ambiguous from then on until
// all of its copies are gone. Nothing is credited for it meanwhile, and its
// children have no place.
//
// # State
//
// Everything that is needed to go on is in the generation's map (docs/redis-schema.md
// has its form): a Chunker that begins with nothing on a generation that is under way
// does what one does that has seen all of it. Entries are absolute values. The
// Chunker keeps what it has seen in memory, up to a limit, and reads the rest by
// the func that Apply is given, a few calls for all of a message.
//
// A Chunker does no I/O of its own, knows no clock, and is a deterministic function
// of the events. It belongs to one goroutine.
package rechunk
