package lmcache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrHash is wrapped by errors about the hash of a chunk.
var ErrHash = errors.New("lmcache: bad chunk hash")

const maxHash = 32 // bytes

// Hash is the hash of a chunk and its whole prefix as LMCache holds it. It is bytes,
// 16 or 32 of them, or a Python int from -2^63 to 2^64-1. Two hashes are equal when
// == says so. The zero Hash is the int 0.
type Hash struct {
	b        [maxHash]byte // the bytes, or the int's magnitude at the end
	size     uint8         // how many bytes, 0 is an int
	negative bool
}

// BytesHash returns the hash of 16 bytes (XXH3-128) or 32 bytes (SHA-256, BLAKE3).
func BytesHash(b []byte) (Hash, error) {
	if len(b) != 16 && len(b) != maxHash {
		return Hash{}, fmt.Errorf("%w: %d bytes, want 16 or 32", ErrHash, len(b))
	}
	h := Hash{size: uint8(len(b))}
	copy(h.b[maxHash-len(b):], b)
	return h, nil
}

// IntHash returns the hash that is a signed int, as builtin hashes are.
func IntHash(v int64) Hash {
	if v < 0 {
		h := UintHash(-uint64(v))
		h.negative = true
		return h
	}
	return UintHash(uint64(v))
}

// UintHash returns the hash that is an unsigned int, as folded hashes are.
func UintHash(v uint64) Hash {
	var h Hash
	for i := range 8 {
		h.b[maxHash-1-i] = byte(v >> (8 * i))
	}
	return h
}

// Bytes returns the bytes of a hash of bytes; ok is false of an int.
func (h Hash) Bytes() (b []byte, ok bool) {
	return h.b[maxHash-int(h.size):], h.size > 0
}

// Int returns the low 64 bits of an int in two's complement and whether it is
// negative; ok is false of bytes.
func (h Hash) Int() (v uint64, negative, ok bool) {
	v = h.magnitude()
	if h.negative {
		v = -v
	}
	return v, h.negative, h.size == 0
}

func (h Hash) magnitude() (v uint64) {
	for _, c := range h.b[maxHash-8:] {
		v = v<<8 | uint64(c)
	}
	return v
}

// String returns the hash in hex, as LMCache writes it from 0.3.6. Bytes have all
// their digits; an int is as in Python's format "x", without leading zeros and with
// its sign.
func (h Hash) String() string { return string(h.append(nil, 16)) }

// append appends the hash to dst; base is that of ints, 10 or 16.
func (h Hash) append(dst []byte, base int) []byte {
	if b, ok := h.Bytes(); ok {
		return hex.AppendEncode(dst, b)
	}
	if h.negative {
		dst = append(dst, '-')
	}
	return strconv.AppendUint(dst, h.magnitude(), base)
}

// ParseHash reads what String writes: 32 or 64 hex digits are bytes, up to 16 an int.
func ParseHash(s string) (Hash, error) { return parseHash(s, 16) }

// parseHash reads one way of writing only, so that a key has one string: lower case,
// no leading zeros, no plus sign.
func parseHash(s string, base int) (Hash, error) {
	if len(s) == 32 || len(s) == 64 {
		b, err := hex.DecodeString(s)
		if err != nil || strings.ToLower(s) != s {
			return Hash{}, fmt.Errorf("%w: %q is not lower-case hex", ErrHash, clip(s))
		}
		return BytesHash(b)
	}
	digits, negative := strings.CutPrefix(s, "-")
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return Hash{}, fmt.Errorf("%w: %q is neither 32 or 64 hex digits nor an int of 64 bits in base %d", ErrHash, clip(s), base)
	}
	h := UintHash(v)
	h.negative = negative
	if negative && (v == 0 || v > 1<<63) || string(h.append(nil, base)) != s {
		return Hash{}, fmt.Errorf("%w: LMCache does not write %q so", ErrHash, clip(s))
	}
	return h, nil
}

// clip shortens what an error shows of a string from outside.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
