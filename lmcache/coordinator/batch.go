package coordinator

import (
	"fmt"
	"math"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// batch is one of a body of POST /events. Tokens and sizes are left out.
type batch struct {
	Instance    string
	Incarnation uint64
	Seq         uint64
	Type        string
	Tier        string
	Shared      bool
	Entries     []objectKey
}

// objectKey is LMCache's EncodedObjectKey.
type objectKey struct {
	HashHex string         `json:"chunk_hash_hex"` // not kept of events
	Model   string         `json:"model_name"`
	Rank    lmcache.KVRank `json:"kv_rank"`
	Group   uint32         `json:"object_group_id"`
	Salt    string         `json:"cache_salt"`

	hash lmcache.Hash
}

// readBatches reads the body of POST /events, and refuses it at the first batch or entry
// that is wrong or too much.
func (c *Coordinator) readBatches(v gjson.Result) (list []batch, err error) {
	there, room := false, c.config.MaxEntries
	err = readObject(v, func(name string, v gjson.Result) error {
		if name != "batches" {
			return nil
		}
		there, list = true, nil
		return readList(v, c.config.MaxBatches, func(v gjson.Result) error {
			var b batch
			err := b.read(v, &room)
			if err == nil {
				err = b.check()
			}
			list = append(list, b)
			return err
		})
	})
	if err == nil && !there {
		err = &fault{http.StatusUnprocessableEntity, "batches", "is missing, it must be a list"}
	}
	return list, err
}

// read reads a batch; room is how many entries there may be, which is lessened.
func (b *batch) read(v gjson.Result, room *int) error {
	model := ""
	return readObject(v, func(name string, v gjson.Result) error {
		switch name {
		case "instance_id":
			return readText(v, &b.Instance)
		case "incarnation":
			return readNumber(v, &b.Incarnation, store.MaxSequence-1)
		case "seq":
			return readNumber(v, &b.Seq, store.MaxSequence)
		case "event_type":
			return readText(v, &b.Type)
		case "tier":
			return readText(v, &b.Tier)
		case "shared":
			return readBool(v, &b.Shared)
		case "entries":
			b.Entries = nil
			return readList(v, *room, func(v gjson.Result) error {
				*room--
				var k objectKey
				err := readObject(v, func(name string, v gjson.Result) error {
					if name == "key" {
						return k.read(v)
					}
					return nil
				})
				if err == nil {
					err = k.check()
				}
				if k.HashHex = ""; k.Model == model { // one copy is enough
					k.Model = model
				}
				model = k.Model
				b.Entries = append(b.Entries, k)
				return err
			})
		}
		return nil
	})
}

// read reads a key.
func (k *objectKey) read(v gjson.Result) error {
	return readObject(v, func(name string, v gjson.Result) error {
		switch name {
		case "chunk_hash_hex":
			return readText(v, &k.HashHex)
		case "model_name":
			return readText(v, &k.Model)
		case "kv_rank":
			return readNumber(v, &k.Rank, math.MaxUint32)
		case "object_group_id":
			return readNumber(v, &k.Group, math.MaxUint32)
		case "cache_salt":
			return readText(v, &k.Salt)
		}
		return nil
	})
}

// check says what is wrong with a key, and reads its hash.
func (k *objectKey) check() error {
	var err error
	if k.hash, err = lmcache.ParseHash(k.HashHex); err != nil {
		return err
	}
	return lmcache.ObjectKey{Model: k.Model, Rank: k.Rank, Group: k.Group, Hash: k.hash, Salt: k.Salt}.Validate()
}

// check says what is wrong with a batch, but for its entries.
func (b *batch) check() error {
	if err := (feed.ID{Instance: b.Instance}).Validate(); err != nil {
		return err
	}
	switch b.Type {
	case "store", "delete", "access", "config":
	default:
		return fmt.Errorf("event_type %.40q is not one of store, delete, access, config", b.Type)
	}
	if b.Tier != "l1" && b.Tier != "l2" {
		return fmt.Errorf("tier %.40q is neither l1 nor l2", b.Tier)
	}
	if b.Seq < 1 || b.Seq > store.MaxSequence || b.Incarnation >= store.MaxSequence {
		return fmt.Errorf("seq is %d, it can be 1 to %d, and incarnation %d", b.Seq, uint64(store.MaxSequence), b.Incarnation)
	}
	return nil
}

// tier is the index's.
func (b *batch) tier() store.Tier {
	switch {
	case b.Tier == "l1":
		return store.CPU
	case b.Shared:
		return store.Shared
	}
	return store.Disk
}
