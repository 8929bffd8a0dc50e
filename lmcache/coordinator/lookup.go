package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// placement is where a key is, as LMCache tells it. The index keeps no size, and of the
// backend the tier.
type placement struct {
	Instance    string `json:"instance_id"`
	Incarnation uint64 `json:"incarnation"`
	Tier        string `json:"tier"`
	Backend     string `json:"backend"`
	Size        int    `json:"size_bytes"`
	Shared      bool   `json:"shared"`
}

// found is a key and what is known of it.
type found struct {
	Key        objectKey   `json:"key"`
	Placements []placement `json:"placements"`
	Tokens     []uint32    `json:"token_ids"`
	Accesses   int         `json:"access_count"`
}

// query is the body of POST /directory/lookup.
type query struct {
	keys        []objectKey
	tokens      []uint32
	model, salt string
	world       int
}

func (q *query) read(v gjson.Result, c Config) error {
	return readObject(v, func(name string, v gjson.Result) error {
		switch name {
		case "keys":
			q.keys = nil
			return readList(v, c.MaxKeys, func(v gjson.Result) error {
				var k objectKey
				err := k.read(v)
				q.keys = append(q.keys, k)
				return err
			})
		case "token_ids":
			q.tokens = nil
			return readList(v, c.MaxTokens, func(v gjson.Result) error {
				q.tokens = append(q.tokens, 0)
				return readNumber(v, &q.tokens[len(q.tokens)-1], math.MaxUint32)
			})
		case "model_name":
			return readText(v, &q.model)
		case "cache_salt":
			return readText(v, &q.salt)
		case "world_size":
			return readNumber(v, &q.world, math.MaxInt32)
		}
		return nil
	})
}

// lookup handles POST /directory/lookup.
func (c *Coordinator) lookup(w http.ResponseWriter, r *http.Request) {
	q := query{world: 1}
	done, ok := c.read(w, r, func(v gjson.Result) error { return q.read(v, c.config) })
	if !ok {
		return
	}
	defer done()
	c.count.lookups.Add(1)
	keys, chunks := q.keys, len(q.keys)
	var err error
	switch {
	case len(keys) > 0 && len(q.tokens) > 0:
		err = errors.New("there can be keys or token_ids, not both")
	case len(keys) == 0:
		keys, chunks, err = c.keysOf(q.tokens, q.model, q.world, q.salt)
	}
	if err == nil && len(keys) > c.config.MaxKeys {
		err = fmt.Errorf("%d keys, the limit is %d", len(keys), c.config.MaxKeys)
	}
	for i := range keys {
		if err == nil {
			if err = keys[i].check(); err != nil {
				err = fmt.Errorf("key %d: %w", i, err)
			}
		}
	}
	if err != nil {
		c.refuse(w, r, http.StatusBadRequest, err)
		return
	}
	results, err := c.find(r.Context(), keys)
	if err != nil {
		c.unavailable(w, "", err)
		return
	}
	answer(w, http.StatusOK, struct {
		Chunks  int     `json:"chunks"`
		Results []found `json:"results"`
	}{chunks, results})
}

// keysOf are the keys of a text's chunks: of each chunk one for each rank.
func (c *Coordinator) keysOf(tokens []uint32, model string, world int, salt string) (keys []objectKey, chunks int, err error) {
	h := c.config.Hashers[model]
	if h == nil {
		h = c.plain
	}
	if chunks = h.Chunks(len(tokens)); chunks == 0 {
		return nil, 0, nil
	}
	if world < 1 || chunks > c.config.MaxKeys/world {
		return nil, 0, fmt.Errorf("%d chunks for each of %d ranks, the limit is %d keys", chunks, world, c.config.MaxKeys)
	}
	for _, hash := range h.Append(nil, tokens) {
		for rank := range world {
			kv, err := lmcache.NewKVRank(world, rank, world, rank)
			if err != nil {
				return nil, 0, err
			}
			keys = append(keys, objectKey{HashHex: hash.String(), Model: model, Rank: kv, Salt: salt})
		}
	}
	return keys, chunks, nil
}

// find asks the index about keys, in one lookup.
func (c *Coordinator) find(ctx context.Context, keys []objectKey) ([]found, error) {
	type chain struct {
		query *store.Query
		fold  *placements
	}
	chains := map[string]*chain{}
	var queries []*store.Query
	results := make([]found, len(keys))
	for i := range keys {
		k := &keys[i]
		results[i] = found{Key: *k, Placements: []placement{}, Tokens: []uint32{}}
		if k.Salt != "" || k.Group != 0 {
			continue // nothing is kept of these
		}
		ch := chains[k.Model]
		if ch == nil {
			ch = &chain{fold: &placements{}}
			ch.query = &store.Query{Model: blockkey.ModelOf(k.Model), Fold: ch.fold}
			chains[k.Model] = ch
			queries = append(queries, ch.query)
		}
		ch.query.Keys = append(ch.query.Keys, k.hash.ChunkKey())
		ch.fold.of = append(ch.fold.of, &results[i])
	}
	if len(queries) == 0 {
		return results, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	if err := c.config.Index.Lookup(ctx, queries...); err != nil {
		return nil, err
	}
	return results, nil
}

// placements is a store.Folder that fills in results, one for each block.
type placements struct {
	registry *store.Registry
	of       []*found
	at       int
}

// Begin implements store.Folder.
func (f *placements) Begin(r *store.Registry) { f.registry = r }

// Run implements store.Folder. The keys are no chain: all of them are of interest.
func (f *placements) Run(n int, holders []store.HolderID) (more bool) {
	for range n {
		f.fill(f.of[f.at], holders)
		f.at++
	}
	return true
}

func (f *placements) fill(to *found, holders []store.HolderID) {
	for _, id := range holders {
		slot, tier, live := f.registry.Holder(id)
		if !live {
			continue
		}
		p := &f.registry.Pods[f.registry.Slots[slot].Pod]
		if p.PartOf == nil || p.PartOf.Worker != to.Key.Rank.Rank() || p.Labels[feed.LabelInstance] == "" {
			continue
		}
		incarnation, _ := strconv.ParseUint(p.Labels[feed.LabelIncarnation], 10, 64) // 0 is not known
		at := placement{Instance: p.Labels[feed.LabelInstance], Incarnation: incarnation, Tier: "l2", Backend: tier.String(), Shared: tier == store.Shared}
		if tier == store.CPU {
			at.Tier, at.Backend = "l1", "dram"
		}
		if !slices.Contains(to.Placements, at) { // an instance may serve several pods
			to.Placements = append(to.Placements, at)
		}
	}
	slices.SortFunc(to.Placements, func(a, b placement) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Backend, b.Backend))
	})
}
