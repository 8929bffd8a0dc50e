package chat

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
)

// This file makes a chat completion of a request of Anthropic's messages API, as
// vLLM 0.33 does (vllm/entrypoints/anthropic/serving.py).

// conversion is a chat completion in the making.
type conversion struct {
	spend    *budget
	messages []json.RawMessage
}

// fromMessages converts a request of the messages API.
func (r *Renderer) fromMessages(spend *budget, req prompt.Chat) (prompt.Chat, error) {
	c := &conversion{spend: spend}
	given, err := array(spend, req.Messages, "messages")
	if err != nil {
		return req, err
	}
	if len(given) == 0 {
		return req, bad("messages", "there are none")
	}
	merge := false // systems in the midst go to the front
	for _, m := range given {
		merge = merge || stringOf(members(m), "role") == "system"
	}
	merge = merge && r.systemsFirst()

	systems, err := c.systemTexts("system", req.System)
	if err != nil {
		return req, err
	}
	rest := make([]int, 0, len(given))
	for i, m := range given {
		if ms := members(m); merge && stringOf(ms, "role") == "system" {
			texts, err := c.inlineTexts(i, ms)
			if err != nil {
				return req, err
			}
			systems = append(systems, texts...)
			continue
		}
		rest = append(rest, i)
	}
	if len(systems) > 0 {
		c.add([]member{{"role", quote("system")}, {"content", joinTexts(systems, "")}})
	}
	for n, i := range rest {
		if n%checkEvery == checkEvery-1 {
			if err := spend.alive(); err != nil {
				return req, err
			}
		}
		if err := c.message(i, members(given[i])); err != nil {
			return req, err
		}
	}
	tools, err := anthropicTools(spend, req.Tools, given)
	if err != nil {
		return req, err
	}
	effort, err := r.effort(spend, req)
	if err != nil {
		return req, err
	}
	return prompt.Chat{
		Messages: encodeArray(c.messages), Tools: tools, ChatTemplateKwargs: req.ChatTemplateKwargs,
		ReasoningEffort: effort, ToolForm: prompt.ToolsAsSent, // they have the form that vLLM gives them
	}, nil
}

func (c *conversion) add(message []member) { c.messages = append(c.messages, encodeObject(message)) }

// effort is the effort that a request asks for: of output_config, unless it does not
// want thinking at all.
func (r *Renderer) effort(spend *budget, req prompt.Chat) (string, error) {
	config, err := object(spend, req.OutputConfig, "output_config")
	if err != nil {
		return "", err
	}
	thinking, err := object(spend, req.Thinking, "thinking")
	if err != nil {
		return "", err
	}
	if stringOf(thinking, "type") == "disabled" {
		return r.thinkingOff(), nil
	}
	return stringOf(config, "effort"), nil
}

// systemTexts are the texts of a system prompt, as JSON strings.
func (c *conversion) systemTexts(where string, raw json.RawMessage) ([]json.RawMessage, error) {
	if !isNull(raw) && !json.Valid(raw) {
		return nil, bad(where, "not valid JSON")
	}
	switch first(raw) {
	case 0, 'n':
		return nil, nil
	case '"':
		if isEmpty(raw) {
			return nil, nil
		}
		return []json.RawMessage{bytes.TrimSpace(raw)}, nil
	case '[':
		return c.blockTexts(where, raw)
	}
	return nil, bad(where, "neither a string nor an array")
}

// inlineTexts are the texts of a system's message in the midst.
func (c *conversion) inlineTexts(i int, ms []member) ([]json.RawMessage, error) {
	where := fmt.Sprintf("messages[%d].content", i)
	switch content := get(ms, "content"); first(content) {
	case '"':
		if isEmpty(content) || isBilling(content) {
			return nil, nil
		}
		return []json.RawMessage{content}, nil
	case '[':
		return c.blockTexts(where, content)
	}
	return nil, bad(where, "neither a string nor an array")
}

// blockTexts are the texts of blocks, less those that are about billing.
func (c *conversion) blockTexts(where string, raw json.RawMessage) ([]json.RawMessage, error) {
	blocks, err := c.spend.list(where, raw)
	if err != nil {
		return nil, err
	}
	var out []json.RawMessage
	for i, b := range blocks {
		if first(b) != '{' {
			return nil, bad(fmt.Sprintf("%s[%d]", where, i), "not an object")
		}
		ms := members(b)
		if t := get(ms, "text"); stringOf(ms, "type") == "text" && !isEmpty(t) && !isBilling(t) {
			out = append(out, t)
		}
	}
	return out, nil
}

func isBilling(raw json.RawMessage) bool { return bytes.HasPrefix(raw[1:], []byte(billing)) }

// message converts message i, which may become several: results of tools stand
// before the message of the user that brings them.
func (c *conversion) message(i int, ms []member) error {
	where := fmt.Sprintf("messages[%d]", i)
	role := stringOf(ms, "role")
	switch role {
	case "user", "assistant":
	case "system":
		texts, err := c.inlineTexts(i, ms)
		if err == nil && len(texts) > 0 {
			c.add([]member{{"role", quote(role)}, {"content", joinTexts(texts, "")}})
		}
		return err
	default:
		return bad(where, "role is not one of user, assistant, system")
	}
	out := []member{{"role", quote(role)}}
	switch content := get(ms, "content"); first(content) {
	case '"':
		out = append(out, member{"content", content})
	case '[':
		blocks, err := c.blocks(where+".content", role, content)
		if err != nil {
			return err
		}
		out = append(out, blocks...)
	default:
		return bad(where+".content", "neither a string nor an array")
	}
	if role == "user" && get(out, "content") == nil {
		return nil
	}
	c.add(out)
	return nil
}

