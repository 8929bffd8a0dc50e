package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// TokenizeRequest asks for the tokens of a text.
type TokenizeRequest struct {
	// Model chooses the tokenizer. Required.
	Model string `json:"model"`
	// Prompt is the text.
	Prompt string `json:"prompt"`
	// AddSpecialTokens says whether to put the tokenizer's special tokens
	// around the text; nil does.
	AddSpecialTokens *bool `json:"add_special_tokens,omitempty"`
}

// TokenizeResponse are the tokens.
type TokenizeResponse struct {
	// Tokens are the token ids.
	Tokens []uint32 `json:"tokens"`
	// Count is their number.
	Count int `json:"count"`
	// Exact is false when they are those of a part of the text.
	Exact bool `json:"exact"`
	// Source is tokenizer or prefix_store.
	Source string `json:"source"`
}

// MarshalJSON writes the body of POST /v1/tokenize.
func (r TokenizeRequest) MarshalJSON() ([]byte, error) {
	if err := checkTexts("model", r.Model, "prompt", r.Prompt); err != nil {
		return nil, err
	}
	type plain TokenizeRequest
	return json.Marshal(plain(r))
}

// Tokenize returns the tokens of a text.
func (c *Client) Tokenize(ctx context.Context, r TokenizeRequest) (*TokenizeResponse, error) {
	out := new(TokenizeResponse)
	if err := c.Call(ctx, http.MethodPost, "/v1/tokenize", r, out); err != nil {
		return nil, err
	}
	return out, nil
}
