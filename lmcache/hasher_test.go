package lmcache

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestGolden(t *testing.T) {
	passed, refused := 0, 0
	for i, r := range readGolden(t).Rows {
		c, tokens := rowConfig(t, r)
		h, err := New(c)
		if !r.Reproducible {
			if !errors.Is(err, ErrUnknowable) || !strings.Contains(err.Error(), "Python 3.12") {
				t.Errorf("row %d, %s %s: %v, want ErrUnknowable and what to set", i, r.Version, r.Algorithm, err)
			}
			refused++
			continue
		}
		if err != nil {
			t.Errorf("row %d, %s %s: %v", i, r.Version, r.Algorithm, err)
			continue
		}
		got := h.Append(nil, tokens)
		var want []Hash
		for _, raw := range r.Hashes {
			want = append(want, goldenHash(t, raw))
		}
		keys, err := Keys(c, Target{Model: goldenModel, WorldSize: 1, DType: "bfloat16"}, tokens)
		wantKeys := r.Keys
		if c.Version == VFork { // its Redis has shorter ones
			wantKeys = nil
			for _, h := range want {
				wantKeys = append(wantKeys, goldenModel+"@"+h.String())
			}
		}
		if !slices.Equal(got, want) || err != nil || !slices.Equal(keys, wantKeys) || h.Chunks(len(tokens)) != len(r.Ranges) {
			t.Errorf("row %d, %s %s:\n%v %v, want\n%v %v (%v)", i, r.Version, r.Algorithm, got, keys, want, wantKeys, err)
			continue
		}
		if r.Layer0 != "" {
			layer := Target{Model: goldenModel, WorldSize: 1, DType: "bfloat16", HasLayer: true}
			if keys, err := h.AppendKeys(nil, layer, tokens[:256]); err != nil || keys[0] != r.Layer0 {
				t.Errorf("row %d, %s: layer 0 %v, want %q (%v)", i, r.Version, keys, r.Layer0, err)
			}
		}
		passed++
	}
	if passed != 68 || refused != 11 {
		t.Errorf("%d rows passed and %d were refused, want 68 and 11", passed, refused)
	}
}

func TestGoldenMP(t *testing.T) {
	rows, salted := readGolden(t).MP, 0
	if len(rows) != 9 {
		t.Fatalf("%d rows, want 9", len(rows))
	}
	for _, r := range rows {
		c, tokens := rowConfig(t, r)
		c.MP = true
		h, err := New(c)
		if err != nil {
			t.Fatalf("%s %s: %v", r.Version, r.Algorithm, err)
		}
		var want []Hash
		for _, raw := range r.Hashes {
			want = append(want, goldenHash(t, raw))
		}
		if got := h.Append(nil, tokens[:1023]); !slices.Equal(got, want[:3]) {
			t.Errorf("%s %s: %v, want the three whole chunks of %v", r.Version, r.Algorithm, got, want)
		}
		keys, err := h.AppendKeys(nil, Target{Model: goldenModel, WorldSize: 1}, tokens)
		if err != nil || len(r.L2Keys) > 0 && !slices.Equal(keys, r.L2Keys) {
			t.Errorf("%s %s: %v, want %v (%v)", r.Version, r.Algorithm, keys, r.L2Keys, err)
		}
		if r.L2Salted != "" {
			salted++
			keys, err := h.AppendKeys(nil, Target{Model: goldenModel, WorldSize: 2, WorkerID: 1, Salt: "tenant-a"}, tokens)
			if err != nil || keys[0] != r.L2Salted {
				t.Errorf("%s %s: %v, want %q (%v)", r.Version, r.Algorithm, keys[0], r.L2Salted, err)
			}
		}
	}
	if salted == 0 {
		t.Error("no row has a salt")
	}
}

// Both lookup servers' Redis, as their code wrote it, is what Keys would read.
func TestKeysAreThoseInRedis(t *testing.T) {
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	target := Target{Model: goldenModel, WorldSize: 1}
	a := must.Get(Keys(Config{Version: V031}, target, tokens))(t)
	b := must.Get(Keys(Config{Version: VFork}, target, tokens))(t)
	written := readGolden(t).RedisKeys
	if len(written) == 0 {
		t.Fatal("no keys")
	}
	for _, key := range written {
		if !slices.Contains(a, key) && !slices.Contains(b, key) {
			t.Errorf("%q is among neither %v nor %v", key, a, b)
		}
	}
}

