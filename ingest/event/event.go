package event

import "fmt"

// Hash names a block as its engine does. It is the 64-bit number on the wire, signed
// ones as two's complement. Of a hash that is sent as bytes it is the last eight, big
// endian: vLLM itself cuts a digest to that.
type Hash uint64

// Kind is what an event tells.
type Kind uint8

// The kinds of Event.
const (
	// Stored tells that blocks are in the cache from now on.
	Stored Kind = iota + 1
	// Removed tells that one copy of each block is gone.
	Removed
	// Cleared tells that the cache is empty.
	Cleared
	// NumKinds is one more than the highest Kind.
	NumKinds = iota + 1
)

var kindNames = [...]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}

// String returns vLLM's name of the kind.
func (k Kind) String() string {
	if k >= Stored && k <= Cleared {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Event is one event. Its slices are valid until the Batch that it stands in is
// decoded into again.
type Event struct {
	Kind Kind
	// Hashes are the blocks, of Stored in order, each the child of the one before.
	Hashes []Hash
	// Parent is the block before the first, if HasParent.
	Parent    Hash
	HasParent bool
	// Tokens are the tokens of all blocks of a Stored. They name blocks only when
	// len(Tokens) is len(Hashes)*BlockSize: engines also announce blocks without
	// their tokens, and blocks at places that are not told. With Bigram a block's
	// tokens are pairs, and Tokens has len(Hashes)*BlockSize+1: the first of each
	// pair and the last of the last.
	Tokens []uint32
	Bigram bool
	// BlockSize is the engine's block size in tokens; 0 where the engine keeps it
	// to itself.
	BlockSize int
	// Lookahead are the tokens behind each block that went into its hash beside its own
	// (EAGLE and MTP with vLLM). There are as many for each block; empty for none. They
	// explain a hash and are no part of the block.
	Lookahead []uint32
	// Medium is where the blocks are in the engine's own word, "" where it has
	// none. Media maps it to a tier.
	Medium string
	// Locality is "LOCAL" or "REMOTE" where the engine tells which of these its
	// medium is, else "".
	Locality string
	// Group is the engine's cache group, 0 where it has but one. HasGroup says that the
	// event tells it.
	Group    int
	HasGroup bool
	// Spec is the kind of cache of the group ("full_attention", "sliding_window",
	// ...), SpecWidest, or "" where the engine does not tell.
	Spec string
	// SlidingWindow is the group's window in tokens, 0 if it has none or if the
	// engine does not tell.
	SlidingWindow int
	// Positional says that the event is an array, as of vLLM before 0.24.
	Positional bool
	// LoRA is the name of the adapter, "" for the base model. LoRAID is the number
	// that old engines send instead, 0 for none.
	LoRA   string
	LoRAID int64
	// Salt is the cache salt, "" for none.
	Salt string
	// Extra are what else went into each block's hash; nil, or one for each block.
	Extra []Extra
}

// SpecWidest is the Spec of events of an engine that tells each group's window, and not
// which group holds whole prefixes. That is the one of the widest window (TensorRT-LLM).
// A Cleared of this Spec says that the engine begins anew, and a Stored without hashes
// that there is a group of its window.
const SpecWidest = "widest_window"

// Batch is what an engine sends in one message.
type Batch struct {
	// Time is when the engine sent it, in seconds since 1970 by the engine's clock.
	Time float64
	// Rank is the data-parallel rank, if HasRank.
	Rank    int
	HasRank bool
	Events  []Event
	// Skipped counts events that could not be understood and are not in Events.
	Skipped int
	// Skips say for each of them which it was and why.
	Skips []Skip

	arena arena
}

// Skip is an event that is left out of its batch.
type Skip struct {
	// Index is its place among the events of the message, from 0.
	Index int
	// Reason is why, and Field the field at fault where it is one.
	Reason Reason
	Field  string
}

// Extra is what went into one block's hash beside its tokens, as far as the event
// tells. It has multimodal objects by their ids, each with the token of the block at
// which it begins (0 where the engine does not tell).
type Extra struct {
	Objects []Object
}

// Object is one multimodal object in a block.
type Object struct {
	// ID is the engine's identifier, "" where it sends a number instead.
	ID string
	// Hash is what goes into block keys: blockkey.ObjectHash of ID, or the number.
	Hash uint64
	// Offset is the token of the block at which the object begins, below 0 when it
	// began in a block before.
	Offset int
}
