package request

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// features are what vLLM's render routes report the images, audio and video of a
// prompt beside its tokens. They are by kind, the hash of each, and the tokens that
// stand in its place. Their further fields are let pass.
type features struct {
	Hashes       map[string][]string      `json:"mm_hashes"`
	Placeholders map[string][]placeholder `json:"mm_placeholders"`
}

// placeholder is a range of tokens.
type placeholder struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// featureKinds are the kinds of media that vLLM knows in features.
var featureKinds = []string{"audio", "image", "video", "vision_chunk"}

// maxHash is the longest name of a medium in bytes. A hash has 64; a caller's own
// uuid, which vLLM takes for one, is not much longer.
const maxHash = 1024

// ReadFeatures reads features, or null.
func ReadFeatures(s *scan.Scanner, in *Input) error {
	in.Objects = nil
	if s.IsAt('n') {
		_, err := s.Raw("an object")
		return err
	}
	var hashes map[string][]uint64
	var places map[string][]blockkey.Range
	if err := s.Members("an object", math.MaxInt, func(name string) (err error) {
		switch {
		case name == "mm_hashes" && hashes == nil:
			hashes, err = readKinds(s, in.Limits.MaxObjects, readHash)
		case name == "mm_placeholders" && places == nil:
			places, err = readKinds(s, in.Limits.MaxObjects, func(s *scan.Scanner) (blockkey.Range, error) {
				return readPlaceholder(s, uint64(in.Limits.MaxTokens))
			})
		case name == "mm_hashes" || name == "mm_placeholders":
			return s.Wrong("is given twice")
		default:
			_, err = s.Raw("a value")
		}
		return err
	}); err != nil {
		return err
	}
	for _, kind := range featureKinds {
		at := places[kind]
		if len(at) > len(hashes[kind]) {
			return s.Wrong("has not as many mm_hashes as mm_placeholders of each kind")
		}
		if len(at) < len(hashes[kind]) {
			return s.Wrong("has not as many mm_placeholders as mm_hashes of each kind")
		}
		if len(at) > in.Limits.MaxObjects-len(in.Objects) {
			return s.TooMany(in.Limits.MaxObjects)
		}
		if i := overlap(at); i >= 0 {
			p := fmt.Sprintf("features.mm_placeholders.%s[%d]", kind, i)
			return refusal.Invalid(p, "%s overlaps another one of its kind", p)
		}
		for i, hash := range hashes[kind] {
			in.Objects = append(in.Objects, blockkey.Object{Hash: hash, Ranges: at[i : i+1 : i+1]})
		}
	}
	return nil
}

// readKinds reads an object with a list for each kind.
func readKinds[T any](s *scan.Scanner, limit int, read func(*scan.Scanner) (T, error)) (map[string][]T, error) {
	out := map[string][]T{}
	err := s.Members("an object", math.MaxInt, func(kind string) error {
		if !slices.Contains(featureKinds, kind) {
			return s.Wrong("is not one of " + strings.Join(featureKinds, ", "))
		}
		if _, twice := out[kind]; twice {
			return s.Wrong("is given twice")
		}
		out[kind] = nil
		return s.Array("an array", limit, func() error {
			v, err := read(s)
			out[kind] = append(out[kind], v)
			return err
		})
	})
	return out, err
}

func readHash(s *scan.Scanner) (uint64, error) {
	b, err := s.StringBytes("a string")
	if err != nil {
		return 0, err
	}
	if len(b) > maxHash {
		return 0, s.Wrong(fmt.Sprintf("has %d bytes, the limit is %d", len(b), maxHash))
	}
	hash, ok := blockkey.ObjectHash(string(b))
	if !ok {
		return 0, s.Wrong("is empty")
	}
	return hash, nil
}

// readPlaceholder reads a range of tokens. Its further fields are let pass.
func readPlaceholder(s *scan.Scanner, most uint64) (blockkey.Range, error) {
	var offset, length uint64
	if err := s.Members("an object", math.MaxInt, func(name string) (err error) {
		switch name {
		case "offset":
			offset, err = s.Uint(most, "a whole number")
		case "length":
			length, err = s.Uint(most, "a whole number")
		default:
			_, err = s.Raw("a value")
		}
		return err
	}); err != nil {
		return blockkey.Range{}, err
	}
	if length == 0 {
		return blockkey.Range{}, s.Wrong("has no length: each medium stands in the place of a token at least")
	}
	return blockkey.Range{Start: int(offset), End: int(offset + length)}, nil
}