func TestSeeds(t *testing.T) {
	for _, r := range readGolden(t).Rows {
		c, _ := rowConfig(t, r)
		h, err := New(c)
		if err != nil || c.Version.hexChain() {
			continue
		}
		got := IntHash(h.none)
		if c.Algorithm != Builtin {
			got = h.ofVLLM(h.vllm.Parent)
		}
		if want := goldenHash(t, r.None); got != want {
			t.Errorf("%s %s: seed %v, want %v", r.Version, r.Algorithm, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		c    Config
		is   error
		says string
	}{
		"no seed":               {Config{Version: V046, Algorithm: SHA256CBOR, VLLM: true}, ErrUnknowable, "PYTHONHASHSEED"},
		"no seed, builtin":      {Config{Version: V046, VLLM: true, Python: 12}, ErrUnknowable, "PYTHONHASHSEED"},
		"seed random":           {Config{Version: V046, VLLM: true, Python: 12, Seed: "random"}, ErrUnknowable, "PYTHONHASHSEED"},
		"seed of letters":       {Config{Version: V046, VLLM: true, Python: 12, Seed: "x"}, ErrConfig, "4294967295"},
		"builtin, which Python": {Config{Version: V046, VLLM: true, Seed: "0"}, ErrUnknowable, "set the engine's Python"},
		"None, which Python":    {Config{Version: V0310}, ErrUnknowable, "set the engine's Python"},
		"None, old Python":      {Config{Version: V0313, Python: 11}, ErrUnknowable, "sha256_cbor"},
		"0.3.3 in vLLM":         {Config{Version: V033, VLLM: true, Seed: "0", Python: 12}, ErrUnknowable, "0.3.4"},
		"without vLLM":          {Config{Version: V046, Algorithm: XXHash, Seed: "0"}, ErrConfig, "builtin"},
		"bytes in 0.3.10":       {Config{Version: V0310, Algorithm: SHA256, VLLM: true, Seed: "0"}, ErrConfig, "0.3.13"},
		"blake3":                {Config{Version: V046, Algorithm: Blake3}, ErrConfig, "MP"},
		"MP in 0.3.1":           {Config{Version: V031, MP: true}, ErrConfig, "0.3.15"},
		"MP builtin":            {Config{Version: V046, MP: true, Algorithm: Builtin}, ErrUnknowable, "blake3"},
		"MP pickle":             {Config{Version: V046, MP: true, Algorithm: SHA256, VLLM: true, Seed: "0"}, ErrUnknowable, "blake3"},
		"MP no seed":            {Config{Version: V046, MP: true, Algorithm: SHA256CBOR, VLLM: true}, ErrUnknowable, "PYTHONHASHSEED"},
		"chunks too large":      {Config{ChunkSize: MaxChunkSize + 1}, ErrConfig, "chunk size"},
		"chunks below 0":        {Config{ChunkSize: -1}, ErrConfig, "chunk size"},
		"Python 3.7":            {Config{Python: 7}, ErrConfig, "3.8"},
		"Python 3.14":           {Config{Python: 14}, ErrConfig, "3.13"},
		"no algorithm":          {Config{Algorithm: numAlgorithms}, ErrConfig, "algorithm(7)"},
		"no version":            {Config{Version: numVersions}, ErrVersion, "version(10)"},
	} {
		h, err := New(tc.c)
		if h != nil || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, tc.is, tc.says)
		}
		if _, err := Keys(tc.c, Target{Model: "m", WorldSize: 1, DType: "half"}, nil); !errors.Is(err, tc.is) {
			t.Errorf("%s: Keys: %v, want %v", name, err, tc.is)
		}
	}
}

func TestTargetRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		c Config
		t Target
	}{
		"no model":      {Config{Version: V031}, Target{WorldSize: 1}},
		"fork":          {Config{Version: VFork}, Target{WorldSize: 1}},
		"no dtype":      {Config{Version: V046}, Target{Model: "m", WorldSize: 1}},
		"no world":      {Config{Version: V046}, Target{Model: "m", DType: "half"}},
		"MP, @ in name": {Config{Version: V046, MP: true}, Target{Model: "m@x", WorldSize: 1}},
		"MP, 256":       {Config{Version: V046, MP: true}, Target{Model: "m", WorldSize: 256}},
	} {
		dst := []string{"before"}
		h := must.Get(New(tc.c))(t)
		got, err := h.AppendKeys(dst, tc.t, make([]uint32, 600))
		if !errors.Is(err, ErrKey) && !errors.Is(err, ErrHash) || len(got) != 1 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// configs are ones that New takes, one of each way of hashing.
var configs = []Config{
	{Version: V01}, {Version: VFork}, {Version: V031, Tail: true}, {Version: V033},
	{Version: V034, Python: 12}, {Version: V036, Python: 13, VLLM: true, Seed: "42", Tail: true},
	{Version: V0310, Python: 12}, {Version: V0313, Algorithm: XXHash, VLLM: true, Seed: "0"},
	{Version: V041, Algorithm: SHA256, VLLM: true, Seed: "0", Tail: true},
	{Version: V046}, {Version: V046, Algorithm: SHA256, VLLM: true, Seed: "7"},
	{Version: V046, Algorithm: XXHashCBOR, VLLM: true, Seed: "0", Tail: true}, {Version: V046, MP: true},
	{Version: V046, MP: true, Algorithm: XXHashCBOR, VLLM: true, Seed: "0"},
}

// A chain is one: a changed token changes its chunk and all behind it, none before, and
// a longer prompt has the same whole chunks.
func TestPrefixChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(configs).Draw(t, "config")
		c.ChunkSize = rapid.IntRange(1, 40).Draw(t, "chunk size")
		h := must.Get(New(c))(t)
		tokens := rapid.SliceOfN(rapid.Uint32(), 1, 200).Draw(t, "tokens")
		all := h.Append(nil, tokens)
		if len(all) != h.Chunks(len(tokens)) {
			t.Fatalf("%d hashes, Chunks says %d", len(all), h.Chunks(len(tokens)))
		}
		cut := rapid.IntRange(0, len(tokens)/c.ChunkSize).Draw(t, "cut")
		if got := h.Append(nil, tokens[:cut*c.ChunkSize]); !slices.Equal(got, all[:cut]) {
			t.Fatalf("%v of the first %d chunks, want %v", got, cut, all[:cut])
		}
		at := rapid.IntRange(0, len(tokens)-1).Draw(t, "at")
		tokens[at]++
		for i, hash := range h.Append(nil, tokens) {
			if changed := hash != all[i]; changed != (i >= at/c.ChunkSize) {
				t.Fatalf("token %d changed, chunk %d changed: %v", at, i, changed)
			}
		}
	})
}

// What Keys makes, the version's parser reads, and finds the hash and target in.
func TestKeysParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(configs).Draw(t, "config")
		c.ChunkSize = 4
		target := Target{Model: rapid.SampledFrom([]string{"m", "org/m", "a@b/c"}).Draw(t, "model"), WorldSize: 4, WorkerID: 3, DType: "fp8_e5m2"}
		if c.MP {
			target.Model = strings.ReplaceAll(target.Model, "@", "")
		}
		h := must.Get(New(c))(t)
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 20).Draw(t, "tokens")
		keys := must.Get(h.AppendKeys(nil, target, tokens))(t)
		for i, want := range h.Append(nil, tokens) {
			var model string
			var got Hash
			switch {
			case c.MP:
				k, err := ParseObjectKey(keys[i])
				if err != nil || k.Rank.Rank() != 3 || k.Rank.LocalWorldSize() != 4 || k.Rank.LocalRank() != 3 {
					t.Fatalf("%+v, %v", k, err)
				}
				model, got = k.Model, k.Hash
			case c.Version == VFork:
				k, err := ParseForkKey(keys[i])
				d, ok := want.Digest()
				if err != nil || !ok || k.Hash != d {
					t.Fatalf("%+v, %v", k, err)
				}
				model, got = k.Model, want
			default:
				k, err := c.Version.ParseKey(keys[i])
				if err != nil || k.WorldSize != 4 || k.WorkerID != 3 || k.HasLayer {
					t.Fatalf("%+v, %v", k, err)
				}
				model, got = k.Model, k.Hash
			}
			if model != target.Model || got != want {
				t.Fatalf("%q has %q and %v, want %q and %v", keys[i], model, got, target.Model, want)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	tokens := make([]uint32, 8192)
	for i := range tokens {
		tokens[i] = uint32(i * 7919 % 128000)
	}
	for _, c := range []Config{
		{Version: V031}, {Version: V046}, {Version: V046, Algorithm: SHA256CBOR, VLLM: true, Seed: "0"}, {Version: V046, MP: true},
	} {
		h := must.Get(New(c))(b)
		b.Run(c.Version.String()+"/"+h.c.Algorithm.String(), func(b *testing.B) {
			b.ReportAllocs()
			var dst []Hash
			for b.Loop() {
				dst = h.Append(dst[:0], tokens)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(tokens)), "ns/token")
		})
	}
}
