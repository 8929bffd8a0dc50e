package keyspace

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Schema is the version of the data model that this package reads and writes.
const Schema = 1

// Tags holds the hash tag of each partition, one byte each. The slot of tag p
// is in [256p, 256p+255]. So any even split of the slots over masters is an
// even split of the partitions. One byte is all it can be. With prefix "kva" a
// key name then fits the 16 bytes of Redis's smallest string that can hold it.
// So a block takes 56 bytes instead of 64.
//
// Of the bytes that qualify, digits come first, then letters, other printable
// ones, control characters, and the rest.
//
// TestTags derives the table again from the rule and proves it even.
const Tags = "\x04\x08\x11\x19&.3;DHQYbjs\x7f\x01\x80\x10\x18#+2:AIPXckrz\x02\x0e\x13\x1b$(19BJS_dhqy\x03\x0b\x12\x1a!)08CKRZaipx"

// Slot returns the slot of a hash tag: 14 bits of its CRC-16/XMODEM, as in the
// specification of Redis Cluster.
func Slot(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc & 0x3fff)
}

// SlotOf returns the slot of a partition.
func SlotOf(partition int) int { return Slot(Tags[partition : partition+1]) }

// registryTag is the hash tag of all keys of the registry. Scripts change
// several of them at once, so on a cluster they share a slot.
const registryTag = "reg"

// Names are the key names of one index.
type Names struct {
	Prefix string
	// Blocks holds prefix + {tag} of each partition.
	Blocks [blockkey.Partitions]string

	// Meta, Count, Epoch, Pods, Live, Gen and Sweep are keys of the registry.
	Meta, Count, Epoch, Pods, Live, Gen, Sweep string
	// Records are the guards' records at the registry.
	Records string
	// Logs are the logs of the partitions and, behind them, that of the registry.
	Logs [blockkey.Partitions + 1]logNames
}

// logNames are the stream of a log, and the key that says that it is on.
type logNames struct{ Logged, Log string }

// NewNames returns the names of an index with a prefix.
func NewNames(prefix string) *Names {
	n := &Names{Prefix: prefix}
	for p := range n.Blocks {
		n.Blocks[p] = prefix + "{" + Tags[p:p+1] + "}"
	}
	reg := prefix + "{" + registryTag + "}:"
	n.Meta, n.Count, n.Epoch = reg+"meta", reg+"count", reg+"epoch"
	n.Pods, n.Live, n.Gen, n.Sweep = reg+"pods", reg+"live", reg+"gen", reg+"sweep"
	n.Records = reg + "s"
	for p, blocks := range &n.Blocks {
		n.Logs[p] = logNames{blocks + ":logged", blocks + ":log"}
	}
	n.Logs[blockkey.Partitions] = logNames{reg + "logged", reg + "log"}
	return n
}

// Guards is the hash of the guards' records in a partition of a cluster.
func (n *Names) Guards(partition int) string { return n.Blocks[partition] + ":s" }

// Life begins the names of what belongs to a generation alone: its map and, on a
// cluster, the record that guards it.
func (n *Names) Life(gen store.Generation) string {
	return n.Prefix + "{g" + strconv.FormatUint(uint64(gen), 10) + "}:"
}

// Changes is the list of a generation's map: its state, and the changes that are in no
// page yet.
func (n *Names) Changes(gen store.Generation) string { return n.Life(gen) + "m" }

// Compactor has the token of the process that is compacting the map.
func (n *Names) Compactor(gen store.Generation) string { return n.Life(gen) + "f" }

// Page is page i of so many.
func (n *Names) Page(gen store.Generation, pages, i int) string {
	return n.Life(gen) + "p:" + strconv.Itoa(pages) + ":" + strconv.Itoa(i)
}

// MapRecords is the hash with the record that guards a generation's map.
func (n *Names) MapRecords(gen store.Generation, cluster bool) string {
	if cluster {
		return n.Life(gen) + "s"
	}
	return n.Records
}

// ParseLife reads the generation of a name that begins with life.
func (n *Names) ParseLife(name string) (gen store.Generation, ok bool) {
	rest, ok := strings.CutPrefix(name, n.Prefix+"{g")
	if !ok {
		return 0, false
	}
	digits, _, ok := strings.Cut(rest, "}:")
	v, err := strconv.ParseUint(digits, 10, 32)
	return store.Generation(v), ok && err == nil
}

