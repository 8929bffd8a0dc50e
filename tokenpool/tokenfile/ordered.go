package tokenfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
)

// Object is a JSON object whose members keep their order, as Python's do: transformers
// numbers tokens in the order in which files name them.
type Object []member

type member struct {
	key   string
	value json.RawMessage
}

// ReadObject reads a JSON object. Of members of one name the last value counts, at
// the place of the first. Values are parts of data.
func ReadObject(data []byte) (Object, error) {
	if !json.Valid(data) {
		var v json.RawMessage
		err := json.Unmarshal(data, &v)
		return nil, cmp.Or(err, errors.New("it is no JSON"))
	}
	i := skipSpace(data, 0)
	if data[i] != '{' {
		return nil, errors.New("it is no JSON object")
	}
	var o Object
	for i = skipSpace(data, i+1); data[i] != '}'; i = skipSpace(data, i) {
		if data[i] == ',' {
			i = skipSpace(data, i+1)
		}
		end := skipValue(data, i)
		var key string
		if err := json.Unmarshal(data[i:end], &key); err != nil {
			return nil, err
		}
		i = skipSpace(data, skipSpace(data, end)+1) // over the colon
		end = skipValue(data, i)
		o.Set(key, data[i:end:end])
		i = end
	}
	return o, nil
}

// skipSpace returns the first place at i or behind it without white space.
func skipSpace(data []byte, i int) int {
	for data[i] == ' ' || data[i] == '\n' || data[i] == '\r' || data[i] == '\t' {
		i++
	}
	return i
}

// skipValue returns the end of the value that begins at i, in what is valid JSON.
func skipValue(data []byte, i int) int {
	for depth := 0; ; i++ {
		switch data[i] {
		case '"':
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ' ', '\n', '\r', '\t', ',', ':':
			continue
		default: // a number or a word
			for i+1 < len(data) && !bytes.ContainsRune(ends, rune(data[i+1])) {
				i++
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
}

// ends are what stands behind a number or a word.
var ends = []byte(" \n\r\t,:]}")

func (o *Object) find(key string) int {
	for i := range *o {
		if (*o)[i].key == key {
			return i
		}
	}
	return -1
}

// Get returns the value of key, nil if there is none.
func (o *Object) Get(key string) json.RawMessage {
	if i := o.find(key); i >= 0 {
		return (*o)[i].value
	}
	return nil
}

// Set puts a member in the place of the one of that key, or at the end.
func (o *Object) Set(key string, value json.RawMessage) {
	if i := o.find(key); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{key, value})
}

// Drop leaves a member out.
func (o *Object) Drop(key string) {
	if i := o.find(key); i >= 0 {
		*o = slices.Delete(*o, i, i+1)
	}
}

// AppendJSON writes the object.
func (o *Object) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	for i, m := range *o {
		if i > 0 {
			b = append(b, ',')
		}
		key, _ := json.Marshal(m.key) // a string has no error
		b = append(append(append(b, key...), ':'), m.value...)
	}
	return append(b, '}')
}

// IsNull reports whether a value is missing or null.
func IsNull(value json.RawMessage) bool { return value == nil || string(value) == "null" }

// isTrue reports whether a value is one that Python takes for true.
func isTrue(value json.RawMessage) bool {
	switch string(bytes.Join(bytes.Fields(value), nil)) {
	case "", "null", "false", `""`, "[]", "{}", "0", "0.0":
		return false
	}
	return true
}

// readText returns the value if it is a string.
func readText(value json.RawMessage) (string, bool) {
	var s string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &s) != nil {
		return "", false
	}
	return s, true
}
