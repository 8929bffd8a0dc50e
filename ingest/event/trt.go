package event

import "math"

// eventTRT reads an event of TensorRT-LLM's own JSON, whose data is at f.data:
//
//	{"event_id":n,"data":{"type":"stored","parent_hash":h,"blocks":[{"block_hash":h,
//	  "tokens":[{"token_id":n,"token_extra_id":0}],"cache_level":0,"mm_keys":[]}]},"window_size":w,"layer_group_id":g}
//	{"data":{"type":"removed","block_hashes":[h]}}
//	{"data":{"type":"updated","block_hash":h,"cache_level":{"old_value":0,"new_value":1}}}
//	{"data":{"type":"created",...}}
//
// It may become several events of this package. Blocks in different levels of the cache
// are different media, and a move is a store in one and a removal from the other. All
// are of SpecWidest. Which window holds whole prefixes, and which blocks are whole, is
// told by what else the engine has sent, which the reader remembers. Its layer groups
// are groups: each has its own copy of a block.
func (d *Decoder) eventTRT(f *fields) {
	end := d.i
	d.i = f.data
	d.batch.Events = d.batch.Events[:len(d.batch.Events)-1] // the one of f
	d.dataTRT(f)
	if !d.broken {
		d.i = end
	}
}

// trt is the data of an event.
type trt struct {
	kind      string
	hashes    []Hash
	hasHashes bool
	parent    Hash
	hasParent bool
	blocks    int   // where they begin
	from, to  int   // levels of a move, -1 for none
	form      Event // what all of its events say of their group
}

func (d *Decoder) dataTRT(f *fields) {
	t := trt{from: -1, to: -1, form: Event{Spec: SpecWidest, SlidingWindow: f.window, Group: f.layerGroup, HasGroup: f.hasLayerGroup}}
	if d.fieldsTRT(&t); d.refused() {
		return
	}
	anew := d.beginsAnew(t.kind, f.rank)
	switch t.kind {
	case "created":
		if anew {
			d.addTRT(&t, Event{Kind: Cleared})
		}
		d.addTRT(&t, Event{Kind: Stored})
	case "removed":
		if !t.hasHashes {
			d.refuse(MissingField, "block_hashes")
			return
		}
		// It does not say from which level. TensorRT-LLM moves a block down before it
		// drops it, and says so; a block that it drops at once is on the GPU. Both
		// are told, for the removal of what is not there removes nothing.
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(0)})
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(1)})
	case "updated":
		switch {
		case !t.hasHashes:
			d.refuse(MissingField, "block_hash")
			return
		case t.from < 0 || t.to < 0 || t.from == t.to:
			d.refuse(NotIndexed, "cache_level") // a change of priority
			return
		}
		d.addTRT(&t, Event{Kind: Stored, Hashes: t.hashes, Medium: levelMedium(t.to)})
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(t.from)})
	case "stored":
		if t.blocks == 0 {
			d.refuse(MissingField, "blocks")
			return
		}
		d.i = t.blocks
		d.blocksTRT(&t)
	default:
		d.refuse(UnknownKind, "type")
	}
}

// none is no rank, and not that of an event without one either.
const none = -2

// beginsAnew reports whether an event is the first by which an engine, or one of its ranks,
// says that it begins. It sends a "created" for each of its windows.
func (d *Decoder) beginsAnew(kind string, rank int) bool {
	before := d.created
	d.created = none
	if kind != "created" {
		return false
	}
	d.created = rank
	return before != rank
}

// addTRT adds an event with what t says of its group.
func (d *Decoder) addTRT(t *trt, e Event) *Event {
	e.Spec, e.SlidingWindow, e.Group, e.HasGroup = t.form.Spec, t.form.SlidingWindow, t.form.Group, t.form.HasGroup
	added := d.add()
	*added = e
	return added
}

// levelMedium is the medium of a level of TensorRT-LLM's cache: GPU, and the
// host's memory below it.
func levelMedium(level int) string {
	if level == 0 {
		return "GPU"
	}
	return "CPU"
}

func (d *Decoder) fieldsTRT(t *trt) {
	for key := range d.names("data") {
		switch string(key) {
		case "type":
			t.kind = d.name("type")
		case "block_hashes":
			t.hashes, t.hasHashes = d.hashes("block_hashes"), true
		case "block_hash":
			t.hashes, t.hasHashes = d.batch.arena.newHashes(1), true
			t.hashes[0] = d.oneHash("block_hash")
		case "parent_hash":
			if t.hasParent = !d.null(); t.hasParent {
				t.parent = d.oneHash("parent_hash")
			}
		case "blocks":
			t.blocks = d.i
			d.skip()
		case "cache_level":
			if isMap(d.peek()) {
				d.moveTRT(t)
			} else {
				d.skip()
			}
		default:
			d.skip()
		}
	}
}

