package blockkey

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

// golden is testdata/dynamo_hashes.json.
type golden struct {
	Cases []struct {
		Name           string
		TokenIDs       []uint32   `json:"token_ids"`
		BlockSize      int        `json:"block_size"`
		LoRA           string     `json:"lora_name"`
		Salt           string     `json:"cache_salt"`
		Eagle          bool       `json:"is_eagle"`
		RequestMM      *objects   `json:"request_mm"`
		BlockMM        []*objects `json:"block_mm_infos"`
		LocalHashes    []uint64   `json:"local_hashes"`
		SequenceHashes []Key      `json:"sequence_hashes"`
	}
	Identifiers []struct {
		Identifier string
		Hash       *uint64 `json:"mm_hash"`
	} `json:"mm_identifiers"`
}

type objects struct {
	Objects []Object `json:"mm_objects"`
}

func loadGolden(t *testing.T) golden {
	t.Helper()
	var g golden
	readJSON(t, "testdata/dynamo_hashes.json", &g)
	return g
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b := must.Get(os.ReadFile(path))(t)
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestGolden(t *testing.T) {
	g := loadGolden(t)
	if len(g.Cases) != 76 {
		t.Fatalf("%d cases, want 76", len(g.Cases))
	}
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			start := Chain{BlockSize: c.BlockSize, Seed: NativeSeed(c.LoRA, c.Salt), Eagle: c.Eagle}
			hashes := make([][]uint64, len(c.BlockMM))
			for i, b := range c.BlockMM {
				if b == nil {
					continue
				}
				for _, o := range b.Objects {
					hashes[i] = append(hashes[i], o.Hash)
				}
			}
			check := func(how string, got []Key) {
				t.Helper()
				if !slices.Equal(got, c.SequenceHashes) {
					t.Errorf("%s: %v, want %v", how, got, c.SequenceHashes)
				}
			}

			chain := start
			check("AppendHashes", chain.AppendHashes(nil, c.TokenIDs, hashes))
			chain = start
			check("AppendLocals", chain.AppendLocals(nil, c.LocalHashes))
			if c.RequestMM != nil {
				chain = start
				check("AppendObjects", chain.AppendObjects(nil, c.TokenIDs, c.RequestMM.Objects))
			}
			if c.RequestMM == nil && c.BlockMM == nil {
				chain = start
				check("Append", chain.Append(nil, c.TokenIDs))
				if !c.Eagle {
					check("AppendNative", AppendNative(nil, c.TokenIDs, c.BlockSize, start.Seed))
				}
			}

			// The key of a prompt's first block is its local hash.
			for i, want := range c.LocalHashes {
				chain = start
				got := chain.AppendHashes(nil, c.TokenIDs[i*c.BlockSize:], hashes[min(i, len(hashes)):])
				if len(got) == 0 || uint64(got[0]) != want {
					t.Errorf("local hash %d: %v, want %v first", i, got, Key(want))
				}
			}
		})
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	dst := append(make([]Key, 0, 8), 7)
	got := AppendNative(dst, testTokens(64, 1), 16, baseSeed)
	if len(got) != 5 || got[0] != 7 || &got[0] != &dst[:1][0] {
		t.Fatalf("got %v in another array or without the first", got)
	}
	if want := AppendNative(nil, testTokens(64, 1), 16, baseSeed); !slices.Equal(got[1:], want) {
		t.Fatalf("got %v, want %v", got[1:], want)
	}
}

func TestNoBlocks(t *testing.T) {
	tokens := testTokens(100, 1)
	for _, size := range []int{0, -1, math.MinInt, 101, math.MaxInt} {
		for _, eagle := range []bool{false, true} {
			for _, tokens := range [][]uint32{tokens, nil} {
				c := Chain{BlockSize: size, Seed: baseSeed, Eagle: eagle, Parent: 5, HasParent: true}
				before := c
				got := c.Append(nil, tokens)
				got = c.AppendObjects(got, tokens, []Object{{Hash: 1, Ranges: []Range{{0, 100}}}})
				got = c.AppendHashes(got, tokens, [][]uint64{{1}})
				if len(got) != 0 || c != before {
					t.Errorf("block size %d, eagle %v, %d tokens: keys %v, chain %+v", size, eagle, len(tokens), got, c)
				}
			}
		}
	}
}

func TestNativeSeed(t *testing.T) {
	if got := NativeSeed("", ""); got != 1337 {
		t.Errorf("plain seed %d, want 1337", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.StringN(1, 20, -1).Draw(t, "a")
		b := rapid.StringN(1, 20, -1).Filter(func(s string) bool { return s != a }).Draw(t, "b")
		seeds := []Seed{
			NativeSeed("", ""), NativeSeed(a, ""), NativeSeed("", a), NativeSeed(a, a),
			NativeSeed(b, ""), NativeSeed("", b), NativeSeed(a, b), NativeSeed(b, a),
		}
		slices.Sort(seeds)
		if len(slices.Compact(seeds)) != 8 {
			t.Fatalf("two scopes of %q and %q have one seed", a, b)
		}
	})
}

