package chat

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strings"
)

// The functions of this file walk JSON that json.Valid has accepted, without
// decoding it. So what they do not look at stays as it was sent.

// member is one member of a JSON object.
type member struct {
	key   string
	value json.RawMessage
}

// members returns the members of an object in their order. Of equal keys the
// first one's place and the last one's value count, as in Python.
func members(raw json.RawMessage) []member {
	var out []member
	var places map[string]int // of keys in out, once they are many
	at := space(raw, 0) + 1   // behind the brace
	for {
		at = space(raw, at)
		switch raw[at] {
		case '}':
			return out
		case ',':
			at++
			continue
		}
		end := skip(raw, at)
		key := text(raw[at:end])
		at = space(raw, space(raw, end)+1) // behind the colon
		end = skip(raw, at)
		value := raw[at:end:end]
		at = end
		if len(out) < fewMembers {
			out = put(out, key, value)
			continue
		}
		if places == nil {
			places = make(map[string]int)
			for i := range out {
				places[out[i].key] = i
			}
		}
		if i, have := places[key]; have {
			out[i].value = value
			continue
		}
		places[key] = len(out)
		out = append(out, member{key, value})
	}
}

// fewMembers is how many keys are looked for one by one.
const fewMembers = 16

// elements returns the elements of an array.
func elements(raw json.RawMessage) []json.RawMessage { return slices.Collect(each(raw)) }

// each gives the elements of an array, one after the other.
func each(raw json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		at := space(raw, 0) + 1 // behind the bracket
		for {
			at = space(raw, at)
			switch raw[at] {
			case ']':
				return
			case ',':
				at++
				continue
			}
			end := skip(raw, at)
			if !yield(raw[at:end:end]) {
				return
			}
			at = end
		}
	}
}

// find returns the value of a key that is written without escapes, nil for none, and for
// what is no object.
func find(raw json.RawMessage, key string) (value json.RawMessage) {
	if first(raw) != '{' {
		return nil
	}
	at := space(raw, 0) + 1 // behind the brace
	for {
		at = space(raw, at)
		switch raw[at] {
		case '}':
			return value
		case ',':
			at++
			continue
		}
		end := skip(raw, at)
		found := string(raw[at+1:end-1]) == key
		at = space(raw, space(raw, end)+1) // behind the colon
		end = skip(raw, at)
		if found {
			value = raw[at:end:end]
		}
		at = end
	}
}

// space returns the first place from at on that is no white space.
func space(raw json.RawMessage, at int) int {
	for at < len(raw) && (raw[at] == ' ' || raw[at] == '\n' || raw[at] == '\t' || raw[at] == '\r') {
		at++
	}
	return at
}

// skip returns the end of the value that begins at at.
func skip(raw json.RawMessage, at int) int {
	switch raw[at] {
	case '"':
		for {
			at++
			at += bytes.IndexByte(raw[at:], '"')
			escapes := at
			for raw[escapes-1] == '\\' {
				escapes--
			}
			if (at-escapes)%2 == 0 {
				return at + 1
			}
		}
	case '{', '[':
		for depth := 0; ; {
			switch raw[at] {
			case '"':
				at = skip(raw, at)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			at++
			if depth == 0 {
				return at
			}
		}
	}
	for at < len(raw) {
		switch raw[at] {
		case ',', ']', '}', ' ', '\n', '\t', '\r':
			return at
		}
		at++
	}
	return at
}

// first returns the first byte of a value, which tells its type; 0 for none.
func first(raw json.RawMessage) byte {
	if at := space(raw, 0); at < len(raw) {
		return raw[at]
	}
	return 0
}

// isNull reports whether there is no value, or null.
func isNull(raw json.RawMessage) bool {
	c := first(raw)
	return c == 0 || c == 'n'
}

// text decodes a string. What is no character becomes U+FFFD; the library
// refuses it when it reads the value.
func text(raw json.RawMessage) string {
	if in := raw[1 : len(raw)-1]; !bytes.ContainsRune(in, '\\') {
		return string(in)
	}
	var s string
	_ = json.Unmarshal(raw, &s) // valid
	return s
}

// quote encodes a string.
func quote(s string) json.RawMessage {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return json.RawMessage(`"` + s + `"`)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings can be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// joinTexts joins strings without decoding them.
func joinTexts(raws []json.RawMessage, escapedSep string) json.RawMessage {
	out := []byte{'"'}
	for i, r := range raws {
		if i > 0 {
			out = append(out, escapedSep...)
		}
		out = append(out, r[1:len(r)-1]...)
	}
	return append(out, '"')
}

// get returns the value of a key, nil for none.
func get(ms []member, key string) json.RawMessage {
	for _, m := range ms {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// put sets a member, in its place if it is there.
func put(ms []member, key string, value json.RawMessage) []member {
	for i := range ms {
		if ms[i].key == key {
			ms[i].value = value
			return ms
		}
	}
	return append(ms, member{key, value})
}

// encodeObject encodes members as an object.
func encodeObject(ms []member) json.RawMessage {
	dst := []byte{'{'}
	for i, m := range ms {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, quote(m.key)...)
		dst = append(dst, ':')
		dst = append(dst, m.value...)
	}
	return append(dst, '}')
}

// encodeArray encodes elements as an array.
func encodeArray(es []json.RawMessage) json.RawMessage {
	dst := []byte{'['}
	for i, e := range es {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e...)
	}
	return append(dst, ']')
}
