package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// anthropicTools converts the tools of a request of the messages API. They are those
// at the end of the conversation, since its messages may have added and removed
// tools.
func anthropicTools(spend *budget, raw json.RawMessage, messages []json.RawMessage) (json.RawMessage, error) {
	given, err := array(spend, raw, "tools")
	if err != nil {
		return nil, err
	}
	tools := make([][]member, len(given))
	for i, t := range given {
		tools[i] = members(t)
		if err := checkTool(fmt.Sprintf("tools[%d]", i), tools[i]); err != nil {
			return nil, err
		}
	}
	changed, some, err := changeTools(tools, messages)
	if err != nil || isNull(raw) && !some {
		return nil, err
	}
	out := make([]json.RawMessage, len(changed))
	for i, t := range changed {
		schema := get(t, "input_schema")
		if ms := members(schema); get(ms, "type") == nil {
			schema = encodeObject(append(ms, member{"type", quote("object")}))
		}
		out[i] = functionTool([]member{
			{"name", get(t, "name")}, {"description", get(t, "description")}, {"parameters", schema},
			{"strict", get(t, "strict")}, {"defer_loading", get(t, "defer_loading")},
		})
	}
	return encodeArray(out), nil
}

func checkTool(where string, tool []member) error {
	switch {
	case first(get(tool, "name")) != '"':
		return bad(where, "name is missing, or not a string")
	case first(get(tool, "input_schema")) != '{':
		return bad(where, "input_schema is missing, or not an object: tools that Anthropic's servers run are not those of engines")
	}
	return nil
}

// changeTools applies the blocks tool_addition and tool_removal of messages, if there
// are any.
func changeTools(tools [][]member, messages []json.RawMessage) (out [][]member, some bool, err error) {
	var order []string
	by := map[string][]member{}
	set := func(name string, tool []member) {
		if by[name] == nil {
			order = append(order, name)
		}
		by[name] = tool
	}
	removed := map[string]bool{}
	for i, m := range messages {
		ms := members(m)
		content := get(ms, "content")
		if first(content) != '[' || !bytes.Contains(content, []byte(`"tool_addition"`)) && !bytes.Contains(content, []byte(`"tool_removal"`)) {
			continue
		}
		for k, b := range elements(content) {
			block := members(b)
			kind := stringOf(block, "type")
			if kind != "tool_addition" && kind != "tool_removal" {
				continue
			}
			if !some {
				some = true
				for _, t := range tools {
					set(stringOf(t, "name"), t)
				}
			}
			name, tool, err := changeOf(fmt.Sprintf("messages[%d].content[%d]", i, k), kind, stringOf(ms, "role"), block, by)
			if err != nil {
				return nil, true, err
			}
			set(name, tool)
			removed[name] = kind == "tool_removal"
		}
	}
	if !some {
		return tools, false, nil
	}
	for _, name := range order {
		if !removed[name] {
			out = append(out, by[name])
		}
	}
	return out, true, nil
}

// changeOf returns the tool that a block changes, as it is then.
func changeOf(where, kind, role string, block []member, by map[string][]member) (name string, tool []member, err error) {
	if role != "system" {
		return "", nil, bad(where, "%s can only stand in a system's message", kind)
	}
	if first(get(block, "tool")) != '{' {
		return "", nil, bad(where, "tool is missing, or not an object")
	}
	change := members(get(block, "tool"))
	switch t := stringOf(change, "type"); {
	case t == "tool_definition" && kind == "tool_addition":
		if first(get(change, "definition")) != '{' {
			return "", nil, bad(where, "definition is missing, or not an object")
		}
		tool = members(get(change, "definition"))
		return stringOf(tool, "name"), tool, checkTool(where, tool)
	case t == "tool_reference":
		name = stringOf(change, "name")
		if by[name] == nil {
			return "", nil, bad(where, "the tool %.100q is not among the tools", name)
		}
		if kind == "tool_removal" {
			return name, by[name], nil
		}
		for _, m := range by[name] { // added: not deferred any more
			if m.key != "defer_loading" {
				tool = append(tool, m)
			}
		}
		return name, tool, nil
	}
	return "", nil, bad(where, "tool is of a type that %s does not take", kind)
}
