package lmcache

import (
	"fmt"
	"slices"
)

// Profile is one way in which engines of a model run LMCache. Their chunk hashes and the
// names of their entries in Redis follow from it.
type Profile struct {
	Config
	// Model is the model's name in LMCache's keys; "" means the one that requests have.
	Model string
	// Fmt and DType are as in Target.
	Fmt, DType string
	// WorldSizes are the numbers of workers that share a chunk; none means 1.
	WorldSizes []int
	// Remote is the store that the engines share their chunks' tensors in, if it is the
	// Redis that the index is in.
	Remote Remote
}

// Remote is how LMCache writes tensors to a Redis.
type Remote uint8

// The ways.
const (
	// NoRemote is a profile without a remote store.
	NoRemote Remote = iota
	// RemoteRedis is redis://, two keys a chunk, with kv_bytes and metadata behind the
	// key's string.
	RemoteRedis
	// RemoteRESP is resp:// and the resp adapter of MP mode, one key a chunk.
	RemoteRESP

	numRemotes
)

var remotes = [numRemotes]string{"none", "redis", "resp"}

// String returns none, redis or resp.
func (r Remote) String() string {
	if r < numRemotes {
		return remotes[r]
	}
	return fmt.Sprintf("remote(%d)", uint8(r))
}

// ParseRemote reads what String writes.
func ParseRemote(s string) (Remote, error) {
	for r, name := range remotes {
		if name == s {
			return Remote(r), nil
		}
	}
	return 0, fmt.Errorf("%w: remote store %q is not one of %q", ErrConfig, clip(s), remotes)
}

// Mode is which entries in Redis a Reader names.
type Mode uint8

// The modes.
const (
	// NoEntries names none: chunks are found by their keys in the index alone.
	NoEntries Mode = iota
	// AutoEntries names those that the profile's version writes: the fork's hashes,
	// strings up to 0.3.6, none later; and the remote store's.
	AutoEntries
	// SetEntries names strings, SET key host:port, and the remote store's.
	SetEntries
	// HSetEntries names hashes, HSET key host meta, and the remote store's.
	HSetEntries
)

// EntryKind is a shape of entries in Redis.
type EntryKind uint8

// The shapes.
const (
	// OwnerString is a string, the host:port of the one pod that holds a worker's chunk:
	// the lookup server of LMCache up to 0.3.6. Its holder is rank 0 of the pod, in tier cpu.
	OwnerString EntryKind = iota + 1
	// OwnerHash is a hash whose fields are host or host:port of the pods that hold a chunk.
	// Its values are fmt@world_size@worker_id@time: that of the fork. Holders are as of
	// OwnerString.
	OwnerHash
	// Tensors is a worker's chunk itself, in a store that all pods of the model read, so that
	// its holder is store.Everyone. Only whether it is there is asked.
	Tensors
)

// Reader knows what to ask for of the chunks of a model's prompts. It is immutable and
// safe for concurrent use.
type Reader struct {
	groups []Group
}

// Group is what follows from one chain of hashes.
type Group struct {
	// Hasher makes the chain.
	Hasher *Hasher
	// Entries are the entries that engines have for its chunks, of any shape.
	Entries []Entries
}

// NewReader returns a reader of a model's profiles. The error is New's or says which
// profile's keys cannot be built.
func NewReader(model string, mode Mode, profiles ...Profile) (*Reader, error) {
	r := &Reader{}
	for i := range profiles {
		p := &profiles[i]
		h, err := New(p.Config)
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", model, err)
		}
		g := r.group(h)
		entries, err := p.entries(h, model, mode)
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", model, err)
		}
		g.Entries = append(g.Entries, entries...)
	}
	return r, nil
}

// Groups returns the chains, at least one for each profile that differs in its Config.
func (r *Reader) Groups() []Group { return r.groups }

func (r *Reader) group(h *Hasher) *Group {
	for i := range r.groups {
		if r.groups[i].Hasher.c == h.c {
			return &r.groups[i]
		}
	}
	r.groups = append(r.groups, Group{Hasher: h})
	return &r.groups[len(r.groups)-1]
}

// Writes reports whether this line of releases has a lookup server in Redis, and of which
// shape.
func (v Version) Writes() (EntryKind, bool) {
	switch {
	case v == VFork:
		return OwnerHash, true
	case v <= V036:
		return OwnerString, true
	default:
		return 0, false
	}
}

