package engine

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
)

// Request is what an engine is asked.
type Request struct {
	// ID names the request; the caller chooses it, and uses it once.
	ID uint64
	// Tokens are the prompt. They must not be changed after.
	Tokens []uint32
	// Output are the tokens of the answer, at least one: what a model says is not the
	// subject here.
	Output []uint32
	// LoRA and Salt are the adapter and the cache salt, "" for none.
	LoRA, Salt string
}

// Hit is what a request has reused, in tokens.
type Hit struct {
	// GPU, Host and Disk are by where it was.
	GPU, Host, Disk int
}

// Tokens is all that was reused.
func (h Hit) Tokens() int { return h.GPU + h.Host + h.Disk }

// sequence is a request in the engine.
type sequence struct {
	Request
	arrived  time.Duration
	admitted time.Duration
	tokens   []uint32 // the prompt and what was generated
	said     int      // how many were generated
	computed int      // how many have a place in the cache that is filled
	resumes  bool     // it was preempted
	first    Hit      // of its first admission
	hit      Hit      // of its last admission
	keys     []event.Hash
	hasher   hasher

	// What the cache has given it.
	blocks   [kinds][]int32 // vLLM: by kind of group; none where a window has left a block behind, or a state was not kept
	cached   [kinds]int     // vLLM: of how many of its blocks it was decided whether they are in the cache
	gone     int            // vLLM: how many of its states are given back, or never were
	junction int            // vLLM: where full attention could go on from, but the others not; 0 is nowhere
	path     []int32        // the trees': its pages of the tree
	private  int            // the trees': pages of its own
	prefill  int            // the trees': how many tokens there were when it was admitted
	shelved  int            // how many of its blocks were offered to the tiers below
	seen     int            // vLLM: the first block that came up from there, or was offered
	reserve  int            // blocks that are kept for it and that it has not taken yet
}

// left is how many of the tokens that there are have to be computed.
func (q *sequence) left() int { return len(q.tokens) - q.computed }

// say appends a token that was generated.
func (q *sequence) say(token uint32) {
	q.tokens = append(q.tokens, token)
	q.said++
	q.keys = q.hasher.extend(q.keys, q.tokens)
}

// stored is the event of blocks from to of the sequence.
func (q *sequence) stored(from, to, size int, medium string) event.Event {
	e := event.Event{
		Kind: event.Stored, Hashes: q.keys[from:to:to], Tokens: q.tokens[from*size : to*size : to*size], BlockSize: size, Medium: medium,
		LoRA: q.LoRA, Salt: q.Salt,
	}
	switch q.hasher.kind {
	case VLLM:
		e.LoRAID = loraID(q.LoRA)
	case TRTLLM:
		e.LoRA, e.LoRAID = "", loraID(q.LoRA)
	case SGLang: // has no numbers
	}
	if from > 0 {
		e.Parent, e.HasParent = q.keys[from-1], true
	}
	return e
}

// loraID is the number of an adapter: the same in all engines, and above 0.
func loraID(name string) int64 {
	if name == "" {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return int64(h.Sum32()&0x7fffffff) | 1
}

// hasher makes the engine's hashes of the blocks of a sequence.
type hasher struct {
	size  int
	kind  Kind
	vllm  blockkey.VLLMChain
	chain blockkey.SGLangChain // TensorRT-LLM's is the same above another root
	name  blockkey.SGLangNamespace
	buf   []blockkey.Digest
}

// newHasher is at the begin of a prompt.
func newHasher(c *Config, r *Request) hasher {
	h := hasher{size: c.BlockSize, kind: c.Kind}
	switch c.Kind {
	case VLLM:
		h.vllm = blockkey.NewVLLMChain(blockkey.VLLMSHA256, blockkey.VLLMDefaultSeed, c.BlockSize)
		h.vllm.Keys, h.vllm.Salt = c.Keys, r.Salt
		if r.LoRA != "" {
			h.vllm.LoRA = blockkey.VLLMLoRA{ID: loraID(r.LoRA), Name: r.LoRA, Path: "/adapters/" + r.LoRA}
		}
	case SGLang:
		h.chain = blockkey.NewSGLangChain(c.BlockSize, r.Salt)
		if r.LoRA != "" {
			sum := md5.Sum([]byte(r.LoRA)) //nolint:gosec // SGLang's own key of an adapter is one like this; nothing is kept secret by it
			key := hex.EncodeToString(sum[:])
			h.name = blockkey.NewSGLangNamespace(&key, nil)
		}
	case TRTLLM:
		h.chain = blockkey.SGLangChain{PageSize: c.BlockSize, Parent: trtScope(r), HasParent: true}
	}
	return h
}

// trtScope is the root of a tree of TensorRT-LLM's: which of an adapter and a salt there
// are, and their numbers.
func trtScope(r *Request) blockkey.Digest {
	b := []byte{0}
	if r.LoRA != "" {
		b[0] |= 1
		b = binary.LittleEndian.AppendUint64(b, uint64(loraID(r.LoRA)))
	}
	if r.Salt != "" {
		b[0] |= 2
		sum := sha256.Sum256([]byte(r.Salt))
		b = append(b, sum[:8]...)
	}
	return sha256.Sum256(b)
}

// extend appends the hashes of the full blocks of tokens that keys has not yet.
func (h *hasher) extend(keys []event.Hash, tokens []uint32) []event.Hash {
	from := len(keys) * h.size
	if len(tokens)-from < h.size {
		return keys
	}
	h.buf = h.buf[:0]
	if h.kind == VLLM {
		h.buf = h.vllm.Append(h.buf, tokens[from:])
	} else {
		h.buf = h.chain.Append(h.buf, tokens[from:])
	}
	for _, d := range h.buf {
		switch h.kind {
		case SGLang:
			keys = append(keys, event.Hash(h.name.Wire(d)))
		default:
			keys = append(keys, event.Hash(d.VLLMWire()))
		}
	}
	if cap(h.buf) > 64 {
		h.buf = nil // a prompt is hashed once
	}
	return keys
}
