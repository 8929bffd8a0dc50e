package chat

import (
	"encoding/json"
	"strings"
	"unicode"
)

// continueTag is put behind the last message before rendering, to find its end
// in the text. It is the one of transformers, since templates see it.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// mark puts the tag behind the text of the last message, and returns what the
// text was.
func mark(last []member, template string) ([]member, string, error) {
	const where = "continue_final_message"
	raw := get(last, "content")
	if isNull(raw) {
		return nil, "", bad(where, "the last message has no content to continue")
	}
	if !strings.Contains(template, "content") {
		return nil, "", bad(where, "the template does not use the content of messages")
	}
	switch first(raw) {
	case '"':
		return put(last, "content", tagged(raw)), text(raw), nil
	case '[':
		parts := elements(raw)
		for i := len(parts) - 1; i >= 0; i-- {
			if first(parts[i]) != '{' {
				continue
			}
			ms := members(parts[i])
			t := get(ms, "text")
			if t == nil {
				continue
			}
			if first(t) != '"' {
				return nil, "", bad(where, "the text of the last message's last part is not a string")
			}
			parts[i] = encodeObject(put(ms, "text", tagged(t)))
			return put(last, "content", encodeArray(parts)), text(t), nil
		}
	}
	return nil, "", bad(where, "the last message has no text to continue")
}

// tagged returns a JSON string with the tag at its end.
func tagged(raw json.RawMessage) json.RawMessage {
	out := append(json.RawMessage{}, raw[:len(raw)-1]...)
	out = append(out, continueTag...)
	return append(out, '"')
}

// cut returns the text up to the tag. If the template has cut the white space
// behind it, that before it goes as well.
func cut(rendered, final string) (string, error) {
	at := strings.LastIndex(rendered, strings.TrimSpace(continueTag))
	if at < 0 || !strings.Contains(rendered, strings.TrimFunc(final, isSpace)) {
		return "", bad("continue_final_message", "the template does not give the last message as it is")
	}
	if strings.HasPrefix(rendered[at:], continueTag) {
		return rendered[:at], nil
	}
	return strings.TrimRightFunc(rendered[:at], isSpace), nil
}

// isSpace is str.isspace of Python.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}
