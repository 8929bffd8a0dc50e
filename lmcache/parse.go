package lmcache

import (
	"fmt"
	"slices"
	"strings"
)

// Parsed is what Parse made of a string: one of its fields is set.
type Parsed struct {
	Key    *Key
	Object *ObjectKey
	Fork   *ForkKey
}

// Parse reads a key of which nothing is known. The key that it returns has s as its String.
// A few strings are keys of two kinds; of these it takes
//
//   - an int hash of up to 16 digits, none of them a letter, for hex, not decimal
//     (one in 2,000 of hex ones, one in 1,000 of decimal ones),
//   - the last number for a hash and not a layer, where the one before it could be a
//     worker (one in 2^47),
//   - "vllm@" in front of a key with a dtype for the fmt, not the model's name,
//   - a ForkKey only for what is nothing else.
//
// Version.ParseKey, ParseObjectKey and ParseForkKey have none of the doubts but the
// second.
func Parse(s string) (Parsed, error) {
	if len(s) > maxKey {
		return Parsed{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrKey, len(s), maxKey)
	}
	if k, err := ParseObjectKey(s); err == nil {
		return Parsed{Object: &k}, nil
	}
	first, _, _ := strings.Cut(s, sep)
	order := []Form{FormModel, FormHex, FormDecimal}
	if slices.Contains(formats, first) {
		order = []Form{FormDType, FormHex, FormDecimal, FormModel}
	}
	for _, f := range order {
		if k, err := parseForm(s, f); err == nil {
			return Parsed{Key: &k}, nil
		}
	}
	if k, err := ParseForkKey(s); err == nil {
		return Parsed{Fork: &k}, nil
	}
	return Parsed{}, fmt.Errorf("%w: %q is not one of %s, model@kv_rank@object_group@hash, model@hash",
		ErrKey, clip(s), strings.Join(forms[:], ", "))
}