// moveTRT reads {"old_value":n,"new_value":m}.
func (d *Decoder) moveTRT(t *trt) {
	for key := range d.names("cache_level") {
		switch string(key) {
		case "old_value":
			d.whole("cache_level", math.MaxUint16, &t.from)
		case "new_value":
			d.whole("cache_level", math.MaxUint16, &t.to)
		default:
			d.skip()
		}
	}
}

// blockTRT is one stored block.
type blockTRT struct {
	hash   Hash
	level  int
	tokens []uint32
	opaque bool // with tokens that stand for something else
	object []Object
}

// blocksTRT reads stored blocks and adds an event for each run of them in one level and
// of one size. A block with fewer tokens than a full one is partial: the engine goes on
// filling it under another hash. Where the push says how many a full one has it is left
// out here, and with it whatever follows; else the reader knows.
func (d *Decoder) blocksTRT(t *trt) {
	var (
		n     = d.list("blocks", d.limits.Hashes)
		e     *Event
		level int
		used  int
	)
	for i := range n {
		b := d.oneTRT(d.limits.Tokens - used)
		if d.refused() {
			return
		}
		size := len(b.tokens)
		used += size
		if d.push != nil && size < d.push.BlockSize {
			if i == 0 {
				d.refuse(NotIndexed, "tokens")
			}
			return
		}
		if e == nil || b.level != level || b.opaque != (len(e.Tokens) == 0) || size != e.BlockSize {
			prev := e
			e = d.addTRT(t, Event{Kind: Stored, Parent: t.parent, HasParent: t.hasParent, BlockSize: size, Medium: levelMedium(b.level)})
			if prev != nil {
				// add may have moved the one before; the last hash is what matters.
				before := &d.batch.Events[len(d.batch.Events)-2]
				e.Parent, e.HasParent = before.Hashes[len(before.Hashes)-1], true
			}
			level = b.level
		}
		e.Hashes = append(e.Hashes, b.hash)
		if !b.opaque {
			e.Tokens = append(e.Tokens, b.tokens...)
		}
		if len(b.object) > 0 && e.Extra == nil {
			e.Extra = d.batch.arena.newExtra(n)[:len(e.Hashes)-1]
		}
		if e.Extra != nil {
			e.Extra = append(e.Extra, Extra{Objects: b.object})
		}
	}
}

// oneTRT reads one stored block of at most room tokens.
func (d *Decoder) oneTRT(room int) (b blockTRT) {
	named := false
	for key := range d.names("blocks") {
		switch string(key) {
		case "block_hash":
			b.hash, named = d.oneHash("block_hash"), true
		case "tokens":
			b.tokens, b.opaque = d.tokensTRT(room)
		case "cache_level":
			d.whole("cache_level", math.MaxUint16, &b.level)
		case "mm_keys":
			if d.null() {
				continue
			}
			a := &d.batch.arena
			from := len(a.objects)
			if !d.objectKeys(nil, 0) {
				d.refuse(BadField, "mm_keys")
			}
			b.object = a.objects[from:len(a.objects):len(a.objects)]
		default:
			d.skip()
		}
	}
	if !named {
		d.refuse(MissingField, "block_hash")
	}
	return b
}

// tokensTRT reads [{"token_id":n,"token_extra_id":m}...], or plain numbers. A token
// with an extra id stands for a part of an object: of such a block no key can be
// made.
func (d *Decoder) tokensTRT(room int) (tokens []uint32, opaque bool) {
	tokens = d.batch.arena.newTokens(d.list("tokens", room))
	for i := range tokens {
		if d.refused() {
			break
		}
		if !isMap(d.peek()) {
			tokens[i] = d.oneToken("tokens")
			continue
		}
		for key := range d.names("tokens") {
			switch string(key) {
			case "token_id":
				if isText(d.peek()) {
					opaque = true
					d.skip()
				} else {
					tokens[i] = d.oneToken("token_id")
				}
			case "token_extra_id":
				v, _, ok := d.integer()
				if !ok {
					d.refuse(BadField, "token_extra_id")
				}
				opaque = opaque || v != 0
			default:
				d.skip()
			}
		}
	}
	return tokens, opaque
}

// oneToken reads a token.
func (d *Decoder) oneToken(field string) uint32 {
	v, ok := d.token()
	if !ok {
		d.refuse(BadField, field)
	}
	return v
}
