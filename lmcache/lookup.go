package lmcache

import (
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
)

// Target is what stands in an engine's keys beside the hash. What a form does not have
// is not read.
type Target struct {
	// Fmt is the engine, "" means vllm. In keys up to 0.3.12.
	Fmt string
	// Model is the model's name, as the engine has it.
	Model string
	// WorldSize and WorkerID are the worker's; a lookup that wants all ranks of a pod
	// has one Target for each. Not in the fork's keys.
	WorldSize, WorkerID int
	// LocalWorldSize and LocalRank are the worker's on its machine; a LocalWorldSize of
	// 0 means that all workers are on one. In MP mode alone.
	LocalWorldSize, LocalRank int
	// DType is the type of the KV tensors, "bfloat16". In keys from 0.3.10.
	DType string
	// Layer is a layer's number when HasLayer is set, for engines that store by layer.
	Layer    int
	HasLayer bool
	// Tags are the request's. From 0.3.4.
	Tags []Tag
	// Group and Salt are an object's, in MP mode alone.
	Group uint32
	Salt  string
}

// Keys returns the keys that a lookup of a prompt in what an engine writes has to read,
// one for each chunk in order. It fails as New does, and on a target that has no key.
func Keys(c Config, t Target, tokens []uint32) ([]string, error) {
	h, err := New(c)
	if err != nil {
		return nil, err
	}
	return h.AppendKeys(nil, t, tokens)
}

// AppendKeys appends the keys of Keys to dst. On an error dst is returned as it was.
func (h *Hasher) AppendKeys(dst []string, t Target, tokens []uint32) ([]string, error) {
	head, tail, base, err := h.around(t)
	if err != nil {
		return dst, err
	}
	n := h.Chunks(len(tokens))
	dst = slices.Grow(dst, n)
	buf := make([]byte, 0, len(head)+2*maxHash+len(tail))
	for _, hash := range h.Append(make([]Hash, 0, n), tokens) {
		buf = append(buf[:0], head...)
		buf = append(hash.append(buf, base), tail...)
		dst = append(dst, string(buf))
	}
	return dst, nil
}

// around returns what stands before and behind the hash in the target's keys, and the
// base of hashes that are ints.
func (h *Hasher) around(t Target) (head []byte, tail string, base int, err error) {
	switch {
	case h.c.MP:
		k := ObjectKey{Model: t.Model, Group: t.Group, Salt: t.Salt, Hash: Hash{size: maxHash}}
		if t.LocalWorldSize == 0 {
			t.LocalWorldSize, t.LocalRank = t.WorldSize, t.WorkerID
		}
		if k.Rank, err = NewKVRank(t.WorldSize, t.WorkerID, t.LocalWorldSize, t.LocalRank); err == nil {
			err = k.Validate()
		}
		head, tail = k.around()
		return head, tail, 16, err
	case h.c.Version == VFork:
		k := ForkKey{Model: t.Model}
		if k.Model == "" {
			_, err = ParseForkKey(k.String())
		}
		return append([]byte(k.Model), sep...), "", 16, err
	}
	k := h.c.Version.key(t)
	err = k.Validate()
	head, tail = k.around()
	return head, tail, k.Form.base(), err
}

// key is the key of a target, without its hash.
func (v Version) key(t Target) Key {
	k := Key{
		Form: v.Form(), Model: t.Model, WorldSize: t.WorldSize, WorkerID: t.WorkerID,
		Layer: t.Layer, HasLayer: t.HasLayer,
	}
	if k.Form.hasFmt() {
		if k.Fmt = t.Fmt; k.Fmt == "" {
			k.Fmt = formats[0]
		}
	}
	if k.Form.hasDType() {
		k.DType = t.DType
	}
	if v >= V034 {
		k.Tags = t.Tags
	}
	return k
}

// Digest returns a hash of 32 bytes as blockkey has it.
func (h Hash) Digest() (d blockkey.Digest, ok bool) {
	return h.b, h.size == maxHash
}
