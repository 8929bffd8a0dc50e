package client

import (
	"context"
	"net/http"
)

// Health is what a server says of itself.
type Health struct {
	// Version is the server's version, Backend its index: memory or redis.
	Version string `json:"version"`
	Backend string `json:"backend"`
}

// Health returns what the server says of itself. It fails only when nothing
// answers.
func (c *Client) Health(ctx context.Context) (*Health, error) {
	return ask[Health](ctx, c, http.MethodGet, "/healthz", nil)
}

// Ready returns nil when the server wants requests, and an *Error with status
// 503 and the reason when it does not.
func (c *Client) Ready(ctx context.Context) error {
	return c.Call(ctx, http.MethodGet, "/readyz", nil, nil)
}
