package blockkey

import "github.com/zeebo/xxh3"

// baseSeed is the seed of the native scheme. It is that of local hashes before
// LoRA and salt, of the chain, and of the hash of model and scheme names.
const baseSeed = 1337

// Seeds under which the scope's names are hashed. They differ so that a LoRA
// adapter and a cache salt of one name give two seeds.
const (
	loraSeed = 0
	saltSeed = 1
)

// Seed is the seed of a native chain: the LoRA adapter and the cache salt of a
// scope. The zero Seed is not that of the plain scope; NativeSeed("", "") is.
type Seed uint64

// NativeSeed returns the seed of chains under a LoRA adapter and a cache salt;
// "" stands for none. It is 1337, plus XXH3-64(lora, 0) and XXH3-64(salt, 1)
// of those that are not empty, modulo 2^64. Names are taken as they are: no
// case folding, no trimming, no Unicode normalization.
func NativeSeed(lora, salt string) Seed {
	seed := Seed(baseSeed)
	if lora != "" {
		seed += Seed(xxh3.HashStringSeed(lora, loraSeed))
	}
	if salt != "" {
		seed += Seed(xxh3.HashStringSeed(salt, saltSeed))
	}
	return seed
}

// AppendNative appends to dst the native block keys of all full blocks of
// tokens, from the start of a prompt, and returns the extended slice. A
// blockSize of 0 or less has no blocks.
//
// It allocates nothing when dst has room and once when it has not.
func AppendNative(dst []Key, tokens []uint32, blockSize int, seed Seed) []Key {
	c := Chain{BlockSize: blockSize, Seed: seed}
	return c.Append(dst, tokens)
}

// Chain is a place in a native chain, from which it goes on. Each Append takes
// the full blocks of the tokens it is given and moves the place behind the last
// of them. The caller keeps the tokens of a block that is not full yet, and
// gives them again.
//
// A Chain is a small value: copy it to branch. It is not safe for concurrent
// use.
type Chain struct {
	// BlockSize is the number of tokens in a block. 0 or less has no blocks.
	BlockSize int
	// Seed is the scope's, from NativeSeed.
	Seed Seed
	// Eagle says that a block is hashed with the one token that follows it, as
	// engines do under EAGLE speculative decoding. Blocks still begin
	// BlockSize tokens apart, and the last one is full only when its
	// follower is there: of n tokens (n-1)/BlockSize blocks are.
	Eagle bool
	// Parent is the key of the block before the place, meaningful when
	// HasParent is set. Without it the place is the start of a prompt.
	Parent    Key
	HasParent bool
}

// Append appends to dst the keys of all full blocks of tokens, which begin at
// c's place, and moves the place behind them. It allocates nothing when dst
// has room and once when it has not.
func (c *Chain) Append(dst []Key, tokens []uint32) []Key {
	n := c.blocks(len(tokens))
	dst, out := grow(dst, n)
	if n == 0 {
		return dst
	}
	// A local hasher lives on the stack; the plain scope, which is most
	// prompts, does not even fill it.
	h := &plain
	if c.Seed != baseSeed {
		var own hasher
		own.initLen(uint64(c.Seed), c.window())
		h = &own
	}
	if !c.HasParent {
		c.advance(Key(h.sum(tokens[:c.window()])))
		out[0] = c.Parent
		out, tokens = out[1:], tokens[c.BlockSize:]
	}
	switch {
	case c.BlockSize == 16 && !c.Eagle:
		h.chain16(out, tokens, c.Parent)
	case c.BlockSize == 32 && !c.Eagle:
		h.chain32(out, tokens, c.Parent)
	case c.BlockSize == 64 && !c.Eagle:
		h.chain64(out, tokens, c.Parent)
	default:
		w, k := c.window(), uint64(c.Parent)
		for i := range out {
			k = sumPair(k, h.sum(tokens[i*c.BlockSize:][:w]), 16, baseSeed)
			out[i] = Key(k)
		}
	}
	c.advance(dst[len(dst)-1])
	return dst
}

