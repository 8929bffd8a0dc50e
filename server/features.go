package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// features are what vLLM's render routes tell of the images, audio and video of a
// prompt beside its tokens: by kind, the hash of each, and the tokens that stand
// in its place. Their further fields are let pass.
type features struct {
	Hashes       map[string][]string      `json:"mm_hashes"`
	Placeholders map[string][]placeholder `json:"mm_placeholders"`
}

// placeholder is a range of tokens.
type placeholder struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// readFeatures reads features, or null.
func readFeatures(s *scanner, in *input) error {
	if !s.at('{') && !s.at('n') {
		return s.unexpected("an object")
	}
	raw, err := s.raw("an object")
	if err != nil {
		return err
	}
	var f features
	if err := json.Unmarshal(raw, &f); err != nil {
		return s.wrong("is not {mm_hashes, mm_placeholders} as vLLM gives them: " + clip(err.Error(), 200))
	}
	in.objects = nil
	for kind, at := range f.Placeholders {
		if len(at) != len(f.Hashes[kind]) {
			return s.wrong("has not as many mm_hashes as mm_placeholders of each kind")
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(f.Hashes)) {
		for i, id := range f.Hashes[kind] {
			hash, ok := blockkey.ObjectHash(id)
			if !ok {
				return s.wrong("has an empty string among mm_hashes")
			}
			if i >= len(f.Placeholders[kind]) {
				return s.wrong("has not as many mm_placeholders as mm_hashes of each kind")
			}
			at := f.Placeholders[kind][i]
			if most := in.limits.MaxTokens; at.Offset < 0 || at.Length < 0 || at.Offset > most || at.Length > most {
				return s.wrong("has a placeholder outside of the tokens")
			}
			if len(in.objects) == in.limits.MaxObjects {
				return s.tooMany(in.limits.MaxObjects)
			}
			in.objects = append(in.objects, blockkey.Object{Hash: hash, Ranges: []blockkey.Range{{Start: at.Offset, End: at.Offset + at.Length}}})
		}
	}
	return nil
}

// mediaItem is what a caller knows of an image, audio or video of a chat: an
// element of mm_items, which are in the order of the parts. null is one of which
// nothing is known.
type mediaItem struct {
	Kind     string   `json:"kind"`
	Hash     string   `json:"hash"`
	Tokens   int      `json:"tokens"`
	TokenIDs []uint32 `json:"token_ids"`
}

// parseMedia reads mm_items.
func parseMedia(raw []byte, limits *Limits) ([]tokenpool.Medium, error) {
	var items []*mediaItem
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&items); err != nil {
		why := strings.TrimPrefix(err.Error(), "json: ")
		if at, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			why = strings.TrimPrefix(at.Field+" cannot be a JSON "+at.Value, " ")
		}
		return nil, invalid("mm_items", "mm_items is not an array of {kind, hash, tokens, token_ids} or null: %s", clip(why, 200))
	}
	if len(items) > limits.MaxObjects {
		return nil, tooLarge("mm_items", "mm_items has %d elements, the limit is %d", len(items), limits.MaxObjects)
	}
	var out []tokenpool.Medium
	total := 0
	for i, item := range items {
		if item == nil {
			out = append(out, tokenpool.Medium{})
			continue
		}
		at := fmt.Sprintf("mm_items[%d]", i)
		switch {
		case item.Tokens < 0:
			return nil, invalid(at+".tokens", "%s.tokens is below 0", at)
		case item.Tokens > 0 && len(item.TokenIDs) > 0:
			return nil, invalid(at+".token_ids", "%s has both tokens and token_ids, give one", at)
		}
		if n := max(item.Tokens, len(item.TokenIDs)); n > limits.MaxTokens-total {
			return nil, tooLarge(at, "mm_items have more than %d tokens, which is the limit", limits.MaxTokens)
		}
		total += max(item.Tokens, len(item.TokenIDs))
		out = append(out, tokenpool.Medium{Kind: item.Kind, Hash: item.Hash, Tokens: item.Tokens, TokenIDs: item.TokenIDs})
	}
	return out, nil
}

// readMedia reads mm_items of a request with messages, or null.
func readMedia(s *scanner, in *input) error {
	if !s.at('[') && !s.at('n') {
		return s.unexpected("an array")
	}
	raw, err := s.raw("an array")
	if err != nil {
		return err
	}
	in.media, err = parseMedia(raw, in.limits)
	return err
}

// appendFeatures appends the features of a chat as vLLM gives them, null for one
// without media.
func appendFeatures(b []byte, media []tokenpool.PlacedMedium) []byte {
	if len(media) == 0 {
		return append(b, "null"...)
	}
	f := features{Hashes: map[string][]string{}, Placeholders: map[string][]placeholder{}}
	for _, m := range media {
		f.Hashes[m.Kind] = append(f.Hashes[m.Kind], m.Hash)
		f.Placeholders[m.Kind] = append(f.Placeholders[m.Kind], placeholder{m.Offset, m.Length})
	}
	j, err := json.Marshal(f)
	if err != nil {
		panic(err) // it has strings and numbers only
	}
	b = append(b, j[:len(j)-1]...)
	return append(b, `,"kwargs_data":null}`...)
}

// checkFeatures holds the rules between features and the other fields.
func (in *input) checkFeatures(f form, kind string) error {
	if kind != "tokens" && kind != "tokens_b64" {
		return f.exclude("they belong to tokens", "features")
	}
	for _, o := range in.objects {
		if o.Ranges[0].End > len(in.tokens) {
			return invalid("features", "features has a placeholder that ends at token %d of %d", o.Ranges[0].End, len(in.tokens))
		}
	}
	return nil
}
