package event

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// dynamoSalt is in front of a cache salt that stands among the extra keys of an
// engine under Dynamo.
const dynamoSalt = "dynamo-cache-salt:"

// extras reads the extra keys of an event: what else went into each block's hash.
// The engine vLLM sends them without a tag. They are the adapter's name, the
// digest of prompt embeddings, and in the first block of a prompt the cache salt.
// Objects are (identifier, offset), or in old versions bare identifiers. Taking an
// adapter or a salt for an object, or for nothing, would let tenants see each
// other's blocks. So what cannot be told apart is kept apart: as an object of that
// name, which no other prompt has.
func (d *Decoder) extras(f *fields) {
	for _, list := range [...]struct {
		at    int
		field string
		row   func(d *Decoder, f *fields, block int) bool
	}{
		{f.extraKeys, "extra_keys", (*Decoder).extraKeys},
		{f.objectInfos, "block_mm_infos", (*Decoder).objectInfo},
		{f.objectKeys, "mm_keys", (*Decoder).objectKeys},
	} {
		if d.i = list.at; d.i != 0 && !d.refused() && !d.rows(f, list.row) {
			d.refuse(BadField, list.field)
		}
	}
}

// rows reads a list with one value for each block, each of them by row, which
// appends the block's objects to the arena. Objects of a list that is read later
// take the place of those before: they say the same with more care.
func (d *Decoder) rows(f *fields, row func(d *Decoder, f *fields, block int) bool) bool {
	if d.null() {
		return true
	}
	n, ok := d.array()
	if !ok {
		return false
	}
	e, a := f.e, &d.batch.arena
	for block := range n {
		if d.null() {
			continue
		}
		if block >= len(e.Hashes) {
			return false // of which block it is cannot be known
		}
		from := len(a.objects)
		if !row(d, f, block) || d.broken || len(a.objects)-from > d.limits.Tokens {
			return false
		}
		if len(a.objects) > from {
			if e.Extra == nil {
				e.Extra = a.newExtra(len(e.Hashes))
			}
			e.Extra[block].Objects = a.objects[from:len(a.objects):len(a.objects)]
		}
	}
	return n >= len(e.Hashes) || e.Extra == nil
}

// extraKeys reads the extra keys of a block.
func (d *Decoder) extraKeys(f *fields, block int) bool {
	a := &d.batch.arena
	n, ok := d.array()
	if !ok {
		return false
	}
	for i := range n {
		switch t := d.peek(); {
		case t == 0xc0:
			d.i++
		case isText(t):
			s, ok := d.text()
			if !ok || len(s) > d.limits.Text {
				return false
			}
			d.bareKey(f, block, i, s)
		case isBytes(t):
			s, ok := d.bytes()
			if !ok {
				return false
			}
			a.objects = append(a.objects, Object{Hash: xxh3.Hash(s)})
		case isArray(t):
			if !d.tagged(f) {
				return false
			}
		case isMap(t):
			if !d.objectMap() {
				return false
			}
		default:
			// vLLM up to 0.11.0 hashes an adapter's number.
			v, _, ok := d.integer()
			if !ok || f.e.LoRAID == 0 || int64(v) != f.e.LoRAID {
				return false
			}
		}
	}
	return true
}

// bareKey takes the i-th extra key of a block, a text without a tag, which the
// cursor is behind.
func (d *Decoder) bareKey(f *fields, block, i int, s []byte) {
	e := f.e
	if i == 0 && e.LoRA != "" && string(s) == e.LoRA {
		return
	}
	if salt, ok := bytes.CutPrefix(s, []byte(dynamoSalt)); ok {
		if e.Salt == "" {
			e.Salt = d.words.get(salt)
		}
		return
	}
	first := block == 0 && !e.HasParent
	if first && string(s) == e.Salt && e.Salt != "" {
		return
	}
	// A salt stands in the first block of a prompt alone. Of versions that name an
	// object by its bare identifier, one that reaches into the next block is one.
	if first && e.Salt == "" && (!f.bare || !d.inNextRow(s, e.LoRA)) {
		e.Salt = d.words.get(s)
		return
	}
	d.batch.arena.objects = append(d.batch.arena.objects, object(d.words.get(s), 0))
}

// inNextRow reports whether s is also in the row behind the one that the cursor
// stands in, other than as the adapter's name in front. The cursor is not moved.
func (d *Decoder) inNextRow(s []byte, lora string) bool {
	c := d.cursor
	for !c.broken && c.left() > 0 && isText(c.peek()) { // the rest of this row
		c.skip()
	}
	if c.left() == 0 || !isArray(c.peek()) {
		return false
	}
	n, _ := c.array()
	for i := range n {
		t, ok := c.text()
		if !ok {
			return false
		}
		if bytes.Equal(t, s) && (i > 0 || string(t) != lora) {
			return true
		}
	}
	return false
}

