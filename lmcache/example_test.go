package lmcache_test

import (
	"fmt"

	"github.com/kvatlas/kvatlas/lmcache"
)

// What to read in Redis for a prompt of two chunks and a little, of one worker of an
// engine with LMCache 0.5.6 inside vLLM.
func ExampleKeys() {
	version, err := lmcache.VersionOf("0.5.6")
	if err != nil {
		fmt.Println(err)
		return
	}
	tokens := make([]uint32, 600)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	c := lmcache.Config{Version: version, Algorithm: lmcache.SHA256CBOR, VLLM: true}
	target := lmcache.Target{Model: "meta-llama/Llama-3.1-8B-Instruct", WorldSize: 1, DType: "bfloat16"}
	_, err = lmcache.Keys(c, target, tokens)
	fmt.Println(err)

	c.Seed = "0"
	keys, err := lmcache.Keys(c, target, tokens)
	fmt.Println(len(keys), keys[0], err)
	// Output:
	// lmcache: hashes that only the engine knows: sha256_cbor begins with the hash of PYTHONHASHSEED, and with random bytes when it is not set; set it to one value, such as 0, for all engines and here
	// 2 meta-llama/Llama-3.1-8B-Instruct@1@0@b8a960cfcc69e7a5@bfloat16 <nil>
}
