package ingest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/store"
)

const (
	engineBlock = 16
	indexBlock  = 32
	testModel   = "model"
)

// cached is an engine block in the tests' engine and in the plain model.
type cached struct {
	hash   int64
	parent *cached // nil at the root
	tokens []uint32
	copies [store.NumTiers]int
	kids   int // that are held somewhere
}

func (b *cached) held() bool { return b.copies != [store.NumTiers]int{} }

// fakeCache is an engine's cache, which tells what it does in the engine's events.
type fakeCache struct {
	rng    *rand.Rand
	tiered bool // the engine's events have a medium
	unique bool // the engine has a block once in a tier
	blocks map[int64]*cached
	list   []int64 // of blocks that were ever held
}

func newFakeCache(rng *rand.Rand, tiered bool) *fakeCache {
	return &fakeCache{rng: rng, tiered: tiered, blocks: map[int64]*cached{}}
}

// pick returns a block that is held, nil if there is none at hand.
func (c *fakeCache) pick(ok func(*cached) bool) *cached {
	for range 8 {
		if len(c.list) == 0 {
			return nil
		}
		i := c.rng.IntN(len(c.list))
		b := c.blocks[c.list[i]]
		if b == nil || !b.held() {
			c.list[i] = c.list[len(c.list)-1]
			c.list = c.list[:len(c.list)-1]
			delete(c.blocks, b.hash)
			continue
		}
		if ok(b) {
			return b
		}
	}
	return nil
}

var media = [...]string{store.GPU: "GPU", store.CPU: "CPU"}

// event does something and reports it.
func (c *fakeCache) event() enginetest.Event {
	tier := store.GPU
	if c.tiered && c.rng.IntN(4) == 0 {
		tier = store.CPU
	}
	switch n := c.rng.IntN(400); {
	case n == 0:
		for _, b := range c.blocks {
			c.drop(b, store.GPU, b.copies[store.GPU])
			if c.unique { // a tree is flushed with what it has on the host
				c.drop(b, store.CPU, b.copies[store.CPU])
			}
		}
		return enginetest.Event{"type": "AllBlocksCleared"}
	case n < 170:
		// Evictions are of leaves, as engines' are.
		if b := c.pick(func(b *cached) bool { return b.copies[tier] > 0 && b.kids == 0 }); b != nil {
			c.drop(b, tier, 1)
			return enginetest.Event{"type": "BlockRemoved", "block_hashes": []int64{b.hash}, "medium": media[tier]}
		}
	case n < 190 && !c.unique:
		// Another copy of a block, under its parent.
		if b := c.pick(func(b *cached) bool { return b.copies[tier] > 0 && b.parent != nil && b.parent.held() }); b != nil {
			b.copies[tier]++
			return stored(b.parent, []*cached{b}, tier)
		}
	}
	// A few new blocks below one that is held, or at the root.
	var parent *cached
	if c.rng.IntN(3) > 0 {
		parent = c.pick(func(*cached) bool { return true })
	}
	at := parent
	var blocks []*cached
	for range 1 + c.rng.IntN(4) {
		b := &cached{parent: at, tokens: make([]uint32, engineBlock)}
		for i := range b.tokens {
			b.tokens[i] = c.rng.Uint32N(150_000)
		}
		b.hash = c.rng.Int64()
		b.copies[tier] = 1
		if at != nil {
			at.kids++
		}
		c.blocks[b.hash] = b
		c.list = append(c.list, b.hash)
		blocks, at = append(blocks, b), b
	}
	return stored(parent, blocks, tier)
}

func (c *fakeCache) drop(b *cached, tier store.Tier, n int) {
	had := b.held()
	b.copies[tier] -= n
	if had && !b.held() && b.parent != nil {
		b.parent.kids--
	}
}

