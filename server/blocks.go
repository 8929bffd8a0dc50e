package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// blocksRequest is the body of POST /v1/blocks.
type blocksRequest struct {
	request.Input

	op   store.OpKind
	pod  string
	rank int
	tier store.Tier
}

func blocksInput(q *blocksRequest) *request.Input { return &q.Input }

// opNames are the names of ops.
var (
	opNames = []string{"add", "remove", "clear"}
	opKinds = []store.OpKind{store.Add, store.Remove, store.Clear}
)

var blocksFields = scan.Fields[blocksRequest]{
	{Name: "op", Read: func(s *scan.Scanner, q *blocksRequest) error {
		i, err := s.WordOf(opNames)
		if err == nil {
			q.op = opKinds[i]
		}
		return err
	}},
	request.InputOf("model", blocksInput, request.ReadModel),
	{Name: "pod", Read: func(s *scan.Scanner, q *blocksRequest) error { return s.PodName(&q.pod) }},
	{Name: "rank", Read: func(s *scan.Scanner, q *blocksRequest) error {
		n, err := s.Uint(store.MaxRanks-1, "a whole number")
		q.rank = int(n)
		return err
	}},
	{Name: "tier", Read: func(s *scan.Scanner, q *blocksRequest) error {
		b, err := s.StringBytes("a string")
		if err != nil {
			return err
		}
		if q.tier, err = store.ParseTier(string(b)); err != nil {
			return s.NoneOf(string(b), []string{store.GPU.String(), store.CPU.String(), store.Disk.String(), store.Shared.String()})
		}
		return nil
	}},
	request.InputOf("lora", blocksInput, request.ReadLoRA),
	request.InputOf("cache_salt", blocksInput, request.ReadSalt),
	request.InputOf("tokens", blocksInput, request.ReadTokens),
	request.InputOf("tokens_b64", blocksInput, request.ReadPacked),
	request.InputOf("block_keys", blocksInput, request.ReadKeys),
	request.InputOf("features", blocksInput, request.ReadFeatures),
}

var blocksNames = scan.NamesOf(blocksFields)

// blocks is POST /v1/blocks.
func (c *call) blocks() error {
	q := &blocksRequest{Input: c.req.Input}
	q.Limits = &c.s.requests
	f, err := read(c, blocksFields, blocksNames, q)
	c.req.Input = q.Input // its room is for the next request
	if err != nil {
		return err
	}
	if err := f.Need("op", "model", "pod"); err != nil {
		return err
	}
	c.model = q.Model
	if err := q.check(f); err != nil {
		return err
	}
	n, err := c.s.change(c.ctx, q, f)
	if err != nil {
		return err
	}
	b := strconv.AppendInt(append(c.out[:0], `{"blocks":`...), int64(n), 10)
	return c.replyOK(append(b, "}\n"...))
}

// check holds the rules between fields.
func (q *blocksRequest) check(f scan.Form) error {
	if q.op == store.Clear {
		return f.Exclude("clear is of all blocks", "tokens", "tokens_b64", "block_keys", "features", "lora", "cache_salt")
	}
	kind, err := f.One("tokens", "tokens_b64", "block_keys")
	if err == nil && kind == "block_keys" {
		err = f.Exclude(request.KeysAreSeeded, "lora", "cache_salt")
	}
	if err == nil {
		err = q.CheckFeatures(f, kind)
	}
	return err
}

// change applies a request to the index and returns how many blocks it named.
func (s *Server) change(ctx context.Context, q *blocksRequest, f scan.Form) (int, error) {
	if err := checkPod("pod", q.pod, q.Model); err != nil {
		return 0, err
	}
	if err := s.checkRanks(ctx, q.pod, q.Model, q.rank); err != nil {
		return 0, err
	}
	reg, err := s.registry(ctx, q.pod, q.Model)
	if err != nil {
		return 0, err
	}
	if q.op == store.Clear {
		return 0, s.cfg.Index.Apply(ctx, clears(reg, q, f)...)
	}
	if i, known := reg.Serving(q.pod, q.Model); known {
		q.pod = reg.Pods[i].Name
	}
	if q.op == store.Add {
		return s.add(ctx, q)
	}
	size := s.cfg.BlockSize
	if m, ok := reg.Models[q.Model]; ok {
		size = m.BlockSize
	}
	chain := q.chain(size)
	batch := store.Batch{Pod: q.pod, Rank: q.rank, Model: q.Model, Ops: ops(store.Remove, q.tierOrAll(f), chain)}
	return len(chain), s.cfg.Index.Apply(ctx, batch)
}

