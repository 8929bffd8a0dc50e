package client

import "encoding/json"

// Chat is the part of a chat completion that makes the prompt. The server renders
// it with the model's template. The JSON is sent as it is, but for spaces: key
// order and the form of numbers count.
type Chat struct {
	// Messages is the array of messages. Required.
	Messages json.RawMessage `json:"messages"`
	// Tools and Documents are arrays; nil means none, which an empty one is not.
	Tools     json.RawMessage `json:"tools,omitempty"`
	Documents json.RawMessage `json:"documents,omitempty"`
	// AddGenerationPrompt says whether the prompt ends with the beginning of an
	// assistant's message; nil does, unless ContinueFinalMessage.
	AddGenerationPrompt *bool `json:"add_generation_prompt,omitempty"`
	// ContinueFinalMessage leaves the last message open.
	ContinueFinalMessage bool `json:"continue_final_message,omitempty"`
	// ChatTemplate is a template in place of the model's, or the name of one of
	// the model's.
	ChatTemplate string `json:"chat_template,omitempty"`
	// ChatTemplateKwargs is an object of further variables for the template.
	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
	// ReasoningEffort is given to the template.
	ReasoningEffort string `json:"reasoning_effort,omitempty"`
}

// texts are the texts that must be UTF-8, by their names.
func (c *Chat) texts() []string {
	if c == nil {
		return nil
	}
	return []string{
		"messages", string(c.Messages), "tools", string(c.Tools), "documents", string(c.Documents),
		"chat_template", c.ChatTemplate, "chat_template_kwargs", string(c.ChatTemplateKwargs), "reasoning_effort", c.ReasoningEffort,
	}
}
