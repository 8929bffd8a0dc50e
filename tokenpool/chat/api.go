package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/kvatlas/kvatlas/prompt"
)

// completion makes a chat completion of a request of another API.
func (r *Renderer) completion(ctx context.Context, req prompt.Chat) (prompt.Chat, error) {
	switch spend := newBudget(ctx, r.opts.Limits); req.API {
	case prompt.APIMessages:
		return r.fromMessages(spend, req)
	case prompt.APIResponses:
		return fromResponses(spend, req)
	default:
		return req, nil
	}
}

// APIOf returns the API that a request is of, as far as its fields say. Chats that
// would be rendered alike by both are APIChat; the rest is told by what only
// Anthropic's API has. The JSON of the fields must be valid.
func APIOf(r *prompt.Chat) prompt.API {
	switch {
	case !isNull(r.Input):
		return prompt.APIResponses
	case !isNull(r.System), hasInputSchema(r.Tools), hasBlocks(r.Messages):
		return prompt.APIMessages
	case (!isNull(r.Thinking) || !isNull(r.OutputConfig)) && !isChat(r):
		return prompt.APIMessages
	default:
		return prompt.APIChat
	}
}

// isChat reports whether a request has what only a chat completion has. Thinking does
// not count: it is sent with other requests too, and most engines do not look at it.
func isChat(r *prompt.Chat) bool {
	if r.AddGenerationPrompt != nil || r.ContinueFinalMessage || r.ChatTemplate != "" || r.ReasoningEffort != "" || !isNull(r.Documents) || !isNull(r.Tools) {
		return true // tools of Anthropic's have been seen before
	}
	if first(r.Messages) != '[' {
		return false
	}
	for message := range each(r.Messages) {
		switch string(find(message, "role")) {
		case `"user"`, `"assistant"`, `"system"`:
		default:
			return true
		}
		if find(message, "tool_calls") != nil {
			return true
		}
	}
	return false
}

// hasInputSchema reports whether a tool is one of Anthropic's.
func hasInputSchema(tools json.RawMessage) bool {
	if first(tools) != '[' || !bytes.Contains(tools, []byte(`"input_schema"`)) {
		return false
	}
	for tool := range each(tools) {
		if find(tool, "input_schema") != nil && find(tool, "function") == nil {
			return true
		}
	}
	return false
}

type blockMark struct{ kind, member string }

// blockMarks are the blocks of a message that only Anthropic's API knows: by their type
// alone, or with a member that only it gives them.
var blockMarks = []blockMark{
	{`"tool_use"`, ""}, {`"tool_result"`, ""}, {`"redacted_thinking"`, ""}, {`"tool_addition"`, ""}, {`"tool_removal"`, ""},
	{`"image"`, "source"}, {`"thinking"`, "signature"},
}

// hasBlocks reports whether a message has a content that only Anthropic's API has. It
// makes nothing of what it looks at, which is not limited yet.
func hasBlocks(messages json.RawMessage) bool {
	if first(messages) != '[' {
		return false
	}
	marked := func(raw json.RawMessage) bool {
		return slices.ContainsFunc(blockMarks, func(m blockMark) bool { return bytes.Contains(raw, []byte(m.kind)) })
	}
	if !marked(messages) {
		return false
	}
	for message := range each(messages) {
		content := find(message, "content")
		if first(content) != '[' || !marked(content) {
			continue
		}
		for block := range each(content) {
			kind := find(block, "type")
			for _, m := range blockMarks {
				if string(kind) == m.kind && (m.member == "" || !isNull(find(block, m.member))) {
					return true
				}
			}
		}
	}
	return false
}

// stringOf returns the text of a member, empty if it is no string.
func stringOf(ms []member, key string) string {
	if v := get(ms, key); first(v) == '"' {
		return text(v)
	}
	return ""
}

// isEmpty reports whether a string is empty, or no string.
func isEmpty(raw json.RawMessage) bool {
	return first(raw) != '"' || len(bytes.TrimSpace(raw)) == len(`""`)
}

// textPart is a part of a content.
func textPart(text json.RawMessage) json.RawMessage {
	return encodeObject([]member{{"type", quote("text")}, {"text", text}})
}

// functionTool is a tool in the form in which vLLM's server passes it on.
func functionTool(function []member) json.RawMessage {
	return rebuildTool(encodeObject([]member{{"type", quote("function")}, {"function", encodeObject(function)}}))
}