// tierOrAll is the tier that a request names, or all.
func (q *blocksRequest) tierOrAll(f scan.Form) store.Tier {
	if !f.Has("tier") {
		return store.AllTiers
	}
	return q.tier
}

// clears are the changes of a clear, which is of all models of a pod: one for each of its
// registrations.
func clears(reg *store.Registry, q *blocksRequest, f scan.Form) []store.Batch {
	op := store.Op{Kind: store.Clear, Tier: q.tierOrAll(f), AllRanks: !f.Has("rank")}
	batches := []store.Batch{{Pod: q.pod, Rank: q.rank, Model: q.Model, Ops: []store.Op{op}}}
	for _, i := range reg.Beside(q.pod) {
		p := &reg.Pods[i]
		batches = append(batches, store.Batch{Pod: p.Name, Rank: q.rank, Model: p.Model, Ops: []store.Op{op}})
	}
	return batches
}

// add is the change that registers the pod and fixes the model's settings.
func (s *Server) add(ctx context.Context, q *blocksRequest) (int, error) {
	size, err := s.fixBlockSize(ctx, q.Model)
	if err != nil {
		return 0, err
	}
	chain := q.chain(size)
	batch := store.Batch{Pod: q.pod, Rank: q.rank, Model: q.Model, Ops: ops(store.Add, q.tier, chain)}
	return len(chain), s.cfg.Index.Apply(ctx, batch)
}

// ops deals keys out to as many ops as they need.
func ops(kind store.OpKind, tier store.Tier, keys []blockkey.Key) (all []store.Op) {
	for part := range slices.Chunk(keys, store.MaxOpKeys) {
		all = append(all, store.Op{Kind: kind, Tier: tier, Keys: part})
	}
	return all
}

// chain is the block keys that the request names, under an index block size.
func (q *blocksRequest) chain(size int) []blockkey.Key {
	if len(q.Keys) > 0 {
		return q.Keys
	}
	keys := blockkey.Chain{BlockSize: size, Seed: blockkey.NativeSeed(q.LoRA, q.Salt)}
	q.Keys = keys.AppendObjects(q.Keys[:0], q.Tokens, q.Objects)
	return q.Keys
}

// registry asks the index itself only where this process does not know enough.
// It has not seen the pod or the model then, or knows of no registration of the
// pod for it.
func (s *Server) registry(ctx context.Context, pod, model string) (*store.Registry, error) {
	reg := s.cfg.Index.Cached()
	if _, ok := reg.Models[model]; ok {
		if i, ok := reg.Serving(pod, model); ok && (reg.Pods[i].Model == model || slices.Contains(reg.Pods[i].Aliases, model)) {
			return reg, nil
		}
	}
	return s.cfg.Index.Registry(ctx)
}

// checkRanks returns store.ErrNoRank when the pod's registration, if there is one, does
// not have one of the ranks. The registry in memory may be older than a renewal with more
// ranks, so a refusal asks the index itself.
func (s *Server) checkRanks(ctx context.Context, pod, model string, ranks ...int) error {
	reg, err := s.registry(ctx, pod, model)
	if err == nil && lacksRank(reg, pod, model, ranks) != nil {
		reg, err = s.cfg.Index.Registry(ctx)
	}
	if err != nil {
		return err
	}
	return lacksRank(reg, pod, model, ranks)
}

func lacksRank(reg *store.Registry, pod, model string, ranks []int) error {
	i, known := reg.Serving(pod, model)
	if !known {
		return nil
	}
	for _, rank := range ranks {
		if err := reg.Pods[i].CheckRank(rank); err != nil {
			return err
		}
	}
	return nil
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
		return 0, &refusal.Error{Status: http.StatusConflict, Code: "model_conflict", Param: "model", Message: "the model is indexed with block keys of scheme " + info.Scheme + "; blocks can be given for native only"}
	}
	return info.BlockSize, nil
}