// Own is the hash of a pod's holders.
func (n *Names) Own(pod string) string { return n.Prefix + "{" + registryTag + "}:own:" + pod }

// High is where a partition remembers up to which id holders may have been given.
func (n *Names) High(partition int) string { return n.Blocks[partition] + ":high" }

// BlockLen is the length of every block key.
func (n *Names) BlockLen() int { return len(n.Prefix) + 3 + 8 }

// AppendBlock appends the key of a block.
func (n *Names) AppendBlock(dst []byte, k blockkey.StoreKey) []byte {
	dst = append(dst, n.Blocks[k.Partition()]...)
	b := k.Bytes()
	return append(dst, b[:]...)
}

// BlockName returns the name of the key that holds a block in the index with this prefix
// (redis.DefaultPrefix unless configured). It also returns the hash tag in the name, which is that of the
// block's partition: one byte. Both can have bytes that are no text. The error says what is wrong with the
// prefix.
func BlockName(prefix string, k blockkey.StoreKey) (name, tag string, err error) {
	if err := CheckPrefix(prefix); err != nil {
		return "", "", err
	}
	p := k.Partition()
	return string(NewNames(prefix).AppendBlock(nil, k)), Tags[p : p+1], nil
}

// ModelKeys returns how keys of a model are named, by their kind, that lie beside the index with a
// prefix which BlockName takes. All are in one slot, that of the partition which the model's own
// hash falls in.
func ModelKeys(prefix, model string) func(kind string) string {
	mask := blockkey.ModelOf(model)
	p := blockkey.StoreKey(mask).Partition()
	slot, hash := prefix+"{"+Tags[p:p+1]+"}:", ":"+blockkey.Key(mask).String()
	return func(kind string) string { return slot + kind + hash }
}

// ParseBlock reads back what AppendBlock wrote; ok is false for any other key.
func (n *Names) ParseBlock(name string) (k blockkey.StoreKey, ok bool) {
	if len(name) != n.BlockLen() {
		return 0, false
	}
	head, body := name[:len(name)-8], name[len(name)-8:]
	for i := range 8 {
		k = k<<8 | blockkey.StoreKey(body[i])
	}
	return k, head == n.Blocks[k.Partition()]
}

// predictedPrefix begins the tier of a holder in tier Predicted, which goes on with when it
// ends, in ms of the server's TIME.
const predictedPrefix = "predicted-"

// TierText is a holder's tier as it is written. until is of tier Predicted alone: when it
// ends, in ms of the server's TIME.
func TierText(tier store.Tier, until int64) string {
	if tier == store.Predicted {
		return predictedPrefix + strconv.FormatInt(until, 10)
	}
	return tier.String()
}

// ParseTierText reads it back.
func ParseTierText(s string) (tier store.Tier, until time.Time, err error) {
	text, predicted := strings.CutPrefix(s, predictedPrefix)
	if !predicted {
		tier, err = store.ParseHolderTier(s)
		return tier, until, err
	}
	ms, err := strconv.ParseInt(text, 10, 53)
	if err != nil {
		return 0, until, err
	}
	return store.Predicted, time.UnixMilli(ms), nil
}

// Readers are the keys of the readers of engines: which of them live, and their leases.
func (n *Names) Readers() (living, leases string) {
	reg := n.Prefix + "{" + registryTag + "}:"
	return reg + "readers", reg + "leases"
}

// ModelField is what the fields of models in Meta begin with.
const ModelField = "model:"

// Unfix is the command that takes away what is set for a model.
func (n *Names) Unfix(model string) string {
	return fmt.Sprintf("HDEL %s %q", n.Meta, ModelField+model)
}

// maxPrefix is how long a prefix may be, in bytes.
const maxPrefix = 32

// CheckPrefix keeps out what would mean something in a key name (a hash tag) or
// in a pattern of SCAN or of an ACL.
func CheckPrefix(p string) error {
	if len(p) > maxPrefix {
		return fmt.Errorf("redis: the prefix has %d bytes, the limit is %d", len(p), maxPrefix)
	}
	for _, r := range p {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == ':', r == '-':
		default:
			return fmt.Errorf("redis: the prefix %q has the character %q; it can have letters, digits and _ . : -", p, r)
		}
	}
	return nil
}
