package rechunk

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/kvatlas/kvatlas/store"
)

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
		all = append([]byte(nil), first...)
		for _, v := range values {
			all = append(all, v...)
		}
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
	dst = append(dst, 0, kind)
	dst = binary.AppendUvarint(dst, uint64(f.window))
	dst = binary.AppendUvarint(dst, uint64(f.full))
	dst = binary.AppendUvarint(dst, uint64(len(f.sizes)))
	for _, s := range f.sizes {
		dst = binary.AppendUvarint(dst, uint64(s))
	}
	dst = binary.AppendUvarint(dst, uint64(len(f.groups)))
	for i := range f.groups {
		g := &f.groups[i]
		flags := g.tiers&0xf | g.layer<<4
		if g.prefix {
			flags |= 0x80
		}
		if g.window > 0 {
			flags |= 0x40
		}
		dst = binary.AppendUvarint(append(dst, g.id, flags), uint64(g.size))
		if g.window > 0 {
			dst = binary.AppendUvarint(dst, uint64(g.window))
		}
	}
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
	f.window, f.full = uint32(d.upTo(math.MaxUint32)), uint32(d.upTo(MaxEngineBlock))
	for range d.upTo(maxLayers) {
		f.sizes = append(f.sizes, uint16(d.upTo(MaxEngineBlock)))
	}
	for range d.upTo(maxSlots) {
		id, flags := d.byte(), d.byte()
		g := group{id: id, prefix: flags&0x80 != 0, layer: flags >> 4 & (maxLayers - 1), tiers: flags & 0xf, size: uint16(d.upTo(MaxEngineBlock))}
		if flags&0x40 != 0 {
			g.window = uint32(d.upTo(store.MaxWindow))
		}
		f.groups = append(f.groups, g)
	}
	if len(d.b) > 0 {
		f.vague = uint16(d.upTo(maxVague))
	}
	f.derive()
	return !d.bad && len(d.b) == 0 && f.stored <= formEntries
}

// writeForm makes the map ops for the form if it has changed.
func (c *Chunker) writeForm() {
	f := &c.form
	if !f.dirty {
		return
	}
	f.dirty = false
	c.blob = f.append(c.blob[:0])
	n := 0
	for blob := c.blob; len(blob) > 0; n++ {
		piece := blob[:min(len(blob), store.MaxMapValue)]
		blob = blob[len(piece):]
		from := len(c.values)
		c.values = append(c.values, piece...)
		c.put1(formKey(n), from)
	}
	for i := n; i < f.stored; i++ {
		c.mapOps = append(c.mapOps, store.MapOp{MapKey: formKey(i)})
	}
	f.stored = n
}
