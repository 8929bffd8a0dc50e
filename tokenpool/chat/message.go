package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Engine names the way in which messages are prepared before the template sees
// them.
type Engine string

// The engines.
const (
	// EngineVLLM prepares messages as vLLM 0.33 does. Contents become strings or
	// lists of parts, whichever the template wants. Arguments of tool calls
	// become objects. Developers become systems for templates that know no
	// developers. Each message keeps only the fields that vLLM knows.
	EngineVLLM Engine = "vllm"
	// EngineTransformers prepares messages as apply_chat_template of
	// transformers 5.24 does, and no more.
	EngineTransformers Engine = "transformers"
)

// preparer prepares the messages of one request.
type preparer struct {
	engine  Engine
	format  Format
	rebuild bool // see ToolsRebuilt
	spend   *budget
	// media are the kinds of the parts that are no text, mediaIDs their uuids.
	media, mediaIDs []string
}

// message prepares message i, all but what depends on other messages.
func (p *preparer) message(i int, raw json.RawMessage) ([]member, error) {
	where := fmt.Sprintf("messages[%d]", i)
	given := members(raw)
	if first(get(given, "role")) != '"' {
		return nil, bad(where, "role is missing, or not a string")
	}
	if p.engine == EngineTransformers {
		if err := p.noteMedia(where+".content", get(given, "content")); err != nil {
			return nil, err
		}
		var out []member
		for _, m := range given {
			if !isNull(m.value) {
				out = append(out, m)
			}
		}
		return aliasReasoning(out), nil
	}

	role := text(get(given, "role"))
	content, err := p.content(where, role, get(given, "content"))
	if err != nil {
		return nil, err
	}
	out := []member{{"role", get(given, "role")}, {"content", content}}
	copyString := func(key string) {
		if v := get(given, key); first(v) == '"' {
			out = append(out, member{key, v})
		}
	}
	switch role {
	case "assistant":
		calls, err := p.toolCalls(where, get(given, "tool_calls"))
		if err != nil {
			return nil, err
		}
		if calls != nil {
			out = append(out, member{"tool_calls", calls})
		}
		// The current name first. "thinking" is not vLLM's, but transformers'.
		for _, key := range []string{"reasoning", "reasoning_content", "thinking"} {
			if r := get(given, key); !isNull(r) {
				out = append(out, member{"reasoning", r}, member{"reasoning_content", r})
				break
			}
		}
	case "tool":
		if id := get(given, "tool_call_id"); !isNull(id) {
			out = append(out, member{"tool_call_id", id})
		}
	}
	copyString("name")
	copyString("task")
	if role == "developer" {
		if tools := get(given, "tools"); !isNull(tools) {
			out = append(out, member{"tools", tools})
		}
	}
	return aliasReasoning(out), nil
}

// aliasReasoning copies the reasoning of a message to the other names that it
// has in templates, as transformers does.
func aliasReasoning(ms []member) []member {
	for _, key := range []string{"reasoning_content", "thinking", "reasoning"} {
		r := get(ms, key)
		if isNull(r) {
			continue
		}
		out := []member{{"thinking", r}}
		for _, m := range ms { // of which no two have the same key
			if m.key == "thinking" {
				out[0].value = m.value
				continue
			}
			out = append(out, m)
		}
		return put(out, "reasoning_content", r)
	}
	return ms
}

// checkEvery is after how many parts the caller's time is looked at.
const checkEvery = 256

// part is one part of a content: a text, or something else.
type part struct {
	text  json.RawMessage // a JSON string; nil if it is no text
	plain bool            // the text has no other type than "text"
	other json.RawMessage // an object
}

// content brings a content into the form that the template wants.
func (p *preparer) content(where, role string, raw json.RawMessage) (json.RawMessage, error) {
	parts, err := p.parts(where+".content", raw)
	if err != nil {
		return nil, err
	}
	if role == "system" {
		parts = dropBilling(parts)
	}
	texts := make([]json.RawMessage, 0, len(parts))
	others := 0
	for _, q := range parts {
		if q.text == nil {
			others++
			continue
		}
		if p.format == FormatOpenAI || len(q.text) > len(`""`) {
			texts = append(texts, q.text)
		}
	}
	// Templates take the results of tools as strings, whatever else they take.
	if p.format != FormatOpenAI || role == "tool" && others == 0 {
		if len(texts) == 1 {
			return texts[0], nil
		}
		return joinTexts(texts, `\n`), nil
	}
	list := make([]json.RawMessage, len(parts))
	for i, q := range parts {
		list[i] = q.other
		if q.text != nil {
			list[i] = encodeObject([]member{{"type", json.RawMessage(`"text"`)}, {"text", q.text}})
		}
	}
	return encodeArray(list), nil
}

// media are the types of parts that are no text, each with the type that a
// template sees. By fields of these names vLLM also knows a part without a type.
var media = []struct{ part, kind string }{
	{"image_url", "image"},
	{"input_image", "image"},
	{"image_embeds", "image"},
	{"image", "image"},
	{"audio_url", "audio"},
	{"input_audio", "audio"},
	{"audio_embeds", "audio"},
	{"audio", "audio"},
	{"video_url", "video"},
	{"video_embeds", "video"},
	{"video", "video"},
}

// texts are the types of parts that are texts, with the field that has it.
var texts = map[string]string{
	"text":        "text",
	"input_text":  "text",
	"output_text": "text",
	"refusal":     "refusal",
	"thinking":    "thinking",
}

