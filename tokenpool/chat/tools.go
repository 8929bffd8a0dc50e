package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// toolCalls makes objects of the calls' arguments. It returns nil for none.
func (p *preparer) toolCalls(where string, raw json.RawMessage) (json.RawMessage, error) {
	where += ".tool_calls"
	if isNull(raw) {
		return nil, nil
	}
	if first(raw) != '[' {
		return nil, bad(where, "not an array")
	}
	calls, err := p.spend.list(where, raw)
	if err != nil || len(calls) == 0 {
		return nil, err
	}
	for i, call := range calls {
		where := fmt.Sprintf("%s[%d]", where, i)
		if first(call) != '{' {
			return nil, bad(where, "not an object")
		}
		ms := members(call)
		if t := get(ms, "type"); t != nil && (first(t) != '"' || text(t) != "function") {
			return nil, bad(where, "only calls of type function are known")
		}
		if first(get(ms, "function")) != '{' {
			return nil, bad(where, "function is missing, or not an object")
		}
		function := members(get(ms, "function"))
		arguments, err := p.callArguments(where, get(function, "arguments"))
		if err != nil {
			return nil, err
		}
		function = put(function, "arguments", arguments)
		if p.rebuild {
			function = leading(function, "arguments", "name")
			ms = leading(ms, "id", "function", "type")
		}
		ms = put(ms, "function", encodeObject(function))
		calls[i] = encodeObject(ms)
	}
	return encodeArray(calls), nil
}

// argumentsDepth is how deep arguments stand: in function, call, tool_calls,
// message and messages.
const argumentsDepth = 5

// callArguments returns the arguments of a call as an object. Anything else is taken for an empty one, since
// they lie in the history of a conversation, which would never go on otherwise.
func (p *preparer) callArguments(where string, raw json.RawMessage) (json.RawMessage, error) {
	switch first(raw) {
	case '{':
		return raw, nil
	case '"':
		s := text(raw)
		if strings.ContainsRune(s, '\uFFFD') && bytes.Contains(bytes.ToLower(raw), []byte(`\ud`)) {
			return nil, bad(where, "the arguments have half of a surrogate pair")
		}
		if json.Valid([]byte(s)) && first(json.RawMessage(s)) == '{' {
			// They were one string of the request, and are its JSON now.
			return json.RawMessage(s), p.spend.value(where, json.RawMessage(s), argumentsDepth)
		}
	}
	return json.RawMessage("{}"), nil
}

// pick returns the members of these keys, in this order.
func pick(ms []member, keys ...string) []member {
	var out []member
	for _, key := range keys {
		for _, m := range ms {
			if m.key == key {
				out = append(out, m)
			}
		}
	}
	return out
}

// leading returns the members with these keys in front, in this order.
func leading(ms []member, keys ...string) []member {
	out := pick(ms, keys...)
	for _, m := range ms {
		if !slices.Contains(keys, m.key) {
			out = append(out, m)
		}
	}
	return out
}

// rebuildTool gives a tool the form that it has after vLLM has read and written it. That
// has the fields that vLLM knows, in its order, with null for two that are missing. One
// without function, which vLLM refuses, stays as it is.
func rebuildTool(raw json.RawMessage) json.RawMessage {
	given := members(raw)
	if first(get(given, "function")) != '{' {
		return raw
	}
	function := members(get(given, "function"))
	out := pick(function, "name")
	for _, key := range []string{"description", "parameters"} {
		v := get(function, key)
		if isNull(v) {
			v = json.RawMessage("null")
		}
		out = append(out, member{key, v})
	}
	if v := get(function, "strict"); !isNull(v) {
		out = append(out, member{"strict", v})
	}
	deferred := get(given, "defer_loading")
	if v := get(function, "defer_loading"); !isNull(v) {
		out = append(out, member{"defer_loading", v})
	} else if !isNull(deferred) {
		out = append(out, member{"defer_loading", deferred})
	}
	tool := []member{{"type", json.RawMessage(`"function"`)}, {"function", encodeObject(out)}}
	if !isNull(deferred) {
		tool = append(tool, member{"defer_loading", deferred})
	}
	return encodeObject(tool)
}
