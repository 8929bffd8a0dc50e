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
// It may become several events of this package: blocks in different levels of the
// cache are different media, and a move is a store in one and a removal from the
// other. All are of SpecWidest: which window holds whole prefixes, and which blocks are
// whole, is told by what else the engine has sent, which the reader remembers. Its layer
// groups are groups: each has its own copy of a block.
func (d *Decoder) eventTRT(f *fields) fault {
	end := d.i
	d.i = f.data
	d.batch.Events = d.batch.Events[:len(d.batch.Events)-1] // the one of f
	bad := d.dataTRT(f)
	if !d.broken {
		d.i = end
	}
	return bad
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

func (d *Decoder) dataTRT(f *fields) fault {
	t := trt{from: -1, to: -1, form: Event{Spec: SpecWidest, SlidingWindow: f.window, Group: f.layerGroup, HasGroup: f.hasLayerGroup}}
	if bad := d.fieldsTRT(&t); bad.reason != 0 {
		return bad
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
			return fault{MissingField, "block_hashes"}
		}
		// It does not say from which level. TensorRT-LLM moves a block down before it
		// drops it, and says so; a block that it drops at once is on the GPU. Both
		// are told, for the removal of what is not there removes nothing.
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(0)})
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(1)})
	case "updated":
		if !t.hasHashes {
			return fault{MissingField, "block_hash"}
		}
		if t.from < 0 || t.to < 0 || t.from == t.to {
			return fault{NotIndexed, "cache_level"} // a change of priority
		}
		d.addTRT(&t, Event{Kind: Stored, Hashes: t.hashes, Medium: levelMedium(t.to)})
		d.addTRT(&t, Event{Kind: Removed, Hashes: t.hashes, Medium: levelMedium(t.from)})
	case "stored":
		if t.blocks == 0 {
			return fault{MissingField, "blocks"}
		}
		d.i = t.blocks
		if bad := d.blocksTRT(&t); bad.reason != 0 {
			return bad
		}
	default:
		return fault{UnknownKind, "type"}
	}
	return fault{}
}

// none is no rank, and not that of an event without one either.
const none = -2

// beginsAnew reports whether an event is the first by which an engine, or one of its ranks,
// says that it begins: it sends a "created" for each of its windows.
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

func (d *Decoder) fieldsTRT(t *trt) (bad fault) {
	n, ok := d.mapping()
	if !ok {
		return fault{BadField, "data"}
	}
	for range n {
		key, ok := d.text()
		if !ok {
			return fault{BadField, "data"}
		}
		switch string(key) {
		case "type":
			t.kind, bad = d.name("type")
		case "block_hashes":
			t.hashes, bad = d.hashes("block_hashes")
			t.hasHashes = true
		case "block_hash":
			t.hashes = d.batch.arena.newHashes(1)
			t.hasHashes = true
			if t.hashes[0], ok = d.hash(); !ok {
				bad = fault{BadField, "block_hash"}
			}
		case "parent_hash":
			if d.null() {
				continue
			}
			if t.parent, t.hasParent = d.hash(); !t.hasParent {
				bad = fault{BadField, "parent_hash"}
			}
		case "blocks":
			t.blocks = d.i
			d.skip()
		case "cache_level":
			if isMap(d.peek()) {
				t.from, t.to, bad = d.moveTRT()
			} else {
				d.skip()
			}
		default:
			d.skip()
		}
		if bad.reason != 0 {
			return bad
		}
	}
	return fault{}
}

// moveTRT reads {"old_value":n,"new_value":m}.
func (d *Decoder) moveTRT() (from, to int, _ fault) {
	from, to = -1, -1
	n, _ := d.mapping()
	for range n {
		key, ok := d.text()
		if !ok {
			return from, to, fault{BadField, "cache_level"}
		}
		switch string(key) {
		case "old_value":
			from, ok = d.natural(math.MaxUint16)
		case "new_value":
			to, ok = d.natural(math.MaxUint16)
		default:
			d.skip()
		}
		if !ok {
			return from, to, fault{BadField, "cache_level"}
		}
	}
	return from, to, fault{}
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
func (d *Decoder) blocksTRT(t *trt) fault {
	n, ok := d.array()
	if !ok {
		return fault{BadField, "blocks"}
	}
	if n > d.limits.Hashes {
		return fault{OverLimit, "blocks"}
	}
	var (
		a     = &d.batch.arena
		e     *Event
		level int
		used  int
	)
	for i := range n {
		b, bad := d.oneTRT(d.limits.Tokens - used)
		if bad.reason != 0 {
			return bad
		}
		used += len(b.tokens)
		size := len(b.tokens)
		if d.push != nil && size < d.push.BlockSize {
			if i == 0 {
				return fault{NotIndexed, "tokens"}
			}
			break
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
			e.Extra = a.newExtra(n)[:len(e.Hashes)-1]
		}
		if e.Extra != nil {
			e.Extra = append(e.Extra, Extra{Objects: b.object})
		}
	}
	return fault{}
}

// oneTRT reads one stored block of at most room tokens.
func (d *Decoder) oneTRT(room int) (b blockTRT, bad fault) {
	n, ok := d.mapping()
	if !ok {
		return b, fault{BadField, "blocks"}
	}
	named := false
	for range n {
		key, ok := d.text()
		if !ok {
			return b, fault{BadField, "blocks"}
		}
		switch string(key) {
		case "block_hash":
			if b.hash, named = d.hash(); !named {
				return b, fault{BadField, "block_hash"}
			}
		case "tokens":
			if b.tokens, b.opaque, bad = d.tokensTRT(room); bad.reason != 0 {
				return b, bad
			}
		case "cache_level":
			if b.level, ok = d.natural(math.MaxUint16); !ok {
				return b, fault{BadField, "cache_level"}
			}
		case "mm_keys":
			if d.null() {
				continue
			}
			a := &d.batch.arena
			from := len(a.objects)
			if !d.objectKeys(nil, 0) {
				return b, fault{BadField, "mm_keys"}
			}
			b.object = a.objects[from:len(a.objects):len(a.objects)]
		default:
			d.skip()
		}
	}
	if !named {
		return b, fault{MissingField, "block_hash"}
	}
	return b, fault{}
}

// tokensTRT reads [{"token_id":n,"token_extra_id":m}...], or plain numbers. A token
// with an extra id stands for a part of an object: of such a block no key can be
// made.
func (d *Decoder) tokensTRT(room int) (tokens []uint32, opaque bool, _ fault) {
	n, ok := d.array()
	if !ok {
		return nil, false, fault{BadField, "tokens"}
	}
	if n > room {
		return nil, false, fault{OverLimit, "tokens"}
	}
	tokens = d.batch.arena.newTokens(n)
	for i := range tokens {
		if !isMap(d.peek()) {
			if tokens[i], ok = d.token(); !ok {
				return nil, false, fault{BadField, "tokens"}
			}
			continue
		}
		k, _ := d.mapping()
		for range k {
			key, ok := d.text()
			if !ok {
				return nil, false, fault{BadField, "tokens"}
			}
			switch string(key) {
			case "token_id":
				if isText(d.peek()) {
					opaque = true
					d.skip()
				} else if tokens[i], ok = d.token(); !ok {
					return nil, false, fault{BadField, "token_id"}
				}
			case "token_extra_id":
				v, _, ok := d.integer()
				if !ok {
					return nil, false, fault{BadField, "token_extra_id"}
				}
				opaque = opaque || v != 0
			default:
				d.skip()
			}
		}
	}
	return tokens, opaque, fault{}
}
