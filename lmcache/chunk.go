package lmcache

import (
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockkey"
)

// ChunkKey returns the key under which the index files a chunk. It is the hash as 64
// bits, with the name of the scheme XORed in, so that it meets no native block key. An
// int is its two's complement, bytes are their first eight as a big-endian number,
// which is also how LMCache folds them from 0.4.6 on. It names the chunk and all before
// it, as a block key does.
func (h Hash) ChunkKey() blockkey.Key {
	v, _, ok := h.Int()
	if b, bytes := h.Bytes(); !ok && bytes {
		v = binary.BigEndian.Uint64(b)
	}
	return blockkey.WireKey(blockkey.SchemeLMCache, v)
}
