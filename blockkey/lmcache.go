package blockkey

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// SchemeLMCache is the name of LMCache's scheme of keys, the SHA-256 chain.
const SchemeLMCache = "lmcache"

// DefaultChunkSize is LMCache's default number of tokens in a chunk.
const DefaultChunkSize = 256

// Digest is the hash of one chunk and its whole prefix under a scheme with
// hashes of 256 bits.
type Digest [sha256.Size]byte

// String returns the digest as 64 lower-case hex digits, the form in which it
// stands in LMCache's keys.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Fold returns the block key of a digest under a scheme. It is the first 8
// bytes as a big-endian number, XORed with XXH3-64 of the scheme's name under
// seed 1337. So schemes with one hash never share a key, as models never share
// a store key.
func (d Digest) Fold(scheme string) Key {
	return Key(binary.BigEndian.Uint64(d[:8]) ^ nameMask(scheme))
}

// LMCacheChain is a place in a chain of LMCache's chunks, from which it goes
// on. It has the hash of LMCache 0.3.1, 0.3.2 and of the fork that llm-d v0.1
// used. That is SHA-256 over the 64 hex digits of the chunk before (none for
// the first) and the chunk's tokens as u32 little-endian.
//
// Like Chain it is a small value, copied to branch, and not safe for
// concurrent use.
type LMCacheChain struct {
	// ChunkSize is the number of tokens in a chunk; 0 means 256, less than 0
	// has no chunks.
	ChunkSize int
	// Int64 hashes tokens as i64 little-endian, as LMCache 0.1 did up to
	// 2025-04-15.
	Int64 bool
	// Tail also gives the last tokens a digest when they do not fill a chunk,
	// as LMCache does with save_unfull_chunk and the fork always. Nothing
	// follows such a chunk, so the place stays in front of it.
	Tail bool
	// Parent is the digest of the chunk before the place, meaningful when
	// HasParent is set. Without it the place is the start of a prompt.
	Parent    Digest
	HasParent bool
}

// Append appends to dst the digests of all chunks of tokens, which begin at c's
// place, and moves the place behind the full ones. It allocates nothing for a
// chunk: once when dst has no room, and once for a chunk size above 256.
func (c *LMCacheChain) Append(dst []Digest, tokens []uint32) []Digest {
	size := c.ChunkSize
	size = cmp.Or(size, DefaultChunkSize)
	if size < 0 {
		return dst
	}
	full := len(tokens) / size
	n := full
	if c.Tail && len(tokens)%size > 0 {
		n++
	}
	dst, out := grow(dst, n)

	var stack [2*sha256.Size + 8*DefaultChunkSize]byte
	buf := stack[:0]
	if need := 2*sha256.Size + 8*min(size, len(tokens)); need > len(stack) {
		buf = make([]byte, 0, need)
	}
	for i := range out {
		chunk := tokens[i*size : min((i+1)*size, len(tokens))]
		buf = buf[:0]
		if c.HasParent {
			buf = hex.AppendEncode(buf, c.Parent[:])
		}
		for _, t := range chunk {
			if c.Int64 {
				buf = binary.LittleEndian.AppendUint64(buf, uint64(t))
			} else {
				buf = binary.LittleEndian.AppendUint32(buf, t)
			}
		}
		out[i] = sha256.Sum256(buf)
		if i < full {
			c.Parent, c.HasParent = out[i], true
		}
	}
	return dst
}