// blocks converts the blocks of a message into the members that they make.
func (c *conversion) blocks(where, role string, raw json.RawMessage) (out []member, err error) {
	list, err := c.spend.list(where, raw)
	if err != nil {
		return nil, err
	}
	var parts, calls, reasoning []json.RawMessage
	for i, b := range list {
		where := fmt.Sprintf("%s[%d]", where, i)
		if first(b) != '{' {
			return nil, bad(where, "not an object")
		}
		ms := members(b)
		switch kind := stringOf(ms, "type"); kind {
		case "text":
			if t := get(ms, "text"); !isEmpty(t) {
				parts = append(parts, textPart(t))
			}
		case "image":
			if source := get(ms, "source"); first(source) == '{' {
				parts = append(parts, imagePart(members(source)))
			}
		case "thinking":
			if t := get(ms, "thinking"); first(t) == '"' {
				reasoning = append(reasoning, t)
			}
		case "tool_use":
			arguments := get(ms, "input")
			if first(arguments) != '{' {
				arguments = json.RawMessage("{}")
			}
			calls = append(calls, toolUse(ms, arguments))
		case "tool_result":
			part, err := c.toolResult(where, role, ms)
			if err != nil {
				return nil, err
			}
			if part != nil {
				parts = append(parts, part)
			}
		case "redacted_thinking", "tool_reference": // nothing of the prompt
		default:
			return nil, bad(where, "unknown type %.50q", kind)
		}
	}
	if len(reasoning) > 0 {
		out = append(out, member{"reasoning", joinTexts(reasoning, "")})
	}
	if len(calls) > 0 {
		out = append(out, member{"tool_calls", encodeArray(calls)})
	}
	if len(parts) == 1 && stringOf(members(parts[0]), "type") == "text" {
		return append(out, member{"content", get(members(parts[0]), "text")}), nil
	}
	if len(parts) > 0 {
		out = append(out, member{"content", encodeArray(parts)})
	}
	return out, nil
}

// toolUse is a call. One without id has none: vLLM makes one up from the time.
func toolUse(ms []member, arguments json.RawMessage) json.RawMessage {
	name := get(ms, "name")
	if isEmpty(name) {
		name = quote("")
	}
	var call []member
	if id := get(ms, "id"); !isEmpty(id) {
		call = append(call, member{"id", id})
	}
	function := encodeObject([]member{{"arguments", arguments}, {"name", name}})
	return encodeObject(append(call, member{"function", function}, member{"type", quote("function")}))
}

// imagePart is an image. Its content is the engine's business.
func imagePart(source []member) json.RawMessage {
	url := get(source, "url")
	if stringOf(source, "type") != "url" || first(url) != '"' {
		url = quote("data:")
	}
	return encodeObject([]member{{"type", quote("image_url")}, {"image_url", encodeObject([]member{{"url", url}})}})
}

// toolResult converts the result of a tool: of a user into messages of their own, of
// an assistant into a part.
func (c *conversion) toolResult(where, role string, ms []member) (json.RawMessage, error) {
	content := get(ms, "content")
	if role != "user" {
		if first(content) == '[' && len(elements(content)) > 0 {
			return nil, bad(where, "a result with blocks can only be a user's: vLLM writes out those of others as Python does")
		}
		result := quote("Tool result: ")
		if first(content) == '"' {
			result = joinTexts([]json.RawMessage{result, content}, "")
		}
		return textPart(result), nil
	}
	var texts, images, references []json.RawMessage
	switch first(content) {
	case '"':
		texts = append(texts, content)
	case '[':
		list, err := c.spend.list(where+".content", content)
		if err != nil {
			return nil, err
		}
		for i, e := range list {
			if first(e) != '{' {
				return nil, bad(fmt.Sprintf("%s.content[%d]", where, i), "not an object")
			}
			item := members(e)
			switch stringOf(item, "type") {
			case "text":
				t := get(item, "text")
				if t != nil && first(t) != '"' {
					return nil, bad(fmt.Sprintf("%s.content[%d]", where, i), "text is not a string")
				}
				if t == nil {
					t = quote("")
				}
				texts = append(texts, t)
			case "image":
				var source []member
				if s := get(item, "source"); first(s) == '{' {
					source = members(s)
				}
				images = append(images, imagePart(source))
			case "tool_reference":
				name := get(item, "tool_name")
				if isEmpty(name) {
					name = get(item, "name")
				}
				if !isEmpty(name) {
					references = append(references, encodeObject([]member{{"type", quote("tool_reference")}, {"name", name}}))
				}
			}
		}
	case 0, 'n':
	default:
		return nil, bad(where+".content", "neither a string nor an array")
	}
	id := get(ms, "tool_use_id")
	if first(id) != '"' {
		id = quote("")
	}
	tool := func(content json.RawMessage) {
		c.add([]member{{"role", quote("tool")}, {"tool_call_id", id}, {"content", content}})
	}
	tool(joinTexts(texts, `\n`))
	if len(images) > 0 {
		c.add([]member{{"role", quote("user")}, {"content", encodeArray(images)}})
	}
	if len(references) > 0 {
		tool(encodeArray(references))
	}
	return nil, nil //nolint:nilnil // a result of a user is no part of its message
}
