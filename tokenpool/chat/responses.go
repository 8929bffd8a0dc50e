package chat

import (
	"encoding/json"
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
)

// This file makes a chat completion of a request of OpenAI's responses API. It does
// what vLLM 0.33 does (vllm/entrypoints/openai/responses/utils.py) for models that it
// does not serve with Harmony.

// fromResponses converts a request of the responses API.
func fromResponses(spend *budget, req prompt.Chat) (prompt.Chat, error) {
	c := &items{spend: spend}
	if req.Instructions != "" {
		c.done = append(c.done, encodeObject([]member{{"role", quote("system")}, {"content", quote(req.Instructions)}}))
	}
	open := false
	switch first(req.Input) {
	case '"':
		if !json.Valid(req.Input) {
			return req, bad("input", "not valid JSON")
		}
		c.next([]member{{"role", quote("user")}, {"content", req.Input}})
	case '[':
		list, err := array(spend, req.Input, "input")
		if err != nil {
			return req, err
		}
		if len(list) == 0 {
			return req, bad("input", "there are no items")
		}
		for i, e := range list {
			if i%checkEvery == checkEvery-1 {
				if err := spend.alive(); err != nil {
					return req, err
				}
			}
			if err := c.item(fmt.Sprintf("input[%d]", i), members(e)); err != nil {
				return req, err
			}
		}
		open = isOpen(members(list[len(list)-1]))
	default:
		return req, bad("input", "neither a string nor an array")
	}
	c.flush()
	tools, err := responsesTools(spend, req.Tools)
	if err != nil {
		return req, err
	}
	reasoning, err := object(spend, req.Reasoning, "reasoning")
	if err != nil {
		return req, err
	}
	return prompt.Chat{
		Messages: encodeArray(c.done), Tools: tools, ChatTemplateKwargs: req.ChatTemplateKwargs,
		ContinueFinalMessage: open, ReasoningEffort: stringOf(reasoning, "effort"), ToolForm: prompt.ToolsAsSent, // they have the form that vLLM gives them
	}, nil
}

// isOpen reports whether an item is a message that is to be continued.
func isOpen(item []member) bool {
	switch stringOf(item, "type") {
	case "message", "reasoning":
	case "":
		if !isNull(get(item, "type")) {
			return false
		}
	default:
		return false
	}
	status := stringOf(item, "status")
	return status == "in_progress" || status == "incomplete"
}

// items are the messages that the items of an input make: one message of an
// assistant may be several items.
type items struct {
	spend *budget
	done  []json.RawMessage
	last  []member          // the message that may still grow; nil means none
	calls []json.RawMessage // of last
}

// next begins a message.
func (c *items) next(message []member) {
	c.flush()
	c.last = message
}

// flush ends the last message.
func (c *items) flush() {
	if c.last == nil {
		return
	}
	if c.calls != nil {
		c.last = put(c.last, "tool_calls", encodeArray(c.calls))
	}
	c.done = append(c.done, encodeObject(c.last))
	c.last, c.calls = nil, nil
}

// assistant adds what an assistant has said to its message, or begins a new one if
// that has something of this name.
func (c *items) assistant(key string, value json.RawMessage) {
	if stringOf(c.last, "role") != "assistant" || !isNull(get(c.last, key)) {
		c.next([]member{{"role", quote("assistant")}})
	}
	c.last = put(c.last, key, value)
}

// call adds a call to the assistant's message.
func (c *items) call(call json.RawMessage) {
	if stringOf(c.last, "role") != "assistant" {
		c.next([]member{{"role", quote("assistant")}})
	}
	if given := get(c.last, "tool_calls"); c.calls == nil && first(given) == '[' {
		c.calls = elements(given)
	}
	c.calls = append(c.calls, call)
}

// item adds one item.
func (c *items) item(where string, ms []member) error {
	kind, role := stringOf(ms, "type"), stringOf(ms, "role")
	switch kind {
	case "function_call":
		return c.functionCall(where, ms)
	case "custom_tool_call":
		input := get(ms, "input")
		if first(input) != '"' {
			input = quote("")
		}
		if isNull(get(ms, "call_id")) || isNull(get(ms, "name")) {
			return bad(where, "call_id or name is missing")
		}
		c.call(functionCall(get(ms, "call_id"), get(ms, "name"), encodeObject([]member{{"input", input}})))
		return nil
	case "function_call_output", "custom_tool_call_output":
		out := []member{{"role", quote("tool")}, {"content", get(ms, "output")}}
		if isNull(get(ms, "output")) {
			out[1].value = json.RawMessage("null")
		}
		if id := get(ms, "call_id"); !isNull(id) {
			out = append(out, member{"tool_call_id", id})
		}
		c.next(out)
		return nil
	case "reasoning":
		return c.reasoning(where, ms)
	}
	switch {
	case role == "" || kind != "" && kind != "message":
		return bad(where, "unsupported type %.50q of an item", kind)
	case role == "assistant":
		return c.said(where, ms)
	}
	c.next(ms)
	return nil
}