// entries are those of one profile.
func (p *Profile) entries(h *Hasher, model string, mode Mode) ([]Entries, error) {
	if mode == NoEntries {
		return nil, nil
	}
	if p.Model != "" {
		model = p.Model
	}
	worlds := p.WorldSizes
	if len(worlds) == 0 {
		worlds = []int{1}
	}
	kind, has := p.Version.Writes()
	switch {
	case p.MP:
		has = false
	case mode == SetEntries:
		kind = OwnerString // which the fork had too, before its hashes
	case mode == HSetEntries:
		// The fork's key has the hash of this chain alone.
		has, kind = p.Version.hexChain(), OwnerHash
	}
	var out []Entries
	if has && kind == OwnerHash {
		e := Entries{Kind: OwnerHash, Parts: 1, base: 16}
		key := ForkKey{Model: model}
		if _, err := ParseForkKey(key.String()); err != nil {
			return nil, err
		}
		e.around = []around{{head: []byte(model + sep)}}
		out = append(out, e)
		has = false
	}
	for _, world := range worlds {
		if world < 1 || world > maxReadWorkers {
			return nil, fmt.Errorf("%w: world size %d, want 1 to %d", ErrConfig, world, maxReadWorkers)
		}
		if has {
			e, err := p.perWorker(OwnerString, model, world, func(t Target) (around, int, error) {
				k := p.Version.key(t)
				head, tail := k.around()
				return around{head, tail}, k.Form.base(), k.Validate()
			})
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		if p.Remote == NoRemote {
			continue
		}
		suffix := ""
		if p.Remote == RemoteRedis {
			if p.MP {
				return nil, fmt.Errorf("%w: MP mode has no remote store redis; its second level in Redis is resp", ErrConfig)
			}
			// What LMCache itself asks for.
			suffix = "metadata"
		}
		e, err := p.perWorker(Tensors, model, world, func(t Target) (around, int, error) {
			if p.Version == VFork {
				// Its tensors have the keys of 0.3.1, hashes alone have others.
				k := p.Version.key(t)
				head, tail := k.around()
				return around{head, tail + suffix}, k.Form.base(), k.Validate()
			}
			head, tail, base, err := h.around(t)
			return around{head, tail + suffix}, base, err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// maxReadWorkers bounds the keys that are read of one chunk.
const maxReadWorkers = 256

func (p *Profile) perWorker(kind EntryKind, model string, world int, of func(Target) (around, int, error)) (Entries, error) {
	e := Entries{Kind: kind, Parts: world}
	for id := range world {
		a, base, err := of(Target{Fmt: p.Fmt, Model: model, WorldSize: world, WorkerID: id, DType: p.DType})
		if err != nil {
			return e, err
		}
		e.base = base
		e.around = append(e.around, a)
	}
	return e, nil
}

// around is what stands before and behind the hash in a name.
type around struct {
	head []byte
	tail string
}

// Entries names the entries of one shape for the chunks of a prompt.
type Entries struct {
	Kind EntryKind
	// Parts is the number of names of a chunk: one a worker, and one of OwnerHash,
	// whose workers share an entry.
	Parts int

	around []around // Parts of them
	base   int
}

// EntryNames are the entries of one shape that a prompt's chunks may have in Redis. It is a
// store.Beside: the index in Redis reads them in the round trips of its blocks.
type EntryNames struct {
	Kind EntryKind
	// Names are the names of Redis keys, Parts of them for each chunk.
	Names []string
	// Parts is how many entries a chunk has, 0 means 1. Each of them names the holder.
	Parts int
}

// Len returns the number of chunks.
func (e *EntryNames) Len() int { return len(e.Names) / max(1, e.Parts) }

// AppendNames appends the names of the Redis keys of chunks with these hashes, Parts of
// each, in order.
func (e *Entries) AppendNames(dst []string, hashes []Hash) []string {
	if len(hashes) == 0 {
		return dst
	}
	size := 0
	for _, a := range e.around {
		size += len(a.head) + 2*maxHash + len(a.tail)
	}
	buf := make([]byte, 0, size*len(hashes))
	ends := make([]int, 0, e.Parts*len(hashes))
	for i := range hashes {
		for _, a := range e.around {
			buf = append(hashes[i].append(append(buf, a.head...), e.base), a.tail...)
			ends = append(ends, len(buf))
		}
	}
	all, from := string(buf), 0
	dst = slices.Grow(dst, len(ends))
	for _, end := range ends {
		dst = append(dst, all[from:end])
		from = end
	}
	return dst
}
