package blockkey

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/zeebo/xxh3"
)

// Key is the block key of one block: the chained hash that names the block
// and its whole prefix. LoRA adapter and cache salt are part of it, the model
// is not. In JSON and in logs it is 16 lower-case hex digits.
type Key uint64

// String returns the key as 16 lower-case hex digits.
func (k Key) String() string {
	var b [16]byte
	return string(k.AppendText(b[:0]))
}

// AppendText appends the key's 16 hex digits to dst.
func (k Key) AppendText(dst []byte) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[uint64(k)>>shift&0xf])
	}
	return dst
}

// ParseKey reads the 16 hex digits that String writes. Upper-case digits are
// accepted, any other length or character is an error.
func ParseKey(s string) (Key, error) {
	if len(s) != 16 {
		return 0, fmt.Errorf("blockkey: a block key has 16 hex digits, %q has %d characters", clip(s), len(s))
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("blockkey: a block key has 16 hex digits, %q is not hex", s)
	}
	return Key(v), nil
}

// clip keeps a refused value readable in an error message.
func clip(s string) string {
	if len(s) > 32 {
		return s[:32] + "..."
	}
	return s
}

// StoreKey is a block key with the model mixed in: what the index stores
// under. Two models with one tokenizer never share a store key.
type StoreKey uint64

// Partitions is the number of partitions of the index. A block's partition is
// a function of its store key alone, so any writer can name it.
const Partitions = 64

// Partition returns the partition of the key: its low 6 bits.
func (k StoreKey) Partition() int { return int(k % Partitions) }

// Bytes returns the key as it stands in a Redis key name: 8 bytes, big endian.
func (k StoreKey) Bytes() [8]byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(k))
	return b
}

// Model is the mask that mixes a model name into a block key. The zero Model
// mixes nothing in.
type Model uint64

// ModelOf returns the mask of a model: XXH3-64 of its name under seed 1337.
// The name is taken as it is; "" has a mask like any other.
func ModelOf(name string) Model { return Model(nameMask(name)) }

// nameMask is what a model's or a scheme's name XORs into a key.
func nameMask(name string) uint64 { return xxh3.HashStringSeed(name, baseSeed) }

// In returns the store key of k under the model m.
func (k Key) In(m Model) StoreKey { return StoreKey(uint64(k) ^ uint64(m)) }
