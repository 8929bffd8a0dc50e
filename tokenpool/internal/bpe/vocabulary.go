package bpe

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"unicode/utf8"
	"unsafe"
)

// vocabulary finds tokens by their bytes.
type vocabulary struct {
	seed maphash.Seed
	// table is open-addressed, at most half full: the number of a token and 1, 0 where
	// there is none.
	table []uint32
	// spelled has the bytes of all tokens; starts is where those of each begin, and at the
	// end where the last ones end.
	spelled []byte
	starts  []uint32
	// longest is the length of the longest one, in bytes.
	longest int
	// long has the lengths and first bytes of tokens longer than maxCached. They are few,
	// so most long words are known not to be tokens without a look at the table.
	long filter
}

// newVocabulary has those tokens of Tables that are text.
func newVocabulary(spelled []byte, lengths []uint16) *vocabulary {
	size := 2
	for size < 2*len(lengths) {
		size *= 2
	}
	v := &vocabulary{
		seed: maphash.MakeSeed(), table: make([]uint32, size),
		spelled: spelled, starts: make([]uint32, len(lengths)+1),
	}
	var long [][2]uint64
	for id, n := range lengths {
		v.starts[id+1] = v.starts[id] + uint32(n)
		token := v.token(uint32(id))
		if n == 0 || !utf8.Valid(token) {
			continue
		}
		i := v.slot(token)
		for v.table[i] != 0 {
			i = (i + 1) & (len(v.table) - 1)
		}
		v.table[i] = uint32(id) + 1
		v.longest = max(v.longest, len(token))
		if len(token) > maxCached {
			long = append(long, longKey(token))
		}
	}
	v.long = newFilter(long)
	return v
}

// longKey is what filter long has of a word.
func longKey(word []byte) [2]uint64 {
	return [2]uint64{uint64(len(word)), binary.LittleEndian.Uint64(word)}
}

func (v *vocabulary) slot(word []byte) int {
	return int(maphash.Bytes(v.seed, word) & uint64(len(v.table)-1))
}

func (v *vocabulary) token(id uint32) []byte { return v.spelled[v.starts[id]:v.starts[id+1]] }

// find returns the token that a word is. A nil vocabulary has none.
func (v *vocabulary) find(word []byte) (uint32, bool) {
	if v == nil || len(word) > v.longest {
		return 0, false
	}
	if len(word) > maxCached {
		if key := longKey(word); !v.long.has(key[0], key[1]) {
			return 0, false
		}
	}
	for i := v.slot(word); v.table[i] != 0; i = (i + 1) & (len(v.table) - 1) {
		if id := v.table[i] - 1; bytes.Equal(v.token(id), word) {
			return id, true
		}
	}
	return 0, false
}

// memoryBytes is what it takes.
func (v *vocabulary) memoryBytes() int64 {
	if v == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*v)) + 4*int64(cap(v.table)+cap(v.starts)) + 8*int64(cap(v.long.bits)) + int64(cap(v.spelled))
}