// overlap returns the place of a range that begins within another one, -1 if none
// does. Media of two kinds may overlap: vLLM gives the audio track of a video the
// place of the video.
func overlap(at []blockkey.Range) int {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(cmp.Compare(at[i].Start, at[j].Start), cmp.Compare(i, j)) })
	for n, i := range order {
		if n > 0 && at[i].Start < at[order[n-1]].End {
			return i
		}
	}
	return -1
}

// mediaItem is what a caller knows of an image, audio or video of a chat. It is an
// element of mm_items, which are in the order of the parts, and null for one of
// which nothing is known.
type mediaItem struct {
	Kind     string          `json:"kind"`
	Hash     string          `json:"hash"`
	Tokens   int             `json:"tokens"`
	TokenIDs json.RawMessage `json:"token_ids"`
}

// ParseMedia reads mm_items, which is JSON, element by element, so that too many are
// not made room for.
func ParseMedia(raw []byte, limits *Limits) ([]prompt.Medium, error) {
	s := scan.New("mm_items", raw)
	if !Given(raw) {
		return nil, nil
	}
	if !s.IsAt('[') {
		return nil, s.Unexpected("an array")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if _, err := dec.Token(); err != nil {
		return nil, s.Syntax("an array")
	}
	var out []prompt.Medium
	total := 0
	for i := 0; dec.More(); i++ {
		if i == limits.MaxObjects {
			return nil, s.TooMany(limits.MaxObjects)
		}
		var item *mediaItem
		if err := dec.Decode(&item); err != nil {
			why := strings.TrimPrefix(err.Error(), "json: ")
			if at, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				why = strings.TrimPrefix(at.Field+" cannot be a JSON "+at.Value, " ")
			}
			return nil, refusal.Invalid("mm_items", "mm_items is not an array of {kind, hash, tokens, token_ids} or null: %s", why[:min(len(why), 200)])
		}
		m, err := item.medium(fmt.Sprintf("mm_items[%d]", i), limits.MaxTokens-total, limits)
		if err != nil {
			return nil, err
		}
		total += max(m.Tokens, len(m.TokenIDs))
		out = append(out, m)
	}
	return out, nil
}

// medium checks an element, of which room tokens at most may be.
func (item *mediaItem) medium(at string, room int, limits *Limits) (m prompt.Medium, err error) {
	if item == nil {
		return m, nil
	}
	m = prompt.Medium{Kind: item.Kind, Hash: item.Hash, Tokens: item.Tokens}
	if Given(item.TokenIDs) {
		s := scan.New(at+".token_ids", item.TokenIDs)
		if m.TokenIDs, err = s.Tokens(nil, limits.MaxTokens); err != nil {
			return m, err
		}
	}
	switch {
	case len(item.Hash) > maxHash:
		return m, refusal.Invalid(at+".hash", "%s.hash has %d bytes, the limit is %d", at, len(item.Hash), maxHash)
	case item.Tokens < 0:
		return m, refusal.Invalid(at+".tokens", "%s.tokens is below 0", at)
	case item.Tokens > 0 && len(m.TokenIDs) > 0:
		return m, refusal.Invalid(at+".token_ids", "%s has both tokens and token_ids, give one", at)
	case max(item.Tokens, len(m.TokenIDs)) > room:
		return m, refusal.TooLarge(at, "mm_items have more than %d tokens, which is the limit", limits.MaxTokens)
	}
	return m, nil
}

// readMedia reads mm_items of a request with messages, or null.
func readMedia(s *scan.Scanner, in *Input) error {
	if !s.IsAt('[') && !s.IsAt('n') {
		return s.Unexpected("an array")
	}
	raw, err := s.Raw("an array")
	if err != nil {
		return err
	}
	in.Media, err = ParseMedia(raw, in.Limits)
	return err
}

// CheckFeatures holds the rules between features and the other fields.
func (in *Input) CheckFeatures(f scan.Form, kind string) error {
	if kind != "tokens" && kind != "tokens_b64" {
		return f.Exclude("they belong to tokens", "features")
	}
	for _, o := range in.Objects {
		if o.Ranges[0].End > len(in.Tokens) {
			return refusal.Invalid("features", "features has a placeholder that ends at token %d of %d", o.Ranges[0].End, len(in.Tokens))
		}
	}
	return nil
}

// AppendFeatures appends the features of a chat as vLLM gives them, null for one
// without media.
func AppendFeatures(b []byte, media []prompt.PlacedMedium) []byte {
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
