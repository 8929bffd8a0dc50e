package blockkey

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type lmcacheRow struct {
	Version string   `json:"lmcache_version"`
	Tokens  int      `json:"tokens"`
	Ranges  [][2]int `json:"ranges"`
	Hashes  []string `json:"chunk_hashes"`
}

func TestLMCacheGolden(t *testing.T) {
	var rows []lmcacheRow
	readJSON(t, "testdata/lmcache_sha256.json", &rows)
	if len(rows) != 8 {
		t.Fatalf("%d rows, want 8", len(rows))
	}
	for _, r := range rows {
		tokens := make([]uint32, r.Tokens)
		for i := range tokens {
			tokens[i] = uint32(i)
		}
		c := LMCacheChain{
			Int64: strings.Contains(r.Version, "alpha"),
			Tail:  r.Tokens%DefaultChunkSize > 0 && r.Ranges[len(r.Ranges)-1][1] == r.Tokens,
		}
		var got []string
		for _, d := range c.Append(nil, tokens) {
			got = append(got, d.String())
		}
		if !slices.Equal(got, r.Hashes) {
			t.Errorf("%s, %d tokens: %v, want %v", r.Version, r.Tokens, got, r.Hashes)
		}
		if full := r.Tokens / DefaultChunkSize; !c.HasParent || c.Parent.String() != r.Hashes[full-1] {
			t.Errorf("%s, %d tokens: the place is behind %v, want %v", r.Version, r.Tokens, c.Parent, r.Hashes[full-1])
		}
	}
}

func TestLMCacheInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := LMCacheChain{
			ChunkSize: rapid.SampledFrom([]int{1, 3, 16, 255, 256, 257, 300}).Draw(t, "chunk size"),
			Int64:     rapid.Bool().Draw(t, "int64"),
			Tail:      rapid.Bool().Draw(t, "tail"),
		}
		tokens := testTokens(rapid.IntRange(0, 4*c.ChunkSize).Draw(t, "tokens"), rapid.Uint64().Draw(t, "prompt"))
		all := c
		want := all.Append(nil, tokens)

		cut := rapid.IntRange(0, len(tokens)/c.ChunkSize).Draw(t, "cut") * c.ChunkSize
		got := c.Append(nil, tokens[:cut])
		got = c.Append(got, tokens[cut:])
		if !slices.Equal(got, want) || c != all {
			t.Fatalf("in pieces %v, at once %v", got, want)
		}
	})
}

func TestLMCacheChangedToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := testTokens(rapid.IntRange(16, 100).Draw(t, "tokens"), rapid.Uint64().Draw(t, "prompt"))
		a, b := LMCacheChain{ChunkSize: 16, Tail: true}, LMCacheChain{ChunkSize: 16, Tail: true}
		before := a.Append(nil, tokens)
		at := rapid.IntRange(0, len(tokens)-1).Draw(t, "at")
		tokens[at]++
		for i, d := range b.Append(nil, tokens) {
			if changed := before[i] != d; changed != (i >= at/16) {
				t.Fatalf("token %d changed, digest %d changed: %v", at, i, changed)
			}
		}
	})
}

func TestLMCacheNoChunks(t *testing.T) {
	for _, c := range []LMCacheChain{{ChunkSize: -1, Tail: true}, {}, {ChunkSize: 1 << 30}} {
		if got := c.Append(nil, testTokens(255, 1)); len(got) != 0 || c.HasParent {
			t.Errorf("%+v: %v", c, got)
		}
	}
	c := LMCacheChain{ChunkSize: int(^uint(0) >> 1), Tail: true}
	if got := c.Append(nil, testTokens(3, 1)); len(got) != 1 || c.HasParent {
		t.Errorf("tail of an endless chunk: %v, has parent %v", got, c.HasParent)
	}
}

func TestLMCacheAllocations(t *testing.T) {
	prompt := testTokens(8192, 1)
	dst := make([]Digest, 0, 600)
	for _, c := range []struct {
		chain LMCacheChain
		want  float64
	}{{LMCacheChain{}, 0}, {LMCacheChain{ChunkSize: 16}, 0}, {LMCacheChain{Int64: true}, 0}, {LMCacheChain{ChunkSize: 1024}, 1}} {
		if n := testing.AllocsPerRun(20, func() { chain := c.chain; chain.Append(dst, prompt) }); n != c.want {
			t.Errorf("%+v: %v allocations, want %v", c.chain, n, c.want)
		}
	}
}

func TestFold(t *testing.T) {
	const text = "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"
	var d Digest
	if _, err := hex.Decode(d[:], []byte(text)); err != nil || d.String() != text {
		t.Fatal(d, err)
	}
	if got, want := d.Fold(SchemeLMCache), Key(0x8808405eec6fbe30^uint64(ModelOf("lmcache"))); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if d.Fold("vllm") == d.Fold(SchemeLMCache) || uint64(d.Fold(SchemeLMCache)) == 0x8808405eec6fbe30 {
		t.Error("schemes are not apart")
	}
	if n := testing.AllocsPerRun(20, func() { d.Fold(SchemeLMCache) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLMCache(b *testing.B) {
	prompt := testTokens(8192, 3)
	dst := make([]Digest, 0, 32)
	b.ReportAllocs()
	for b.Loop() {
		c := LMCacheChain{}
		dst = c.Append(dst[:0], prompt)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/chunk")
}
