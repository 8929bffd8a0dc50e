package blockkey

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// With None and whole chunks LMCache's chain is vLLM's of blocks without extra keys,
// which testdata holds. The empty tuple and the fold are tested in lmcache, against
// what LMCache gave.
func TestLMCacheVLLMIsVLLM(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom([]VLLMAlgorithm{VLLMSHA256, VLLMSHA256CBOR, VLLMXXHash, VLLMXXHashCBOR}).Draw(t, "algorithm")
		v := NewVLLMChain(a, "0", rapid.IntRange(1, 40).Draw(t, "chunk size"))
		l := LMCacheVLLMChain{Algorithm: a, ChunkSize: v.BlockSize}
		l.Parent = l.None("0")
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		want, got := v.Append(nil, tokens), l.Append(nil, tokens)
		if !slices.Equal(got, want) || l.Parent != v.Parent {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestLMCacheVLLMInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := LMCacheVLLMChain{
			Algorithm:  rapid.SampledFrom([]VLLMAlgorithm{VLLMSHA256, VLLMSHA256CBOR, VLLMXXHash, VLLMXXHashCBOR}).Draw(t, "algorithm"),
			ChunkSize:  rapid.IntRange(1, 40).Draw(t, "chunk size"),
			Tail:       rapid.Bool().Draw(t, "tail"),
			EmptyTuple: rapid.Bool().Draw(t, "empty tuple"),
			Fold:       rapid.Bool().Draw(t, "fold"),
		}
		c.Parent = c.None("0")
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		all := c
		want := all.Append(nil, tokens)
		cut := rapid.IntRange(0, len(tokens)/c.ChunkSize).Draw(t, "cut") * c.ChunkSize
		got := c.Append(nil, tokens[:cut])
		if got = c.Append(got, tokens[cut:]); !slices.Equal(got, want) || c != all {
			t.Fatalf("in pieces %v, at once %v", got, want)
		}
		if c.Fold {
			for _, d := range got {
				if [24]byte(d[:24]) != [24]byte{} {
					t.Fatalf("%v is not folded", d)
				}
			}
		}
	})
}
