// Package blockkey turns tokens into block keys: the hashes under which the
// index stores the holders of each block of a prompt.
//
// # The native scheme
//
// Tokens are cut into blocks of the index block size, and only full blocks have
// a key. A key is chained, it names its block and everything before it:
//
//	seed   = 1337 + XXH3-64(lora, 0) + XXH3-64(salt, 1)        names that are not empty
//	local  = XXH3-64(tokens as u32 LE ++ object hashes as u64 LE, seed)
//	key[0] = local[0]
//	key[i] = XXH3-64(key[i-1] as u64 LE ++ local[i] as u64 LE, 1337)
//	store  = key XOR XXH3-64(model, 1337)
//
// Sums are modulo 2^64. Object hashes are those of the multimodal objects that
// reach into the block, ascending. This is the public scheme of NVIDIA Dynamo's
// KV router (crate dynamo-kv-router 1.6.1), bit for bit. Hashes that its users
// hold are keys here, and testdata holds vectors made by running that crate.
// The model is not part of a key, only of the StoreKey that is formed last.
//
// [AppendNative] hashes a prompt; a [Chain] goes on from any block, and knows
// objects and EAGLE's windows.
//
// # LMCache
//
// An [LMCacheChain] recomputes the SHA-256 chain of LMCache 0.1 to 0.3.2, for
// entries which LMCache writes itself. [Digest.Fold] makes a Key of a digest,
// apart from all keys of other schemes by the scheme's name. An
// [LMCacheVLLMChain] recomputes the chains of later ones that have one of vLLM's
// hash functions. Package lmcache knows which engine has which, and the rest.
//
// # vLLM and SGLang
//
// A [VLLMChain] recomputes the block hashes of vLLM 0.9 to 0.33 by each of its
// algorithms. An [SGLangChain] recomputes the page hashes of SGLang 0.5.6 to
// 0.5.23. Both do so bit for bit: testdata holds what the engines' own code gave.
// They say whether an engine hashes as one believes, its seed among it, and make
// keys of entries that engines write themselves, with [WireKey]. The index does
// not need them: it keys blocks by their tokens under the native scheme, whatever
// the engine's hash.
//
// # Guarantees
//
// Everything is a pure function of its arguments. Functions are safe for
// concurrent use; chains are values that belong to one goroutine. Nothing
// allocates for a block: results are appended to the caller's slice, which
// grows at most once a call.
//
// # Collisions
//
// XXH3 is fast and well distributed, and not cryptographic: who chooses the
// tokens can make two blocks collide. The index is a hint, so a collision costs
// a request that goes to a pod without its prefix, which then computes it. That
// is a worse placement and never a wrong answer, for engines look up their own
// cache by their own hash. By chance it takes some 600 million blocks for the
// odds of one colliding pair to reach 1 in 100. A cache salt keeps tenants'
// keys apart, but do not take a key for a secret or a proof of content.
package blockkey
