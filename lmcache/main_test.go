package lmcache

import (
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const goldenModel = "meta-llama/Llama-3.1-8B-Instruct"

// row is one run of LMCache's code.
type row struct {
	Version      string            `json:"lmcache_version"`
	Algorithm    string            `json:"algorithm"`
	VLLM         bool              `json:"with_vllm"`
	Seed         string            `json:"pythonhashseed"`
	Python       string            `json:"python"`
	None         json.RawMessage   `json:"none_hash"`
	Ranges       [][2]int          `json:"ranges"`
	Hashes       []json.RawMessage `json:"chunk_hashes"`
	HashType     string            `json:"chunk_hash_type"`
	Keys         []string          `json:"key_strings"`
	Layer0       string            `json:"layer0_key_string"`
	L2Keys       []string          `json:"l2_keys"`
	L2Salted     string            `json:"l2_key_salted"`
	Reproducible bool              `json:"reproducible"`
}

type golden struct {
	Rows      []row    `json:"token_database"`
	MP        []row    `json:"mp_token_hasher"`
	RedisKeys []string `json:"redis_keys"`
}

func readGolden(t testing.TB) golden {
	t.Helper()
	f := must.Get(os.Open("testdata/hashes.json.gz"))(t)
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	var g golden
	must.OK(t, json.NewDecoder(z).Decode(&g))
	return g
}

// hash reads a hash as the data has it: hex in a string, or an int.
func goldenHash(t testing.TB, raw json.RawMessage) Hash {
	t.Helper()
	var text string
	if json.Unmarshal(raw, &text) == nil {
		b := must.Get(hex.DecodeString(text))(t)
		h := must.Get(BytesHash(b))(t)
		return h
	}
	h := must.Get(parseHash(string(raw), 10))(t)
	return h
}

func rowVersion(t testing.TB, s string) Version {
	t.Helper()
	switch s {
	case "nm":
		s = "fork"
	case "alpha":
		s = "0.1.2-alpha"
	}
	v := must.Get(VersionOf(s))(t)
	return v
}

// rowConfig is what an operator would say of the row's engine.
func rowConfig(t testing.TB, r row) (c Config, tokens []uint32) {
	t.Helper()
	c = Config{Version: rowVersion(t, r.Version), VLLM: r.VLLM, Seed: r.Seed}
	var err error
	if c.Algorithm, err = ParseAlgorithm(r.Algorithm); err != nil {
		t.Fatal(err)
	}
	switch r.Python {
	case "3.11.7":
		c.Python = 11
	case "3.12.1":
		c.Python = 12
	default:
		t.Fatalf("Python %q", r.Python)
	}
	n := 1024
	if len(r.Ranges) > 0 {
		if n = r.Ranges[len(r.Ranges)-1][1]; n%256 > 0 {
			c.Tail = true
		} else if n == 512 {
			n = 600 // save_unfull_chunk was off
		}
	}
	tokens = make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return c, tokens
}