func stored(parent *cached, blocks []*cached, tier store.Tier) enginetest.Event {
	var hashes []int64
	var tokens []uint32
	for _, b := range blocks {
		hashes, tokens = append(hashes, b.hash), append(tokens, b.tokens...)
	}
	e := enginetest.Event{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": engineBlock, "lora_id": nil, "medium": media[tier]}
	if parent != nil {
		e["parent_block_hash"] = parent.hash
	}
	return e
}

// plain is the plain model of what an index holds of a rank after some events.
type plain struct {
	blocks map[int64]*cached
	unique bool // as of fakeCache
}

func (p *plain) apply(events []enginetest.Event) {
	for _, e := range events {
		tier := store.GPU
		if e["medium"] == "CPU" {
			tier = store.CPU
		}
		switch e["type"] {
		case "AllBlocksCleared":
			for _, b := range p.blocks {
				b.copies[store.GPU] = 0
				if p.unique {
					b.copies[store.CPU] = 0
				}
			}
		case "BlockRemoved":
			for _, h := range e["block_hashes"].([]int64) {
				if b := p.blocks[h]; b != nil && b.copies[tier] > 0 {
					b.copies[tier]--
				}
			}
		case "BlockStored":
			var parent *cached
			if h, ok := e["parent_block_hash"].(int64); ok {
				if parent = p.blocks[h]; parent == nil || !parent.held() {
					continue // without the parent the place is not known
				}
			}
			tokens := e["token_ids"].([]uint32)
			for i, h := range e["block_hashes"].([]int64) {
				b := p.blocks[h]
				if b == nil {
					b = &cached{hash: h, parent: parent, tokens: tokens[i*engineBlock:][:engineBlock]}
					p.blocks[h] = b
				}
				b.copies[tier]++
				parent = b
			}
		}
	}
}

// keys are the store keys of the index blocks that are held in each tier: those of
// which every engine block is.
func (p *plain) keys() (out [store.NumTiers][]blockkey.StoreKey) {
	const parts = indexBlock / engineBlock
	mask := blockkey.ModelOf(testModel)
	for _, b := range p.blocks {
		var path []*cached
		for at := b; at != nil; at = at.parent {
			path = append(path, at)
		}
		if len(path)%parts != 0 {
			continue
		}
		slices.Reverse(path)
		var tokens []uint32
		for _, at := range path {
			tokens = append(tokens, at.tokens...)
		}
		all := blockkey.AppendNative(nil, tokens, indexBlock, blockkey.NativeSeed("", ""))
		for tier := range out {
			if !slices.ContainsFunc(path[len(path)-parts:], func(b *cached) bool { return b.copies[tier] == 0 }) {
				out[tier] = append(out[tier], all[len(all)-1].In(mask))
			}
		}
	}
	for tier := range out {
		slices.Sort(out[tier])
		out[tier] = slices.Compact(out[tier])
	}
	return out
}

// held are the store keys that an index has for a rank.
func held(ctx context.Context, x store.Index, pod string, rank int) (out [store.NumTiers][]blockkey.StoreKey, err error) {
	seen := [store.NumTiers]map[blockkey.StoreKey]bool{}
	for i := range seen {
		seen[i] = map[blockkey.StoreKey]bool{}
	}
	for cursor := ""; ; {
		page, err := x.(store.Pager).Page(ctx, cursor, store.MaxPage)
		if err != nil {
			return out, err
		}
		for _, b := range page.Blocks {
			for _, id := range b.Holders {
				slot, tier, live := page.Registry.Holder(id)
				if !live {
					continue
				}
				if s := page.Registry.Slots[slot]; page.Registry.Pods[s.Pod].Name == pod && s.Rank == rank {
					seen[tier][b.Key] = true
				}
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	for tier := range out {
		out[tier] = slices.Sorted(maps.Keys(seen[tier]))
	}
	return out, nil
}

// differ says how two sets of keys differ, "" if they do not.
func differ(got, want [store.NumTiers][]blockkey.StoreKey) string {
	for tier := range got {
		if !slices.Equal(got[tier], want[tier]) {
			missing, extra := 0, 0
			for _, k := range want[tier] {
				if _, ok := slices.BinarySearch(got[tier], k); !ok {
					missing++
				}
			}
			for _, k := range got[tier] {
				if _, ok := slices.BinarySearch(want[tier], k); !ok {
					extra++
				}
			}
			return fmt.Sprintf("tier %v: %d keys and %d wanted, %d missing, %d too many", store.Tier(tier), len(got[tier]), len(want[tier]), missing, extra)
		}
	}
	return ""
}
