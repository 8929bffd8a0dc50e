package lmcache

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/zeebo/blake3"

	"github.com/kvatlas/kvatlas/blockkey"
)

// ErrUnknowable is wrapped by New's error about an engine whose hashes no program outside
// of it can know. The error says what to set.
var ErrUnknowable = errors.New("lmcache: hashes that only the engine knows")

// ErrConfig is wrapped by New's errors about settings that no LMCache has.
var ErrConfig = errors.New("lmcache: bad configuration")

// Algorithm is how a chunk is hashed: pre_caching_hash_algorithm, or hash_algorithm of
// the MP server. Up to 0.3.2 there is one and the setting is not read.
type Algorithm uint8

// The algorithms.
const (
	// Default is LMCache's own: Builtin, and Blake3 in MP mode.
	Default Algorithm = iota
	// Builtin is Python's hash() of tuples of ints.
	Builtin
	// SHA256 is SHA-256 of Python's pickle, of vLLM.
	SHA256
	// SHA256CBOR is SHA-256 of canonical CBOR, of vLLM.
	SHA256CBOR
	// XXHash is XXH3-128 of Python's pickle, of vLLM.
	XXHash
	// XXHashCBOR is XXH3-128 of canonical CBOR, of vLLM.
	XXHashCBOR
	// Blake3 is BLAKE3, of MP mode alone.
	Blake3

	numAlgorithms
)

var algorithms = [numAlgorithms]string{"default", "builtin", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "blake3"}

// vllmAlgorithms are the algorithms that are vLLM's functions.
var vllmAlgorithms = map[Algorithm]blockkey.VLLMAlgorithm{
	SHA256: blockkey.VLLMSHA256, SHA256CBOR: blockkey.VLLMSHA256CBOR,
	XXHash: blockkey.VLLMXXHash, XXHashCBOR: blockkey.VLLMXXHashCBOR,
}

