package prompt

import (
	"bytes"
	"encoding/json"
)

// Chat is what a chat completion says about its prompt. Its fields are those
// of the same names in OpenAI's and vLLM's requests; the order of keys in the
// JSON matters and is kept. Missing and null are the same.
type Chat struct {
	// Messages is an array of one or more messages. Required.
	Messages json.RawMessage `json:"messages"`
	// Tools is an array of tools, {"type":"function","function":{...}}. An empty
	// array is not the same as none.
	Tools json.RawMessage `json:"tools,omitempty"`
	// Documents is an array of objects, for templates that know documents.
	Documents json.RawMessage `json:"documents,omitempty"`
	// AddGenerationPrompt says whether the text ends with the beginning of an
	// assistant's message. Default true, and false with ContinueFinalMessage.
	AddGenerationPrompt *bool `json:"add_generation_prompt,omitempty"`
	// ContinueFinalMessage leaves the last message open, to be continued.
	ContinueFinalMessage bool `json:"continue_final_message,omitempty"`
	// ChatTemplate is a template to use in place of the model's, or the name of
	// one of the model's.
	ChatTemplate string `json:"chat_template,omitempty"`
	// ChatTemplateKwargs is an object of further variables for the template,
	// for example {"enable_thinking":false}.
	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
	// ReasoningEffort is given to the template as reasoning_effort, and as
	// enable_thinking (false for "none") if the kwargs say nothing of that.
	ReasoningEffort string `json:"reasoning_effort,omitempty"`
	// AddSpecialTokens has the tokenizer put its special tokens around the text,
	// beside those of the template. Rendering does not look at it. Default true for
	// APIResponses, as in vLLM, and false for the others.
	AddSpecialTokens *bool `json:"add_special_tokens,omitempty"`

	// API is the one whose request this is. The fields below belong to the others
	// than chat completions.
	API API `json:"-"`
	// System is a string or an array of blocks, Thinking and OutputConfig are
	// objects: APIMessages.
	System       json.RawMessage `json:"system,omitempty"`
	Thinking     json.RawMessage `json:"thinking,omitempty"`
	OutputConfig json.RawMessage `json:"output_config,omitempty"`
	// Input is a string or an array of items, in the place of Messages; Instructions
	// stand before it, and Reasoning is an object: APIResponses.
	Input        json.RawMessage `json:"input,omitempty"`
	Instructions string          `json:"instructions,omitempty"`
	Reasoning    json.RawMessage `json:"reasoning,omitempty"`

	// ToolForm is the form of tools and calls, if the engines of this request have
	// another one than the model's chats have by default. It does not matter to the other APIs.
	ToolForm ToolForm `json:"-"`
}

// ToolForm is the form in which tools and tool calls reach a template.
type ToolForm string

// The forms.
const (
	// ToolsAsSent leaves them as they are in the request.
	ToolsAsSent ToolForm = "sent"
	// ToolsRebuilt has the fields in vLLM's order (in a call: id, function, type; in
	// its function: arguments, name; then all others). Tools have no unknown ones, and
	// null for a missing description or parameters. It shows in templates that write
	// out a whole tool or call.
	ToolsRebuilt ToolForm = "rebuilt"
)

// API names the API of a request.
type API string

// The APIs. Requests of the last two become chat completions before they are
// rendered, as vLLM 0.33 makes them.
const (
	// APIChat is OpenAI's chat completions.
	APIChat API = ""
	// APIMessages is Anthropic's messages.
	APIMessages API = "messages"
	// APIResponses is OpenAI's responses.
	APIResponses API = "responses"
)

// AddsSpecialTokens reports whether the tokenizer puts its special tokens around the
// text.
func (r *Chat) AddsSpecialTokens() bool {
	if r.AddSpecialTokens != nil {
		return *r.AddSpecialTokens
	}
	return r.API == APIResponses
}

// json returns all fields of r that are JSON.
func (r *Chat) json() []*json.RawMessage {
	return []*json.RawMessage{
		&r.Messages, &r.Tools, &r.Documents, &r.ChatTemplateKwargs, &r.System, &r.Thinking, &r.OutputConfig, &r.Input, &r.Reasoning,
	}
}

// Size is the length of what the request holds, in bytes.
func (r *Chat) Size() int {
	n := len(r.ChatTemplate) + len(r.ReasoningEffort) + len(r.Instructions)
	for _, f := range r.json() {
		n += len(*f)
	}
	return n
}

// Clone returns a copy that shares no memory with r.
func (r *Chat) Clone() Chat {
	c := *r
	for _, f := range c.json() {
		*f = bytes.Clone(*f)
	}
	for _, f := range []**bool{&c.AddGenerationPrompt, &c.AddSpecialTokens} {
		if *f != nil {
			*f = new(**f)
		}
	}
	return c
}
