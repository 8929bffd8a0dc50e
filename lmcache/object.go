package lmcache

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
)

// KVRank is the worker in the key of an object: world size, rank, local world size
// and local rank, a byte each from the highest.
type KVRank uint32

// NewKVRank returns the rank of a worker. Numbers that do not fit into LMCache's byte
// each, world sizes of 0 and ranks that are not below theirs are an error.
func NewKVRank(world, rank, localWorld, localRank int) (KVRank, error) {
	if world < 1 || world > math.MaxUint8 || rank < 0 || rank >= world ||
		localWorld < 1 || localWorld > world || localRank < 0 || localRank >= localWorld {
		return 0, fmt.Errorf("%w: rank %d of %d, local rank %d of %d, want world sizes from 1 to 255 and ranks below them",
			ErrKey, rank, world, localRank, localWorld)
	}
	return KVRank(world<<24 | rank<<16 | localWorld<<8 | localRank), nil
}

// WorldSize returns the number of workers.
func (r KVRank) WorldSize() int { return int(r >> 24) }

// Rank returns the worker's number, from 0.
func (r KVRank) Rank() int { return int(r >> 16 & 0xff) }

// LocalWorldSize returns the number of workers on its machine.
func (r KVRank) LocalWorldSize() int { return int(r >> 8 & 0xff) }

// LocalRank returns the worker's number on its machine, from 0.
func (r KVRank) LocalRank() int { return int(r & 0xff) }

// String returns the 8 hex digits that stand in a key.
func (r KVRank) String() string { return fmt.Sprintf("%08x", uint32(r)) }

// ObjectKey is the key of an object in LMCache's MP mode. Its second level writes it so to
// Redis and Valkey from 0.4.7 to 0.5.6, and its coordinator events carry it so:
//
//	model@kv_rank@object_group@hash[@cache_salt]
type ObjectKey struct {
	Model string // without @, which LMCache refuses in MP mode
	Rank  KVRank
	Group uint32 // object_group_id
	Hash  Hash   // bytes
	Salt  string // the tenant's cache salt, may contain @
}

// Validate tells what about the key has no string that ParseObjectKey would read as it
// again.
func (k ObjectKey) Validate() error {
	if k.Model == "" || strings.Contains(k.Model, sep) {
		return fmt.Errorf("%w: model %q of an object, want a name without @", ErrKey, clip(k.Model))
	}
	if _, err := NewKVRank(k.Rank.WorldSize(), k.Rank.Rank(), k.Rank.LocalWorldSize(), k.Rank.LocalRank()); err != nil {
		return err
	}
	if _, ok := k.Hash.Bytes(); !ok {
		return fmt.Errorf("%w: the hash of an object is bytes, not the int %v", ErrHash, k.Hash)
	}
	return nil
}

// String returns the key's string.
func (k ObjectKey) String() string {
	head, tail := k.around()
	return string(append(k.Hash.append(head, 16), tail...))
}

func (k ObjectKey) around() (head []byte, tail string) {
	head = fmt.Appendf(nil, "%s@%v@%x@", k.Model, k.Rank, k.Group)
	if k.Salt != "" {
		tail = sep + k.Salt
	}
	return head, tail
}

// ParseObjectKey reads an ObjectKey's string.
func ParseObjectKey(s string) (ObjectKey, error) {
	if len(s) > maxKey {
		return ObjectKey{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrKey, len(s), maxKey)
	}
	parts := strings.SplitN(s, sep, 5)
	if len(parts) < 4 {
		return ObjectKey{}, fmt.Errorf("%w: %d parts, model@kv_rank@object_group@hash has 4, in %q", ErrKey, len(parts), clip(s))
	}
	k := ObjectKey{Model: parts[0]}
	rank, err := strconv.ParseUint(parts[1], 16, 32)
	if err != nil || KVRank(rank).String() != parts[1] {
		return ObjectKey{}, fmt.Errorf("%w: %q is no kv_rank, 8 hex digits, in %q", ErrKey, clip(parts[1]), clip(s))
	}
	k.Rank = KVRank(rank)
	group, err := strconv.ParseUint(parts[2], 16, 32)
	if err != nil || strconv.FormatUint(group, 16) != parts[2] {
		return ObjectKey{}, fmt.Errorf("%w: %q is no object group, a number in hex, in %q", ErrKey, clip(parts[2]), clip(s))
	}
	k.Group = uint32(group)
	if k.Hash, err = ParseHash(parts[3]); err != nil {
		return ObjectKey{}, fmt.Errorf("%w, in %q", err, clip(s))
	}
	if len(parts) == 5 {
		if k.Salt = parts[4]; k.Salt == "" {
			return ObjectKey{}, fmt.Errorf("%w: a cache salt without a character, in %q", ErrKey, clip(s))
		}
	}
	if err := k.Validate(); err != nil {
		return ObjectKey{}, fmt.Errorf("%w, in %q", err, clip(s))
	}
	return k, nil
}

// ForkKey is the name of the Redis hash in which a fork keeps the holders of a chunk: "model@hash". The fork
// is that of llm-d v0.1, from its commit 0e03c6a. The holders are its fields.
type ForkKey struct {
	Model string // may contain @
	Hash  blockkey.Digest
}

// String returns the key's string.
func (k ForkKey) String() string { return k.Model + sep + k.Hash.String() }

// ParseForkKey reads a ForkKey's string.
func ParseForkKey(s string) (ForkKey, error) {
	if len(s) > maxKey {
		return ForkKey{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrKey, len(s), maxKey)
	}
	i := strings.LastIndex(s, sep)
	if i < 1 {
		return ForkKey{}, fmt.Errorf("%w: no model in front of a hash, model@hash, in %q", ErrKey, clip(s))
	}
	k := ForkKey{Model: s[:i]}
	if n, err := hex.Decode(k.Hash[:], []byte(s[i+1:min(len(s), i+1+2*len(k.Hash))])); err != nil || n != len(k.Hash) || k.String() != s {
		return ForkKey{}, fmt.Errorf("%w: %q is not 64 lower-case hex digits, in %q", ErrHash, clip(s[i+1:]), clip(s))
	}
	return k, nil
}
