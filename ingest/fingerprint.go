package ingest

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// fingerprint is a hash of a message's payload. The topic is not in it, which old
// engines leave out of replays.
func fingerprint(payload []byte) uint64 { return xxh3.Hash(payload) }

// lastKey is the entry of a generation's map in which the last messages stand that have
// been applied. By it the next owner finds out whether the engine is still the same
// process. No block of an engine has as many parts.
var lastKey = store.MapKey{Hash: ^uint64(0), Part: 0xffff}

// last is a message that has been applied.
type last struct{ seq, mark uint64 }

// A value of lastKey is the last message of a batch and that of the batch before. Each
// is 8 bytes of its sequence and 8 of its fingerprint, big endian. It has two because on
// a cluster the map is written before the watermark. Of a batch that was cut off there,
// the watermark is still that of the one before. Behind them comes the mask of the model
// under which the generation's blocks are filed, 8 bytes.
const lastSize = 16

func appendLasts(dst []byte, model blockkey.Model, lasts ...last) []byte {
	for _, l := range lasts {
		dst = binary.BigEndian.AppendUint64(dst, l.seq)
		dst = binary.BigEndian.AppendUint64(dst, l.mark)
	}
	return binary.BigEndian.AppendUint64(dst, uint64(model))
}

// otherModel reports whether a value of lastKey is of a generation whose blocks are filed
// under another model. One that does not say is of the registration's, as all are whose
// registration has not changed.
func otherModel(value []byte, model string) bool {
	if len(value)%lastSize != 8 {
		return false
	}
	return blockkey.Model(binary.BigEndian.Uint64(value[len(value)-8:])) != blockkey.ModelOf(model)
}

// findLast returns the fingerprint of the message seq in a value of lastKey.
func findLast(value []byte, seq uint64) (mark uint64, ok bool) {
	for ; len(value) >= lastSize; value = value[lastSize:] {
		if binary.BigEndian.Uint64(value) == seq {
			return binary.BigEndian.Uint64(value[8:]), true
		}
	}
	return 0, false
}
