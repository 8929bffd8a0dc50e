package rechunk

import (
	"strings"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// form is what a generation's stream has shown of the engine's cache: its groups, and
// which of them a hit needs. It is part of the generation's state, in the map, so that
// every owner judges an event as the owner before would have.
//
// A message's events are looked through for it before any of them is applied. For an engine
// announces a block for all of its groups in one message. Where a message shows something new
// that makes what is held already say too much, the tier is cleared.
type form struct {
	groups []group
	// sizes are the block sizes of prefix groups, in the order in which they came: the
	// layers.
	sizes []uint16
	// window is the widest window and full the largest block. They are of an engine that
	// tells neither which of its groups holds prefixes nor which blocks are whole
	// (event.SpecWidest).
	window, full uint32
	engine       engine // as Config.Engine has told, here or to an owner before
	reports      bool   // it reports what requests find in its cache
	unseen       bool   // it can hold blocks on the GPU that are not known (NoteUnseen)
	vague        uint16 // slots whose copies are all doubtful
	dirty        bool
	stored       int // entries in the map

	// need are, by layer and tier, the groups that have stored there: prefix groups in
	// tiers of memory, window groups in window tiers. Bit i is groups[i]. It follows from
	// groups.
	need [maxLayers][numTiers]uint32
	// needs are, by layer, the tiers in which need has groups.
	needs [maxLayers]uint8
}

// group is one of the engine's cache groups.
type group struct {
	id     uint8
	prefix bool   // a hit needs its blocks from the first on
	window uint32 // of a window group: how many tokens before its end a hit needs; else 0
	layer  uint8
	tiers  uint8  // in which it has stored
	size   uint16 // of its blocks in tokens: the first, or the largest on the GPU; 0 for not known yet
}

const (
	// maxLayers is how many block sizes prefix groups can have. Groups beyond share
	// the last layer, where blocks of two sizes under one hash count for nothing.
	maxLayers = 4
	// maxGroups is how many groups are told apart. A group beyond is needed, and never
	// there.
	maxGroups = 31
	// formEntries is how many entries of the map a form can take.
	formEntries = 4
)

// formHash is the hash whose entries have the form.
const formHash = 0x6b76612d666f726d

func formKey(i int) store.MapKey { return store.MapKey{Hash: formHash, Part: partForm + uint16(i)} }

// find returns the group of a number, nil if the stream has not shown it.
func (f *form) find(id uint8) *group {
	for i := range f.groups {
		if f.groups[i].id == id {
			return &f.groups[i]
		}
	}
	return nil
}

// bit is the bit of a group in need, 0 for a group that cannot be counted.
func (f *form) bit(id uint8) uint32 {
	for i := range f.groups {
		if f.groups[i].id == id {
			if i < maxGroups {
				return 1 << i
			}
			return 0
		}
	}
	return 0
}

// layerOf is the layer of a group.
func (f *form) layerOf(id uint8) uint8 {
	if len(f.sizes) > 1 {
		if g := f.find(id); g != nil {
			return g.layer
		}
	}
	return 0
}

// derive works out what follows from groups.
func (f *form) derive() {
	f.need, f.needs = [maxLayers][numTiers]uint32{}, [maxLayers]uint8{}
	for i := range f.groups {
		g := &f.groups[i]
		if !g.counts() {
			continue
		}
		for t := range store.Tier(store.NumTiers) {
			if g.tiers>>t&1 != 0 {
				f.need[g.layer][g.tier(t)] |= 1 << min(i, maxGroups)
				f.needs[g.layer] |= 1 << g.tier(t)
			}
		}
	}
}

// counts reports whether a hit needs blocks of the group.
func (g *group) counts() bool { return g.prefix || g.window > 0 }

// tier is the tier in which the group's blocks in a tier of memory count.
func (g *group) tier(memory store.Tier) store.Tier {
	if g.prefix {
		return memory
	}
	return memory.Window()
}

// reuse is what the engine can reuse, as far as the stream has shown it: it resumes where
// blocks of all groups end.
func (f *form) reuse() (r store.Reuse) {
	for i := range f.groups {
		g := &f.groups[i]
		if !g.counts() || g.size == 0 {
			continue
		}
		r.Block = lcm(max(r.Block, 1), int(g.size))
		r.Window = max(r.Window, int(g.window))
	}
	if r.Block > store.MaxBlockSize {
		return store.Reuse{}
	}
	return r
}

// lcm is the least common multiple.
func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// layered reports whether prefix groups have blocks of more than one size.
func (f *form) layered() bool { return len(f.sizes) > 1 }

// used are the tiers of memory in which a group that counts has stored.
func (f *form) used() (tiers uint8) {
	for i := range f.groups {
		if f.groups[i].counts() {
			tiers |= f.groups[i].tiers
		}
	}
	return tiers
}

// needed are the groups that have stored in a tier of memory, as in need.
func (f *form) needed(memory store.Tier) (groups uint32) {
	for layer := range f.need {
		groups |= f.need[layer][memory] | f.need[layer][memory.Window()]
	}
	return groups
}

// prefixSpec reports whether a kind of group holds prefixes.
func prefixSpec(spec string) bool {
	switch spec {
	case "full_attention", "mla_attention", "full", "mla", "sink_full_attention", "full_attention_sink", "sink", event.SpecWidest:
		return true
	}
	return false
}

// windowOf is how many tokens before its end a hit needs of a group that holds no prefixes.
// Of vLLM's sliding windows it needs all blocks that the next token sees, and of its states
// the last block. Of its chunks it needs what the chunk has so far, at most all of it. For a
// kind of which that is not known it is 0.
func windowOf(e *event.Event) uint32 {
	size := e.BlockSize
	switch {
	case size <= 0:
		return 0
	case strings.Contains(e.Spec, "mamba"):
		return uint32(size)
	case e.SlidingWindow > 0:
		return uint32((e.SlidingWindow - 1 + size - 1) / size * size)
	}
	return 0
}

// tierOf is the tier in which an event's blocks count.
func (c *Chunker) tierOf(e *event.Event) (tier store.Tier, known bool) {
	tier, known = c.config.Media.TierOf(e)
	if g := c.form.find(c.groupOf(e)); known && g != nil {
		tier = g.tier(tier)
	}
	return tier, known
}

// counts reports whether a hit needs blocks of an event's group.
func (c *Chunker) counts(e *event.Event) bool {
	g := c.form.find(c.groupOf(e))
	return c.prefix(e) || g != nil && g.window > 0
}

// groupOf is the number of the group of an event. An event that tells none, in a
// stream whose group 0 holds no prefixes, is of the first group that does.
func (c *Chunker) groupOf(e *event.Event) uint8 {
	if e.HasGroup || e.Group != 0 {
		return uint8(e.Group)
	}
	if g := c.form.find(0); g != nil && !g.prefix && e.Spec == "" {
		for i := range c.form.groups {
			if c.form.groups[i].prefix {
				return c.form.groups[i].id
			}
		}
	}
	return 0
}

// narrow reports whether an event is of a window that is not the widest.
func (c *Chunker) narrow(e *event.Event) bool {
	return e.Spec == event.SpecWidest && e.SlidingWindow > 0 && uint32(e.SlidingWindow) < c.form.window
}

// prefix reports whether an event is of a group that holds prefixes.
func (c *Chunker) prefix(e *event.Event) bool {
	if c.narrow(e) {
		return false
	}
	if g := c.form.find(c.groupOf(e)); g != nil {
		return g.prefix
	}
	return e.Group == 0 || prefixSpec(e.Spec)
}

// layer is the layer of an event's group.
func (c *Chunker) layer(e *event.Event) uint8 {
	if !c.form.layered() {
		return 0
	}
	return c.form.layerOf(c.groupOf(e))
}

// inLayer is the hash under which a layer keeps a block. Groups of different block sizes
// name blocks of different length by one hash.
func inLayer(layer uint8, hash event.Hash) uint64 {
	return uint64(hash) ^ uint64(layer)*0x9e3779b97f4a7c15
}

// survey takes in what a message shows of the engine's cache.
func (c *Chunker) survey(b *event.Batch) {
	if told := engineOf(c.config.Engine); told != unknownEngine && told != c.form.engine {
		c.form.engine, c.form.dirty = told, true
	}
	before := c.form.used()
	for i := range b.Events {
		switch e := &b.Events[i]; {
		case e.Kind == event.Cleared && e.Spec == event.SpecWidest: // the engine begins anew
			c.reform(&before)
		case e.Kind == event.Stored && e.Group >= 0 && e.Group <= 255 && e.BlockSize <= MaxEngineBlock:
			c.learn(e, &before)
		}
	}
}

// reform forgets the groups, and with them what is held.
func (c *Chunker) reform(before *uint8) {
	f := &c.form
	if len(f.groups) == 0 && f.window == 0 && f.full == 0 {
		return
	}
	c.void(*before)
	*before = 0
	c.form = form{engine: f.engine, reports: f.reports, unseen: f.unseen, dirty: true, stored: f.stored}
}

// learn takes in what one Stored shows. before are the tiers in which there can be
// something of earlier messages.
func (c *Chunker) learn(e *event.Event, before *uint8) {
	f := &c.form
	if e.Spec == event.SpecWidest {
		if uint32(e.SlidingWindow) > f.window {
			c.reform(before)
			f.window, f.dirty = uint32(e.SlidingWindow), true
		}
		if uint32(e.BlockSize) > f.full {
			f.full, f.dirty = uint32(e.BlockSize), true
		}
		if c.narrow(e) {
			return
		}
	}
	if len(e.Hashes) == 0 && e.Spec == "" {
		return // nothing of a window or of states was kept, where the kind is told
	}
	id := c.groupOf(e)
	g := f.find(id)
	switch {
	case g == nil:
		g = f.add(id, e.Spec)
	case e.Spec != "" && g.prefix != prefixSpec(e.Spec):
		g.prefix, g.window = !g.prefix, 0
		c.changed(allTiers, before)
	}
	if w := windowOf(e); !g.prefix && w > g.window {
		g.window = w
		c.changed(allTiers, before)
	}
	tier, known := c.config.Media.TierOf(e)
	if !g.counts() || !known {
		return
	}
	if (tier == store.GPU || g.size == 0) && len(e.Tokens) > 0 && e.BlockSize > int(g.size) && f.resize(g, uint16(e.BlockSize)) {
		c.changed(allTiers, before)
	}
	if g.tiers>>tier&1 == 0 {
		g.tiers |= 1 << tier
		c.changed(1<<tier, before)
	}
}

// allTiers is the set of all tiers.
const allTiers = 1<<store.NumTiers - 1

// changed notes that what the tiers hold of earlier messages, which before says, is not
// what a hit needs any more.
func (c *Chunker) changed(tiers uint8, before *uint8) {
	c.form.dirty = true
	c.form.derive()
	c.void(*before & tiers)
	*before &^= tiers
}

// add notes a group that the stream has not shown yet.
func (f *form) add(id uint8, spec string) *group {
	f.dirty = true
	// Before 0.22 vLLM does not tell; a model with one group has just group 0.
	prefix := prefixSpec(spec) || spec == "" && id == 0
	if len(f.groups) == maxSlots {
		g := &f.groups[maxSlots-1]
		g.prefix = g.prefix || prefix
		return g
	}
	f.groups = append(f.groups, group{id: id, prefix: prefix})
	return &f.groups[len(f.groups)-1]
}

// resize notes that a group has blocks of a size. It reports whether that gives a group
// another layer than it had.
func (f *form) resize(g *group, size uint16) (moved bool) {
	f.dirty = true
	g.size = size
	alone := true
	for i := range f.groups {
		if o := &f.groups[i]; o != g && o.counts() && o.size > 0 {
			alone = false
		}
	}
	if alone && len(f.sizes) <= 1 {
		f.sizes = []uint16{size}
		return false
	}
	layer := 0
	for layer < len(f.sizes) && f.sizes[layer] != size {
		layer++
	}
	if layer == len(f.sizes) && layer < maxLayers {
		f.sizes = append(f.sizes, size)
	}
	layer = min(layer, maxLayers-1)
	moved = uint8(layer) != g.layer
	g.layer = uint8(layer)
	return moved
}

// void ends all that is held in tiers.
func (c *Chunker) void(tiers uint8) {
	for t := range store.NumTiers {
		if tiers>>t&1 != 0 {
			c.stats.Voided++
			c.clearTier(store.Tier(t))
			if store.Tier(t) == store.GPU {
				c.NoteUnseen()
			}
		}
	}
}
