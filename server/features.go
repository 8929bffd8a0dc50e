package server

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
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
