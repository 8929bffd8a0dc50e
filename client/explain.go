package client

// Explanation shows how a score came about.
type Explanation struct {
	// Blocks are the leading blocks in order.
	Blocks []BlockHolders `json:"blocks"`
	// LeftOut is how many blocks of the prompt are not in Blocks, as an explanation has a
	// limit.
	LeftOut int `json:"left_out,omitempty"`
	// BlockKeys are the keys of all blocks of the prompt, 16 hex digits each.
	BlockKeys []string `json:"block_keys"`
	// StagesUS are the times of the server's stages (tokenize, hash, lookup,
	// rank) in microseconds.
	StagesUS map[string]float64 `json:"stages_us"`
}

// BlockHolders is one block and its holders.
type BlockHolders struct {
	// Key is the block key, 16 hex digits.
	Key     string   `json:"key"`
	Holders []Holder `json:"holders"`
}

// Holder is one holder of a block.
type Holder struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	Tier string `json:"tier"`
	// Kind is empty, or "window" where the engine's window groups hold their part of the
	// block.
	Kind string `json:"kind,omitempty"`
}
