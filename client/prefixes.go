package client

// ModelPrefixes are the prefixes that requests of a model were routed with most.
type ModelPrefixes struct {
	// Requests are those of the model that were counted of late: half of them fade in 10 minutes.
	Requests float64 `json:"requests"`
	// BlockSize is the index block size in tokens.
	BlockSize int `json:"block_size"`
	// Prefixes are the prefixes, those first that are asked for most.
	Prefixes []HotPrefix `json:"prefixes"`
	// Degraded says what is missing; nil when nothing is.
	Degraded *Degraded `json:"degraded,omitempty"`
}

// HotPrefix is a prefix that requests are routed with.
type HotPrefix struct {
	// Key is the block key, in hex, that names it. It can be asked for as ScoreRequest.BlockKeys.
	Key string `json:"key"`
	// Blocks is how many index blocks it has, Tokens the same in tokens. It may go on for up to
	// an eighth more.
	Blocks int `json:"blocks"`
	Tokens int `json:"tokens"`
	// Requests are those whose prompts begin so, and Share is their part of all of the model. Missed are
	// those that were sent to a rank which did not hold all of it.
	Requests float64 `json:"requests"`
	Share    float64 `json:"share"`
	Missed   float64 `json:"missed"`
	// Sent are the ranks that got most of them, most first.
	Sent []SentTo `json:"sent"`
	// HeldBy are the ranks that hold all of it; nil where the index did not answer.
	HeldBy []PrefixHolder `json:"held_by,omitzero"`
	// Copies is on how many ranks it should be, and ShouldHold those that should hold it besides,
	// first those that need it most.
	Copies     int     `json:"copies"`
	ShouldHold []Place `json:"should_hold,omitzero"`
}

// SentTo is how many requests went to a rank.
type SentTo struct {
	Place
	Requests float64 `json:"requests"`
}

// PrefixHolder is a rank that holds a prefix.
type PrefixHolder struct {
	Place
	// Tier is the slowest that part of it is in.
	Tier string `json:"tier"`
}
