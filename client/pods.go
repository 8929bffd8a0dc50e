package client

import (
	"context"
	"net/http"
	"net/url"
)

// Pod is the registration of an engine replica.
type Pod struct {
	// Name names the pod, by default its address host:port. Required.
	Name string `json:"name"`
	// Model is the model that it serves. Required.
	Model string `json:"model"`
	// Aliases are other names that requests have for the model, Adapters the names of LoRA
	// adapters of it.
	Aliases  []string `json:"aliases,omitempty"`
	Adapters []string `json:"adapters,omitempty"`
	// Address is where the engine serves requests, when Name is not that.
	Address string `json:"address,omitempty"`
	// Role is "", "prefill", "decode" or "both".
	Role string `json:"role,omitempty"`
	// Ranks is the number of data-parallel ranks; 0 means 1.
	Ranks int `json:"ranks,omitempty"`
	// Engine is the engine's kind: vllm, sglang, trtllm or another word.
	Engine string `json:"engine,omitempty"`
	// Events and Replay are ZMQ endpoints of rank 0, as tcp://host:port. The server
	// refuses those that cannot be read.
	Events string `json:"events,omitempty"`
	Replay string `json:"replay,omitempty"`
	// BlockSize is the engine's own block size in tokens; 0 means not known.
	BlockSize int `json:"block_size,omitempty"`
	// KVTokens is how many tokens the cache of a rank has room for; 0 means not known.
	KVTokens int `json:"kv_tokens,omitempty"`
	// Approximate says that no events tell what the pod holds: routers take what they have sent
	// there for held, for a time.
	Approximate bool `json:"approximate,omitempty"`
	// Labels are free words to choose pods by.
	Labels map[string]string `json:"labels,omitempty"`
	// PartOf makes this a cache worker beside an engine. A worker serves no requests and is
	// never scored itself; what it holds counts for the pod that it is part of.
	PartOf *PartOf `json:"part_of,omitempty"`
	// Beside makes this the registration of a further model of the pod, with generations,
	// streams and a lease of its own. Without it another model takes the place of the one
	// before.
	Beside bool `json:"beside,omitempty"`
	// LeaseSeconds is how long the registration lives without renewal; 0 means
	// until it is deleted.
	LeaseSeconds float64 `json:"lease_s,omitempty"`
}

// PartOf says which rank of which pod a cache worker works for. The rank has a chunk
// when all Workers of them have it.
type PartOf struct {
	// Pod is the name of the pod, Rank the data-parallel rank in it.
	Pod  string `json:"pod"`
	Rank int    `json:"rank,omitempty"`
	// Worker is the number of this worker, from 0, of Workers.
	Worker  int `json:"worker,omitempty"`
	Workers int `json:"workers"`
}

// RegisterPod registers a pod, or renews its registration and replaces what is
// known of it. The blocks that it holds are kept.
func (c *Client) RegisterPod(ctx context.Context, p Pod) error {
	return c.Call(ctx, http.MethodPost, "/v1/pods", p, nil)
}

// Pods returns the live pods by name.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	var out struct {
		Pods []Pod `json:"pods"`
	}
	err := c.Call(ctx, http.MethodGet, "/v1/pods", nil, &out)
	return out.Pods, err
}

// Pod returns one live pod. A pod that is not known is an *Error with status
// 404.
func (c *Client) Pod(ctx context.Context, name string) (*Pod, error) {
	return ask[Pod](ctx, c, http.MethodGet, "/v1/pods/"+url.PathEscape(name), nil)
}

// DeletePod removes a pod; its blocks are not credited any more. A pod that is
// not known is an *Error with status 404.
func (c *Client) DeletePod(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, "/v1/pods/"+url.PathEscape(name), nil, nil)
}
