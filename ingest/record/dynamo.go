package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// RouterEvent is an event as Dynamo's KV router keeps it (crate dynamo-kv-router
// 1.6.1, protocols.rs). It has local block hashes, which are those of the native
// scheme, in the place of tokens.
type RouterEvent struct {
	// Worker is the id of the engine, Rank its data-parallel rank.
	Worker uint64
	Rank   int
	// Tier is where the blocks are.
	Tier store.Tier
	// Kind is what happened, in the words of store: Add, Remove, Clear.
	Kind store.OpKind
	// Parent is the engine's hash of the block before the first, if HasParent.
	Parent    uint64
	HasParent bool
	// Hashes are the engine's hashes of the blocks; Locals, of an Add, the local
	// hash of each.
	Hashes, Locals []uint64
}

// dynamoTiers are Dynamo's names of tiers.
var dynamoTiers = map[string]store.Tier{
	"": store.GPU, "device": store.GPU, "host_pinned": store.CPU, "disk": store.Disk, "external": store.Shared,
}

// UnmarshalJSON reads an event of Dynamo's recorder.
func (e *RouterEvent) UnmarshalJSON(b []byte) error {
	var in struct {
		Worker uint64 `json:"worker_id"`
		Tier   string `json:"storage_tier"`
		Event  *struct {
			Data json.RawMessage `json:"data"`
			Rank int             `json:"dp_rank"`
		} `json:"event"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if in.Event == nil || in.Event.Data == nil {
		return errors.New("an event without data")
	}
	tier, known := dynamoTiers[in.Tier]
	if !known {
		return fmt.Errorf("the tier %q is not one of Dynamo's", in.Tier)
	}
	if err := store.CheckRank(in.Event.Rank); err != nil {
		return err
	}
	*e = RouterEvent{Worker: in.Worker, Rank: in.Event.Rank, Tier: tier}
	if bytes.Equal(in.Event.Data, []byte(`"cleared"`)) {
		e.Kind = store.Clear
		return nil
	}
	var data struct {
		Stored *struct {
			Parent *uint64 `json:"parent_hash"`
			Blocks []struct {
				Hash  uint64 `json:"block_hash"`
				Local uint64 `json:"tokens_hash"`
			} `json:"blocks"`
		} `json:"stored"`
		Removed *struct {
			Hashes []uint64 `json:"block_hashes"`
		} `json:"removed"`
	}
	if err := json.Unmarshal(in.Event.Data, &data); err != nil {
		return err
	}
	switch {
	case data.Stored != nil:
		e.Kind = store.Add
		if p := data.Stored.Parent; p != nil {
			e.Parent, e.HasParent = *p, true
		}
		for _, b := range data.Stored.Blocks {
			e.Hashes = append(e.Hashes, b.Hash)
			e.Locals = append(e.Locals, b.Local)
		}
	case data.Removed != nil:
		e.Kind, e.Hashes = store.Remove, data.Removed.Hashes
	default:
		return errors.New("data is not one of stored, removed and cleared")
	}
	return nil
}

// ErrNoParent is returned for an event whose parent was not stored before, so that
// its blocks' place in a prompt is not known.
var ErrNoParent = errors.New("record: the parent of the blocks is not known")

// ErrFull is returned when a record has more blocks at a time than a Chainer keeps.
var ErrFull = errors.New("record: too many blocks")

// Chainer makes block keys of Dynamo's events: the native key of a block is that of
// its parent chained with its local hash. It belongs to one goroutine.
type Chainer struct {
	// Limit bounds the blocks that it knows at a time, 16,777,216 by default.
	Limit int

	known map[place]chained
}

// place is an engine's block: its hash means nothing to other engines.
type place struct {
	worker uint64
	rank   int
	hash   uint64
}

// chained is what is known of a block.
type chained struct {
	key   blockkey.Key
	tiers uint8 // where it is, a bit each
}

// Keys returns the block keys that an event is about: of an Add those of its blocks,
// of a Remove those that are known. A Clear has none.
func (c *Chainer) Keys(e *RouterEvent) ([]blockkey.Key, error) {
	if c.known == nil {
		c.known = map[place]chained{}
	}
	at := place{worker: e.Worker, rank: e.Rank}
	bit := uint8(1) << e.Tier
	var keys []blockkey.Key
	switch e.Kind {
	case store.Clear:
		for p, known := range c.known {
			if p.worker == e.Worker && p.rank == e.Rank {
				if known.tiers &^= bit; known.tiers == 0 {
					delete(c.known, p)
				} else {
					c.known[p] = known
				}
			}
		}
	case store.Remove:
		for _, at.hash = range e.Hashes {
			known, ok := c.known[at]
			if !ok {
				continue
			}
			keys = append(keys, known.key)
			if known.tiers &^= bit; known.tiers == 0 {
				delete(c.known, at)
			} else {
				c.known[at] = known
			}
		}
	case store.Add:
		chain := blockkey.Chain{BlockSize: 1}
		if e.HasParent {
			at.hash = e.Parent
			parent, ok := c.known[at]
			if !ok {
				return nil, ErrNoParent
			}
			chain.Parent, chain.HasParent = parent.key, true
		}
		limit := c.Limit
		limit = cmp.Or(limit, 1<<24)
		if len(c.known)+len(e.Hashes) > limit {
			return nil, fmt.Errorf("%w: more than %d", ErrFull, limit)
		}
		keys = chain.AppendLocals(keys, e.Locals)
		for i, hash := range e.Hashes {
			at.hash = hash
			c.known[at] = chained{key: keys[i], tiers: c.known[at].tiers | bit}
		}
	}
	return keys, nil
}
