package tokenfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"unsafe"

	"github.com/tidwall/gjson"
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
	top := gjson.Parse(unsafe.String(unsafe.SliceData(data), len(data))) // it is never written to
	if !top.IsObject() {
		return nil, errors.New("it is no JSON object")
	}
	var o Object
	var err error
	top.ForEach(func(name, value gjson.Result) bool {
		var key string
		if err = json.Unmarshal([]byte(name.Raw), &key); err == nil {
			end := value.Index + len(value.Raw)
			o.Set(key, data[value.Index:end:end])
		}
		return err == nil
	})
	return o, err
}

func (o *Object) find(key string) int {
	return slices.IndexFunc(*o, func(m member) bool { return m.key == key })
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
