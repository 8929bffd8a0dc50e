package blockkey

// LMCacheVLLMChain is a place in a chain of LMCache's chunks, from which it goes on,
// under one of vLLM's hash functions. LMCache 0.3.13 and later hash so when
// pre_caching_hash_algorithm names one:
//
//	H((hash of the chunk before, tokens, None or ()))
//
// With None and whole chunks that is what vLLM itself does to blocks without extra
// keys; the empty tuple and the fold are LMCache's own.
//
// Like VLLMChain it is a small value, copied to branch, and not safe for concurrent
// use. The hash of an algorithm with less than 32 bytes stands at the end of its
// Digest, behind zeros. So does a folded one with its 8 bytes.
type LMCacheVLLMChain struct {
	Algorithm VLLMAlgorithm
	// ChunkSize is the number of tokens in a chunk; less than 1 has no chunks. Of the
	// pickled algorithms it is bounded as VLLMChain.BlockSize is.
	ChunkSize int
	// Tail also gives the last tokens a hash when they do not fill a chunk. Nothing
	// follows such a chunk, so the place stays in front of it.
	Tail bool
	// EmptyTuple says that the third element is the empty tuple, as from LMCache 0.4.1,
	// and not None.
	EmptyTuple bool
	// Fold says that a hash is its first 8 bytes as an unsigned number, as from LMCache
	// 0.4.6. It goes into the next one's so, too.
	Fold bool
	// Parent is the hash of the chunk before the place, of the first None.
	Parent Digest
}

// None returns the hash in front of the first chunk of a prompt, of the seed in
// PYTHONHASHSEED, folded when c folds.
func (c *LMCacheVLLMChain) None(seed string) Digest { return c.fold(c.Algorithm.None(seed)) }

// fold moves the first 8 bytes of the hash to the end of the digest.
func (c *LMCacheVLLMChain) fold(d Digest) Digest {
	if !c.Fold {
		return d
	}
	var folded Digest
	copy(folded[len(d)-8:], d[len(d)-c.Algorithm.size():])
	return folded
}

// Append appends to dst the hashes of all chunks of tokens, which begin at c's place,
// and moves the place behind the full ones. It allocates a buffer for a call and
// nothing for a chunk.
func (c *LMCacheVLLMChain) Append(dst []Digest, tokens []uint32) []Digest {
	if c.ChunkSize < 1 {
		return dst
	}
	full := len(tokens) / c.ChunkSize
	n := full
	if c.Tail && len(tokens)%c.ChunkSize > 0 {
		n++
	}
	dst, out := grow(dst, n)
	e := encoder{b: make([]byte, 0, 128+5*min(c.ChunkSize, len(tokens)))}
	for i := range out {
		chunk := tokens[i*c.ChunkSize : min((i+1)*c.ChunkSize, len(tokens))]
		c.encode(&e, chunk)
		out[i] = c.fold(c.Algorithm.hash(e.b))
		if i < full {
			c.Parent = out[i]
		}
	}
	return dst
}

// encode writes what is hashed of a chunk.
func (c *LMCacheVLLMChain) encode(e *encoder, chunk []uint32) {
	e.begin(c.Algorithm)
	e.openTuple(3)
	if c.Fold {
		e.unsigned(c.Parent.VLLMWire())
	} else {
		e.bytes(c.Parent[len(c.Parent)-c.Algorithm.size():])
	}
	e.tokens(chunk)
	if c.EmptyTuple {
		e.openTuple(0)
		e.closeTuple(0)
	} else {
		e.null()
	}
	e.closeTuple(3)
	e.finish()
}