// AppendLocals appends to dst the keys of blocks whose local hashes are given. A
// local hash is that of the block's own content, which Dynamo calls tokens_hash;
// its clients send it instead of tokens. The blocks begin at c's place, which
// moves behind them. BlockSize, Seed and Eagle are already in the hashes and not
// read.
func (c *Chain) AppendLocals(dst []Key, locals []uint64) []Key {
	dst, out := grow(dst, len(locals))
	for i, local := range locals {
		c.step(local)
		out[i] = c.Parent
	}
	return dst
}

// step moves the place behind a block with the given local hash.
func (c *Chain) step(local uint64) {
	if c.HasParent {
		local = sumPair(uint64(c.Parent), local, 16, baseSeed)
	}
	c.advance(Key(local))
}

func (c *Chain) advance(k Key) { c.Parent, c.HasParent = k, true }

// window is the number of tokens that one block's hash reads.
func (c *Chain) window() int {
	if c.Eagle {
		return c.BlockSize + 1
	}
	return c.BlockSize
}

// blocks is the number of full blocks in n tokens.
func (c *Chain) blocks(n int) int {
	if c.BlockSize <= 0 || n == 0 {
		return 0
	}
	if c.Eagle {
		n--
	}
	return n / c.BlockSize
}

// grow extends dst by n elements and returns it and the new part. It allocates
// at most once (slices.Grow, under the race detector, twice), and doubles, so
// that a chain appended in pieces is not copied at each.
func grow[T any](dst []T, n int) (all, added []T) {
	size := len(dst) + n
	if size > cap(dst) {
		all = make([]T, size, max(size, 2*cap(dst)))
		copy(all, dst)
	} else {
		all = dst[:size]
	}
	return all, all[len(dst):]
}

// plain is the hasher of the scope without LoRA and salt.
var plain = func() (h hasher) {
	h.init(baseSeed)
	return h
}()

// chain16 fills out with the keys of blocks of 16 tokens after parent. The
// local hashes do not depend on each other; in the chain each key depends on
// the one before it. In one loop the processor hashes the next blocks while it
// waits for the chain, which in two loops it could not.
func (h *hasher) chain16(out []Key, tokens []uint32, parent Key) {
	w := (*[8]uint64)(h.words[:])
	k := uint64(parent)
	for i := range out {
		t := (*[16]uint32)(tokens[i*16:])
		local := lengthTerm(16) +
			pair(t[0:4], w[0], w[1]) + pair(t[12:16], w[2], w[3]) +
			pair(t[4:8], w[4], w[5]) + pair(t[8:12], w[6], w[7])
		k = sumPair(k, avalanche(local), 16, baseSeed)
		out[i] = Key(k)
	}
}

// chain32 is chain16 for blocks of 32 tokens.
func (h *hasher) chain32(out []Key, tokens []uint32, parent Key) {
	w := (*[16]uint64)(h.words[:])
	k := uint64(parent)
	for i := range out {
		t := (*[32]uint32)(tokens[i*32:])
		local := lengthTerm(32) +
			pair(t[0:4], w[0], w[1]) + pair(t[28:32], w[2], w[3]) +
			pair(t[4:8], w[4], w[5]) + pair(t[24:28], w[6], w[7]) +
			pair(t[8:12], w[8], w[9]) + pair(t[20:24], w[10], w[11]) +
			pair(t[12:16], w[12], w[13]) + pair(t[16:20], w[14], w[15])
		k = sumPair(k, avalanche(local), 16, baseSeed)
		out[i] = Key(k)
	}
}

// chain64 is chain16 for blocks of 64 tokens.
func (h *hasher) chain64(out []Key, tokens []uint32, parent Key) {
	k := uint64(parent)
	for i := range out {
		k = sumPair(k, h.sum64((*[64]uint32)(tokens[i*64:])), 16, baseSeed)
		out[i] = Key(k)
	}
}
