package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// The operations of BlocksRequest.
const (
	// OpAdd makes the pod a holder of the blocks.
	OpAdd = "add"
	// OpRemove ends that.
	OpRemove = "remove"
	// OpClear ends it for all blocks of the pod, of all models.
	OpClear = "clear"
)

// BlocksRequest says what changed in what a pod holds.
type BlocksRequest struct {
	// Op is OpAdd, OpRemove or OpClear.
	Op string
	// Model is the model's name. Required.
	Model string
	// Pod is the pod's name; one that is not registered is registered by an
	// add. Required.
	Pod string
	// Rank is the data-parallel rank: nil is rank 0, and every rank for
	// OpClear.
	Rank *int
	// Tier is gpu, cpu, disk or shared. Empty is gpu for OpAdd and every tier
	// otherwise.
	Tier string
	// LoRA and CacheSalt are the adapter's name and the cache salt.
	LoRA, CacheSalt string
	// Tokens are the tokens of a chain from its start; each full index block
	// of them is meant. BlockKeys, when not nil, are the blocks themselves,
	// 16 hex digits each. OpClear takes neither.
	Tokens    []uint32
	BlockKeys []string
}

// MarshalJSON writes the body of POST /v1/blocks.
func (r BlocksRequest) MarshalJSON() ([]byte, error) {
	if err := checkTexts("model", r.Model, "pod", r.Pod, "lora", r.LoRA, "cache_salt", r.CacheSalt); err != nil {
		return nil, err
	}
	w := struct {
		Op        string   `json:"op"`
		Model     string   `json:"model"`
		Pod       string   `json:"pod"`
		Rank      *int     `json:"rank,omitempty"`
		Tier      string   `json:"tier,omitempty"`
		LoRA      string   `json:"lora,omitempty"`
		CacheSalt string   `json:"cache_salt,omitempty"`
		TokensB64 *packed  `json:"tokens_b64,omitempty"`
		BlockKeys []string `json:"block_keys,omitzero"`
	}{Op: r.Op, Model: r.Model, Pod: r.Pod, Rank: r.Rank, Tier: r.Tier, LoRA: r.LoRA, CacheSalt: r.CacheSalt, BlockKeys: r.BlockKeys}
	if r.Tokens != nil {
		w.TokensB64 = (*packed)(&r.Tokens)
	}
	return json.Marshal(w)
}

// Blocks applies one change and returns the number of blocks it was about.
func (c *Client) Blocks(ctx context.Context, r BlocksRequest) (int, error) {
	var out struct {
		Blocks int `json:"blocks"`
	}
	err := c.Call(ctx, http.MethodPost, "/v1/blocks", r, &out)
	return out.Blocks, err
}
