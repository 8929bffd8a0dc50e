package client

import (
	"context"
	"net/http"
	"net/url"
)

// Model is how a model is indexed.
type Model struct {
	// Name is the model's name as requests give it.
	Name string `json:"name"`
	// BlockSize is the index block size in tokens.
	BlockSize int `json:"block_size"`
	// Scheme is the scheme of the block keys: "native".
	Scheme string `json:"scheme"`
	// Unregistered says that values that name pods by their addresses count for unregistered pods too.
	Unregistered bool `json:"unregistered,omitempty"`
}

// Models returns the indexed models by name.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var out struct {
		Models []Model `json:"models"`
	}
	err := c.Call(ctx, http.MethodGet, "/v1/models", nil, &out)
	return out.Models, err
}

// SetUnregistered sets whether unregistered pods count for a model. A model
// that is not indexed yet gets the server's block size. The index in memory has no such
// values: an *Error with status 501.
func (c *Client) SetUnregistered(ctx context.Context, model string, on bool) (*Model, error) {
	return ask[Model](ctx, c, http.MethodPut, "/v1/models/"+url.PathEscape(model), map[string]bool{"unregistered": on})
}
