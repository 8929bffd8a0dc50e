package blockkey

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// SchemeVLLM is the name of vLLM's own scheme of block hashes.
const SchemeVLLM = "vllm"

// VLLMDefaultSeed is what vLLM 0.29 and later hash with when PYTHONHASHSEED is not
// set and the algorithm is one of sha256. Before, and with the xxhash algorithms,
// it is 32 random bytes then, which only the process knows.
const VLLMDefaultSeed = "vllm-none-hash"

// VLLMAlgorithm is how vLLM hashes a block, its --prefix-caching-hash-algo.
type VLLMAlgorithm uint8

// The algorithms.
const (
	// VLLMSHA256 is "sha256", the default: SHA-256 of Python's pickle.
	VLLMSHA256 VLLMAlgorithm = iota
	// VLLMSHA256CBOR is "sha256_cbor": SHA-256 of canonical CBOR.
	VLLMSHA256CBOR
	// VLLMXXHash is "xxhash", from 0.13: XXH3-128 of Python's pickle.
	VLLMXXHash
	// VLLMXXHashCBOR is "xxhash_cbor", from 0.13: XXH3-128 of canonical CBOR.
	VLLMXXHashCBOR
	// VLLMSHA256Int is "sha256" up to 0.10.1, where the hash of a block goes into
	// the next one's as an integer. Those versions cannot publish it.
	VLLMSHA256Int
	// VLLMSHA256CBOR64 is "sha256_cbor_64bit" of 0.10.1: the last 8 bytes of
	// SHA-256 of canonical CBOR, as an integer.
	VLLMSHA256CBOR64

	numVLLMAlgorithms
)

var vllmAlgorithms = [numVLLMAlgorithms]string{"sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sha256 as integers", "sha256_cbor_64bit"}

