package redis

import (
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Schema is the version of the data model that this package reads and writes.
const Schema = 1

// tags holds the hash tag of each partition, one byte each. The slot of tag p
// is in [256p, 256p+255], so that any even split of the slots over masters is
// an even split of the partitions. One byte is all it can be: with prefix
// "kva" a key name then fits the 16 bytes of Redis's smallest string that can
// hold it, and a block takes 56 bytes instead of 64.
//
// Of the bytes that qualify, digits come first, then letters, other printable
// ones, control characters, and the rest.
//
// TestTags derives the table again from the rule and proves it even.
const tags = "\x04\x08\x11\x19&.3;DHQYbjs\x7f\x01\x80\x10\x18#+2:AIPXckrz\x02\x0e\x13\x1b$(19BJS_dhqy\x03\x0b\x12\x1a!)08CKRZaipx"

// registryTag is the hash tag of all keys of the registry: scripts change
// several of them at once, so on a cluster they share a slot.
const registryTag = "reg"

// names are the key names of one index.
type names struct {
	prefix string
	// blocks holds prefix + {tag} of each partition.
	blocks [blockkey.Partitions]string

	meta, count, epoch, pods, live, gen, sweep string
	// records are the guards' records at the registry.
	records string
	// logs are the logs of the partitions and, behind them, that of the registry.
	logs [blockkey.Partitions + 1]logNames
}

// logNames are the stream of a log, and the key that says that it is on.
type logNames struct{ logged, log string }

func newNames(prefix string) *names {
	n := &names{prefix: prefix}
	for p := range n.blocks {
		n.blocks[p] = prefix + "{" + tags[p:p+1] + "}"
	}
	reg := prefix + "{" + registryTag + "}:"
	n.meta, n.count, n.epoch = reg+"meta", reg+"count", reg+"epoch"
	n.pods, n.live, n.gen, n.sweep = reg+"pods", reg+"live", reg+"gen", reg+"sweep"
	n.records = reg + "s"
	for p, blocks := range &n.blocks {
		n.logs[p] = logNames{blocks + ":logged", blocks + ":log"}
	}
	n.logs[blockkey.Partitions] = logNames{reg + "logged", reg + "log"}
	return n
}

// guards is the hash of the guards' records in a partition of a cluster.
func (n *names) guards(partition int) string { return n.blocks[partition] + ":s" }

// life begins the names of what belongs to a generation alone: its map and, on a
// cluster, the record that guards it.
func (n *names) life(gen store.Generation) string {
	return n.prefix + "{g" + strconv.FormatUint(uint64(gen), 10) + "}:"
}

// changes is the list of a generation's map: its state, and the changes that are in no
// page yet. page is a page, and folder has the token of who is writing pages.
func (n *names) changes(gen store.Generation) string { return n.life(gen) + "m" }
func (n *names) folder(gen store.Generation) string  { return n.life(gen) + "f" }
func (n *names) page(gen store.Generation, pages, i int) string {
	return n.life(gen) + "p:" + strconv.Itoa(pages) + ":" + strconv.Itoa(i)
}

// mapRecords is the hash with the record that guards a generation's map.
func (n *names) mapRecords(gen store.Generation, cluster bool) string {
	if cluster {
		return n.life(gen) + "s"
	}
	return n.records
}

// parseLife reads the generation of a name that begins with life.
func (n *names) parseLife(name string) (gen store.Generation, ok bool) {
	rest, ok := strings.CutPrefix(name, n.prefix+"{g")
	if !ok {
		return 0, false
	}
	digits, _, ok := strings.Cut(rest, "}:")
	v, err := strconv.ParseUint(digits, 10, 32)
	return store.Generation(v), ok && err == nil
}

// own is the hash of a pod's holders.
func (n *names) own(pod string) string { return n.prefix + "{" + registryTag + "}:own:" + pod }

// high is where a partition remembers up to which id holders may have been given.
func (n *names) high(partition int) string { return n.blocks[partition] + ":high" }

// blockLen is the length of every block key.
func (n *names) blockLen() int { return len(n.prefix) + 3 + 8 }

// appendBlock appends the key of a block.
func (n *names) appendBlock(dst []byte, k blockkey.StoreKey) []byte {
	dst = append(dst, n.blocks[k.Partition()]...)
	b := k.Bytes()
	return append(dst, b[:]...)
}

// BlockName returns the name of the key that holds a block in the index with this prefix
// (DefaultPrefix unless configured), and the hash tag in it, which is that of the block's partition:
// one byte. Both can have bytes that are no text. The error says what is wrong with the prefix.
func BlockName(prefix string, k blockkey.StoreKey) (name, tag string, err error) {
	if err := checkPrefix(prefix); err != nil {
		return "", "", err
	}
	p := k.Partition()
	return string(newNames(prefix).appendBlock(nil, k)), tags[p : p+1], nil
}

// ModelKeys returns how keys of a model are named, by their kind, that lie beside the index
// with a prefix which BlockName takes: all of them in one slot, that of the partition which the
// model's own hash falls in.
func ModelKeys(prefix, model string) func(kind string) string {
	mask := blockkey.ModelOf(model)
	p := blockkey.StoreKey(mask).Partition()
	slot, hash := prefix+"{"+tags[p:p+1]+"}:", ":"+blockkey.Key(mask).String()
	return func(kind string) string { return slot + kind + hash }
}

// parseBlock reads back what appendBlock wrote; ok is false for any other key.
func (n *names) parseBlock(name string) (k blockkey.StoreKey, ok bool) {
	if len(name) != n.blockLen() {
		return 0, false
	}
	head, body := name[:len(name)-8], name[len(name)-8:]
	for i := range 8 {
		k = k<<8 | blockkey.StoreKey(body[i])
	}
	return k, head == n.blocks[k.Partition()]
}

// appendHolderField appends the name of a holder's field in its pod's hash:
// rank/tier.
func appendHolderField(dst []byte, at place) []byte {
	dst = strconv.AppendInt(dst, int64(at.rank), 10)
	dst = append(dst, '/')
	return append(dst, at.tierText()...)
}

// predictedPrefix begins the tier of a holder in tier Predicted, which goes on with when it
// ends, in ms of the server's TIME.
const predictedPrefix = "predicted-"

// tierText is the tier as it is written.
func (p place) tierText() string {
	if p.tier == store.Predicted {
		return predictedPrefix + strconv.FormatInt(p.until, 10)
	}
	return p.tier.String()
}

// parseTierText reads it back.
func parseTierText(s string) (tier store.Tier, until time.Time, err error) {
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
