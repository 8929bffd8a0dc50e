package rechunk

// Reason is why a block was not indexed.
type Reason uint8

// The reasons.
const (
	// NoParent: the parent is held nowhere, or has no place itself.
	NoParent Reason = iota
	// NoTokens: the event has no tokens and the hash is not known.
	NoTokens
	// Masked: the event's tokens are not those of its blocks, as with blocks at
	// places that are not told.
	Masked
	// NoPrefix: the group says nothing about a prefix. It is one of a sliding window, of
	// a recurrent state or of a kind that is not known.
	NoPrefix
	// UnknownMedium: the medium's tier is not known.
	UnknownMedium
	// UnnamedLoRA: the adapter has a number and no name.
	UnnamedLoRA
	// Unplaced: an object went into the block of which it cannot be told which index
	// blocks it reaches into, or that has no identity.
	Unplaced
	// Ambiguous: the hash names two places.
	Ambiguous
	// Partial: the block has fewer tokens than the engine's blocks have; the engine goes
	// on filling it under another hash.
	Partial
	// OverLimit: the block is larger than MaxEngineBlock, or is in more groups than
	// can be counted.
	OverLimit
	// NumReasons is the number of reasons.
	NumReasons = iota
)

var reasonNames = [NumReasons]string{
	"no_parent", "no_tokens", "masked", "no_prefix", "unknown_medium", "unnamed_lora", "unplaced", "ambiguous", "partial", "over_limit",
}

// String returns the reason in words that are joined by underscores, fit for the
// label of a metric.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Stats are figures of a Chunker since it was made.
type Stats struct {
	// Stored and Removed count blocks that Stored and Removed events named, Cleared
	// the events.
	Stored, Removed, Cleared uint64
	// Skipped counts blocks of Stored events that were not indexed, by reason.
	Skipped [NumReasons]uint64
	// Copies counts further copies of blocks, Reports blocks that were told again
	// without being one.
	Copies, Reports uint64
	// Conflicts counts hashes that turned Ambiguous. If it grows without end the
	// engine's hashes are not chained.
	Conflicts uint64
	// Voided counts tiers that were taken for cleared because the stream has shown
	// something new of the engine's groups. What was held said too much then.
	Voided uint64
	// UnknownRemoved counts removals of blocks of which nothing is held; they have no
	// effect. Blocks that were Skipped are among them.
	UnknownRemoved uint64
	// Expired counts copies that were taken for removed, since the engine does not tell
	// (Config.Unremoved).
	Expired uint64
	// IndexAdded and IndexRemoved count changes of index blocks before they are
	// folded, clears aside.
	IndexAdded, IndexRemoved uint64
	// Reads counts calls of the Reader, KeysRead the keys.
	Reads, KeysRead uint64
	// Garbled counts stored records that could not be read and were taken for
	// missing.
	Garbled uint64
	// Records is the number of engine blocks in memory now.
	Records int
}
