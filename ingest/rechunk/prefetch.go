package rechunk

import (
	"context"
	"encoding/binary"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// prefetch reads all that Apply will need of a batch and that is not in memory. It
// goes in rounds, since what a record refers to is known when it is there. First
// come the blocks and parents of all events, then their runs. Then come what those
// branch from, and the branches that a change of a part reaches. Two to four
// rounds are usual, of a read or two each; more than that takes branches of
// branches.
func (c *Chunker) prefetch(ctx context.Context, b *event.Batch, read Reader) error {
	clear(c.absent)
	for {
		c.missing = c.missing[:0]
		for i := range b.Events {
			c.want(&b.Events[i])
		}
		if err := c.wantAged(ctx, b, read); err != nil {
			return err
		}
		if len(c.missing) == 0 {
			return nil
		}
		if err := c.load(ctx, read, c.missing); err != nil {
			return err
		}
	}
}

// begin reads what the map has once for a generation.
func (c *Chunker) begin(ctx context.Context, read Reader) error {
	keys := []store.MapKey{metaKey, formKey(0)}
	for t := range c.agings {
		if c.config.Unremoved > 0 && store.Tier(t) != store.GPU {
			keys = append(keys, agingKey(t))
		}
	}
	values, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	if err := c.readForm(ctx, values[1], read); err != nil {
		return err
	}
	c.decodeMeta(values[0])
	for i, v := range values[2:] {
		c.decodeAging(int(keys[i+2].Part-partAging), v)
	}
	c.begun = true
	return nil
}

func (c *Chunker) decodeMeta(v []byte) {
	if v == nil {
		return
	}
	d := decoder{b: v}
	m := meta{era: uint32(d.upTo(1<<32 - 1)), stored: true}
	for t := 0; t < numTiers && len(d.b) > 0; t++ {
		m.cleared[t] = uint32(d.upTo(int(m.era)))
	}
	if d.bad || len(d.b) > 0 {
		c.stats.Garbled++
		return
	}
	c.meta = m
}

// want collects the hashes that an event needs next.
func (c *Chunker) want(e *event.Event) {
	tier, known := c.tierOf(e)
	if !known || !c.form.Counts(e) {
		return
	}
	layer := c.form.Layer(e)
	if e.Kind == event.Stored && e.HasParent {
		c.wantBlock(inLayer(layer, e.Parent), e.Kind, tier)
	}
	for _, h := range e.Hashes {
		c.wantBlock(inLayer(layer, h), e.Kind, tier)
	}
}

// lookUp returns the block of a hash. If it is not in memory and may be in the map
// it is collected.
func (c *Chunker) lookUp(hash uint64) *block {
	b := c.blocks.get(hash)
	if b == nil {
		if _, none := c.absent[hash]; !none {
			c.absent[hash] = struct{}{} // asked for once
			c.missing = append(c.missing, hash)
		}
	}
	return b
}

func (c *Chunker) wantBlock(hash uint64, kind event.Kind, tier store.Tier) {
	b := c.lookUp(hash)
	if b == nil {
		return
	}
	b.used = true
	if b.dead {
		return
	}
	if b.joined {
		c.wantRun(b.join(), kind, tier, 0)
	}
	if b.tail != nil {
		c.wantRun(b.tail.ref(), kind, tier, 0)
	}
	if b.branch != nil {
		c.wantRun(b.branch.ref(), kind, tier, 0)
	}
}

// wantRun collects what a change of a run's parts reaches. That is the runs that it
// branches from, and its branches, unless a Stored finds all of it held already.
func (c *Chunker) wantRun(r ref, kind event.Kind, tier store.Tier, depth int) {
	b := c.lookUp(r.hash)
	if b == nil || b.dead || depth > c.size {
		return
	}
	b.used = true
	x := b.tail
	if r.branch {
		x = b.branch
	}
	if x == nil {
		return
	}
	if x.child {
		c.wantRun(x.parent(), kind, tier, depth+1)
	}
	if x.branches() && (kind != event.Stored || b.era != c.meta.era || !x.present.of(int(tier)).full(len(x.ends))) {
		c.wantKids(x, depth)
	}
}

func (c *Chunker) wantKids(x *run, depth int) {
	if depth > c.size {
		return
	}
	for _, h := range x.kids() {
		if h == 0 {
			continue
		}
		if k := c.lookUp(h); k != nil && k.branch != nil && k.branch.branches() && k.branch.fork > x.fork {
			c.wantKids(k.branch, depth+1)
		}
	}
}

// read reads entries, as many in a call as there can be.
func (c *Chunker) read(ctx context.Context, read Reader, keys []store.MapKey) ([][]byte, error) {
	var all [][]byte
	for len(keys) > 0 {
		n := min(len(keys), store.MaxMapOps)
		c.stats.Reads++
		c.stats.KeysRead += uint64(n)
		values, err := read(ctx, keys[:n]...)
		if err != nil {
			return nil, err
		}
		if len(values) != n {
			return nil, errAnswer
		}
		keys = keys[n:]
		if len(keys) == 0 && all == nil {
			return values, nil
		}
		all = append(all, values...)
	}
	return all, nil
}

// load reads the records of hashes.
func (c *Chunker) load(ctx context.Context, read Reader, hashes []uint64) error {
	keys := make([]store.MapKey, 0, len(hashes))
	for _, h := range hashes {
		keys = append(keys, store.MapKey{Hash: h})
	}
	first, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	// Records of more than one entry.
	keys = nil
	for i, v := range first {
		for j := range max(1, entries(v)) - 1 {
			keys = append(keys, store.MapKey{Hash: hashes[i], Part: partMore + uint16(j)})
		}
	}
	rest, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	var blocks []*block
	var all []byte
	keys = nil
	for i, v := range first {
		n := entries(v)
		if n == 0 {
			if v != nil {
				c.stats.Garbled++
			}
			continue
		}
		if n > 1 {
			all = append(all[:0], v...)
			for _, more := range rest[:n-1] {
				all = append(all, more...)
			}
			v, rest = all, rest[n-1:]
		}
		b := &block{hash: hashes[i], stored: lasting{record: uint16(n)}, used: true}
		if !decodeRecord(b, v, c.size) {
			c.stats.Garbled++
			continue
		}
		blocks = append(blocks, b)
		for j, r := range [2]*run{b.tail, b.branch} {
			if r == nil {
				continue
			}
			for k := range b.stored.tokens[j] {
				keys = append(keys, store.MapKey{Hash: b.hash, Part: partTokens[j] + uint16(k)})
			}
			for k := range b.stored.kids[j] {
				keys = append(keys, store.MapKey{Hash: b.hash, Part: partKids[j] + k})
			}
		}
	}
	values, err := c.read(ctx, read, keys)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		ok := true
		for j, r := range [2]*run{b.tail, b.branch} {
			if r == nil {
				continue
			}
			tokens, kids := int(b.stored.tokens[j]), int(b.stored.kids[j])
			ok = r.decodeTokens(values[:tokens]) && r.decodeKids(values[tokens:tokens+kids]) && ok
			values = values[tokens+kids:]
		}
		if !ok {
			c.stats.Garbled++
			continue
		}
		b.layer = c.form.LayerOf(b.slot.group)
		c.insert(b)
	}
	return nil
}

func (r *run) decodeTokens(values [][]byte) bool {
	for _, v := range values {
		var ok bool
		if r.tokens, ok = decodeChunk(r.tokens, v); !ok {
			return false
		}
	}
	return len(r.tokens) == r.kept()
}

func (r *run) decodeKids(values [][]byte) bool {
	kids := r.kids()
	for _, v := range values {
		n := min(len(kids), kidsPage)
		if len(v) != 8*n {
			return false
		}
		for i := range n {
			kids[i] = binary.BigEndian.Uint64(v[8*i:])
		}
		kids = kids[n:]
	}
	for i, k := range r.kids() {
		if k == 0 {
			r.kin.free = append(r.kin.free, i)
		} else {
			r.kin.count++
		}
	}
	return len(kids) == 0
}