// tagged reads an extra key that is a tuple. It is (identifier, offset) of an
// object, or what vLLM 0.31 hashes: ("lora", name, path), ("mm", identifier,
// offset), ("cache_salt", salt).
func (d *Decoder) tagged(f *fields) bool {
	e := f.e
	n, ok := d.array()
	if !ok || n < 2 || n > 3 {
		return false
	}
	word, ok := d.text()
	if !ok || len(word) > d.limits.Text {
		return false
	}
	switch {
	case n == 2 && isText(d.peek()):
		s, wrong := d.word()
		if string(word) != "cache_salt" || wrong != 0 {
			return false
		}
		e.Salt = s
		return true
	case n == 3 && string(word) == "lora":
		s, wrong := d.word()
		if wrong != 0 || e.LoRA != "" && e.LoRA != s {
			return false
		}
		e.LoRA = s
		d.skip()
		return true
	case n == 3 && string(word) == "mm":
		if word, ok = d.text(); !ok || len(word) > d.limits.Text {
			return false
		}
	case n == 3:
		return false
	}
	offset, ok := d.offset()
	if !ok {
		return false
	}
	d.batch.arena.objects = append(d.batch.arena.objects, object(d.words.get(word), offset))
	return true
}

// offset reads the token of a block at which an object begins.
func (d *Decoder) offset() (int, bool) {
	v, negative, ok := d.integer()
	const most = 1 << 31
	if !ok || !negative && v > most || negative && int64(v) < -most {
		return 0, false
	}
	return int(int64(v)), true
}

// objectInfo reads what Dynamo's publisher says of a block's objects,
// {"mm_objects":[{"mm_hash":n,"offsets":[[start,end]]}]}.
func (d *Decoder) objectInfo(_ *fields, _ int) bool {
	n, ok := d.mapping()
	if !ok {
		return false
	}
	for range n {
		key, ok := d.text()
		if !ok {
			return false
		}
		if string(key) != "mm_objects" {
			d.skip()
			continue
		}
		if d.null() {
			continue
		}
		k, ok := d.array()
		if !ok {
			return false
		}
		for range k {
			if !d.objectMap() {
				return false
			}
		}
	}
	return true
}

// objectKeys reads what TensorRT-LLM says of a block's objects: a list of maps, of
// (identifier, offset), or of identifiers.
func (d *Decoder) objectKeys(f *fields, _ int) bool {
	n, ok := d.array()
	if !ok {
		return false
	}
	for range n {
		switch t := d.peek(); {
		case isMap(t):
			ok = d.objectMap()
		case isArray(t):
			ok = d.tagged(f)
		default:
			var s []byte
			if s, ok = d.text(); ok {
				d.batch.arena.objects = append(d.batch.arena.objects, object(d.words.get(s), 0))
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// objectMap reads an object: Dynamo's {"mm_hash":n,"offsets":[[start,end]]} or
// TensorRT-LLM's {"type":"mm_key","hash":"...","start_offset":n}.
func (d *Decoder) objectMap() bool {
	n, ok := d.mapping()
	if !ok {
		return false
	}
	var (
		o     Object
		named bool
	)
	for range n {
		key, ok := d.text()
		if !ok {
			return false
		}
		switch string(key) {
		case "mm_hash":
			v, _, ok := d.integer()
			if !ok {
				return false
			}
			o.Hash, named = v, true
		case "hash":
			s, ok := d.text()
			if !ok || len(s) == 0 || len(s) > d.limits.Text {
				return false
			}
			id := object(d.words.get(s), 0)
			o.ID, o.Hash, named = id.ID, id.Hash, true
		case "start_offset":
			if o.Offset, ok = d.offset(); !ok {
				return false
			}
		case "offsets":
			if o.Offset, ok = d.firstOffset(); !ok {
				return false
			}
		default:
			d.skip()
		}
	}
	if named {
		d.batch.arena.objects = append(d.batch.arena.objects, o)
	}
	return named
}

// firstOffset reads [[start,end]...] and returns the first start, 0 for none.
func (d *Decoder) firstOffset() (int, bool) {
	if d.null() {
		return 0, true
	}
	n, ok := d.array()
	if !ok {
		return 0, false
	}
	first := 0
	for i := range n {
		if i > 0 {
			d.skip()
			continue
		}
		k, ok := d.array()
		if !ok || k == 0 {
			return 0, false
		}
		if first, ok = d.offset(); !ok {
			return 0, false
		}
		for range k - 1 {
			d.skip()
		}
	}
	return first, true
}
