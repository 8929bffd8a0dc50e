package prompt

// Medium is an image, audio or video of a chat, as far as a caller knows it. One of
// which the number of tokens or the hash is not known ends the tokens before it.
type Medium struct {
	// Kind is "image", "audio" or "video"; empty is whatever the part is.
	Kind string
	// Hash names the content, as the engine does (vLLM's mm_hashes). Empty is the
	// uuid of the part, if it has one: vLLM takes that for the hash.
	Hash string
	// Tokens is how many tokens the processor puts in its place. TokenIDs are these
	// tokens themselves, for models that put other tokens than one again and again,
	// rows with breaks for example. Tokens is not looked at then.
	Tokens   int
	TokenIDs []uint32
}

// PlacedMedium is a medium in its place: Length tokens from Offset on.
type PlacedMedium struct {
	Kind, Hash     string
	Offset, Length int
}