// String returns vLLM's name of the algorithm.
func (a VLLMAlgorithm) String() string {
	if a < numVLLMAlgorithms {
		return vllmAlgorithms[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

func (a VLLMAlgorithm) pickled() bool {
	return a == VLLMSHA256 || a == VLLMXXHash || a == VLLMSHA256Int
}

// size is how many bytes of a Digest are the hash: its last.
func (a VLLMAlgorithm) size() int {
	switch a {
	case VLLMXXHash, VLLMXXHashCBOR:
		return 16
	case VLLMSHA256CBOR64:
		return 8
	default:
		return sha256.Size
	}
}

func (a VLLMAlgorithm) hash(b []byte) (d Digest) {
	switch a {
	case VLLMXXHash, VLLMXXHashCBOR:
		sum := xxh3.Hash128(b).Bytes()
		copy(d[16:], sum[:])
	case VLLMSHA256CBOR64:
		sum := sha256.Sum256(b)
		copy(d[24:], sum[24:])
	default:
		d = sha256.Sum256(b)
	}
	return d
}

// None returns the hash that stands in front of the first block of a prompt,
// vLLM's NONE_HASH, of the seed in PYTHONHASHSEED.
func (a VLLMAlgorithm) None(seed string) Digest {
	var e encoder
	e.begin(a)
	e.text(seed)
	e.finish()
	return a.hash(e.b)
}

// VLLMKeys is how vLLM writes what else goes into a block's hash, which has changed
// with its version.
type VLLMKeys uint8

// The forms of the extra keys.
const (
	// VLLMKeys31 is vLLM 0.31 and later: tuples with a tag, ("lora", name, path),
	// ("mm", identifier, offset), ("cache_salt", salt).
	VLLMKeys31 VLLMKeys = iota
	// VLLMKeys19 is vLLM 0.19 to 0.30: name, (identifier, offset), salt.
	VLLMKeys19
	// VLLMKeys11 is vLLM 0.11.1 to 0.18: name, identifier, salt.
	VLLMKeys11
	// VLLMKeys9 is vLLM up to 0.11.0: number of the adapter, identifier, salt.
	VLLMKeys9

	numVLLMKeys
)

var vllmKeys = [numVLLMKeys]string{"0.31 and later", "0.19 to 0.30", "0.11.1 to 0.18", "up to 0.11.0"}

// String returns the versions that have the form.
func (k VLLMKeys) String() string {
	if k < numVLLMKeys {
		return vllmKeys[k]
	}
	return fmt.Sprintf("keys(%d)", uint8(k))
}

// VLLMLoRA is an adapter as vLLM hashes it: up to 0.11.0 by its number, then by its
// name, from 0.31 by name and path. The zero value is the base model. The path is
// in no event.
type VLLMLoRA struct {
	ID         int64
	Name, Path string
}

// VLLMObject is a multimodal object of a prompt. It has its identifier, the token at
// which it begins, counted from the prompt's first, and its length in tokens.
type VLLMObject struct {
	ID             string
	Offset, Length int
}

// VLLMChain is a place in a chain of vLLM's block hashes, from which it goes on:
//
//	H((hash of the block before, tokens, extra keys or None))
//
// with the hash of the seed before the first block. vLLM sends the last 8 bytes in
// events, see Digest.VLLMWire. Plain prompts have one hash from 0.10.2 to 0.33; what
// adapters, salts and objects add depends on the version.
//
// Like Chain it is a small value, copied to branch, and not safe for concurrent
// use. The hash of an algorithm with less than 32 bytes stands at the end of its
// Digest, behind zeros.
type VLLMChain struct {
	Algorithm VLLMAlgorithm
	Keys      VLLMKeys
	// BlockSize is the number of tokens in a block; less than 1 has no blocks.
	// Python splits a pickle of more than 64 KiB, which is not done here: blocks of
	// more than 13,000 tokens come out wrong.
	BlockSize int
	// Lookahead is how many tokens behind a block go into its hash too, for EAGLE
	// and MTP from 0.33 without a KV connector. The last block is then one that has
	// them all.
	Lookahead int
	LoRA      VLLMLoRA
	// Salt is the cache salt. It goes into the first block of a prompt.
	Salt string
	// Parent is the hash of the block before the place, or the algorithm's None, of
	// which First tells that it is.
	Parent Digest
	First  bool
	// Position is the number of tokens before the place. Objects count from there.
	Position int
}

// NewVLLMChain returns the start of a prompt.
func NewVLLMChain(a VLLMAlgorithm, seed string, blockSize int) VLLMChain {
	return VLLMChain{Algorithm: a, BlockSize: blockSize, Parent: a.None(seed), First: true}
}

// VLLMWire returns the number of the digest in vLLM's events: its last 8 bytes.
func (d Digest) VLLMWire() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// WireKey returns the block key of a hash as an engine sends it. As in Digest.Fold
// it is XORed with XXH3-64 of the scheme's name under seed 1337.
func WireKey(scheme string, wire uint64) Key { return Key(wire ^ nameMask(scheme)) }

// Append appends to dst the hashes of all full blocks of tokens, which begin at c's
// place, and moves the place behind them. Objects are those of the whole prompt, in
// their order. It allocates a buffer for a call and nothing for a block.
func (c *VLLMChain) Append(dst []Digest, tokens []uint32, objects ...VLLMObject) []Digest {
	if c.BlockSize < 1 || len(tokens) < c.BlockSize+max(0, c.Lookahead) {
		return dst
	}
	n := (len(tokens) - max(0, c.Lookahead)) / c.BlockSize
	dst, out := grow(dst, n)
	e := encoder{b: make([]byte, 0, 128+5*c.BlockSize)}
	for i := range out {
		from := i * c.BlockSize
		c.encode(&e, tokens[from:], objects)
		out[i] = c.Algorithm.hash(e.b)
		c.Parent, c.First = out[i], false
		c.Position += c.BlockSize
	}
	return dst
}

// reaches reports whether the object reaches into the block at the place, and at
// which token of it it begins.
func (c *VLLMChain) reaches(o VLLMObject) (offset int, ok bool) {
	offset = o.Offset - c.Position
	return offset, offset < c.BlockSize && offset+o.Length > 0
}

// hasLoRA reports whether an adapter goes into the hash.
func (c *VLLMChain) hasLoRA() bool {
	if c.Keys == VLLMKeys9 {
		return c.LoRA.ID != 0
	}
	return c.LoRA.Name != ""
}

// extras is how many extra keys the block at the place has.
func (c *VLLMChain) extras(objects []VLLMObject) int {
	n := 0
	if c.hasLoRA() {
		n++
	}
	for _, o := range objects {
		if _, ok := c.reaches(o); ok {
			n++
		}
	}
	if c.First && c.Salt != "" {
		n++
	}
	return n
}

// encode writes what is hashed of the block at the place. Of two objects with one identifier in
// a block, a pickle of Python's depends on whether they share the string; here each has its own.
func (c *VLLMChain) encode(e *encoder, tokens []uint32, objects []VLLMObject) {
	e.begin(c.Algorithm)
	e.openTuple(3)
	switch c.Algorithm {
	case VLLMSHA256CBOR64:
		e.unsigned(c.Parent.VLLMWire())
	case VLLMSHA256Int:
		e.pickleDigest(c.Parent)
	default:
		e.bytes(c.Parent[len(c.Parent)-c.Algorithm.size():])
	}
	e.tokens(tokens[:c.BlockSize])
	if c.Lookahead > 0 {
		e.openTuple(1 + c.Lookahead)
	}
	if n := c.extras(objects); n == 0 {
		e.null()
	} else {
		e.openTuple(n)
		c.encodeExtras(e, objects)
		e.closeTuple(n)
	}
	if c.Lookahead > 0 {
		for _, t := range tokens[c.BlockSize:][:c.Lookahead] {
			e.integer(int64(t))
		}
		e.closeTuple(1 + c.Lookahead)
	}
	e.closeTuple(3)
	e.finish()
}

func (c *VLLMChain) encodeExtras(e *encoder, objects []VLLMObject) {
	tagged := c.Keys == VLLMKeys31
	if c.hasLoRA() {
		switch {
		case tagged:
			e.openTuple(3)
			e.text("lora")
			e.text(c.LoRA.Name)
			e.text(c.LoRA.Path)
			e.closeTuple(3)
		case c.Keys == VLLMKeys9:
			e.integer(c.LoRA.ID)
		default:
			e.text(c.LoRA.Name)
		}
	}
	tag := -1
	for _, o := range objects {
		offset, ok := c.reaches(o)
		if !ok {
			continue
		}
		switch c.Keys {
		case VLLMKeys31:
			e.openTuple(3)
			e.constant("mm", &tag)
			e.text(o.ID)
			e.integer(int64(offset))
			e.closeTuple(3)
		case VLLMKeys19:
			e.openTuple(2)
			e.text(o.ID)
			e.integer(int64(offset))
			e.closeTuple(2)
		default:
			e.text(o.ID)
		}
	}
	if c.First && c.Salt != "" {
		if tagged {
			e.openTuple(2)
			e.text("cache_salt")
		}
		e.text(c.Salt)
		if tagged {
			e.closeTuple(2)
		}
	}
}
