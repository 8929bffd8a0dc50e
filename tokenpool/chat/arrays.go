package chat

import "encoding/json"

// array checks that raw is an array of objects, and returns them. It is nil for
// none.
func array(b *budget, raw json.RawMessage, where string) ([]json.RawMessage, error) {
	if isNull(raw) {
		return nil, nil
	}
	if !json.Valid(raw) {
		return nil, bad(where, "not valid JSON")
	}
	if first(raw) != '[' {
		return nil, bad(where, "not an array")
	}
	if err := b.value(where, raw, 0); err != nil {
		return nil, err
	}
	out, err := b.list(where, raw)
	if err != nil {
		return nil, err
	}
	for i, e := range out {
		if first(e) != '{' {
			return nil, bad(where, "element %d is not an object", i)
		}
	}
	return out, nil
}

// object checks that raw is an object, and returns its members. It is nil for
// none.
func object(b *budget, raw json.RawMessage, where string) ([]member, error) {
	if isNull(raw) {
		return nil, nil
	}
	if !json.Valid(raw) {
		return nil, bad(where, "not valid JSON")
	}
	if first(raw) != '{' {
		return nil, bad(where, "not an object")
	}
	if err := b.value(where, raw, 0); err != nil {
		return nil, err
	}
	return members(raw), nil
}