// drawChain draws a chain's settings, with the block sizes that have a path of
// their own, and those next to them, more often than others.
func drawChain(t *rapid.T) Chain {
	size := rapid.OneOf(
		rapid.SampledFrom([]int{1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 60, 61, 63, 64, 65, 128}),
		rapid.IntRange(1, 300),
	).Draw(t, "block size")
	c := Chain{BlockSize: size, Eagle: rapid.Bool().Draw(t, "eagle")}
	c.Seed = rapid.OneOf(rapid.Just(NativeSeed("", "")), rapid.Map(rapid.Uint64(), func(v uint64) Seed { return Seed(v) })).Draw(t, "seed")
	if rapid.Bool().Draw(t, "has parent") {
		c.Parent, c.HasParent = Key(rapid.Uint64().Draw(t, "parent")), true
	}
	return c
}

// drawTokens draws a prompt of up to 9 blocks of c, and any rest.
func drawTokens(t *rapid.T, c Chain) []uint32 {
	n := rapid.IntRange(0, 10*c.BlockSize).Draw(t, "tokens")
	return testTokens(n, rapid.Uint64().Draw(t, "prompt"))
}

// plainKeys is the scheme as doc.go has it, with the general library and no
// thought of speed. objects holds the hashes of each block.
func plainKeys(c Chain, tokens []uint32, objects [][]uint64) []Key {
	var keys []Key
	window := c.BlockSize
	if c.Eagle {
		window++
	}
	for i := 0; len(tokens) >= window; i++ {
		content := slices.Clone(tokens[:window])
		if i < len(objects) {
			for _, h := range slices.Sorted(slices.Values(objects[i])) {
				content = append(content, uint32(h), uint32(h>>32))
			}
		}
		local := zeeboNative(nil, tokenBytes(content), len(content), c.Seed)[0]
		if c.HasParent {
			pair := []uint32{uint32(c.Parent), uint32(c.Parent >> 32), uint32(local), uint32(local >> 32)}
			local = zeeboNative(nil, tokenBytes(pair), 4, 1337)[0]
		}
		keys = append(keys, local)
		c.Parent, c.HasParent = local, true
		tokens = tokens[c.BlockSize:]
	}
	return keys
}

func TestAppendAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChain(t)
		tokens := drawTokens(t, c)
		want := plainKeys(c, tokens, nil)
		got := c.Append(nil, tokens)
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if len(want) > 0 && (c.Parent != want[len(want)-1] || !c.HasParent) {
			t.Fatalf("the place is behind %v, want %v", c.Parent, want[len(want)-1])
		}
	})
}

func TestAppendInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChain(t)
		tokens := drawTokens(t, c)
		all := c
		want := all.Append(nil, tokens)

		var got []Key
		for rest := tokens; ; {
			piece := rapid.IntRange(0, len(rest)).Draw(t, "piece")
			n := len(got)
			got = c.Append(got, rest[:piece])
			rest = rest[(len(got)-n)*c.BlockSize:]
			if piece == len(rest)+(len(got)-n)*c.BlockSize {
				break
			}
		}
		if !slices.Equal(got, want) || c != all {
			t.Fatalf("in pieces %v ending at %+v, at once %v ending at %+v", got, c, want, all)
		}
	})
}

func TestChangedToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChain(t)
		tokens := testTokens(rapid.IntRange(c.window(), 10*c.BlockSize+1).Draw(t, "tokens"), rapid.Uint64().Draw(t, "prompt"))
		b, d := c, c
		before := b.Append(nil, tokens)
		at := rapid.IntRange(0, (len(before)-1)*c.BlockSize+c.window()-1).Draw(t, "at")
		tokens[at] ^= rapid.Uint32Range(1, math.MaxUint32).Draw(t, "bits")
		after := d.Append(nil, tokens)
		first := at / c.BlockSize
		if c.Eagle && at > 0 {
			first = (at - 1) / c.BlockSize // the block before reads it too
		}
		for i := range before {
			if changed := before[i] != after[i]; changed != (i >= first) {
				t.Fatalf("token %d changed, key %d changed: %v", at, i, changed)
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	prompt := testTokens(8192, 1)
	for _, size := range []int{1, 16, 48, 64, 128, 1024} {
		for _, seed := range []Seed{NativeSeed("", ""), NativeSeed("lora", "salt")} {
			dst := make([]Key, 0, len(prompt)/size)
			if n := testing.AllocsPerRun(20, func() { AppendNative(dst, prompt, size, seed) }); n != 0 {
				t.Errorf("block size %d, seed %d: %v allocations with room in dst", size, seed, n)
			}
			if n := testing.AllocsPerRun(20, func() { AppendNative(nil, prompt, size, seed) }); n != 1 {
				t.Errorf("block size %d, seed %d: %v allocations without room in dst, want 1", size, seed, n)
			}
		}
	}
	dst, locals := make([]Key, 0, 100), make([]uint64, 100)
	if n := testing.AllocsPerRun(20, func() { c := Chain{}; c.AppendLocals(dst, locals) }); n != 0 {
		t.Errorf("AppendLocals: %v allocations", n)
	}
	if n := testing.AllocsPerRun(20, func() { NativeSeed("lora", "salt"); ModelOf("org/model") }); n != 0 {
		t.Errorf("NativeSeed and ModelOf: %v allocations", n)
	}
}
