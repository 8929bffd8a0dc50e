package blockkey

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestObjectHashGolden(t *testing.T) {
	g := loadGolden(t)
	if len(g.Identifiers) != 8 {
		t.Fatalf("%d identifiers, want 8", len(g.Identifiers))
	}
	for _, c := range g.Identifiers {
		got, ok := ObjectHash(c.Identifier)
		if ok != (c.Hash != nil) || ok && got != *c.Hash {
			t.Errorf("%q: %d %v", c.Identifier, got, ok)
		}
	}
}

func FuzzObjectHash(f *testing.F) {
	for _, s := range []string{"", "a", strings.Repeat("0", 64), strings.Repeat("fF", 32), strings.Repeat("g", 64), "+" + strings.Repeat("1", 63), strings.Repeat("_1", 32), strings.Repeat("ä", 32)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := ObjectHash(s)
		want := xxh3.HashString(s)
		if len(s) == 64 && strings.Trim(s, "0123456789abcdefABCDEF") == "" {
			want, _ = strconv.ParseUint(s[:16], 16, 64)
		}
		if ok != (s != "") || ok && got != want {
			t.Fatalf("%q: %d %v, want %d", s, got, ok, want)
		}
	})
}

// plainObjects finds the hashes of each block by looking at each range of each
// object for each block.
func plainObjects(c Chain, blocks int, objects []Object) [][]uint64 {
	out := make([][]uint64, blocks)
	for i := range out {
		for _, o := range objects {
			if slices.ContainsFunc(o.Ranges, func(r Range) bool {
				return max(r.Start, i*c.BlockSize) < min(r.End, (i+1)*c.BlockSize)
			}) {
				out[i] = append(out[i], o.Hash)
			}
		}
	}
	return out
}

func TestObjectsAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChain(t)
		tokens := drawTokens(t, c)
		bound := rapid.IntRange(-5, len(tokens)+20)
		objects := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Object {
			return Object{
				// Few hashes, so that objects share some.
				Hash: rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64()).Draw(t, "hash"),
				Ranges: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Range {
					return Range{bound.Draw(t, "start"), bound.Draw(t, "end")}
				}), 0, 3).Draw(t, "ranges"),
			}
		}), 0, 6).Draw(t, "objects")
		given, _ := json.Marshal(objects)

		hashes := plainObjects(c, c.blocks(len(tokens)), objects)
		want := plainKeys(c, tokens, hashes)
		byRange, byBlock := c, c
		if got := byRange.AppendObjects(nil, tokens, objects); !slices.Equal(got, want) {
			t.Fatalf("AppendObjects: %v, want %v", got, want)
		}
		if got := byBlock.AppendHashes(nil, tokens, hashes); !slices.Equal(got, want) {
			t.Fatalf("AppendHashes: %v, want %v", got, want)
		}
		if byRange != byBlock {
			t.Fatalf("places %+v and %+v", byRange, byBlock)
		}
		if after, _ := json.Marshal(objects); !bytes.Equal(after, given) {
			t.Fatalf("objects were modified: %s, before %s", after, given)
		}
	})
}

func TestHashesAreNotModified(t *testing.T) {
	hashes := [][]uint64{{3, 1, 2}}
	c := Chain{BlockSize: 4, Seed: baseSeed}
	c.AppendHashes(nil, testTokens(8, 1), hashes)
	if !slices.Equal(hashes[0], []uint64{3, 1, 2}) {
		t.Fatalf("hashes are %v now", hashes[0])
	}
}

func TestObjectJSON(t *testing.T) {
	const good = `[{"mm_hash":18446744073709551615,"offsets":[[0,3],[4,4],[5,9]]},{"mm_hash":0,"offsets":[]}]`
	var v []Object
	must.OK(t, json.Unmarshal([]byte(good), &v))
	want := []Object{{Hash: math.MaxUint64, Ranges: []Range{{0, 3}, {4, 4}, {5, 9}}}, {Ranges: []Range{}}}
	if len(v) != 2 || v[0].Hash != want[0].Hash || !slices.Equal(v[0].Ranges, want[0].Ranges) || len(v[1].Ranges) != 0 {
		t.Fatalf("%+v, want %+v", v, want)
	}
	if out, err := json.Marshal(v); err != nil || string(out) != good {
		t.Fatalf("%s %v, want %s", out, err, good)
	}
	for _, bad := range []string{
		`[[1]]`, `[[1,2,3]]`, `[[-1,2]]`, `[[3,2]]`, `[[1.5,2]]`, `[["1",2]]`, `[null]`, `[7]`, `[[1,99999999999999999999]]`, `[[]]`,
		`[{"start":1,"end":2}]`,
	} {
		err := json.Unmarshal([]byte(`{"mm_hash":1,"offsets":`+bad+`}`), new(Object))
		if err == nil || !strings.Contains(err.Error(), "[start,end]") {
			t.Errorf("%s: error %v, want one that says what a range is", bad, err)
		}
	}
}

// FuzzObjects feeds objects as they come over the wire.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`[{"mm_hash":7,"offsets":[[3,9]]}]`), 16, 64, false)
	f.Add([]byte(`[{"mm_hash":7,"offsets":[[0,9223372036854775807]]},{"mm_hash":7,"offsets":[[9223372036854775807,9223372036854775807]]}]`), 4, 9, true)
	f.Add([]byte(`[{"offsets":null},null]`), 1, 1, true)
	f.Add([]byte(`[{"mm_hash":-1}]`), 1, 1, true)
	f.Fuzz(func(t *testing.T, raw []byte, size, n int, eagle bool) {
		if n < 0 || n > 2000 || len(raw) > 4000 {
			return
		}
		var objects []Object
		if json.Unmarshal(raw, &objects) != nil {
			return // refused, and not a skip: a run with skipped tests is a failure in CI
		}
		c := Chain{BlockSize: size, Seed: NativeSeed("", ""), Eagle: eagle}
		tokens := testTokens(n, 1)
		start := c
		got := c.AppendObjects(nil, tokens, objects)
		if size <= 0 {
			if len(got) != 0 {
				t.Fatalf("%d keys of blocks of %d", len(got), size)
			}
			return
		}
		if size > n {
			size = n + 1 // plainKeys adds to it
			start.BlockSize = size
		}
		want := plainKeys(start, tokens, plainObjects(start, n/size, objects))
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
