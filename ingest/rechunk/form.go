package rechunk

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk/groups"
	"github.com/kvatlas/kvatlas/store"
)

// form is what a generation's stream has shown of the engine's cache. It is part of the
// generation's state, in the map.
//
// A message's events are looked through for it before any of them is applied. Where a message
// shows something new that makes what is held already say too much, the tier is cleared.
type form struct {
	groups.Shown
	engine  engine // as Config.Engine has told, here or to an owner before
	reports bool   // it reports what requests find in its cache
	unseen  bool   // it can hold blocks on the GPU that are not known (NoteUnseen)
	vague   uint16 // slots whose copies are all doubtful
	dirty   bool   // what is above, but the groups, has changed
	stored  int    // entries in the map
}

// formEntries is how many entries of the map a form can take.
const formEntries = 4

// formHash is the hash whose entries have the form.
const formHash = 0x6b76612d666f726d

func formKey(i int) store.MapKey { return store.MapKey{Hash: formHash, Part: partForm + uint16(i)} }

// inLayer is the hash under which a layer keeps a block. Groups of different block sizes
// name blocks of different length by one hash.
func inLayer(layer uint8, hash event.Hash) uint64 {
	return uint64(hash) ^ uint64(layer)*0x9e3779b97f4a7c15
}

// tierOf is the tier in which an event's blocks count.
func (c *Chunker) tierOf(e *event.Event) (tier store.Tier, known bool) {
	return c.form.TierOf(e, c.config.Media)
}

// survey takes in what a message shows of the engine's cache.
func (c *Chunker) survey(b *event.Batch) {
	if told := engineOf(c.config.Engine); told != unknownEngine && told != c.form.engine {
		c.form.engine, c.form.dirty = told, true
	}
	c.void(c.form.Survey(b, c.config.Media))
}

// allTiers is the set of all tiers of memory.
const allTiers = 1<<store.NumTiers - 1

// void ends all that is held in tiers.
func (c *Chunker) void(set uint8) {
	for t := range eachTier(set) {
		c.stats.Voided++
		c.clearTier(store.Tier(t))
		if store.Tier(t) == store.GPU {
			c.NoteUnseen()
		}
	}
}

// readForm reads the form from the map. first is its first entry.
func (c *Chunker) readForm(ctx context.Context, first []byte, read Reader) error {
	if len(first) == 0 {
		return nil
	}
	all := first
	if n := int(first[0]); n > 1 && n <= formEntries {
		var keys []store.MapKey
		for i := 1; i < n; i++ {
			keys = append(keys, formKey(i))
		}
		values, err := c.read(ctx, read, keys)
		if err != nil {
			return err
		}
		all = slices.Concat(first, slices.Concat(values...))
	}
	var f form
	if !f.decode(all) {
		c.stats.Garbled++
		return nil
	}
	c.form = f
	return nil
}

// What is set in the byte of a form's engine.
const (
	hasReports = 0x80
	hasUnseen  = 0x40
)

// append appends the form as the map has it.
func (f *form) append(dst []byte) []byte {
	begin := len(dst)
	kind := byte(f.engine)
	if f.reports {
		kind |= hasReports
	}
	if f.unseen {
		kind |= hasUnseen
	}
	dst = f.Append(append(dst, 0, kind))
	if f.vague > 0 {
		dst = binary.AppendUvarint(dst, uint64(f.vague))
	}
	dst[begin] = byte((len(dst) - begin + store.MaxMapValue - 1) / store.MaxMapValue)
	return dst
}

// decode reads what append has written. It returns false when that cannot be a form.
func (f *form) decode(v []byte) bool {
	d := decoder{b: v}
	f.stored = int(d.byte())
	kind := d.byte()
	f.engine, f.reports, f.unseen = engine(kind&^(hasReports|hasUnseen)), kind&hasReports != 0, kind&hasUnseen != 0
	var ok bool
	d.b, ok = f.Decode(d.b)
	if len(d.b) > 0 {
		f.vague = uint16(d.upTo(maxVague))
	}
	return ok && !d.bad && len(d.b) == 0 && f.stored <= formEntries
}

// writeForm makes the map ops for the form if it has changed.
func (c *Chunker) writeForm() {
	f := &c.form
	if !f.dirty && !f.Changed {
		return
	}
	f.dirty, f.Changed = false, false
	c.blob = f.append(c.blob[:0])
	n := c.putPieces(c.blob, formKey)
	for i := n; i < f.stored; i++ {
		c.mapOps = append(c.mapOps, store.MapOp{MapKey: formKey(i)})
	}
	f.stored = n
}
