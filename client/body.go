package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrBody says that a Body is no JSON object.
var ErrBody = errors.New("client: body is no JSON object")

// over writes the members of body that top does not have, and then those of top.
// The values of body stay as they are, but for spaces between them.
func over(body json.RawMessage, top any) ([]byte, error) {
	above, err := json.Marshal(top)
	if err != nil {
		return nil, err
	}
	var names map[string]json.RawMessage
	if err := json.Unmarshal(above, &names); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, ErrBody
	}
	out := []byte{'{'}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBody, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBody, err)
		}
		key, _ := name.(string)
		if _, above := names[key]; above {
			continue
		}
		quoted, err := json.Marshal(key)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		out = append(append(append(out, quoted...), ':'), value...)
		out = append(out, ',')
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	if dec.More() {
		return nil, fmt.Errorf("%w: something is behind it", ErrBody)
	}
	if len(names) == 0 {
		return append(bytes.TrimSuffix(out, []byte{','}), '}'), nil
	}
	return append(out, above[1:]...), nil
}
