package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// blocksRequest is the body of POST /v1/blocks.
type blocksRequest struct {
	input

	op   store.OpKind
	pod  string
	rank int
	tier store.Tier
}

func blocksInput(q *blocksRequest) *input { return &q.input }

var opNames = map[string]store.OpKind{"add": store.Add, "remove": store.Remove, "clear": store.Clear}

var blocksFields = fields[blocksRequest]{
	{"op", func(s *scanner, q *blocksRequest) error {
		b, err := s.string("a string")
		if err != nil {
			return err
		}
		var known bool
		if q.op, known = opNames[string(b)]; !known {
			return s.wrong("is none of add, remove, clear")
		}
		return nil
	}},
	inputOf("model", blocksInput, readModel),
	{"pod", func(s *scanner, q *blocksRequest) error { return s.podName(&q.pod) }},
	{"rank", func(s *scanner, q *blocksRequest) error {
		n, err := s.uint(store.MaxRanks-1, "a whole number")
		q.rank = int(n)
		return err
	}},
	{"tier", func(s *scanner, q *blocksRequest) error {
		b, err := s.string("a string")
		if err != nil {
			return err
		}
		if q.tier, err = store.ParseTier(string(b)); err != nil {
			return s.wrong("is none of gpu, cpu, disk, shared")
		}
		return nil
	}},
	inputOf("lora", blocksInput, readLoRA),
	inputOf("cache_salt", blocksInput, readSalt),
	inputOf("tokens", blocksInput, readTokens),
	inputOf("tokens_b64", blocksInput, readPacked),
	inputOf("block_keys", blocksInput, readKeys),
}

var blocksNames = namesOf(blocksFields)

// podName reads the name of a pod.
func (s *scanner) podName(dst *string) error {
	if err := s.text(dst); err != nil {
		return err
	}
	if err := store.CheckPodName(*dst); err != nil {
		return s.refused(err)
	}
	return nil
}

// blocks is POST /v1/blocks.
func (c *call) blocks() error {
	q := &blocksRequest{input: c.req.input}
	q.limits = &c.s.cfg.Limits
	f, err := read(c, blocksFields, blocksNames, q)
	c.req.input = q.input // its room is for the next request
	if err != nil {
		return err
	}
	if err := f.need("op", "model", "pod"); err != nil {
		return err
	}
	c.model = q.model
	if err := q.check(f); err != nil {
		return err
	}
	n, err := c.s.change(c.ctx, q, f)
	if err != nil {
		return err
	}
	c.out = strconv.AppendInt(append(c.out[:0], `{"blocks":`...), int64(n), 10)
	c.out = append(c.out, "}\n"...)
	c.reply(http.StatusOK, c.out)
	return nil
}

// check holds the rules between fields.
func (q *blocksRequest) check(f form) error {
	if q.op == store.Clear {
		return f.exclude("clear is of all blocks", "tokens", "tokens_b64", "block_keys", "lora", "cache_salt")
	}
	kind, err := f.one("tokens", "tokens_b64", "block_keys")
	if err == nil && kind == "block_keys" {
		err = f.exclude(keysAreSeeded, "lora", "cache_salt")
	}
	return err
}

// change applies a request to the index and returns how many blocks it named.
func (s *Server) change(ctx context.Context, q *blocksRequest, f form) (int, error) {
	if q.op != store.Add {
		known, err := s.knowsPod(ctx, q.pod)
		if err != nil {
			return 0, err
		}
		if !known {
			// A pod that is not there holds nothing, and Apply would register it.
			return len(q.chain(s.blockSize(q.model))), nil
		}
	}
	tier := q.tier
	if !f.has("tier") && q.op != store.Add {
		tier = store.AllTiers
	}
	batch := store.Batch{Pod: q.pod, Rank: q.rank, Model: q.model}
	if q.op == store.Clear {
		batch.Ops = []store.Op{{Kind: store.Clear, Tier: tier, AllRanks: !f.has("rank")}}
		return 0, s.cfg.Index.Apply(ctx, batch)
	}
	size := s.blockSize(q.model)
	if q.op == store.Add {
		var err error
		if size, err = s.fixBlockSize(ctx, q.model); err != nil {
			return 0, err
		}
	}
	chain := q.chain(size)
	for keys := range slices.Chunk(chain, store.MaxOpKeys) {
		batch.Ops = append(batch.Ops, store.Op{Kind: q.op, Tier: tier, Keys: keys})
	}
	return len(chain), s.cfg.Index.Apply(ctx, batch)
}

// chain is the block keys that the request names, under an index block size.
func (q *blocksRequest) chain(size int) []blockkey.Key {
	if len(q.keys) > 0 || q.op == store.Clear {
		return q.keys
	}
	q.keys = blockkey.AppendNative(q.keys[:0], q.tokens, size, blockkey.NativeSeed(q.lora, q.salt))
	return q.keys
}

// knowsPod asks the index itself only about a pod that this process has not
// seen.
func (s *Server) knowsPod(ctx context.Context, pod string) (bool, error) {
	if _, ok := s.cfg.Index.Cached().PodIndex(pod); ok {
		return true, nil
	}
	reg, err := s.cfg.Index.Registry(ctx)
	if err != nil {
		return false, err
	}
	_, ok := reg.PodIndex(pod)
	return ok, nil
}

// blockSize is the model's index block size as far as this process knows.
func (s *Server) blockSize(model string) int {
	if m, ok := s.cfg.Index.Cached().Models[model]; ok {
		return m.BlockSize
	}
	return s.cfg.BlockSize
}

// fixBlockSize returns the model's index block size, and fixes it to the
// default when the model is not indexed yet.
func (s *Server) fixBlockSize(ctx context.Context, model string) (int, error) {
	want := store.ModelInfo{Name: model, BlockSize: s.cfg.BlockSize, Scheme: store.SchemeNative}
	info, known := s.cfg.Index.Cached().Models[model]
	if !known {
		var err error
		info, err = s.cfg.Index.EnsureModel(ctx, want)
		if err != nil && !errors.Is(err, store.ErrModelConflict) {
			return 0, err
		}
	}
	// Any block size will do, since the chain is cut to it; another scheme
	// makes other keys.
	if info.Scheme != want.Scheme {
		return 0, &apiError{status: http.StatusConflict, code: "model_conflict", param: "model", message: "the model is indexed with block keys of scheme " + info.Scheme + "; blocks can be given for native only"}
	}
	return info.BlockSize, nil
}
