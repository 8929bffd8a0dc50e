package blockkey_test

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

func unzip(t *testing.T, name string, into any) {
	t.Helper()
	f := must.Get(os.Open("testdata/" + name))(t)
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	must.OK(t, json.NewDecoder(z).Decode(into))
}

type vllmVector struct {
	Versions  []string `json:"versions_run"`
	Algorithm string   `json:"algo"`
	Seed      *string  `json:"PYTHONHASHSEED"`
	BlockSize int      `json:"block_size"`
	Case      string   `json:"case"`
	Tokens    []uint32 `json:"tokens"`
	None      string   `json:"none_hash"`
	Hashes    []string `json:"hashes"`
	Wire      []string `json:"wire_int"`
}

// vllmKeys is the form of the extra keys of a version.
func vllmKeys(t *testing.T, version string) blockkey.VLLMKeys {
	parts := strings.Split(version, ".")
	minor := must.Get(strconv.Atoi(parts[1]))(t)
	switch {
	case minor >= 31:
		return blockkey.VLLMKeys31
	case minor >= 19:
		return blockkey.VLLMKeys19
	case minor >= 12 || minor == 11 && parts[2] != "0":
		return blockkey.VLLMKeys11
	}
	return blockkey.VLLMKeys9
}

func (v *vllmVector) algorithm(t *testing.T) blockkey.VLLMAlgorithm {
	if v.Versions[0] == "0.9.2" {
		return blockkey.VLLMSHA256Int
	}
	a := blockkey.VLLMAlgorithm(0)
	for ; a.String() != v.Algorithm; a++ {
		if a > 100 {
			t.Fatal(v.Algorithm)
		}
	}
	return a
}

func upTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// The hashes of every vLLM version that was run, by every algorithm, to the bit.
func TestVLLMVectors(t *testing.T) {
	var file struct{ Vectors []vllmVector }
	unzip(t, "vllm_hashes.json.gz", &file)
	if len(file.Vectors) != 320 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	// text is a digest as the vectors have it.
	text := func(a blockkey.VLLMAlgorithm, d blockkey.Digest) string {
		switch a {
		case blockkey.VLLMSHA256Int, blockkey.VLLMSHA256CBOR64:
			return new(big.Int).SetBytes(d[:]).String()
		case blockkey.VLLMXXHash, blockkey.VLLMXXHashCBOR:
			return hex.EncodeToString(d[16:])
		default:
			return d.String()
		}
	}
	for _, v := range file.Vectors {
		for _, version := range v.Versions {
			seed := blockkey.VLLMDefaultSeed
			if v.Seed != nil {
				seed = *v.Seed
			}
			a := v.algorithm(t)
			c := blockkey.NewVLLMChain(a, seed, v.BlockSize)
			c.Keys = vllmKeys(t, version)
			if got := text(a, c.Parent); got != v.None {
				t.Errorf("%s %s seed %q: none is %s, want %s", version, v.Algorithm, seed, got, v.None)
			}
			var objects []blockkey.VLLMObject
			tokens := v.Tokens
			if tokens == nil {
				tokens = upTo(256)
			}
			for part := range strings.SplitSeq(v.Case, "+") {
				switch part {
				case "lora":
					c.LoRA = blockkey.VLLMLoRA{ID: 7, Name: "sql-lora", Path: "/adapters/sql-lora"}
				case "salt":
					c.Salt = "tenant-a"
				case "mm":
					objects = []blockkey.VLLMObject{{ID: "imgsha_aaaa", Offset: 20, Length: 40}, {ID: "imgsha_bbbb", Offset: 100, Length: 30}}
					if v.Case != "mm" {
						objects = []blockkey.VLLMObject{{ID: "imgsha_aaaa", Offset: 4, Length: 40}}
					}
				case "lookahead1":
					c.Lookahead = 1
				case "lookahead3":
					c.Lookahead = 3
				case "plain", "bigtokens":
				default:
					t.Fatalf("case %q", v.Case)
				}
			}
			again := c
			digests := c.Append(nil, tokens, objects...)
			var got, wire []string
			for _, d := range digests {
				got = append(got, text(a, d))
				wire = append(wire, strconv.FormatUint(d.VLLMWire(), 10))
			}
			if !slices.Equal(got, v.Hashes) {
				t.Errorf("%s %s %s block size %d seed %q:\n got %v\nwant %v", version, v.Algorithm, v.Case, v.BlockSize, seed, got, v.Hashes)
			}
			if v.Wire != nil && !slices.Equal(wire, v.Wire) {
				t.Errorf("%s %s %s on the wire:\n got %v\nwant %v", version, v.Algorithm, v.Case, wire, v.Wire)
			}
			// In two steps they are the same.
			half := len(tokens) / 2 / v.BlockSize * v.BlockSize
			twice := again.Append(nil, tokens[:half+c.Lookahead], objects...)
			if twice = again.Append(twice, tokens[half:], objects...); !slices.Equal(twice, digests) {
				t.Errorf("%s %s %s differs in two steps", version, v.Algorithm, v.Case)
			}
		}
	}
}