// noteMedia writes down what a content has that is no text, as transformers'
// processors find it: by the type of a part.
func (p *preparer) noteMedia(where string, content json.RawMessage) error {
	if first(content) != '[' {
		return nil
	}
	parts, err := p.spend.list(where, content)
	if err != nil {
		return err
	}
	for _, e := range parts {
		if first(e) != '{' {
			continue
		}
		t := get(members(e), "type")
		for _, m := range media {
			if first(t) == '"' && text(t) == m.part {
				p.addMedium(m.kind, members(e))
			}
		}
	}
	return nil
}

// addMedium writes down a part that is no text.
func (p *preparer) addMedium(kind string, ms []member) {
	id := ""
	if v := get(ms, "uuid"); first(v) == '"' {
		id = text(v)
	}
	p.media, p.mediaIDs = append(p.media, kind), append(p.mediaIDs, id)
}

// parts reads a content: a string, an array of parts, or nothing.
func (p *preparer) parts(where string, raw json.RawMessage) ([]part, error) {
	switch first(raw) {
	case 0, 'n':
		return nil, nil
	case '"':
		return []part{{text: raw, plain: true}}, nil
	case '[':
	default:
		return nil, bad(where, "neither a string nor an array")
	}
	list, err := p.spend.list(where, raw)
	if err != nil {
		return nil, err
	}
	var out []part
	for i, e := range list {
		if i%checkEvery == checkEvery-1 {
			if err := p.spend.alive(); err != nil {
				return nil, err
			}
		}
		where := fmt.Sprintf("%s[%d]", where, i)
		switch first(e) {
		case '"':
			out = append(out, part{text: e, plain: true})
			continue
		case '{':
		default:
			return nil, bad(where, "neither a string nor an object")
		}
		ms := members(e)
		kind := ""
		switch t := get(ms, "type"); first(t) {
		case '"':
			kind = text(t)
		case 0, 'n':
			for _, m := range media {
				if get(ms, m.part) != nil {
					kind = m.part
					break
				}
			}
			if kind == "" {
				return nil, bad(where, "type is missing")
			}
		default:
			return nil, bad(where, "type is not a string")
		}
		q, err := p.part(where, kind, ms)
		if err != nil {
			return nil, err
		}
		if q.text != nil || q.other != nil {
			out = append(out, q)
		}
	}
	return out, nil
}

// part reads a part of a known type. It has nothing when it is left out.
func (p *preparer) part(where, kind string, ms []member) (part, error) {
	if field, ok := texts[kind]; ok {
		switch t := get(ms, field); first(t) {
		case '"':
			return part{text: t, plain: kind == "text"}, nil
		case 0, 'n':
			return part{}, nil
		}
		return part{}, bad(where, "%s is not a string", field)
	}
	if kind == "tool_reference" {
		name := get(ms, "name")
		if first(name) != '"' {
			return part{}, bad(where, "name is missing, or not a string")
		}
		if p.format == FormatString {
			return part{text: name}, nil
		}
		return part{other: encodeObject([]member{{"type", quote(kind)}, {"name", name}})}, nil
	}
	for _, m := range media {
		if m.part == kind {
			p.addMedium(m.kind, ms)
			return part{other: encodeObject([]member{{"type", quote(m.kind)}})}, nil
		}
	}
	return part{}, bad(where, "unknown type %.50q", kind)
}

// billing begins a line that one client puts before its system prompts, with a
// number that differs in each request. The line is dropped as vLLM drops it, so
// that prompts have a prefix in common.
const billing = "x-anthropic-billing-header"

func dropBilling(parts []part) []part {
	var out []part
	for _, q := range parts {
		if !q.plain || !bytes.HasPrefix(q.text[1:], []byte(billing)) {
			out = append(out, q)
			continue
		}
		if _, rest, ok := strings.Cut(text(q.text), "\n"); ok && rest != "" {
			out = append(out, part{text: quote(rest), plain: true})
		}
	}
	return out
}

// developersToSystem makes systems of developers, for a template that does not
// know these, and then one system message of all, in front. The messages are
// returned as they are if there is no developer among them.
func developersToSystem(messages [][]member) [][]member {
	role := func(ms []member) string { return text(get(ms, "role")) }
	found := false
	for i, ms := range messages {
		if role(ms) != "developer" {
			continue
		}
		found = true
		var out []member
		for _, m := range ms {
			switch m.key {
			case "role":
				m.value = json.RawMessage(`"system"`)
			case "tools":
				continue
			}
			out = append(out, m)
		}
		messages[i] = out
	}
	if !found {
		return messages
	}
	var systems []json.RawMessage
	var rest [][]member
	n, moved := 0, false
	for i, ms := range messages {
		if role(ms) != "system" {
			rest = append(rest, ms)
			continue
		}
		n++
		moved = moved || i > 0
		if s := systemText(get(ms, "content")); len(s) > len(`""`) {
			systems = append(systems, s)
		}
	}
	if n < 2 && !moved {
		return messages
	}
	system := []member{{"role", json.RawMessage(`"system"`)}, {"content", joinTexts(systems, `\n\n`)}}
	return append([][]member{system}, rest...)
}

// systemText returns the text of a content.
func systemText(raw json.RawMessage) json.RawMessage {
	if first(raw) != '[' {
		return raw
	}
	var texts []json.RawMessage
	for _, e := range elements(raw) {
		if first(e) == '{' {
			e = get(members(e), "text")
		}
		if first(e) == '"' {
			texts = append(texts, e)
		}
	}
	return joinTexts(texts, `\n`)
}
