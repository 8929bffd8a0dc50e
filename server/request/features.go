package request

import (
	"cmp"
	"encoding/json"
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

// mediaFields are what a caller knows of an image, audio or video of a chat. Such an object
// is an element of mm_items, which are in the order of the parts, and null for one of which
// nothing is known.
var mediaFields = scan.Fields[prompt.Medium]{
	{Name: "kind", Read: unlessNull(func(s *scan.Scanner, m *prompt.Medium) error { return s.Text(&m.Kind) })},
	{Name: "hash", Read: unlessNull(func(s *scan.Scanner, m *prompt.Medium) error {
		if err := s.Text(&m.Hash); err != nil {
			return err
		}
		if len(m.Hash) > maxHash {
			return s.Wrong(fmt.Sprintf("has %d bytes, the limit is %d", len(m.Hash), maxHash))
		}
		return nil
	})},
	{Name: "tokens", Read: unlessNull(func(s *scan.Scanner, m *prompt.Medium) error { return s.Count(&m.Tokens) })},
	{Name: "token_ids", Read: unlessNull(func(s *scan.Scanner, m *prompt.Medium) (err error) {
		m.TokenIDs, err = s.Tokens(nil, math.MaxInt)
		return err
	})},
}

// unlessNull reads a field that is as good as not there where it is null.
func unlessNull[T any](read func(*scan.Scanner, *T) error) func(*scan.Scanner, *T) error {
	return func(s *scan.Scanner, dst *T) error {
		if s.Null() {
			return nil
		}
		return read(s, dst)
	}
}

// ParseMedia reads mm_items, which is JSON.
func ParseMedia(raw []byte, limits *Limits) ([]prompt.Medium, error) {
	var in Input
	in.Limits = limits
	err := readMedia(scan.New("mm_items", raw), &in)
	return in.Media, err
}

// readMedia reads mm_items of a request with messages, or null. It reads element by element,
// so that too many are not made room for.
func readMedia(s *scan.Scanner, in *Input) error {
	in.Media = nil
	if s.Null() {
		return nil
	}
	total := 0
	return s.Array("an array", in.Limits.MaxObjects, func() error {
		var m prompt.Medium
		if !s.Null() {
			if err := scan.Nested(s, mediaFields, &m); err != nil {
				return err
			}
		}
		if m.Tokens > 0 && len(m.TokenIDs) > 0 {
			return s.Wrong("has both tokens and token_ids, give one")
		}
		if total += max(m.Tokens, len(m.TokenIDs)); total > in.Limits.MaxTokens {
			return refusal.TooLarge("mm_items", "mm_items have more than %d tokens, which is the limit", in.Limits.MaxTokens)
		}
		in.Media = append(in.Media, m)
		return nil
	})
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
