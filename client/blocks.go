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
	Op string `json:"op"`
	// Model is the model's name. Required.
	Model string `json:"model"`
	// Pod is the pod's name; one that is not registered is registered by an
	// add. Required.
	Pod string `json:"pod"`
	// Rank is the data-parallel rank: nil is rank 0, and every rank for
	// OpClear.
	Rank *int `json:"rank,omitempty"`
	// Tier is gpu, cpu, disk or shared. Empty is gpu for OpAdd and every tier
	// otherwise.
	Tier string `json:"tier,omitempty"`
	// LoRA and CacheSalt are the adapter's name and the cache salt.
	LoRA      string `json:"lora,omitempty"`
	CacheSalt string `json:"cache_salt,omitempty"`
	// Tokens are the tokens of a chain from its start; each full index block
	// of them is meant. BlockKeys, when not nil, are the blocks themselves,
	// 16 hex digits each. OpClear takes neither.
	Tokens    []uint32 `json:"-"`
	BlockKeys []string `json:"block_keys,omitzero"`
}

// MarshalJSON writes the body of POST /v1/blocks.
func (r BlocksRequest) MarshalJSON() ([]byte, error) {
	if err := checkTexts("model", r.Model, "pod", r.Pod, "lora", r.LoRA, "cache_salt", r.CacheSalt); err != nil {
		return nil, err
	}
	type plain BlocksRequest
	w := struct {
		plain
		TokensB64 *packed `json:"tokens_b64,omitempty"`
	}{plain: plain(r)}
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
