package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// The kinds of Event.
const (
	// EventStored says that blocks are in the cache from now on.
	EventStored = "BlockStored"
	// EventRemoved says that one copy of each block is gone.
	EventRemoved = "BlockRemoved"
	// EventCleared says that the cache is empty.
	EventCleared = "AllBlocksCleared"
)

// Event is a KV-cache event with vLLM's names.
type Event struct {
	// Type is EventStored, EventRemoved or EventCleared.
	Type string `json:"type"`
	// BlockHashes are the engine's hashes of the blocks, of a store in order.
	BlockHashes []uint64 `json:"block_hashes,omitempty"`
	// ParentBlockHash is the block before the first; nil for the start of a prompt.
	ParentBlockHash *uint64 `json:"parent_block_hash,omitempty"`
	// TokenIDs are the tokens of all blocks of a store, BlockSize a block.
	TokenIDs  []uint32 `json:"token_ids,omitempty"`
	BlockSize int      `json:"block_size,omitempty"`
	// Medium is where the blocks are: "GPU", "CPU", "DISK" or another of the
	// engines' words; "" is the GPU.
	Medium string `json:"medium,omitempty"`
	// LoRAName and CacheSalt are the adapter's name and the cache salt.
	LoRAName  string `json:"lora_name,omitempty"`
	CacheSalt string `json:"cache_salt,omitempty"`
	// Group is the engine's cache group.
	Group int `json:"group_idx,omitempty"`
	// Raw, when it is not nil, is sent as it is in the place of all this: an event as
	// the engine gave it.
	Raw json.RawMessage `json:"-"`
}

// MarshalJSON writes an entry of events.
func (e Event) MarshalJSON() ([]byte, error) {
	if e.Raw != nil {
		return e.Raw, nil
	}
	if err := checkTexts("type", e.Type, "medium", e.Medium, "lora_name", e.LoRAName, "cache_salt", e.CacheSalt); err != nil {
		return nil, err
	}
	type plain Event
	return json.Marshal(plain(e))
}

// EventsRequest is a push of events.
type EventsRequest struct {
	// Pod and Model say whose events they are. Required. A pod that is not
	// registered is registered.
	Pod   string `json:"pod"`
	Model string `json:"model"`
	// Rank is the data-parallel rank of events that name none themselves. With Seq it
	// names the stream of pushes, too.
	Rank int `json:"rank,omitempty"`
	// Engine is the engine's kind; may be empty.
	Engine string `json:"engine,omitempty"`
	// Seq is the number of the push in its stream, from 0. With it each push is applied
	// once, also when it is sent again after an error. A hole begins a new generation of
	// each rank that the stream has events of. If nil, the push is applied as it comes.
	Seq *uint64 `json:"seq,omitempty"`
	// BlockSize is the engine's block size in tokens, for TensorRT-LLM's events in
	// Raw alone.
	BlockSize int `json:"block_size,omitempty"`
	// Events are the events, in order.
	Events []Event `json:"events"`
}

// MarshalJSON writes the body of POST /v1/events.
func (r EventsRequest) MarshalJSON() ([]byte, error) {
	if err := checkTexts("pod", r.Pod, "model", r.Model, "engine", r.Engine); err != nil {
		return nil, err
	}
	if r.Events == nil {
		r.Events = []Event{}
	}
	type plain EventsRequest
	return json.Marshal(plain(r))
}

// EventsReport says what has become of the events of a push.
type EventsReport struct {
	// Applied are those that were applied, Skipped those that could not be
	// understood, are not for an index or had been applied before.
	Applied int `json:"applied"`
	Skipped int `json:"skipped"`
	// Ranks say it of each rank, those too whose generations ended because a push before
	// this one is missing.
	Ranks []EventsRank `json:"ranks"`
	// Skips report the first of those that could not be understood or are not for
	// an index.
	Skips []EventSkip `json:"skips"`
}

// EventsRank is what became of a rank's events.
type EventsRank struct {
	Rank int `json:"rank"`
	// Applied and Skipped are the rank's share of the report's.
	Applied int `json:"applied"`
	Skipped int `json:"skipped"`
	// Duplicate reports whether the push had been applied before.
	Duplicate bool `json:"duplicate"`
	// Began is why a new generation of the rank began: "first", "lost", "restarted" or
	// "ended"; "" when none did. With any but "first" it has lost what it held.
	Began string `json:"began"`
	// SkippedBlocks counts engine blocks that were not indexed, by reason.
	SkippedBlocks map[string]int `json:"skipped_blocks"`
}

// EventSkip is an event that was left out.
type EventSkip struct {
	// Event is its place among the events, from 0.
	Event int `json:"event"`
	// Reason is a word to compare, such as "bad_field"; Field the field at fault.
	Reason string `json:"reason"`
	Field  string `json:"field"`
}

// PushEvents gives the server events of an engine, and returns when the index has
// them.
func (c *Client) PushEvents(ctx context.Context, r EventsRequest) (*EventsReport, error) {
	return ask[EventsReport](ctx, c, http.MethodPost, "/v1/events", r)
}
