package blockkey

import (
	"crypto/sha256"
	"encoding/binary"
)

// SchemeSGLang is the name of SGLang's own scheme of page hashes.
const SchemeSGLang = "sglang"

// SGLangChain is a place in a chain of SGLang's page hashes, from which it goes on,
// as SGLang 0.5.6 and later have it. A hash is SHA-256 over the digest of the page
// before and the page's tokens as u32 little-endian. The first page of a prompt has
// nothing before it or, with a salt, the digest of the salt. SGLang sends the first
// 8 bytes in events, see Digest.SGLangWire.
//
// Like Chain it is a small value, copied to branch, and not safe for concurrent
// use.
type SGLangChain struct {
	// PageSize is the number of tokens, with Bigram of pairs, in a page; less than 1
	// has no pages.
	PageSize int
	// Bigram is EAGLE. A page has pairs of a token and the next, so PageSize+1 tokens
	// are needed, and both of each pair are hashed.
	Bigram bool
	// Parent is the digest before the place, meaningful when HasParent is set.
	Parent    Digest
	HasParent bool
}

// NewSGLangChain returns the start of a prompt with a cache salt, "" for none. The
// salt counts from SGLang 0.5.18.
func NewSGLangChain(pageSize int, salt string) SGLangChain {
	c := SGLangChain{PageSize: pageSize}
	if salt != "" {
		c.Parent = sha256.Sum256(append([]byte("sglang-cache-salt-v1\x00"), salt...))
		c.HasParent = true
	}
	return c
}

// SGLangWire returns the number of the digest in SGLang's events: its first 8 bytes.
func (d Digest) SGLangWire() int64 { return int64(binary.BigEndian.Uint64(d[:8])) }

// Append appends to dst the digests of all full pages of tokens, which begin at c's
// place, and moves the place behind them. It allocates once for a call when dst has
// no room, and once for a page of more than 256 tokens.
func (c *SGLangChain) Append(dst []Digest, tokens []uint32) []Digest {
	have := len(tokens)
	if c.Bigram {
		have--
	}
	if c.PageSize < 1 || have < c.PageSize {
		return dst
	}
	dst, out := grow(dst, have/c.PageSize)
	var stack [sha256.Size + 8*256]byte
	buf := stack[:0]
	if need := sha256.Size + 8*c.PageSize; need > len(stack) {
		buf = make([]byte, 0, need)
	}
	for i := range out {
		buf = buf[:0]
		if c.HasParent {
			buf = append(buf, c.Parent[:]...)
		}
		from := i * c.PageSize
		for j, t := range tokens[from:][:c.PageSize] {
			buf = binary.LittleEndian.AppendUint32(buf, t)
			if c.Bigram {
				buf = binary.LittleEndian.AppendUint32(buf, tokens[from+j+1])
			}
		}
		out[i] = sha256.Sum256(buf)
		c.Parent, c.HasParent = out[i], true
	}
	return dst
}

// SGLangNamespace mixes a namespace into the hashes that SGLang publishes. Under --kv-events-config with
// the format "dynamo" (0.5.22) it is the extra key and the salt of a request. Else it is only the
// internal key of a registered adapter (0.5.23), which is in no event. It is not part of the chain: only
// what is sent differs.
type SGLangNamespace struct {
	seed Digest
	some bool
}

// NewSGLangNamespace returns the namespace of an extra key and a cache salt, either
// of which may be absent, that is nil. Of both absent it changes nothing.
func NewSGLangNamespace(extraKey, salt *string) SGLangNamespace {
	if extraKey == nil && salt == nil {
		return SGLangNamespace{}
	}
	b := []byte("sglang-kv-event-namespace-v1")
	for _, part := range []*string{extraKey, salt} {
		if part == nil {
			b = append(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, 1), uint64(len(*part)))
		b = append(b, *part...)
	}
	return SGLangNamespace{seed: sha256.Sum256(b), some: true}
}

// Wire returns what is sent in the place of a digest.
func (n SGLangNamespace) Wire(d Digest) int64 {
	if !n.some {
		return d.SGLangWire()
	}
	var b [sha256.Size + 8]byte
	copy(b[:], n.seed[:])
	copy(b[sha256.Size:], d[:8])
	return Digest(sha256.Sum256(b[:])).SGLangWire()
}