// String returns LMCache's name of the algorithm, "default" of Default.
func (a Algorithm) String() string {
	if a < numAlgorithms {
		return algorithms[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm reads what String writes; "" is Default.
func ParseAlgorithm(s string) (Algorithm, error) {
	if s == "" {
		return Default, nil
	}
	for a, name := range algorithms {
		if name == s {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("%w: algorithm %q is not one of %q", ErrConfig, clip(s), algorithms)
}

const (
	// The Pythons whose hash() is known.
	oldestPython = 8
	newestPython = 13
	// MaxChunkSize is the largest chunk size that New takes, in tokens. A pickle of more
	// is one that Python would cut into frames.
	MaxChunkSize = 13_000
)

// Config is what about an engine goes into its hashes. The zero Config is the LMCache
// 0.1 of before 2025-04-15 with chunks of 256 tokens.
type Config struct {
	Version Version
	// MP says that hashes are those of MP mode (TokenHasher), from 0.3.15.
	MP bool
	// Algorithm is LMCache's setting.
	Algorithm Algorithm
	// VLLM says that LMCache runs inside vLLM, and takes hash functions and seed from
	// it. Where it cannot, as in a process of its own, the seed is 0 and the setting of
	// another algorithm falls back to builtin. So it does with the builtin algorithm in a
	// vLLM without init_none_hash, up to 0.9.
	VLLM bool
	// Seed is the engine's PYTHONHASHSEED, "" when it is not set.
	Seed string
	// Python is the minor version of the engine's Python 3, 12 for 3.12; 0 is not known.
	// Only builtin asks for it, and not always.
	Python int
	// ChunkSize is the number of tokens in a chunk, at most MaxChunkSize; 0 means 256.
	ChunkSize int
	// Tail is save_unfull_chunk: the last tokens have a key when they do not fill a chunk.
	// LMCache's default is on up to 0.3.10 and off from 0.3.12. The fork is always on, MP
	// mode always off, and the setting is not read of either.
	Tail bool
}

// Hasher hashes the chunks of prompts as one engine does. It is immutable and safe for
// concurrent use.
type Hasher struct {
	c    Config // with defaults filled in
	none int64  // builtin's seed
	end  third  // builtin's
	vllm blockkey.LMCacheVLLMChain
}

// New returns the hasher of an engine. The error wraps ErrUnknowable when its hashes
// cannot be known, and ErrConfig when no LMCache can be set so.
func New(c Config) (*Hasher, error) {
	if c.Version >= numVersions {
		return nil, fmt.Errorf("%w: %v", ErrVersion, c.Version)
	}
	c.ChunkSize = cmp.Or(c.ChunkSize, blockkey.DefaultChunkSize)
	if c.ChunkSize < 0 || c.ChunkSize > MaxChunkSize {
		return nil, fmt.Errorf("%w: chunk size %d, want 1 to %d tokens", ErrConfig, c.ChunkSize, MaxChunkSize)
	}
	if c.Algorithm >= numAlgorithms {
		return nil, fmt.Errorf("%w: %v", ErrConfig, c.Algorithm)
	}
	if c.Python != 0 && (c.Python < oldestPython || c.Python > newestPython) {
		return nil, fmt.Errorf("%w: Python 3.%d was not measured, 3.%d to 3.%d were", ErrConfig, c.Python, oldestPython, newestPython)
	}
	c.Tail = (c.Tail || c.Version == VFork) && !c.MP
	if c.Algorithm == Default {
		c.Algorithm = Builtin
		if c.MP {
			c.Algorithm = Blake3
		}
	}
	h := &Hasher{c: c}
	var err error
	switch {
	case c.MP:
		err = h.initMP()
	case c.Algorithm == Blake3:
		err = fmt.Errorf("%w: blake3 is an algorithm of MP mode", ErrConfig)
	case c.Version.hexChain():
	case c.Algorithm == Builtin:
		err = h.initBuiltin()
	default:
		err = h.initVLLM()
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Hasher) initMP() error {
	c := h.c
	switch {
	case c.Version < V0313:
		return fmt.Errorf("%w: LMCache %v has no MP mode that is known, 0.3.15 to 0.5.6 have", ErrConfig, c.Version)
	case c.Algorithm == Blake3:
		return nil
	case c.Algorithm == Builtin:
		return fmt.Errorf("%w: builtin hashes of MP mode differ from process to process; set hash_algorithm to blake3, its default", ErrUnknowable)
	case c.Algorithm != SHA256CBOR && c.Algorithm != XXHashCBOR:
		return fmt.Errorf("%w: MP mode with %v was not measured; set hash_algorithm to blake3, its default", ErrUnknowable, c.Algorithm)
	}
	if err := h.needVLLM(); err != nil {
		return err
	}
	h.vllm = blockkey.LMCacheVLLMChain{Algorithm: vllmAlgorithms[c.Algorithm], ChunkSize: c.ChunkSize}
	h.vllm.Parent = h.vllm.None(c.Seed)
	return nil
}

func (h *Hasher) initBuiltin() error {
	c := h.c
	switch {
	case c.Version <= V033:
		h.end = thirdAbsent
	case c.Version < V041:
		h.end = thirdNone
		if c.Python == 0 {
			return fmt.Errorf("%w: builtin hashes of LMCache %v are known from Python 3.12 on; set the engine's Python", ErrUnknowable, c.Version)
		}
		if c.Python < 12 {
			return fmt.Errorf("%w: builtin hashes of LMCache %v have the address of None in them before Python 3.12, and the engine runs on 3.%d; "+
				"run it on Python 3.12 or LMCache 0.4.1, or set pre_caching_hash_algorithm to sha256_cbor from 0.3.13 on", ErrUnknowable, c.Version, c.Python)
		}
	default:
		h.end = thirdEmpty
	}
	if !c.VLLM {
		return nil // the seed is 0, whatever PYTHONHASHSEED is
	}
	switch seed, err := strconv.ParseUint(c.Seed, 10, 32); {
	case c.Version == V033:
		return fmt.Errorf("%w: the seed of LMCache 0.3.3 inside vLLM was not measured; use 0.3.4 or later", ErrUnknowable)
	case c.Seed == "" || c.Seed == "random":
		return fmt.Errorf("%w: inside vLLM hashes begin with a random number when PYTHONHASHSEED is not set; "+
			"set it to one number, such as 0, for all engines and here", ErrUnknowable)
	case err != nil:
		return fmt.Errorf("%w: PYTHONHASHSEED %q, Python takes 0 to 4294967295", ErrConfig, clip(c.Seed))
	case c.Python == 0:
		return fmt.Errorf("%w: inside vLLM builtin hashes begin with the hash of the seed, which differs between Python 3.10 and 3.11; set the engine's Python too, such as python=3.12", ErrUnknowable)
	default:
		h.none = pyString(c.Seed, uint32(seed), c.Python)
	}
	return nil
}

func (h *Hasher) initVLLM() error {
	c := h.c
	if c.Version < V0313 {
		return fmt.Errorf("%w: LMCache %v has no string for the bytes of %v; set pre_caching_hash_algorithm to builtin or use 0.3.13 or later", ErrConfig, c.Version, c.Algorithm)
	}
	if err := h.needVLLM(); err != nil {
		return err
	}
	h.vllm = blockkey.LMCacheVLLMChain{
		Algorithm:  vllmAlgorithms[c.Algorithm],
		ChunkSize:  c.ChunkSize,
		Tail:       c.Tail,
		EmptyTuple: c.Version >= V041,
		Fold:       c.Version >= V046,
	}
	h.vllm.Parent = h.vllm.None(c.Seed)
	return nil
}

// needVLLM checks what all of vLLM's functions need.
func (h *Hasher) needVLLM() error {
	if !h.c.VLLM {
		return fmt.Errorf("%w: %v is a function of vLLM, without which LMCache hashes with builtin; say that it runs inside vLLM, or builtin", ErrConfig, h.c.Algorithm)
	}
	if h.c.Seed == "" {
		return fmt.Errorf("%w: %v begins with the hash of PYTHONHASHSEED, and with random bytes when it is not set; "+
			"set it to one value, such as 0, for all engines and here", ErrUnknowable, h.c.Algorithm)
	}
	return nil
}

// ChunkSize returns the number of tokens in a chunk.
func (h *Hasher) ChunkSize() int { return h.c.ChunkSize }

// Chunks returns how many chunks of n tokens have a hash.
func (h *Hasher) Chunks(n int) int {
	chunks := max(0, n) / h.c.ChunkSize
	if h.c.Tail && n > 0 && n%h.c.ChunkSize > 0 {
		chunks++
	}
	return chunks
}

// Append appends to dst the hashes of the chunks of a prompt from its first token, the
// last short one where the engine has it. The chunks are those of Chunks(len(tokens)).
func (h *Hasher) Append(dst []Hash, tokens []uint32) []Hash {
	switch {
	case h.c.Algorithm == Blake3:
		return h.appendBlake3(dst, tokens)
	case !h.c.MP && h.c.Version.hexChain():
		chain := blockkey.LMCacheChain{ChunkSize: h.c.ChunkSize, Int64: h.c.Version == V01, Tail: h.c.Tail}
		for _, d := range chain.Append(nil, tokens) {
			dst = append(dst, Hash{b: d, size: maxHash})
		}
	case h.c.Algorithm == Builtin:
		prev := h.none
		for chunk := range h.chunks(tokens) {
			prev = builtin(prev, chunk, h.end)
			dst = append(dst, IntHash(prev))
		}
	default:
		chain := h.vllm
		for _, d := range chain.Append(nil, tokens) {
			dst = append(dst, h.ofVLLM(d))
		}
	}
	return dst
}

// ofVLLM is the hash of what vLLM's functions give, at the end of the digest.
func (h *Hasher) ofVLLM(d blockkey.Digest) Hash {
	switch {
	case h.vllm.Fold:
		return UintHash(d.VLLMWire())
	case h.c.Algorithm == XXHash || h.c.Algorithm == XXHashCBOR:
		return Hash{b: d, size: 16}
	default:
		return Hash{b: d, size: maxHash}
	}
}

// chunks gives the chunks of tokens, in order.
func (h *Hasher) chunks(tokens []uint32) func(func([]uint32) bool) {
	return func(yield func([]uint32) bool) {
		for i := range h.Chunks(len(tokens)) {
			from := i * h.c.ChunkSize
			if !yield(tokens[from:min(from+h.c.ChunkSize, len(tokens))]) {
				return
			}
		}
	}
}

// appendBlake3 is BLAKE3 over the hash before and the tokens as 32 bits, big-endian, of
// MP mode's TokenHasher. The first one's is that of an int64 0 and one token 0.
func (h *Hasher) appendBlake3(dst []Hash, tokens []uint32) []Hash {
	prev := blake3.Sum256(make([]byte, 8+4))
	buf := make([]byte, 0, len(prev)+4*min(h.c.ChunkSize, len(tokens)))
	for chunk := range h.chunks(tokens) {
		buf = append(buf[:0], prev[:]...)
		for _, t := range chunk {
			buf = binary.BigEndian.AppendUint32(buf, t)
		}
		prev = blake3.Sum256(buf)
		dst = append(dst, Hash{b: prev, size: maxHash})
	}
	return dst
}
