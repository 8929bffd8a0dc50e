package tokenpool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// object is a JSON object whose members keep their order, as Python's do: transformers
// numbers tokens in the order in which files name them.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// readObject reads a JSON object. Of members of one name the last value counts, at
// the place of the first.
func readObject(data []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	var o object
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o.set(fmt.Sprint(key), value) // a decoder gives strings there
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("something follows the JSON object")
	}
	return o, nil
}

func (o *object) find(key string) int {
	for i := range *o {
		if (*o)[i].key == key {
			return i
		}
	}
	return -1
}

// get returns the value of key, nil if there is none.
func (o *object) get(key string) json.RawMessage {
	if i := o.find(key); i >= 0 {
		return (*o)[i].value
	}
	return nil
}

func (o *object) set(key string, value json.RawMessage) {
	if i := o.find(key); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{key, value})
}

func (o *object) drop(key string) {
	if i := o.find(key); i >= 0 {
		*o = slices.Delete(*o, i, i+1)
	}
}

// appendJSON writes the object.
func (o *object) appendJSON(b []byte) []byte {
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

// isNull reports whether a value is missing or null.
func isNull(value json.RawMessage) bool { return value == nil || string(value) == "null" }

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
