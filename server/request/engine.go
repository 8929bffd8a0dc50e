package request

import (
	"bytes"
	"encoding/json"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// Engine is the body of a completion, of a chat completion, or of vLLM's
// and SGLang's /tokenize, as far as it changes the tokens.
type Engine struct {
	Model string `json:"model"`
	// Prompt is a text, texts, tokens, or lists of tokens.
	Prompt json.RawMessage `json:"prompt"`
	prompt.Chat
	// Media is what is known of the images, audio and video of a chat: ours.
	Media            json.RawMessage `json:"mm_items"`
	AddSpecialTokens json.RawMessage `json:"add_special_tokens"`
	Truncate         json.RawMessage `json:"truncate_prompt_tokens"`
	TruncationSide   json.RawMessage `json:"truncation_side"`
	ReturnTokenStrs  bool            `json:"return_token_strs"`

	PreviousResponse json.RawMessage `json:"previous_response_id"`
	Embeds           json.RawMessage `json:"prompt_embeds"`
	// These go before those of the chat: engines take more for true than JSON does.
	Generate json.RawMessage `json:"add_generation_prompt"`
	Continue json.RawMessage `json:"continue_final_message"`

	Served          string // the model that Model means
	Truncation      scorer.Truncation
	NoSpecialTokens bool
}

// Given reports whether a field is there and is not null.
func Given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// From is the field that has the prompt.
func (q *Engine) From() string {
	switch {
	case Given(q.Input):
		return "input"
	case Given(q.Messages):
		return "messages"
	}
	return "prompt"
}

// Prompts are the prompts of a completion.
func (q *Engine) Prompts(limits *Limits) (p Completion, err error) {
	if !Given(q.Prompt) {
		return p, refusal.Invalid("prompt", "prompt is missing")
	}
	s := scan.New("prompt", q.Prompt)
	return readPrompts(s, limits)
}

// Settle reads the fields of which engines take more than JSON does.
func (q *Engine) Settle() error {
	var in Input
	for _, f := range []struct {
		name string
		raw  json.RawMessage
		read func(*scan.Scanner, *Input) error
	}{
		{"truncate_prompt_tokens", q.Truncate, readTruncation}, {"truncation_side", q.TruncationSide, readTruncationSide},
		{"add_special_tokens", q.AddSpecialTokens, readAddSpecialTokens},
		{"add_generation_prompt", q.Generate, readAddGenerationPrompt}, {"continue_final_message", q.Continue, readContinueFinalMessage},
	} {
		if Given(f.raw) {
			if err := f.read(scan.New(f.name, f.raw), &in); err != nil {
				return err
			}
		}
	}
	q.Truncation, q.NoSpecialTokens = in.Truncation, in.NoSpecialTokens
	q.Chat.AddSpecialTokens, q.AddGenerationPrompt, q.ContinueFinalMessage = in.Chat.AddSpecialTokens, in.Chat.AddGenerationPrompt, in.Chat.ContinueFinalMessage
	return nil
}
