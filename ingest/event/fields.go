package event

import "math"

// fields are what an event says, before it is known what that means: extras are
// untagged and depend on fields that come behind them.
type fields struct {
	e *Event

	kind      Kind
	unknown   bool // a kind was told, and it is not one of the known
	hasHashes bool
	chained   bool // hashes are from seq_hashes, which go before block_hashes
	eagle     bool

	// Where these values begin in the message, 0 for not there.
	extraKeys, objectInfos, objectKeys int
	// bare tells that objects may stand among the extras by their bare names.
	bare bool

	// TensorRT-LLM's JSON events.
	data   int // where data begins
	window int
	rank   int // -1 for none

	layerGroup    int
	hasLayerGroup bool
}

// kindOf returns the kind of an engine's word for it.
func kindOf(word []byte) Kind {
	switch string(word) {
	case "BlockStored", "stored":
		return Stored
	case "BlockRemoved", "removed":
		return Removed
	case "AllBlocksCleared", "cleared":
		return Cleared
	}
	return 0
}

// event reads an event, in either form.
func (d *Decoder) event() {
	f := &d.fields // not on the stack: rows calls through a func
	*f = fields{e: d.add(), rank: -1}
	switch t := d.peek(); {
	case isMap(t):
		d.eventMap(f)
	case isArray(t):
		f.e.Positional = true
		d.eventArray(f)
	default:
		d.refuse(BadField, "event")
	}
	switch {
	case d.refused():
		return
	case f.data != 0:
		d.eventTRT(f)
	default:
		d.finish(f)
	}
	for d.push != nil && d.fault.reason == 0 && len(d.ranks) < len(d.batch.Events) {
		d.ranks = append(d.ranks, f.rank)
	}
}

// eventMap reads the fields of an event by their names.
func (d *Decoder) eventMap(f *fields) {
	n, ok := d.mapping()
	if !ok {
		d.refuse(BadField, "event")
	}
	for ; n > 0 && !d.refused(); n-- {
		key, ok := d.text()
		if !ok { // no engine's, whatever it is
			d.skip()
			d.skip()
			continue
		}
		d.field(f, key)
	}
}

// field reads the value of a field; one that is not known is passed over.
func (d *Decoder) field(f *fields, key []byte) {
	e := f.e
	switch string(key) {
	case "type", "event_type":
		// Mooncake sends both, the first for old readers.
		word, ok := d.text()
		if !ok {
			d.refuse(BadField, "type")
		} else if kind := kindOf(word); kind != 0 {
			f.kind = kind
		} else {
			f.unknown = true
		}
	case "block_hashes":
		if f.chained {
			d.skip()
		} else if !d.null() {
			e.Hashes, f.hasHashes = d.hashes("block_hashes"), true
		}
	case "seq_hashes":
		if !d.null() {
			e.Hashes, f.hasHashes, f.chained = d.hashes("seq_hashes"), true, true
		}
	case "parent_block_hash":
		d.parent(e)
	case "token_ids":
		d.tokenIDs(e)
	case "block_size":
		d.whole("block_size", math.MaxInt32, &e.BlockSize)
	case "lora_id":
		d.loraID(e)
	case "lora_name":
		e.LoRA = d.name("lora_name")
	case "cache_salt":
		e.Salt = d.name("cache_salt")
	case "medium":
		e.Medium = d.name("medium")
	case "locality":
		e.Locality = d.name("locality")
	case "group_idx":
		d.group(e)
	case "kv_cache_spec_kind":
		e.Spec = d.name("kv_cache_spec_kind")
	case "kv_cache_spec_sliding_window":
		d.slidingWindow(e)
	case "lookahead_token_ids":
		e.Lookahead = d.lookahead()
	case "is_eagle":
		if !d.null() {
			var ok bool
			if f.eagle, ok = d.boolean(); !ok {
				d.refuse(BadField, "is_eagle")
			}
		}
	case "extra_keys":
		f.extraKeys = d.i
		d.skip()
	case "block_mm_infos":
		f.objectInfos = d.i
		d.skip()
	case "mm_keys":
		f.objectKeys = d.i
		d.skip()
	case "data":
		if isMap(d.peek()) {
			f.data = d.i
		}
		d.skip()
	case "window_size":
		d.whole("window_size", math.MaxInt32, &f.window)
	case "layer_group_id":
		f.hasLayerGroup = d.whole("layer_group_id", math.MaxInt32, &f.layerGroup)
	case "attention_dp_rank":
		d.whole("attention_dp_rank", maxRank, &f.rank)
	default:
		d.skip()
	}
}

// eventArray reads the fields of an event by their places, of which each version
// of vLLM has more than the one before.
func (d *Decoder) eventArray(f *fields) {
	n, ok := d.array()
	if !ok || n == 0 {
		d.refuse(BadField, "event")
		return
	}
	word, ok := d.text()
	if !ok {
		d.refuse(BadField, "type")
		return
	}
	switch f.kind = kindOf(word); f.kind {
	case Stored:
		d.storedArray(f, n)
	case Removed:
		d.removedArray(f, n)
	case Cleared:
		for range n - 1 {
			d.skip()
		}
	default:
		d.refuse(UnknownKind, "type")
	}
}

// The fields of a Stored event in an array of vLLM 0.22; before it arrays are
// shorter.
const (
	atHashes = iota + 1
	atParent
	atTokens
	atBlockSize
	atLoRAID
	atMedium    // vLLM 0.10.2, SGLang 0.5.9
	atLoRA      // vLLM 0.14; in SGLang 0.5.17 a map with the fields that vLLM lacks
	atExtraKeys // vLLM 0.17
	atGroup     // vLLM 0.20
	atSpec      // vLLM 0.22
	atWindow
	numStored
)

