package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// TokenizeRequest asks for the tokens of a text, or of a chat.
type TokenizeRequest struct {
	// Model chooses the tokenizer. Required, unless Body has it.
	Model string
	// Body is a request to an engine, as in ScoreRequest.
	Body json.RawMessage
	// Prompt is the text, if Body and Chat are nil.
	Prompt string
	// Chat is the chat, if Body is nil.
	Chat *Chat
	// AddSpecialTokens says whether to put the tokenizer's special tokens around
	// the text. If nil, they are put around a text and not around a chat, whose
	// template has put some.
	AddSpecialTokens *bool
}

// TokenizeResponse are the tokens.
type TokenizeResponse struct {
	// Tokens are the token ids.
	Tokens []uint32 `json:"tokens"`
	// Count is their number.
	Count int `json:"count"`
	// Exact is false when they are those of a part of the text.
	Exact bool `json:"exact"`
	// Source is tokenizer, prefix_store, or tokens for a Body that has them itself.
	Source string `json:"source"`
}

// MarshalJSON writes the body of POST /v1/tokenize.
func (r TokenizeRequest) MarshalJSON() ([]byte, error) {
	if err := checkTexts(append(r.Chat.texts(), "model", r.Model, "prompt", r.Prompt, "body", string(r.Body))...); err != nil {
		return nil, err
	}
	w := struct {
		Model string `json:"model,omitempty"`
		promptForm
		AddSpecialTokens *bool `json:"add_special_tokens,omitempty"`
	}{Model: r.Model, AddSpecialTokens: r.AddSpecialTokens}
	if r.Body != nil {
		return over(r.Body, w)
	}
	if w.Chat = r.Chat; r.Chat == nil {
		w.Prompt = &r.Prompt
	}
	return json.Marshal(w)
}

// Tokenize returns the tokens of a text or chat.
func (c *Client) Tokenize(ctx context.Context, r TokenizeRequest) (*TokenizeResponse, error) {
	return ask[TokenizeResponse](ctx, c, http.MethodPost, "/v1/tokenize", r)
}