func TestVLLMEdges(t *testing.T) {
	for _, size := range []int{-1, 0, 17} {
		c := blockkey.NewVLLMChain(blockkey.VLLMSHA256, "0", size)
		if got := c.Append(nil, upTo(16)); len(got) != 0 {
			t.Errorf("block size %d of 16 tokens: %d blocks", size, len(got))
		}
	}
	// What CPython's pickle.dumps(x, 5) hashes to, for shapes that no vector has. They
	// are two and one tokens in a block, a text of 300 bytes, two objects in a block,
	// and a block of 300 tokens.
	for _, test := range []struct {
		name    string
		chain   blockkey.VLLMChain
		tokens  []uint32
		objects []blockkey.VLLMObject
		want    string
	}{
		{"one token", blockkey.VLLMChain{BlockSize: 1}, []uint32{5}, nil, pickleOne},
		{"two tokens", blockkey.VLLMChain{BlockSize: 2}, []uint32{5, 70000}, nil, pickleTwo},
		{"a long salt", blockkey.VLLMChain{BlockSize: 4, Salt: strings.Repeat("s", 300)}, upTo(4), nil, pickleLong},
		{"two objects", blockkey.VLLMChain{BlockSize: 4}, upTo(4),
			[]blockkey.VLLMObject{{ID: "a", Offset: 0, Length: 1}, {ID: "b", Offset: 2, Length: 1}, {ID: "c", Offset: 4, Length: 9}}, pickleObjects},
	} {
		test.chain.First = true
		if got := test.chain.Append(nil, test.tokens, test.objects...); len(got) != 1 || got[0].String() != test.want {
			t.Errorf("%s: %v, want %s", test.name, got, test.want)
		}
	}
	c := blockkey.NewVLLMChain(blockkey.VLLMXXHash, "0", 16)
	tokens, dst := upTo(8192), make([]blockkey.Digest, 0, 512)
	if n := testing.AllocsPerRun(10, func() { c.Append(dst, tokens) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
	seen := map[string]bool{}
	for i := range 10 {
		for _, s := range []string{blockkey.VLLMAlgorithm(i).String(), blockkey.VLLMKeys(i).String()} {
			if seen[s] {
				t.Errorf("%q twice", s)
			}
			seen[s] = true
		}
	}
}

type sglangVector struct {
	Version  string   `json:"sglang"`
	PageSize int      `json:"page_size"`
	Case     string   `json:"case"`
	Hashes   []int64  `json:"hashes"`
	Nodes    []string `json:"nodes"`
}

// The hashes of every SGLang version that was run, to the bit.
func TestSGLangVectors(t *testing.T) {
	var file struct{ Vectors []sglangVector }
	unzip(t, "sglang_hashes.json.gz", &file)
	if len(file.Vectors) != 96 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	unknown := 0
	for _, v := range file.Vectors {
		minor := must.Get(strconv.Atoi(strings.TrimPrefix(v.Version, "0.5.")))(t)
		n := 256
		if v.PageSize == 1 {
			n = 8
		}
		var (
			salt      string
			namespace blockkey.SGLangNamespace
			tenant, x = "tenant-a", "tenantX"
			bigram    bool
		)
		switch v.Case {
		case "plain", "extra_key":
		case "cache_salt", "salt+extra":
			if minor >= 18 {
				salt = tenant
			}
		case "extra_key dynamo_format":
			namespace = blockkey.NewSGLangNamespace(&x, nil)
		case "cache_salt dynamo_format":
			salt = tenant
			namespace = blockkey.NewSGLangNamespace(nil, &tenant)
		case "bigram(eagle)":
			bigram = true
			n++
		case "lora registered": // the adapter's internal key is not known
			unknown++
			continue
		default:
			t.Fatalf("case %q", v.Case)
		}
		c := blockkey.NewSGLangChain(v.PageSize, salt)
		c.Bigram = bigram
		again := c
		digests := c.Append(nil, upTo(n))
		var (
			got   []int64
			nodes []string
		)
		for _, d := range digests {
			got = append(got, namespace.Wire(d))
			nodes = append(nodes, d.String())
		}
		if !slices.Equal(got, v.Hashes) {
			t.Errorf("%s page %d %s:\n got %v\nwant %v", v.Version, v.PageSize, v.Case, got, v.Hashes)
		}
		if (v.Case == "plain" || bigram) && !slices.Equal(nodes, v.Nodes) {
			t.Errorf("%s page %d %s:\n got %v\nwant %v", v.Version, v.PageSize, v.Case, nodes, v.Nodes)
		}
		half := n / 2 / v.PageSize * v.PageSize
		end := half
		if bigram {
			end++
		}
		twice := again.Append(nil, upTo(n)[:end])
		if twice = again.Append(twice, upTo(n)[half:]); !slices.Equal(twice, digests) {
			t.Errorf("%s page %d %s differs in two steps", v.Version, v.PageSize, v.Case)
		}
	}
	if unknown != 3 {
		t.Errorf("%d vectors were left out", unknown)
	}
	for _, size := range []int{-1, 0, 17} {
		c := blockkey.NewSGLangChain(size, "")
		if got := c.Append(nil, upTo(16)); len(got) != 0 {
			t.Errorf("page size %d of 16 tokens: %d pages", size, len(got))
		}
	}
	long := blockkey.NewSGLangChain(300, "")
	if got := long.Append(nil, upTo(600)); len(got) != 2 {
		t.Errorf("%d pages of 300 in 600 tokens", len(got))
	}
}

// Namespaces whose parts join to one text differ.
func TestSGLangNamespaces(t *testing.T) {
	a, b, ab, none := "a", "b", "ab", ""
	var d blockkey.Digest
	seen := map[int64]bool{}
	for _, n := range []blockkey.SGLangNamespace{
		blockkey.NewSGLangNamespace(nil, nil), blockkey.NewSGLangNamespace(&a, &b), blockkey.NewSGLangNamespace(&ab, &none),
		blockkey.NewSGLangNamespace(&ab, nil), blockkey.NewSGLangNamespace(nil, &ab), blockkey.NewSGLangNamespace(&none, nil),
	} {
		if w := n.Wire(d); seen[w] {
			t.Errorf("%d twice", w)
		} else {
			seen[w] = true
		}
	}
}

// A key of a hash from the wire is that of the digest, and no other scheme's.
func TestWireKey(t *testing.T) {
	c := blockkey.NewSGLangChain(16, "")
	d := c.Append(nil, upTo(16))[0]
	if got, want := blockkey.WireKey(blockkey.SchemeSGLang, uint64(d.SGLangWire())), d.Fold(blockkey.SchemeSGLang); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if blockkey.WireKey(blockkey.SchemeVLLM, 1) == blockkey.WireKey(blockkey.SchemeSGLang, 1) {
		t.Error("two schemes share a key")
	}
	if !bytes.Equal(d[:8], binaryOf(d.SGLangWire())) {
		t.Error("the wire does not have the first 8 bytes")
	}
}

func binaryOf(v int64) []byte {
	var b [8]byte
	new(big.Int).SetUint64(uint64(v)).FillBytes(b[:])
	return b[:]
}

func BenchmarkVLLMChain(b *testing.B) {
	tokens, dst := upTo(8192), make([]blockkey.Digest, 0, 512)
	for _, a := range []blockkey.VLLMAlgorithm{blockkey.VLLMSHA256, blockkey.VLLMSHA256CBOR, blockkey.VLLMXXHash, blockkey.VLLMXXHashCBOR} {
		b.Run(a.String(), func(b *testing.B) {
			start := blockkey.NewVLLMChain(a, "0", 16)
			b.ReportAllocs()
			for b.Loop() {
				c := start
				c.Append(dst[:0], tokens)
			}
			b.ReportMetric(float64(b.N)*float64(len(tokens))/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkSGLangChain(b *testing.B) {
	tokens, dst := upTo(8192), make([]blockkey.Digest, 0, 512)
	start := blockkey.NewSGLangChain(16, "")
	b.ReportAllocs()
	for b.Loop() {
		c := start
		c.Append(dst[:0], tokens)
	}
	b.ReportMetric(float64(b.N)*float64(len(tokens))/b.Elapsed().Seconds(), "tokens/s")
}

const (
	pickleOne     = "7d9d600726451c469d3d4ca98c00a23d1cc32df28093398cd6d7aae923893f37"
	pickleTwo     = "235b20c0827ae834577fd1c9f3df5eb43e3f8cdd841af6098f585bf1d6e44480"
	pickleLong    = "7a05c3302279a05e22f87c497d90625cb98a98a65117f0ca294426fe9d5a55d4"
	pickleObjects = "dc2cb72761ea365fb7f6e4dfc6ce07edae58acb1a1fc9a21bbe7b518630b0166"
)