func (d *Decoder) storedArray(f *fields, n int) {
	// In vLLM 0.17 to 0.18 an object is a bare name; an array of that length can
	// also be 0.19's.
	f.bare = n == atExtraKeys+1
	e := f.e
	shift := 0 // Dynamo has block_mm_infos in front of group_idx
	for i := 1; i < n && !d.refused(); i++ {
		at := i - shift
		if at == atGroup && shift == 0 && (isArray(d.peek()) || n > numStored) {
			f.objectInfos = d.i
			d.skip()
			shift = 1
			continue
		}
		switch at {
		case atHashes:
			e.Hashes, f.hasHashes = d.hashes("block_hashes"), true
		case atParent:
			d.parent(e)
		case atTokens:
			d.tokenIDs(e)
		case atBlockSize:
			d.whole("block_size", math.MaxInt32, &e.BlockSize)
		case atLoRAID:
			d.loraID(e)
		case atMedium:
			e.Medium = d.name("medium")
		case atLoRA:
			if isMap(d.peek()) {
				d.eventMap(f)
			} else {
				e.LoRA = d.name("lora_name")
			}
		case atExtraKeys:
			f.extraKeys = d.i
			d.skip()
		case atGroup:
			d.group(e)
		case atSpec:
			e.Spec = d.name("kv_cache_spec_kind")
		case atWindow:
			d.slidingWindow(e)
		default:
			d.skip()
		}
	}
}

func (d *Decoder) removedArray(f *fields, n int) {
	e := f.e
	for i := 1; i < n && !d.refused(); i++ {
		switch i {
		case 1:
			e.Hashes, f.hasHashes = d.hashes("block_hashes"), true
		case 2:
			e.Medium = d.name("medium")
		case 3:
			d.group(e)
		default:
			d.skip()
		}
	}
}

func (d *Decoder) parent(e *Event) {
	if e.HasParent = !d.null(); e.HasParent {
		e.Parent = d.oneHash("parent_block_hash")
	}
}

func (d *Decoder) tokenIDs(e *Event) {
	if !d.null() {
		e.Tokens, e.Bigram = d.tokens("token_ids")
	}
}

func (d *Decoder) loraID(e *Event) {
	if d.null() {
		return
	}
	v, negative, ok := d.integer()
	if !ok || v > math.MaxInt64 && !negative {
		d.refuse(BadField, "lora_id")
	}
	e.LoRAID = int64(v)
}

func (d *Decoder) group(e *Event) {
	e.HasGroup = d.whole("group_idx", math.MaxInt32, &e.Group)
}

func (d *Decoder) slidingWindow(e *Event) {
	d.whole("kv_cache_spec_sliding_window", math.MaxInt32, &e.SlidingWindow)
}

// lookahead reads the tokens behind each block. They explain hashes and nothing
// else, so that what is not as it should be is passed over.
func (d *Decoder) lookahead() []uint32 {
	start := d.i
	out, ok := d.lookaheadRows()
	if !ok && !d.broken {
		d.i = start
		d.skip()
	}
	return out
}

func (d *Decoder) lookaheadRows() ([]uint32, bool) {
	n, ok := d.array()
	if !ok || n == 0 || n > d.limits.Hashes {
		return nil, false
	}
	a := &d.batch.arena
	from := a.mark()
	width := -1
	for range n {
		k, ok := d.array()
		if !ok || width >= 0 && k != width || len(a.tokens)-from.tokens+k > d.limits.Tokens {
			a.release(from)
			return nil, false
		}
		width = k
		row := a.newTokens(k)
		for i := range row {
			if row[i], ok = d.token(); !ok {
				a.release(from)
				return nil, false
			}
		}
	}
	return a.tokens[from.tokens:len(a.tokens):len(a.tokens)], true
}

// finish makes an event of what was read, or says why it cannot.
func (d *Decoder) finish(f *fields) {
	e := f.e
	e.Kind = f.kind
	switch {
	case e.Kind == 0 && f.unknown:
		d.refuse(UnknownKind, "type")
		return
	case e.Kind == 0:
		d.refuse(MissingField, "type")
		return
	case e.Kind == Cleared:
		// It has no other field in any engine; what else is there means nothing.
		*e = Event{Kind: Cleared, Medium: e.Medium}
		return
	case !f.hasHashes:
		d.refuse(MissingField, "block_hashes")
		return
	case e.Kind == Removed:
		*e = Event{Kind: Removed, Hashes: e.Hashes, Medium: e.Medium, Locality: e.Locality,
			Group: e.Group, HasGroup: e.HasGroup, Spec: e.Spec, SlidingWindow: e.SlidingWindow, Positional: e.Positional}
		return
	}
	size := len(e.Hashes) * e.BlockSize
	switch {
	case e.Bigram:
	case f.eagle && e.BlockSize > 0 && len(e.Tokens) == size+1:
		e.Bigram = true
	case e.BlockSize > 1 && len(e.Tokens) == size+1:
		// LMCache sends 257 tokens with a chunk of 256. Tokens of blocks whose place
		// is not told, the other event with more tokens than its blocks have, are a
		// multiple of the block size.
		e.Tokens = e.Tokens[:size]
	}
	if len(e.Lookahead) > 0 && len(e.Lookahead)%max(1, len(e.Hashes)) != 0 {
		e.Lookahead = nil
	}
	end := d.i
	d.extras(f)
	d.i = end
}