func (c *items) functionCall(where string, ms []member) error {
	name, arguments := get(ms, "name"), get(ms, "arguments")
	if first(name) != '"' || first(arguments) != '"' || first(get(ms, "call_id")) != '"' {
		return bad(where, "call_id, name or arguments are missing, or not strings")
	}
	if space := get(ms, "namespace"); !isEmpty(space) {
		name = inNamespace(space, name)
	}
	c.call(functionCall(get(ms, "call_id"), name, arguments))
	return nil
}

// functionCall is a call of a tool.
func functionCall(id, name, arguments json.RawMessage) json.RawMessage {
	function := encodeObject([]member{{"name", name}, {"arguments", arguments}})
	return encodeObject([]member{{"id", id}, {"function", function}, {"type", quote("function")}})
}

func inNamespace(space, name json.RawMessage) json.RawMessage {
	return joinTexts([]json.RawMessage{space, name}, "__")
}

// reasoning adds what an assistant has thought: the first text of its content, or else
// of its summary.
func (c *items) reasoning(where string, ms []member) error {
	if !isEmpty(get(ms, "encrypted_content")) {
		return bad(where, "encrypted content cannot be read here, nor by vLLM")
	}
	said := quote("")
	for _, key := range []string{"content", "summary"} {
		list := get(ms, key)
		if first(list) != '[' {
			continue
		}
		parts, err := c.spend.list(where+"."+key, list)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			continue
		}
		t, ok := textOf(parts[0])
		if !ok {
			return bad(where+"."+key, "the first part has no text")
		}
		said = t
		break
	}
	c.assistant("reasoning", said)
	return nil
}

// said adds what an assistant has said, of which vLLM takes the first part.
func (c *items) said(where string, ms []member) error {
	content := get(ms, "content")
	switch first(content) {
	case '"':
		c.assistant("content", content)
		return nil
	case '[':
		parts, err := c.spend.list(where+".content", content)
		if err != nil {
			return err
		}
		if len(parts) > 0 {
			if t, ok := textOf(parts[0]); ok {
				c.assistant("content", t)
				return nil
			}
		}
		return bad(where+".content", "the first part of an assistant's message has no text")
	}
	return bad(where+".content", "neither a string nor an array")
}

// textOf returns the text of a part.
func textOf(part json.RawMessage) (json.RawMessage, bool) {
	if first(part) != '{' {
		return nil, false
	}
	t := get(members(part), "text")
	return t, first(t) == '"'
}

// customParameters are those of the function in whose form a custom tool, which takes
// a text, is shown to the model.
const customParameters = `{"type":"object","properties":{"input":{"type":"string","description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}`

// responsesTools converts tools. Those that are no functions are left out; nil is for
// a request that has none at all.
func responsesTools(spend *budget, raw json.RawMessage) (json.RawMessage, error) {
	given, err := array(spend, raw, "tools")
	if err != nil || len(given) == 0 {
		return nil, err
	}
	var out []json.RawMessage
	for i, t := range given {
		where, ms := fmt.Sprintf("tools[%d]", i), members(t)
		switch stringOf(ms, "type") {
		case "function":
			out = append(out, functionTool(ms))
		case "custom":
			if format := get(ms, "format"); first(format) == '{' && stringOf(members(format), "type") == "grammar" {
				return nil, bad(where, "custom tools with a grammar are not supported, nor by vLLM")
			}
			out = append(out, functionTool([]member{
				{"name", get(ms, "name")}, {"description", get(ms, "description")}, {"parameters", json.RawMessage(customParameters)},
			}))
		case "namespace":
			list := get(ms, "tools")
			if first(list) != '[' || first(get(ms, "name")) != '"' {
				return nil, bad(where, "a namespace has a name and tools")
			}
			inner, err := spend.list(where+".tools", list)
			if err != nil {
				return nil, err
			}
			for k, e := range inner {
				if first(e) != '{' {
					return nil, bad(fmt.Sprintf("%s.tools[%d]", where, k), "not an object")
				}
				tool := members(e)
				if stringOf(tool, "type") != "function" {
					continue
				}
				if first(get(tool, "name")) != '"' {
					return nil, bad(fmt.Sprintf("%s.tools[%d]", where, k), "name is missing, or not a string")
				}
				out = append(out, functionTool(put(tool, "name", inNamespace(get(ms, "name"), get(tool, "name")))))
			}
		}
	}
	return encodeArray(out), nil
}
